//! The supported releases of DPDK, and their differences outside the headers. The build script selects one. Cargo also runs this file as a
//! test (`[[test]]` in `Cargo.toml`).

/// A long-term release of DPDK.
#[derive(Debug)]
pub struct Release {
    /// The version without the update number, such as `22.11`.
    pub name: &'static str,
    /// The major ABI version, which is part of the names of libraries, of Debian's packages and of the driver directory.
    pub abi: &'static str,
    /// The distribution that packages it.
    pub system: &'static str,
    /// Additional libraries to link. Earlier releases have their functions in the EAL.
    pub libraries: &'static [&'static str],
    /// The names under which the kernel lists the EAL's interrupt thread and vhost's event thread.
    pub threads: [&'static str; 2],
}

/// The supported releases, oldest first.
pub const RELEASES: [Release; 3] = [
    Release {
        name: "22.11",
        abi: "23",
        system: "Debian 12",
        libraries: &[],
        threads: ["eal-intr-thread", "vhost-events"],
    },
    Release {
        name: "23.11",
        abi: "24",
        system: "Ubuntu 24.04",
        libraries: &["rte_log"],
        threads: ["dpdk-intr", "dpdk-vhost-evt"],
    },
    Release {
        name: "24.11",
        abi: "25",
        system: "Debian 13",
        libraries: &["rte_log"],
        threads: ["dpdk-intr", "dpdk-vhost-evt"],
    },
];

/// Returns the release to which `version` belongs.
///
/// # Errors
///
/// Returns a message that names the supported releases if `version` belongs to none.
pub fn find(version: &str) -> Result<&'static Release, String> {
    let is_of = |release: &&Release| {
        version.strip_prefix(release.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    RELEASES
        .iter()
        .find(is_of)
        .ok_or_else(|| format!("DPDK {version} is not supported; only {} are", supported()))
}

/// Returns the supported releases as text: `A, B and C`.
pub fn supported() -> String {
    let names: Vec<_> =
        RELEASES.iter().map(|release| format!("{} ({})", release.name, release.system)).collect();
    match names.as_slice() {
        [most @ .., last] if !most.is_empty() => format!("{} and {last}", most.join(", ")),
        names => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_of_a_release_are_supported() {
        for release in &RELEASES {
            assert!(release.libraries.iter().all(|library| library.starts_with("rte_")), "{release:?}");
            for version in [release.name.to_owned(), format!("{}.11", release.name)] {
                assert_eq!(find(&version).unwrap().name, release.name);
            }
        }
    }

    #[test]
    fn another_release_is_refused_with_the_names_of_the_supported_ones() {
        for version in ["21.11.9", "22.110", "22.1", "99.11.0", ""] {
            let refused = find(version).unwrap_err();
            for release in &RELEASES {
                let named = format!("{} ({})", release.name, release.system);
                assert!(refused.contains(&named), "{refused}");
            }
        }
    }

    #[test]
    fn the_release_of_the_build_has_a_row() {
        let release = find(dpdk_sys::RELEASE).unwrap();
        assert_eq!(dpdk_sys::THREADS, release.threads);
        assert_eq!(dpdk_sys::library_file("net_memif"), format!("librte_net_memif.so.{}", release.abi));
        assert_eq!(dpdk_sys::package("net_af_packet"), format!("librte-net-af-packet{}", release.abi));
    }

    #[test]
    fn only_updates_of_the_release_of_the_build_may_be_loaded() {
        let version = |rest: &str| format!("DPDK {}{rest}", dpdk_sys::RELEASE);
        for rest in ["", ".0", ".11", ".0-rc1"] {
            assert!(dpdk_sys::is_supported(&version(rest)), "{rest}");
        }
        assert!(!dpdk_sys::is_supported(&version("1")));
        assert!(!dpdk_sys::is_supported("DPDK 21.11.2"));
    }

    #[test]
    fn documents_name_the_supported_releases() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        // The published crate does not contain these documents.
        if !folder.join("ARCHITECTURE.md").exists() {
            return;
        }
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let (readme, start) = (read("README.md"), read("docs/guide/getting-started.md"));
        for Release { name, system, .. } in &RELEASES {
            assert!(readme.contains(&format!("{system} (DPDK {name})")), "README.md: {system}");
            assert!(start.contains(system), "docs/guide/getting-started.md: {system}");
        }
    }
}

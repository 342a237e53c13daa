//! The checks of `ferroce doctor`: what the machine has, what it lacks, and the remedies.

use crate::capabilities::{self, Held};
use crate::port_spec::PortSpec;
use serde::Serialize;
use std::path::Path;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Every requirement is met.
    Ok,
    /// Works, but not as well as possible.
    Warn,
    /// Does not work.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The name of the check, one or two words.
    pub name: String,
    /// The status.
    pub status: Status,
    /// The finding.
    pub found: String,
    /// The remedy, if one is needed.
    pub remedy: Option<String>,
}

impl Check {
    fn ok(name: &str, found: String) -> Self {
        Self { name: name.into(), status: Status::Ok, found, remedy: None }
    }

    fn with(name: &str, status: Status, found: String, remedy: &str) -> Self {
        Self { name: name.into(), status, found, remedy: Some(remedy.into()) }
    }
}

const CAPABILITIES: [(u64, &str, &str); 4] = [
    (capabilities::NET_RAW, "CAP_NET_RAW", "packet sockets on Linux interfaces"),
    (capabilities::NET_ADMIN, "CAP_NET_ADMIN", "tap and xdp ports"),
    (capabilities::IPC_LOCK, "CAP_IPC_LOCK", "large rings on Linux interfaces"),
    (capabilities::BPF, "CAP_BPF", "xdp ports"),
];

/// The remedy for an error message of DPDK.
pub const SEE_LOG: &str =
    "fix what the other checks report; FERROCE_LOG=dpdk=debug shows all messages of DPDK";

/// DPDK's default memory, in MiB.
const HUGEPAGES_MB: u64 = 512;
/// Locked memory of a port with jumbo frames on a Linux interface, in MiB: one ring in each direction.
const RINGS_MB: u64 = 16;

/// Checks the machine, and each of `ports` without opening it.
#[must_use]
pub fn checks(ports: &[PortSpec]) -> Vec<Check> {
    let mut checks = vec![cores(allowed_cores().len()), user(), memlock(), hugepages()];
    #[cfg(feature = "dpdk")]
    checks.extend([
        library::version(),
        library::drivers(dpdk_sys::LINKED_DRIVERS, Path::new(dpdk_sys::DRIVER_DIR)),
    ]);
    checks.push(interfaces());
    #[cfg(feature = "dpdk")]
    checks.extend(ports.iter().map(library::port));
    #[cfg(not(feature = "dpdk"))]
    let _ = ports;
    checks
}

/// Returns the bytes of unused hugepages of all sizes.
#[must_use]
pub fn free_hugepage_bytes() -> u64 {
    hugepage_bytes("free_hugepages")
}

fn hugepage_bytes(which: &str) -> u64 {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return 0 };
    sizes.flatten().filter_map(|size| bytes_of_size(&size.path(), which)).sum()
}

/// Returns the bytes that a directory such as `hugepages-2048kB` reports in the file `which`.
fn bytes_of_size(directory: &Path, which: &str) -> Option<u64> {
    let kib: u64 =
        directory.file_name()?.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    let pages: u64 = std::fs::read_to_string(directory.join(which)).ok()?.trim().parse().ok()?;
    Some(pages * kib * 1024)
}

/// Returns the ids of the CPUs that this thread may run on.
#[must_use]
pub fn allowed_cores() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

fn cores(count: usize) -> Check {
    let found = format!("{count} available");
    match count {
        0 | 1 => {
            let remedy = "use inline progress: two pollers on one core add milliseconds to a round trip";
            Check::with("cores", Status::Warn, found, remedy)
        }
        _ => Check::ok("cores", found),
    }
}

fn user() -> Check {
    user_with(capabilities::effective_user(), Held::read())
}

fn user_with(who: u32, held: Held) -> Check {
    let lacking: Vec<_> = CAPABILITIES.iter().filter(|(bit, ..)| held.effective & bit == 0).collect();
    if lacking.is_empty() {
        return Check::ok("user", format!("uid {who} has all capabilities that ports use"));
    }
    let list = |item: fn(&(u64, &str, &str)) -> String| lacking.iter().map(|l| item(l)).collect::<Vec<_>>();
    let found = list(|(_, name, purpose)| format!("{name} ({purpose})")).join(", ");
    let names = list(|(_, name, _)| (*name).to_owned()).join(",");
    let remedy = format!(
        "{}; the ports lo, udp and memif need none of them",
        capabilities::remedy_of(who, held, &names)
    );
    Check::with("user", Status::Warn, format!("uid {who} lacks {found}"), &remedy)
}

fn memlock() -> Check {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` has room for the result.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0;
    let unlimited = limit.rlim_cur == libc::RLIM_INFINITY;
    let mb = limit.rlim_cur >> 20;
    match () {
        () if failed => Check::with("locked memory", Status::Warn, "unknown".into(), "see `ulimit -l`"),
        () if unlimited => Check::ok("locked memory", "no limit".into()),
        () if capabilities::effective() & capabilities::IPC_LOCK != 0 => {
            Check::ok("locked memory", format!("{mb} MiB, which CAP_IPC_LOCK overrides"))
        }
        () if mb >= RINGS_MB => Check::ok("locked memory", format!("{mb} MiB")),
        () => {
            let remedy = "`ulimit -l unlimited`: the rings of a jumbo port on a Linux interface lock 16 MiB";
            Check::with("locked memory", Status::Warn, format!("{mb} MiB"), remedy)
        }
    }
}

fn hugepages() -> Check {
    let (free, all) = (free_hugepage_bytes() >> 20, hugepage_bytes("nr_hugepages") >> 20);
    let found = format!("{free} MiB free of {all}");
    if free >= HUGEPAGES_MB {
        return Check::ok("hugepages", found);
    }
    let remedy = "optional, for speed: `echo 256 > /proc/sys/vm/nr_hugepages` reserves 512 MiB";
    Check::with("hugepages", Status::Warn, found, remedy)
}

fn interfaces() -> Check {
    let usable: Vec<String> = crate::linux::interface_names()
        .iter()
        .filter_map(|name| crate::linux::interface(name).ok())
        .filter(|interface| interface.up && interface.mac.0 != [0; 6])
        .map(|interface| format!("{} (MTU {})", interface.name, interface.mtu))
        .collect();
    if usable.is_empty() {
        let remedy =
            "`ip link add veth0 type veth peer name veth1`, and set both up; memif ports need no interface";
        return Check::with("interfaces", Status::Warn, "no Ethernet interface is up".into(), remedy);
    }
    Check::ok("interfaces", usable.join(", "))
}

#[cfg(feature = "dpdk")]
mod library {
    use super::{Check, Status};
    use crate::dpdk::{self, PortConfig, PortError};
    use crate::path_mtu::path_mtu;
    use crate::port_spec::PortSpec;
    use roce::wire::Mtu;
    use std::path::Path;

    /// The smallest IP MTU in bytes with a path MTU of 4096.
    const FULL_MTU: u16 = 4180;
    pub(super) const DRIVERS: [&str; 9] =
        ["af_packet", "af_xdp", "memif", "null", "pcap", "ring", "tap", "vhost", "virtio"];

    pub(super) fn version() -> Check {
        match dpdk::check_version() {
            Ok(found) => Check::ok("DPDK", found),
            Err(error) => failed("DPDK", &error.to_string()),
        }
    }

    /// Checks the drivers that are linked into this build, `linked`, or otherwise those that DPDK will load from `directory`.
    pub(super) fn drivers(linked: Option<&str>, directory: &Path) -> Check {
        match linked {
            Some(linked) => {
                Check::ok("DPDK drivers", format!("{}, in this build", linked.replace(',', ", ")))
            }
            None => installed_drivers(directory),
        }
    }

    fn installed_drivers(directory: &Path) -> Check {
        let there =
            |driver: &&&str| directory.join(dpdk_sys::library_file(&format!("net_{driver}"))).exists();
        let (found, missing): (Vec<&str>, Vec<&str>) = DRIVERS.iter().partition(|driver| there(driver));
        // Each driver serves one kind of port, so other kinds work.
        let status = if found.is_empty() { Status::Fail } else { Status::Warn };
        let found = format!("{} in {}", found.join(", "), directory.display());
        if missing.is_empty() {
            return Check::ok("DPDK drivers", found);
        }
        let packages: Vec<_> =
            missing.iter().map(|driver| dpdk_sys::package(&format!("net_{driver}"))).collect();
        let remedy = format!("`apt-get install {}`", packages.join(" "));
        Check::with("DPDK drivers", status, found, &remedy)
    }

    pub(super) fn port(spec: &PortSpec) -> Check {
        let name = format!("port {spec}");
        match dpdk::check_port(spec, &PortConfig::default()) {
            // AF_XDP supports no larger path MTU.
            Ok(mtu) if matches!(spec, PortSpec::Xdp(_)) && path_mtu(mtu.into()) == Mtu::M2048 => {
                Check::ok(&name, format!("MTU {mtu}, path MTU 2048"))
            }
            Ok(mtu) if mtu >= FULL_MTU => Check::ok(&name, format!("MTU {mtu}, path MTU 4096")),
            Ok(mtu) => {
                let found = format!("MTU {mtu}: path MTU {}", path_mtu(mtu.into()).bytes());
                let remedy = match spec {
                    PortSpec::Xdp(interface) => format!(
                        "AF_XDP carries a path MTU of 2048 at most: `ip link set dev {interface} mtu 3502` for it, or use port `{interface}`"
                    ),
                    PortSpec::Interface(interface)
                    | PortSpec::Packet(interface)
                    | PortSpec::AfPacket(interface)
                    | PortSpec::Udp(interface)
                    | PortSpec::PcapInterface(interface) => {
                        format!("`ip link set dev {interface} mtu 4200` for 4096, on the whole path")
                    }
                    _ => "this kind of port does not carry larger frames".into(),
                };
                Check::with(&name, Status::Warn, found, &remedy)
            }
            // DPDK's error messages contain no remedy.
            Err(error @ PortError::Driver { .. }) => {
                Check::with(&name, Status::Fail, error.to_string(), super::SEE_LOG)
            }
            Err(error) => failed(&name, &error.to_string()),
        }
    }

    /// Error messages have the form "what is wrong; remedy".
    fn failed(name: &str, text: &str) -> Check {
        match text.split_once("; ") {
            Some((found, remedy)) => Check::with(name, Status::Fail, found.into(), remedy),
            None => Check { name: name.into(), status: Status::Fail, found: text.into(), remedy: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_has_a_remedy() {
        let ports = ["no-such-if", "memif:/no/such/x.sock", "ring:x"].map(|port| port.parse().unwrap());
        let checks = checks(&ports);
        for check in &checks {
            assert!(check.status == Status::Ok || check.remedy.is_some(), "{check:?}");
        }
        assert!(checks.iter().any(|check| check.name == "hugepages"));
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn ports_that_cannot_work_fail() {
        let port = |text: &str| library::port(&text.parse().unwrap());
        let check = port("no-such-if");
        assert_eq!(check.status, Status::Fail);
        assert!(check.remedy.unwrap().contains("lo"), "the interfaces there are");
        assert!(port("memif:/no/such/x.sock").remedy.unwrap().contains("create it"));
        assert_eq!(port("ring:x").status, Status::Ok);
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn missing_drivers_are_named_with_their_packages() {
        let check = library::drivers(None, Path::new("/no/such"));
        assert_eq!(check.status, Status::Fail);
        let packages = ["net_af_packet", "net_af_xdp", "net_memif"].map(dpdk_sys::package).join(" ");
        assert!(check.remedy.unwrap().contains(&packages));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(dpdk_sys::library_file("net_memif")), "").unwrap();
        let check = library::drivers(None, folder.path());
        assert_eq!((check.status, check.found.starts_with("memif in ")), (Status::Warn, true));
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn linked_drivers_need_no_packages() {
        let check = library::drivers(Some("memif,tap"), Path::new("/no/such"));
        assert_eq!(check, Check::ok("DPDK drivers", "memif, tap, in this build".into()));
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn the_debian_packages_depend_on_all_drivers() {
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/debian/rules");
        let rules = std::fs::read_to_string(rules).unwrap();
        let listed = rules.split_once("driver,").and_then(|(_, rest)| rest.split_once(',')).unwrap().0;
        let drivers: Vec<_> = library::DRIVERS.iter().map(|driver| driver.replace('_', "-")).collect();
        assert_eq!(listed.split(' ').collect::<Vec<_>>(), drivers);
    }

    #[test]
    fn lacking_capabilities_are_named() {
        let held = |effective| Held { effective, bounding: u64::MAX };
        let check = user_with(1000, held(capabilities::NET_RAW));
        assert_eq!(check.status, Status::Warn);
        assert!(check.found.contains("CAP_NET_ADMIN") && !check.found.contains("CAP_NET_RAW"), "{check:?}");
        assert!(check.remedy.unwrap().contains("cap_net_admin,cap_ipc_lock,cap_bpf+ep"));
        let root = user_with(0, held(capabilities::NET_RAW | capabilities::BPF)).remedy.unwrap();
        assert!(
            root.starts_with("start the container with --cap-add NET_ADMIN --cap-add IPC_LOCK;"),
            "{root}"
        );
        assert_eq!(user_with(0, held(u64::MAX)).status, Status::Ok);
    }

    #[test]
    fn one_core_is_a_warning() {
        assert_eq!(cores(1).status, Status::Warn);
        assert_eq!(cores(2).status, Status::Ok);
    }
}

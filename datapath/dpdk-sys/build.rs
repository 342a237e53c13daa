//! Generates bindings to the installed DPDK, and compiles the shim for its inline functions. Without libclang, uses the bindings in the
//! file `bindings`, whose constants the C compiler then compares with the installed headers. `FERROCE_DPDK=static` links DPDK's static
//! libraries instead of the shared ones.

mod releases;

use releases::{RELEASES, Release};
use std::path::{Path, PathBuf};
use std::process::exit;

/// Libraries that are linked. The EAL loads drivers as plugins from a directory of their own.
const LIBRARIES: [&str; 6] = ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_net_ring"];

const FUNCTIONS: &[&str] = &[
    "ferroce_.*",
    "rte_dev_probe",
    "rte_dev_remove",
    "rte_eal_alarm_set",
    "rte_eal_get_runtime_dir",
    "rte_eal_has_hugepages",
    "rte_eal_init",
    "rte_eth_allmulticast_enable",
    "rte_eth_dev_adjust_nb_rx_tx_desc",
    "rte_eth_dev_close",
    "rte_eth_dev_get_port_by_name",
    "rte_eth_dev_set_mtu",
    "rte_eth_dev_start",
    "rte_eth_dev_stop",
    "rte_eth_from_rings",
    "rte_eth_macaddr_get",
    "rte_eth_promiscuous_enable",
    "rte_eth_rx_queue_setup",
    "rte_eth_tx_queue_setup",
    "rte_mempool_free",
    "rte_mempool_in_use_count",
    "rte_pktmbuf_pool_create_by_ops",
    "rte_ring_create",
    "rte_ring_lookup",
    "rte_strerror",
    "rte_thread_register",
    "rte_thread_unregister",
    "rte_version",
];

const TYPES: &[&str] = &["ferroce_.*", "rte_eal_alarm_callback", "rte_ether_addr"];

const VARIABLES: &[&str] =
    &["ferroce_.*", "FERROCE_.*", "RTE_PKTMBUF_HEADROOM", "RTE_MAX_LCORE", "RING_F_S[CP]_.*", "RTE_LOG_ERR"];

/// Bindings that bindgen generated on another machine. They are the same for all releases, because the shim hides what differs.
const COMMITTED: &str = "bindings";

fn output(name: &str) -> PathBuf {
    PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join(name)
}

fn write(file: &Path, text: &str) {
    std::fs::write(file, text).unwrap_or_else(|e| fail(&format!("can't write {}: {e}", file.display())));
}

fn fail(why: &str) -> ! {
    eprintln!("error: {why}");
    exit(1);
}

fn main() {
    println!("cargo:rerun-if-changed=shim/shim.h");
    println!("cargo:rerun-if-changed=shim/shim.c");
    println!("cargo:rerun-if-env-changed=DOCS_RS");
    println!("cargo:rerun-if-env-changed=FERROCE_DPDK");
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    println!("cargo:rerun-if-changed={COMMITTED}");
    if std::env::var_os("DOCS_RS").is_some() {
        // docs.rs has no DPDK and links nothing.
        copy_committed();
        export(&RELEASES[0], "/usr/lib");
        return;
    }
    let (dpdk, release) = probe();
    let flags: Vec<String> = dpdk
        .include_paths
        .iter()
        .map(|path| format!("-I{}", path.display()))
        .chain(["-include".into(), "rte_config.h".into()])
        .chain(
            (std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64"))
                .then(|| "-march=corei7".into()),
        )
        .collect();
    if std::panic::catch_unwind(bindgen::clang_version).is_ok() {
        bind(&flags);
    } else {
        compare_with_headers(&copy_committed(), &flags);
    }
    compile_shim(&flags);
    for path in &dpdk.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    if is_static() {
        link_archives(&dpdk);
    } else {
        for library in LIBRARIES.iter().chain(release.libraries) {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
    }
    export(release, &pkg_config::get_variable("libdpdk", "libdir").unwrap_or_default());
}

fn is_static() -> bool {
    match std::env::var("FERROCE_DPDK").as_deref() {
        Ok("static") => true,
        Ok("shared" | "") | Err(_) => false,
        Ok(other) => {
            fail(&format!("FERROCE_DPDK {other}: unknown kind of linking; set it to `static` or `shared`"))
        }
    }
}

/// Links the static libraries that pkg-config lists: all of DPDK's, as a whole, because constructors in them register the drivers, and
/// those that the drivers need.
fn link_archives(dpdk: &pkg_config::Library) {
    /// Parts of the C library, which remains shared.
    const C: [&str; 5] = ["c", "dl", "m", "pthread", "rt"];
    let mut drivers = Vec::new();
    let mut linked = std::collections::BTreeSet::new();
    for library in &dpdk.libs {
        let archive = library.strip_prefix(":lib").and_then(|name| name.strip_suffix(".a"));
        let name = archive.unwrap_or(library);
        // Skips the C library, duplicates, and DPDK's shared libraries, which pkg-config also lists.
        if C.contains(&name) || archive.is_none() && name.starts_with("rte_") || !linked.insert(name) {
            continue;
        }
        let whole = if name.starts_with("rte_") { ":+whole-archive" } else { "" };
        println!("cargo:rustc-link-lib=static{whole}={name}");
        let files = dpdk.link_paths.iter().map(|folder| folder.join(format!("lib{name}.a")));
        for file in files.filter(|file| file.exists()) {
            println!("cargo:rerun-if-changed={}", file.display());
        }
        drivers.extend(name.strip_prefix("rte_net_"));
    }
    if linked.is_empty() {
        fail(
            "FERROCE_DPDK static: pkg-config lists no static library of DPDK; build DPDK with `meson setup build -Ddefault_library=static`",
        );
    }
    println!("cargo:rustc-env=DPDK_LINKED_DRIVERS={}", drivers.join(","));
}

/// Sets the environment variables from which `src/lib.rs` takes the release's constants.
fn export(release: &Release, libdir: &str) {
    let Release { name, abi, threads: [interrupts, vhost], .. } = release;
    println!("cargo:rustc-env=DPDK_RELEASE={name}");
    println!("cargo:rustc-env=DPDK_ABI={abi}");
    println!("cargo:rustc-env=DPDK_DRIVER_DIR={libdir}/dpdk/pmds-{abi}.0");
    println!("cargo:rustc-env=DPDK_INTERRUPT_THREAD={interrupts}");
    println!("cargo:rustc-env=DPDK_VHOST_THREAD={vhost}");
}

fn probe() -> (pkg_config::Library, &'static Release) {
    let mut search = pkg_config::Config::new();
    let found = search.cargo_metadata(false).env_metadata(true).statik(is_static()).probe("libdpdk");
    let dpdk = found.unwrap_or_else(|e| {
        fail(&format!(
            "pkg-config finds no `libdpdk`; a supported DPDK with its headers is needed: {}\n\
             remedy: apt-get install libdpdk-dev pkg-config\n{e}",
            releases::supported()
        ))
    });
    let release = releases::find(&dpdk.version).unwrap_or_else(|e| {
        fail(&format!(
            "{e}\nremedy: install libdpdk-dev of a supported release, or set PKG_CONFIG_PATH to the folder of its libdpdk.pc"
        ))
    });
    (dpdk, release)
}

fn compile_shim(flags: &[String]) {
    let mut build = cc::Build::new();
    build.file("shim/shim.c").opt_level(3).warnings(true).extra_warnings(true);
    for flag in flags {
        build.flag(flag);
    }
    // DPDK's inline functions cause these warnings.
    build.flag_if_supported("-Wno-unused-parameter").flag_if_supported("-Wno-address-of-packed-member");
    if let Err(e) = build.try_compile("ferroce_dpdk_shim") {
        fail(&format!("the C shim over DPDK doesn't compile: {e}\nremedy: apt-get install gcc libdpdk-dev"));
    }
}

fn bind(flags: &[String]) {
    let mut builder = bindgen::Builder::default()
        .header("shim/shim.h")
        .clang_args(flags)
        // `src/lib.rs` defines the other types, because DPDK's own structures differ between releases.
        .allowlist_recursively(false)
        .derive_default(true)
        .formatter(bindgen::Formatter::Prettyplease)
        .generate_comments(false)
        .prepend_enum_name(false);
    for function in FUNCTIONS {
        builder = builder.allowlist_function(function);
    }
    for kind in TYPES {
        builder = builder.allowlist_type(kind);
    }
    for variable in VARIABLES {
        builder = builder.allowlist_var(variable);
    }
    let bindings = builder.generate().unwrap_or_else(|e| {
        fail(&format!(
            "bindgen can't read DPDK's headers: {e}\n\
             remedy: apt-get install libclang-dev clang; with several installed, set LIBCLANG_PATH to the newest"
        ))
    });
    write(&output("dpdk.rs"), &bindings.to_string());
}

/// Copies the committed bindings to where generated ones would be written, and returns them.
fn copy_committed() -> String {
    let bindings =
        std::fs::read_to_string(COMMITTED).unwrap_or_else(|e| fail(&format!("can't read {COMMITTED}: {e}")));
    write(&output("dpdk.rs"), &bindings);
    bindings
}

/// Stops the build if a constant in `bindings` differs from the one in the installed headers. The constants include all offsets.
fn compare_with_headers(bindings: &str, flags: &[String]) {
    let constants = bindings.lines().filter_map(|line| line.strip_prefix("pub const ")?.strip_suffix(';'));
    let assertions: String = constants
        .filter_map(|constant| Some((constant.split_once(':')?.0, constant.split_once(" = ")?.1)))
        .map(|(name, value)| format!("_Static_assert({name} == {value}, \"{name}\");\n"))
        .collect();
    let source = output("constants.c");
    write(&source, &format!("#include \"shim.h\"\n{assertions}"));
    let mut build = cc::Build::new();
    build.file(source).include("shim").cargo_metadata(false);
    for flag in flags {
        build.flag(flag);
    }
    if let Err(e) = build.try_compile("ferroce_dpdk_constants") {
        fail(&format!(
            "there is no libclang, and the bindings that the crate contains are not those of the installed DPDK: {e}\n\
             remedy: apt-get install libclang-dev, or set LIBCLANG_PATH to its directory"
        ));
    }
}

//! Checks that the committed bindings, for machines without libclang, equal those that bindgen generates.

use std::path::Path;

#[test]
#[cfg(target_arch = "x86_64")]
fn bindgen_generates_the_committed_bindings() {
    let generated = std::fs::read_to_string(concat!(env!("OUT_DIR"), "/dpdk.rs")).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("bindings");
    if std::env::var_os("FERROCE_WRITE_REFERENCE").is_some() {
        std::fs::write(&file, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap();
    assert!(
        committed == generated,
        "{}: not the bindings of DPDK {}; FERROCE_WRITE_REFERENCE=1 cargo test -p ferroce-dpdk-sys --test bindings",
        file.display(),
        dpdk_sys::RELEASE
    );
}

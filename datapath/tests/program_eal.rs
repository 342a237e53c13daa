//! Tests a program that starts DPDK itself, as SPDK does with Debian's shared libraries, and opens a port in the same environment.

mod common;

use common::small;
use ferroce_datapath::dpdk::{Eal, EalConfig, EalError, Hugepages, Port};
use std::ffi::{CString, c_int};

/// Starts DPDK as a program does, with 256 MiB of ordinary pages. The calling thread becomes DPDK's main thread.
fn program_starts_dpdk() {
    let prefix = format!("--file-prefix=program-{}", std::process::id());
    let words = ["program", "--no-huge", "-m", "256", "--no-pci", "--no-shconf", "--no-telemetry", &prefix];
    let words: Vec<_> = words.iter().map(|word| CString::new(*word).unwrap().into_raw()).collect();
    // SAFETY: the pointers are NUL-terminated strings that are never freed, and nothing else starts DPDK in this process.
    let started = unsafe { dpdk_sys::rte_eal_init(words.len() as c_int, words.leak().as_mut_ptr()) };
    assert!(started >= 0, "DPDK does not start");
}

fn lcore() -> u32 {
    // SAFETY: only reads a variable of this thread.
    unsafe { dpdk_sys::ferroce_lcore_id() }
}

#[test]
fn a_program_that_runs_dpdk_opens_ports_in_its_environment() {
    program_starts_dpdk();
    let main = lcore();
    let require = EalConfig { hugepages: Hugepages::Require, ..EalConfig::default() };
    assert!(
        matches!(Eal::start(&require), Err(EalError::Running { .. })),
        "the program's pages are ordinary"
    );
    let eal = Eal::start(&EalConfig::default()).unwrap();
    let port = Port::open(eal, &"ring:program".parse().unwrap(), &small()).unwrap();
    assert!(eal.register_thread());
    assert_eq!(lcore(), main, "the program's thread keeps its number");
    std::thread::spawn(move || {
        assert_eq!(lcore(), u32::MAX);
        assert!(eal.register_thread() && lcore() != main && lcore() != u32::MAX);
    })
    .join()
    .unwrap();
    drop(port);
}

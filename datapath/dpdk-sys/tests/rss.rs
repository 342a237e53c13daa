//! Configures receive side scaling on DPDK's driver `net_null`, which stores the redirection table.

use dpdk_sys::{
    ferroce_configure, ferroce_device_of, ferroce_rss_ipv4_udp, ferroce_set_redirection_table, rte_eal_init,
};
use std::ffi::{CString, c_int};

const QUEUES: u16 = 4;
const GROUP: usize = 64;

/// `struct rte_eth_rss_reta_entry64`, which has had the same members since DPDK 2.0.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Group {
    mask: u64,
    queues: [[u16; 32]; 2],
}

unsafe extern "C" {
    fn rte_eth_dev_rss_reta_query(port: u16, groups: *mut Group, size: u16) -> c_int;
}

#[test]
fn a_device_has_the_redirection_table_that_was_set() {
    let prefix = format!("--file-prefix=rss-{}", std::process::id());
    let words = [
        "rss",
        "--no-huge",
        "-m",
        "64",
        "--no-pci",
        "--no-shconf",
        "--no-telemetry",
        "--vdev=net_null0",
        &prefix,
    ];
    let words: Vec<_> = words.iter().map(|word| CString::new(*word).unwrap().into_raw()).collect();
    // SAFETY: the pointers are NUL-terminated strings that are never freed, and nothing else starts DPDK in this process.
    let started = unsafe { rte_eal_init(words.len() as c_int, words.leak().as_mut_ptr()) };
    assert!(started >= 0, "DPDK does not start");

    // SAFETY: DPDK runs, and refuses ports that do not exist.
    let [device, none] = unsafe { [ferroce_device_of(0), ferroce_device_of(1)] };
    assert_eq!((none.max_rx_queues, none.reta_size, none.device.is_null()), (0, 0, true));
    let size = device.reta_size;
    assert!(usize::from(size) > GROUP, "the table has several groups");
    let key = vec![0x5a; device.hash_key_size.into()];
    // SAFETY: this is a constant.
    let flows = unsafe { ferroce_rss_ipv4_udp };
    // SAFETY: the key has the given length.
    assert_eq!(unsafe { ferroce_configure(0, QUEUES, 1500, key.as_ptr(), key.len() as u8, flows) }, 0);

    let queues: Vec<u16> = (0..size).map(|hash| hash * 7 % QUEUES).collect();
    // SAFETY: the table has `size` entries.
    assert_eq!(unsafe { ferroce_set_redirection_table(0, queues.as_ptr(), size) }, 0);
    let mut groups = vec![Group { mask: u64::MAX, ..Group::default() }; usize::from(size) / GROUP];
    // SAFETY: there are groups for `size` entries.
    assert_eq!(unsafe { rte_eth_dev_rss_reta_query(0, groups.as_mut_ptr(), size) }, 0);
    let stored: Vec<u16> = groups.iter().flat_map(|group| group.queues).flatten().collect();
    assert_eq!(stored, queues);
}

//! Receive side scaling (RSS): the hash by which a NIC selects the queue, and so the core, of a received frame.

use crate::steering::{HASH_KEY, Steering};
use dpdk_sys as dpdk;
use std::ffi::c_int;

/// Entries in one group of DPDK's redirection table.
const GROUP: usize = 64;

/// The RSS settings of a NIC: a hash over the addresses and ports of UDP packets. Queue 0 receives all other frames.
pub(super) struct Hash {
    /// DPDK's flag for UDP over IPv4, and for UDP over IPv6 if the NIC hashes that too.
    flows: u64,
    /// The hash key, of the length that the NIC requires.
    key: Vec<u8>,
    table: Vec<dpdk::rte_eth_rss_reta_entry64>,
}

impl Hash {
    /// Creates the settings with which a device distributes frames over the cores of `steering`.
    ///
    /// # Errors
    /// Returns a description of the capability that the device lacks.
    pub(super) fn new(device: &dpdk::rte_eth_dev_info, steering: &Steering) -> Result<Self, String> {
        let (cores, queues) = (steering.cores, device.max_rx_queues.min(device.max_tx_queues));
        if queues < cores.into() {
            return Err(format!("the NIC has {queues} queues for {cores} cores"));
        }
        // SAFETY: these are constants of the shim.
        let [v4, v6] = unsafe { [dpdk::ferroce_rss_ipv4_udp, dpdk::ferroce_rss_ipv6_udp] };
        let flows = device.flow_type_rss_offloads & (v4 | v6);
        if flows & v4 == 0 {
            return Err("the NIC cannot hash the ports of UDP".into());
        }
        let (length, size) = (usize::from(device.hash_key_size), usize::from(device.reta_size));
        if length < HASH_KEY.len() || !size.is_power_of_two() || size < GROUP {
            return Err(format!("the NIC has a hash key of {length} bytes and a table of {size} queues"));
        }
        let mut key = HASH_KEY.to_vec();
        key.resize(length, 0);
        let queues: Vec<u16> = (0..size as u32).map(|hash| steering.core_of_hash(hash).into()).collect();
        let group = |queues: &[u16]| dpdk::rte_eth_rss_reta_entry64 {
            mask: u64::MAX,
            reta: queues.try_into().expect("the size is a multiple of a group's"),
        };
        Ok(Self { flows, key, table: queues.chunks(GROUP).map(group).collect() })
    }

    /// Writes the settings to `configuration`, which then points to the key in this value.
    pub(super) fn configure(&self, configuration: &mut dpdk::rte_eth_conf) {
        configuration.rxmode.mq_mode = dpdk::RTE_ETH_MQ_RX_RSS;
        let rss = &mut configuration.rx_adv_conf.rss_conf;
        // DPDK copies the key.
        rss.rss_key = self.key.as_ptr().cast_mut();
        rss.rss_key_len = self.key.len() as u8;
        rss.rss_hf = self.flows;
    }

    pub(super) fn set_table(&self, id: u16) -> c_int {
        let mut table = self.table.clone();
        let size = (table.len() * GROUP) as u16;
        // SAFETY: the port is started, and the table has `size` entries.
        unsafe { dpdk::rte_eth_dev_rss_reta_update(id, table.as_mut_ptr(), size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::CoreIndex;
    use roce::wire::{Mac, Numbers};

    fn device(queues: u16, key: u8, table: u16) -> dpdk::rte_eth_dev_info {
        dpdk::rte_eth_dev_info {
            max_rx_queues: queues,
            max_tx_queues: queues,
            hash_key_size: key,
            reta_size: table,
            // SAFETY: this is a constant of the shim.
            flow_type_rss_offloads: unsafe { dpdk::ferroce_rss_ipv4_udp },
            ..Default::default()
        }
    }

    fn steering(cores: u8) -> Steering {
        let core = CoreIndex::new(0, cores);
        Steering { mac: Mac([2, 0, 0, 0, 0, 1]), process: 0, core, cores, numbers: Numbers::DEFAULT }
    }

    #[test]
    fn each_core_has_a_share_of_the_table() {
        for (cores, size) in [(2, 128), (4, 64), (16, 512)] {
            let hash = Hash::new(&device(16, 52, size), &steering(cores)).unwrap();
            assert_eq!(hash.key.len(), 52);
            let table: Vec<_> = hash.table.iter().flat_map(|group| group.reta).collect();
            assert_eq!(table.len(), usize::from(size));
            let share = |core| table.iter().filter(|&&queue| queue == core).count();
            assert!((0..cores.into()).all(|core| share(core) >= usize::from(size / 16)), "{cores} cores");
            assert!(table.iter().all(|&queue| queue < cores.into()));
        }
    }

    #[test]
    fn a_nic_without_the_needed_hash_is_refused_with_the_reason() {
        let no_udp = dpdk::rte_eth_dev_info { flow_type_rss_offloads: 0, ..device(4, 40, 128) };
        for (device, why) in [
            (device(1, 40, 128), "1 queues for 2 cores"),
            (no_udp, "cannot hash the ports of UDP"),
            (device(4, 0, 128), "a hash key of 0 bytes"),
            (device(4, 40, 0), "a table of 0 queues"),
        ] {
            let error = Hash::new(&device, &steering(2)).err().unwrap();
            assert!(error.contains(why), "{error}");
        }
    }
}

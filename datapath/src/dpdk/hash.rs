//! Receive side scaling (RSS): the hash by which a NIC selects the queue, and so the core, of a received frame.

use crate::steering::Steering;
use dpdk_sys as dpdk;
use roce::CoreIndex;
use std::ffi::c_int;

/// The key of a Toeplitz hash over addresses and ports. The low four bits of the hash are the bits of the UDP source port that identify a
/// core ([`CORE_BITS`](roce::qp::CORE_BITS)), in reverse order. Bits 97 and 289 are set: each is 31 bits after the highest of these in the
/// input for IPv4 and for IPv6. The first also adds these bits of an IPv6 source address, so a sender adds them too.
const HASH_KEY: [u8; 37] = {
    let mut key = [0; 37];
    (key[97 / 8], key[289 / 8]) = (0x80 >> (97 % 8), 0x80 >> (289 % 8));
    key
};

/// Entries in one group of DPDK's redirection table. A NIC's table has at least one group.
const GROUP: usize = 64;

/// The RSS settings of a NIC: a hash over the addresses and ports of UDP packets. Queue 0 receives all other frames.
pub(super) struct Hash {
    /// DPDK's flag for UDP over IPv4, and for UDP over IPv6 if the NIC hashes that too.
    pub(super) flows: u64,
    /// The hash key, of the length that the NIC requires.
    pub(super) key: Vec<u8>,
    /// The queue of each hash.
    table: Vec<u16>,
}

impl Hash {
    /// Creates the settings with which a device distributes frames over the cores of `steering`.
    ///
    /// # Errors
    /// Returns a description of the capability that the device lacks.
    pub(super) fn new(device: &dpdk::ferroce_device, steering: &Steering) -> Result<Self, String> {
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
        let table = (0..size as u32).map(|hash| core_of_hash(steering, hash).into()).collect();
        Ok(Self { flows, key, table })
    }

    pub(super) fn set_table(&self, id: u16) -> c_int {
        // SAFETY: the port is started, and the table has the given length.
        unsafe { dpdk::ferroce_set_redirection_table(id, self.table.as_ptr(), self.table.len() as u16) }
    }
}

/// Returns the core of the frames with this [`HASH_KEY`] hash. Frames without a hash belong to core 0.
fn core_of_hash(steering: &Steering, hash: u32) -> u8 {
    let bits = (hash as u8 & 0xf).reverse_bits() >> 4;
    // With few cores, only the upper two of the four bits identify the core.
    let core = bits >> (steering.core.low_bits() - CoreIndex::new(0, CoreIndex::MAX).low_bits()).min(4);
    if core < steering.cores { core } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::Qpn;
    use roce::wire::{Mac, Numbers, ROCE_PORT};
    use std::net::IpAddr;

    fn device(queues: u16, key: u8, table: u16) -> dpdk::ferroce_device {
        dpdk::ferroce_device {
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
            assert_eq!(hash.table.len(), usize::from(size));
            let share = |core| hash.table.iter().filter(|&&queue| queue == core).count();
            assert!((0..cores.into()).all(|core| share(core) >= usize::from(size / 16)), "{cores} cores");
            assert!(hash.table.iter().all(|&queue| queue < cores.into()));
        }
    }

    #[test]
    fn a_nic_without_the_needed_hash_is_refused_with_the_reason() {
        let no_udp = dpdk::ferroce_device { flow_type_rss_offloads: 0, ..device(4, 40, 128) };
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

    /// Computes a Toeplitz hash: each set bit of the input adds the 32 bits of the key that start at its position.
    fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
        let bit =
            |bytes: &[u8], at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
        let window = |at| (at..at + 32).fold(0, |word, place| word << 1 | u32::from(bit(key, place)));
        (0..input.len() * 8).filter(|&at| bit(input, at)).fold(0, |hash, at| hash ^ window(at))
    }

    #[test]
    fn a_nics_hash_selects_the_core_of_the_qpn() {
        for (cores, index) in (1..=16).flat_map(|cores| (0..cores).map(move |index| (cores, index))) {
            let steering = Steering { process: 9, ..steering(cores) };
            let low = CoreIndex::new(index, cores).low_bits();
            for number in [0, 1, 0x1234, (1 << low) - 1] {
                let theirs = Qpn::new(9 << 18 | u32::from(index) << low | number & ((1 << low) - 1));
                let v4 = [10, 1, 2, number as u8];
                let v6 =
                    [&[0xfd, 0x77, 5, 6, 7, 8, 9, 10, number as u8 ^ index << 2][..], &[0x93; 7]].concat();
                for (source, destination) in [(&v4[..], &[10, 0, 0, 1][..]), (&v6, &[0xfd; 16])] {
                    let ip = <[u8; 4]>::try_from(source).map(IpAddr::from);
                    let ip = ip.or_else(|_| <[u8; 16]>::try_from(source).map(IpAddr::from)).unwrap();
                    let port = roce::qp::udp_source_port(ip, Qpn::new(0x321), theirs).to_be_bytes();
                    let input = [source, destination, &port, &ROCE_PORT.to_be_bytes()].concat();
                    let core = core_of_hash(&steering, toeplitz(&HASH_KEY, &input));
                    assert_eq!(core, index, "{cores} cores, QPN {theirs:?}, {ip}");
                }
            }
        }
    }

    #[test]
    fn any_hash_selects_an_existing_core() {
        for cores in [1, 2, 3, 7, 16] {
            let steering = steering(cores);
            assert_eq!(core_of_hash(&steering, 0), 0);
            assert!((0..512).all(|hash| core_of_hash(&steering, hash) < cores));
        }
    }
}

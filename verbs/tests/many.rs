//! Two thousand connected queue pairs in one process.

use crate::common::*;
use ferroce_verbs::port::{OwnPort, pair};
use ferroce_verbs::{
    Access, ConnectOptions, Data, Device, DeviceConfig, MemoryRegion, Progress, SendRequest,
};

const PAIRS: usize = 1000;

#[test]
fn two_thousand_queue_pairs_of_one_process_all_work() {
    let (left, right) = pair(4096, FRAME);
    let open = |port, side: usize| {
        let address = format!("10.0.0.{}/24", side + 1).parse().unwrap();
        let config = DeviceConfig::new().address(address).progress(Progress::Inline);
        let own = OwnPort { name: format!("many{side}"), mac: MACS[side] };
        let device = Device::open_on(port, own, &config).unwrap();
        device.set_neighbour(format!("10.0.0.{}", 2 - side).parse().unwrap(), MACS[1 - side]).unwrap();
        device
    };
    let devices = [open(left, 0), open(right, 1)];
    let pds = [0, 1].map(|side: usize| devices[side].allocate_pd().unwrap());
    let mut cqs = [0, 1].map(|side: usize| devices[side].create_cq(2 * PAIRS as u32).unwrap());
    let regions = [0, 1].map(|side: usize| MemoryRegion::alloc(&pds[side], 8 * PAIRS, Access::ALL).unwrap());
    let build = |side: usize| pds[side].queue_pair(&cqs[side], &cqs[side]).build().unwrap();
    let mut qps: Vec<_> = (0..PAIRS).map(|_| [build(0), build(1)]).collect();
    for (n, [a, b]) in qps.iter_mut().enumerate() {
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        a.connect(&to_b, &ConnectOptions::default()).unwrap();
        b.connect(&to_a, &ConnectOptions::default()).unwrap();
        let word = (n as u64).to_le_bytes();
        a.post_send(SendRequest::write(n as u64, Data::inline(&word), regions[1].remote().at(8 * n as u64)))
            .unwrap();
    }
    for _ in 0..PAIRS {
        success(&mut cqs[0], &devices[1]);
    }
    let expected: Vec<u8> = (0..PAIRS as u64).flat_map(u64::to_le_bytes).collect();
    assert_eq!(contents(&regions[1], 0, 8 * PAIRS), expected);
}

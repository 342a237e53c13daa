//! An observer's report of a device with several cores: each core's own counters, and sums without double counting.

mod common;

use common::*;
use ferroce_verbs::observe::{Capture, DeviceStatus, Direction, read};
use ferroce_verbs::{ConnectOptions, Device, Progress, SendRequest};
use std::collections::BTreeMap;

const QPS: usize = 4;

/// Connects four queue pairs between the devices, and sends a WRITE of `n + 1` KiB through number `n`. Returns the sides.
fn traffic([a, b]: &[Device; 2]) -> Vec<(Side, Side)> {
    let make = |device: &Device| side(device, 1 << 14, Default::default(), 64);
    let mut sides: Vec<(Side, Side)> = (0..QPS).map(|_| (make(a), make(b))).collect();
    for (n, (a, b)) in sides.iter_mut().enumerate() {
        connect(a, b, &ConnectOptions::default());
        let length = (n as u32 + 1) << 10;
        let request = SendRequest::write(n as u64, a.region.sge(0, length).unwrap(), b.region.remote().at(0));
        a.qp.post_send(request).unwrap();
        success(&mut a.send_cq, &b.device);
    }
    sides
}

fn sum<'a>(maps: impl Iterator<Item = &'a BTreeMap<String, u64>>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    maps.flatten().for_each(|(name, count)| *sums.entry(name.clone()).or_insert(0) += count);
    sums
}

fn check(device: &DeviceStatus, cores: usize, qpns: &[u32]) {
    assert_eq!(device.cores.len(), cores);
    let mut of_cores = sum(device.cores.iter().map(|core| &core.counters));
    for frames in ["rx_frames", "tx_frames"] {
        let each: Vec<u64> = device.cores.iter().map(|core| core.counters[frames]).collect();
        assert!(each.iter().all(|&count| count > 0), "{frames} {each:?}");
        assert_eq!(of_cores.remove(frames), Some(device.counters[frames]));
    }
    assert_eq!(of_cores, device.core);
    assert_eq!(sum(device.cores.iter().map(|core| &core.waited)), device.waited);
    let mut seen: Vec<u32> = device.queue_pairs.iter().map(|pair| pair.qpn).collect();
    seen.sort_unstable();
    assert_eq!(seen, qpns, "each queue pair once");
    for (place, core) in device.cores.iter().enumerate() {
        let pairs: Vec<_> = device.queue_pairs.iter().filter(|pair| pair.core == place).collect();
        assert_eq!(pairs.len(), QPS / cores, "core {place}");
        // The cores' sums are read after those of the queue pairs, and no queue pair was destroyed.
        let waited: u64 = pairs.iter().flat_map(|pair| pair.waited.values()).sum();
        assert!(waited <= core.waited.values().sum(), "core {place}");
    }
}

/// One test, because the directory of sockets belongs to the process.
#[test]
fn every_core_has_its_own_counts_and_nothing_is_counted_twice() {
    let runtime = tempfile::tempdir().unwrap();
    // SAFETY: no other thread reads the environment yet.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", runtime.path()) };
    let pid = std::process::id();
    let devices = devices_of([2, 1], Progress::Inline);
    let mut capture = Capture::begin(pid, u32::MAX).unwrap();
    let sides = traffic(&devices);
    let status = read(pid).unwrap();
    let qpns = |of: fn(&(Side, Side)) -> &Side| {
        let mut qpns: Vec<u32> = sides.iter().map(|sides| of(sides).qp.qpn().get()).collect();
        qpns.sort_unstable();
        qpns
    };
    let [here, there] = status.devices.as_slice() else { panic!("two devices") };
    check(here, 2, &qpns(|(a, _)| a));
    check(there, 1, &qpns(|(_, b)| b));
    // Each device has received the frames of the other one.
    assert_eq!(here.counters["tx_frames"], there.counters["rx_frames"]);
    assert_eq!(here.counters["tx_payload_bytes"], there.counters["rx_payload_bytes"]);
    assert_eq!(there.counters["rx_payload_bytes"], 10 << 10);
    assert!(here.core["handed_over"] > 0 && there.core["handed_over"] == 0);
    captured(&mut capture, [here, there]);
}

/// Checks that a capture contains each frame once, in the ring of its core.
fn captured(capture: &mut Capture, devices: [&DeviceStatus; 2]) {
    let (mut bytes, mut counts) = (Vec::new(), BTreeMap::new());
    while let Some((core, record)) = capture.take(&mut bytes).unwrap() {
        // Skips ARP, which belongs to no queue pair.
        if bytes.get(36..38) != Some(&4791_u16.to_be_bytes()) {
            continue;
        }
        *counts.entry((core, record.direction == Direction::In)).or_insert(0) += 1;
    }
    let cores =
        devices.iter().flat_map(|device| device.cores.iter().map(|core| (&device.port, &core.counters)));
    for (number, (port, counters)) in cores.enumerate() {
        assert_eq!(capture.ports()[number], *port);
        assert_eq!(counts[&(number, true)], counters["rx_frames"], "{number}");
        assert_eq!(counts[&(number, false)], counters["tx_frames"], "{number}");
    }
}

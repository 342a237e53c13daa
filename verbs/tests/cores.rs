//! Several cores behind one port: operations between queue pairs of all cores, shared objects, and refusals.

use crate::common::*;
use ferroce_verbs::port::{OwnPort, pair};
use ferroce_verbs::service::Request;
use ferroce_verbs::window::WindowKind;
use ferroce_verbs::wire::DEFAULT_QUEUE_KEY;
use ferroce_verbs::{
    Access, AddressOptions, Completion, CompletionQueue, CompletionStatus, ConnectOptions, Device,
    DeviceConfig, Error, MemoryRegion, Progress, ProtectionDomain, QueuePair, RecvRequest, SendRequest,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

const MODES: [Progress; 2] = [Progress::Inline, Progress::Adaptive];

struct Host {
    qps: Vec<QueuePair>,
    cq: CompletionQueue,
    region: MemoryRegion,
    pd: ProtectionDomain,
    device: Device,
}

fn host(device: &Device, qps: usize, bytes: usize) -> Host {
    let pd = device.allocate_pd().unwrap();
    let cq = device.create_cq(4096).unwrap();
    let region = MemoryRegion::alloc(&pd, bytes, Access::ALL).unwrap();
    let qps = (0..qps).map(|_| pd.queue_pair(&cq, &cq).build().unwrap()).collect();
    Host { qps, cq, region, pd, device: device.clone() }
}

fn hosts(cores: [u8; 2], progress: Progress, qps: usize, bytes: usize) -> [Host; 2] {
    let [mut a, mut b] = devices_of(cores, progress).map(|device| host(&device, qps, bytes));
    for (a, b) in a.qps.iter_mut().zip(&mut b.qps) {
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        a.connect(&to_b, &ConnectOptions::default()).unwrap();
        b.connect(&to_a, &ConnectOptions::default()).unwrap();
    }
    [a, b]
}

/// Polls `count` completions of `cq`, which must be successful, and runs the peer meanwhile.
fn take(cq: &mut CompletionQueue, peer: &Device, count: usize) -> Vec<Completion> {
    (0..count).map(|_| success(cq, peer)).collect()
}

/// Returns the core of a queue pair, which is encoded in its number, on a device with `cores` cores.
fn core_of(qp: &QueuePair, cores: u8) -> u32 {
    let bits = if cores > 4 { 4 } else { 2 };
    qp.qpn().get() >> (18 - bits) & ((1 << bits) - 1)
}

#[test]
fn every_operation_works_between_all_cores() {
    const SLOT: usize = 16 << 10;
    for (mode, cores) in MODES.into_iter().flat_map(|mode| [(mode, [2, 3]), (mode, [5, 1])]) {
        let qps = 6;
        let [mut a, mut b] = hosts(cores, mode, qps, 3 * qps * SLOT);
        let named: BTreeSet<_> = a.qps.iter().map(|qp| core_of(qp, cores[0])).collect();
        assert_eq!(named, (0..u32::from(cores[0]).min(6)).collect(), "queue pairs are spread");
        for n in 0..qps {
            let (at, id) = (3 * n * SLOT, n as u64);
            let data = pattern(SLOT, n as u8);
            a.region.write(at, &data).unwrap();
            let sge = |offset: usize| a.region.sge(at + offset, SLOT as u32).unwrap();
            b.qps[n].post_recv(RecvRequest::new(id, b.region.sge(at, SLOT as u32).unwrap())).unwrap();
            a.qps[n].post_send(SendRequest::send(id, sge(0))).unwrap();
            let there = b.region.remote().at((at + SLOT) as u64);
            a.qps[n].post_send(SendRequest::write(id, sge(0), there)).unwrap();
            a.qps[n].post_send(SendRequest::read(id, sge(SLOT), there)).unwrap();
        }
        let mut ids = vec![0; qps];
        take(&mut a.cq, &b.device, 3 * qps).iter().for_each(|done| ids[done.id as usize] += 1);
        assert_eq!(ids, vec![3; qps], "one queue has the completions of all cores");
        take(&mut b.cq, &a.device, qps);
        for n in 0..qps {
            let (at, data) = (3 * n * SLOT, pattern(SLOT, n as u8));
            assert_eq!(contents(&b.region, at, SLOT), data, "SEND, {mode:?}, {cores:?}");
            assert_eq!(contents(&b.region, at + SLOT, SLOT), data, "WRITE, {mode:?}, {cores:?}");
            assert_eq!(contents(&a.region, at + SLOT, SLOT), data, "READ, {mode:?}, {cores:?}");
        }
        let handed = [&a, &b].map(|host| host.device.core_counters().unwrap());
        assert!(handed[0].handed_over > 0 && handed[0].hand_over_full == 0, "{handed:?}");
        assert_eq!(handed[1].handed_over > 0, cores[1] > 1);
    }
}

#[test]
fn atomics_are_atomic_across_cores() {
    const EACH: usize = 200;
    for mode in MODES {
        let [mut a, mut b] = hosts([4, 4], mode, 8, 16 * 8 * EACH);
        let word = b.region.remote().at(0);
        for round in 0..EACH {
            for (n, qp) in a.qps.iter_mut().enumerate() {
                let place = 8 * (n * EACH + round);
                let into = a.region.sge(place, 8).unwrap();
                qp.post_send(SendRequest::fetch_add(0, into, word, 1)).unwrap();
            }
            take(&mut a.cq, &b.device, 8);
        }
        let bytes = contents(&a.region, 0, 8 * 8 * EACH);
        let before: BTreeSet<_> =
            bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
        assert_eq!(before, (0..8 * EACH as u64).collect(), "each value was found once");
        assert_eq!(contents(&b.region, 0, 8), (8 * EACH as u64).to_ne_bytes());
        assert!(b.cq.poll_one().unwrap().is_none());
    }
}

#[test]
fn datagrams_and_a_shared_receive_queue_stay_on_one_core() {
    for mode in MODES {
        let [a, b] = devices_of([3, 4], mode).map(|device| host(&device, 0, 1 << 16));
        let (mut a, mut b) = (a, b);
        let mut shared = b.pd.shared_receive_queue(64, 1).unwrap();
        let mut senders = Vec::new();
        let mut receivers = Vec::new();
        for _ in 0..6 {
            let mut sender = a.pd.queue_pair(&a.cq, &a.cq).build().unwrap();
            let mut receiver = b.pd.queue_pair(&b.cq, &b.cq).receive_from(&shared).build().unwrap();
            let (to_a, to_b) = (sender.endpoint(), receiver.endpoint());
            sender.connect(&to_b, &ConnectOptions::default()).unwrap();
            receiver.connect(&to_a, &ConnectOptions::default()).unwrap();
            senders.push(sender);
            receivers.push(receiver);
        }
        let cores: BTreeSet<_> = receivers.iter().map(|qp| core_of(qp, 4)).collect();
        assert_eq!(cores.len(), 1, "all that take from one queue are on its core");
        for (n, sender) in senders.iter_mut().enumerate() {
            shared.post_recv(RecvRequest::new(n as u64, b.region.sge(64 * n, 64).unwrap())).unwrap();
            a.region.write(64 * n, &pattern(64, n as u8)).unwrap();
            sender.post_send(SendRequest::send(0, a.region.sge(64 * n, 64).unwrap())).unwrap();
        }
        take(&mut a.cq, &b.device, 6);
        take(&mut b.cq, &a.device, 6);
        let arrived: BTreeSet<_> = (0..6).map(|n| contents(&b.region, 64 * n, 64)).collect();
        assert_eq!(arrived, (0..6).map(|n| pattern(64, n)).collect());

        let [mut from, mut to] =
            [&a, &b].map(|host| host.pd.queue_pair(&host.cq, &host.cq).datagrams().build().unwrap());
        to.post_recv(RecvRequest::new(7, b.region.sge(4096, 1024).unwrap())).unwrap();
        [&mut from, &mut to].into_iter().for_each(|qp| qp.open(None).unwrap());
        let address = a.pd.address("10.0.0.2".parse().unwrap(), &AddressOptions::default()).unwrap();
        let way = address.to(to.qpn(), DEFAULT_QUEUE_KEY);
        let request = Request::send_to(1, a.region.sge(0, 64).unwrap(), way);
        from.post_send(request).unwrap();
        success(&mut a.cq, &b.device);
        assert_eq!(success(&mut b.cq, &a.device).id, 7);
        assert_eq!(contents(&b.region, 4096 + 40, 64), pattern(64, 0));
    }
}

/// Creates a region on `b` and a queue pair on each core of both sides. Deregisters the region while they write to it, and checks that its
/// bytes do not change afterwards.
fn come_and_go(a: &ProtectionDomain, b: &ProtectionDomain, [to_a, to_b]: &[Device; 2], round: usize) {
    const CORES: usize = 4;
    const EACH: usize = 16;
    const LENGTH: usize = 512;
    let [mut cq_a, cq_b] = [to_a, to_b].map(|device| device.create_cq(128).unwrap());
    let source = MemoryRegion::alloc(a, CORES * EACH * LENGTH, Access::ALL).unwrap();
    source.write(0, &vec![round as u8 | 1; source.len()]).unwrap();
    let mut bytes = vec![0; source.len()];
    // SAFETY: `bytes` outlives the region, and is not accessed before the region is dropped.
    let region = unsafe { MemoryRegion::register_raw(b, bytes.as_mut_ptr(), bytes.len(), Access::ALL) };
    let region = region.unwrap();
    let target = region.remote();
    let mut pairs = Vec::new();
    for core in 0..CORES {
        let mut from = a.queue_pair(&cq_a, &cq_a).build().unwrap();
        let mut to = b.queue_pair(&cq_b, &cq_b).build().unwrap();
        from.connect(&to.endpoint(), &ConnectOptions::default()).unwrap();
        to.connect(&from.endpoint(), &ConnectOptions::default()).unwrap();
        for place in (core * EACH..(core + 1) * EACH).map(|place| place * LENGTH) {
            let sge = source.sge(place, LENGTH as u32).unwrap();
            from.post_send(SendRequest::write(0, sge, target.at(place as u64))).unwrap();
        }
        pairs.push((from, to));
    }
    // Some writes complete before the region is dropped.
    let early = round % 5 * EACH / 2;
    take(&mut cq_a, to_b, early);
    drop(region);
    let before = bytes.clone();
    for _ in early..CORES * EACH {
        let status = next(&mut cq_a, to_b).status;
        let expected = [CompletionStatus::Success, CompletionStatus::RemoteAccess, CompletionStatus::Flushed];
        assert!(expected.contains(&status), "{status:?}");
    }
    drop(pairs);
    assert!(bytes == before, "round {round}: memory changed after it was deregistered");
}

/// Peers write through a thousand queue pairs on four cores while other regions and queue pairs are created and destroyed.
#[test]
fn regions_are_registered_and_deregistered_under_traffic() {
    const PAIRS: usize = 1000;
    let [mut a, mut b] = hosts([4, 4], Progress::Adaptive, PAIRS, 8 * PAIRS);
    let (stop, source) = (AtomicBool::new(false), a.region.sge(0, 8).unwrap());
    let target = b.region.remote();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                b.cq.poll_one().unwrap();
                std::thread::yield_now();
            }
        });
        let (domains, devices) = ([&a.pd, &b.pd].map(Clone::clone), [a.device.clone(), b.device.clone()]);
        let changes = scope.spawn(move || {
            let [a, b] = &domains;
            (0..25).for_each(|round| come_and_go(a, b, &devices, round));
        });
        let mut rounds = 0;
        while !changes.is_finished() || rounds < 3 {
            for (n, qp) in a.qps.iter_mut().enumerate() {
                qp.post_send(SendRequest::write(n as u64, source, target.at(8 * n as u64))).unwrap();
            }
            take(&mut a.cq, &b.device, PAIRS);
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    let counters = b.device.counters().unwrap();
    assert!(counters.rx_frames >= 3 * PAIRS as u64, "counters are of all cores: {counters:?}");
}

#[test]
fn a_key_that_is_gone_is_refused_by_every_core() {
    let [mut a, mut b] = hosts([4, 4], Progress::Inline, 8, 4096);
    let gone = MemoryRegion::alloc(&b.pd, 4096, Access::ALL).unwrap();
    let remote = gone.remote();
    for qp in &mut a.qps {
        qp.post_send(SendRequest::write(1, a.region.sge(0, 64).unwrap(), remote.at(0))).unwrap();
    }
    take(&mut a.cq, &b.device, 8);
    drop(gone);
    for qp in &mut a.qps {
        qp.post_send(SendRequest::write(2, a.region.sge(0, 64).unwrap(), remote.at(0))).unwrap();
    }
    for _ in 0..8 {
        assert_eq!(next(&mut a.cq, &b.device).status, CompletionStatus::RemoteAccess);
    }
    assert!(b.cq.poll_one().unwrap().is_none());
}

/// A completion of any core wakes a sleeping thread, and frames of other cores wake a sleeping core.
#[test]
fn a_sleeping_thread_is_woken_by_a_completion_of_any_core() {
    let [mut a, mut b] = hosts([3, 4], Progress::Adaptive, 8, 4096);
    let channel = b.device.create_channel().unwrap();
    b.cq.bind_channel(&channel).unwrap();
    for round in 0..20 {
        // All cores may go to sleep during the pause.
        std::thread::sleep(std::time::Duration::from_millis(if round % 5 == 0 { 30 } else { 1 }));
        for (n, (from, to)) in a.qps.iter_mut().zip(&mut b.qps).enumerate() {
            to.post_recv(RecvRequest::new(n as u64, b.region.sge(64 * n, 64).unwrap())).unwrap();
            from.post_send(SendRequest::send(n as u64, a.region.sge(64 * n, 64).unwrap())).unwrap();
        }
        let mut came = 0;
        while came < 8 {
            b.cq.arm(false);
            while b.cq.poll_one().unwrap().is_some() {
                came += 1;
            }
            if came < 8 {
                channel.wait().unwrap();
                assert!(b.cq.take_event());
            }
        }
        take(&mut a.cq, &b.device, 8);
    }
}

#[test]
fn an_operation_unsupported_with_several_cores_is_refused_by_name() {
    for wrong in [0, 17] {
        assert!(DeviceConfig::new().cores(wrong).unwrap_err().to_string().contains("write 1 to 16"));
    }
    let [device, _peer] = devices_of([2, 2], Progress::Inline);
    assert_eq!(device.opened().cores, 2);
    let pd = device.allocate_pd().unwrap();
    let refused = pd.memory_window(WindowKind::One).unwrap_err();
    assert!(matches!(&refused, Error::WindowOfCores { cores: 2, .. }), "{refused}");
    assert!(refused.remedy().unwrap().contains("type 2"), "{refused}");
    pd.memory_window(WindowKind::Two).unwrap();

    let (port, _other) = pair(64, FRAME);
    let own = OwnPort { name: "many".into(), mac: MACS[0] };
    let dedicated = DeviceConfig::new()
        .address("10.0.0.1/24".parse().unwrap())
        .progress(Progress::Dedicated { core: None })
        .cores(16)
        .unwrap();
    match Device::open_on(port, own, &dedicated) {
        Err(error) => {
            let error = error.to_string();
            assert!(
                error.contains("cores = 16") && error.contains("CPUs") && error.contains("; lower"),
                "{error}"
            );
        }
        Ok(device) => drop(device),
    }
}

/// On `null` each core has its own queue. Frames to the device's own address pass through core 0, and exceed the size of its ring.
#[test]
fn cores_with_queues_of_their_own_reach_each_other() {
    const LENGTH: usize = 1 << 20;
    let address = "10.0.0.1/24".parse().unwrap();
    let config = DeviceConfig::on("null").address(address).progress(Progress::Inline).cores(3).unwrap();
    let device = Device::open(&config).unwrap();
    let mut host = host(&device, 6, 2 * LENGTH);
    let bytes: Vec<u8> = (0..LENGTH).map(|n| (n % 251) as u8).collect();
    host.region.write(0, &bytes).unwrap();
    let remote = host.region.remote();
    for pair in host.qps.chunks_mut(2) {
        let [a, b] = pair else { panic!("pairs") };
        assert_ne!(core_of(a, 3), core_of(b, 3));
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        a.connect(&to_b, &ConnectOptions::default()).unwrap();
        b.connect(&to_a, &ConnectOptions::default()).unwrap();
        let request =
            SendRequest::write(1, host.region.sge(0, LENGTH as u32).unwrap(), remote.at(LENGTH as u64));
        a.post_send(request).unwrap();
    }
    take(&mut host.cq, &device, 3);
    let mut received = vec![0; LENGTH];
    host.region.read(LENGTH, &mut received).unwrap();
    assert!(received == bytes);
}

#[test]
fn a_device_closes_while_its_cores_have_work() {
    for mode in MODES {
        let [mut a, b] = hosts([4, 2], mode, 16, 1 << 16);
        for qp in &mut a.qps {
            for _ in 0..8 {
                qp.post_send(SendRequest::write(
                    1,
                    a.region.sge(0, 1 << 15).unwrap(),
                    b.region.remote().at(0),
                ))
                .unwrap();
            }
        }
        a.device.progress();
        drop(b);
        drop(a);
    }
}

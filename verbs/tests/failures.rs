//! Failures, and their reports.

use crate::common::*;
use datapath::io::{Burst, Caps, LoopbackBuf};
use ferroce_verbs::errors::{PollError, PostError, PostListError};
use ferroce_verbs::observe::Discard;
use ferroce_verbs::port::{Loopback, OwnPort, PacketIo, pair};
use ferroce_verbs::state::{AckTimeout, Modify, State};
use ferroce_verbs::wire::DEFAULT_QUEUE_KEY;
use ferroce_verbs::{
    Access, AddressOptions, Capabilities, CompletionStatus, ConnectOptions, Data, Device, DeviceConfig,
    MemoryRegion, Mtu, Progress, QpEndpoint, Qpn, RecvRequest, RemoteBuffer, SendRequest, Service, Sge,
};
use std::net::IpAddr;

const DEDICATED: Progress = Progress::Dedicated { core: None };

/// Returns a device, and the other end of its cable, on which no device is open.
fn lonely(config: DeviceConfig) -> (Device, Loopback) {
    let (port, other) = pair(256, FRAME);
    (open(port, 0, &config), other)
}

fn open(port: Loopback, side: usize, config: &DeviceConfig) -> Device {
    Device::open_on(port, OwnPort { name: format!("pair{side}"), mac: MACS[side] }, config).unwrap()
}

fn at(address: &str, progress: Progress) -> DeviceConfig {
    DeviceConfig::new().address(address.parse().unwrap()).progress(progress)
}

#[test]
fn peers_find_each_other_by_arp_and_by_neighbour_discovery() {
    for (ours, theirs) in [("10.0.0.1/24", "10.0.0.2/24"), ("fd00::1/64", "fd00::2/64")] {
        for progress in [DEDICATED, Progress::Inline] {
            let (left, right) = pair(1024, FRAME);
            // An inline device resolves addresses only during calls, so the other device needs its own thread to answer.
            let (a, b) = (open(left, 0, &at(ours, progress)), open(right, 1, &at(theirs, DEDICATED)));
            let (mut a, mut b) =
                (side(&a, 4096, Capabilities::default(), 16), side(&b, 4096, Capabilities::default(), 16));
            a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap();
            // The inline device does not answer while b connects.
            b.device.set_neighbour(a.qp.endpoint().ip, MACS[0]).unwrap();
            b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default()).unwrap();
            a.qp.post_send(SendRequest::write(1, Data::inline(b"found"), b.region.remote().at(0))).unwrap();
            success(&mut a.send_cq, &b.device);
            assert_eq!(contents(&b.region, 0, 5), b"found");
            assert!(a.device.core_counters().unwrap().neighbour_packets >= 1);
        }
    }
}

#[test]
fn a_device_without_addresses_has_one_made_from_its_mac() {
    let (device, _other) = lonely(DeviceConfig::new());
    assert_eq!(
        device.query().unwrap().gids.addresses().collect::<Vec<_>>(),
        ["fe80::ff:fe00:1".parse::<IpAddr>().unwrap()]
    );
}

#[test]
fn a_peer_on_another_network_needs_a_gateway() {
    let (device, _other) = lonely(at("10.0.0.1/24", Progress::Inline));
    let mut a = side(&device, 64, Capabilities::default(), 16);
    let mut peer = a.qp.endpoint();
    peer.ip = "192.168.1.1".parse().unwrap();
    let error = a.qp.connect(&peer, &ConnectOptions::default()).unwrap_err().to_string();
    assert!(error.contains("no route to 192.168.1.1 from port pair0"), "{error}");
    peer.ip = "fd00::1".parse().unwrap();
    let error = a.qp.connect(&peer, &ConnectOptions::default()).unwrap_err().to_string();
    assert!(error.contains("is not IPv6") && error.contains("fd00::1"), "{error}");
}

#[test]
fn the_error_state_flushes() {
    let (a, mut b) = connected(Progress::Inline, 4096);
    for id in 0..4 {
        b.qp.post_recv(RecvRequest::new(id, b.region.sge(0, 64).unwrap())).unwrap();
    }
    b.qp.fail().unwrap();
    b.qp.post_recv(RecvRequest::new(4, b.region.sge(0, 64).unwrap())).unwrap();
    b.qp.post_send(SendRequest::send(5, Data::empty())).unwrap();
    for id in 0..5 {
        let flushed = next(&mut b.recv_cq, &a.device);
        assert_eq!((flushed.id, flushed.status), (id, CompletionStatus::Flushed));
    }
    assert_eq!(next(&mut b.send_cq, &a.device).status, CompletionStatus::Flushed);
    assert_eq!(b.qp.query().unwrap().state, State::Error);
    assert_eq!(a.qp.query().unwrap().state, State::ReadyToSend);
}

/// A port that accepts no frame, or that has no free buffer.
struct Refusing {
    port: Loopback,
    is_dry: bool,
}

impl PacketIo for Refusing {
    type Buf = LoopbackBuf;

    fn receive(&mut self, into: &mut Burst<LoopbackBuf>) {
        self.port.receive(into);
    }

    fn alloc(&mut self) -> Option<LoopbackBuf> {
        if self.is_dry { None } else { self.port.alloc() }
    }

    fn transmit(&mut self, _from: &mut Burst<LoopbackBuf>) {}

    fn caps(&self) -> Caps {
        self.port.caps()
    }
}

/// The retry timer starts when a frame is sent. With selective repeat, all missing packets wait for the port.
#[test]
fn a_request_on_a_port_that_sends_nothing_fails_like_one_unanswered() {
    refused_for_ever(false);
}

/// The same with a pool whose buffers are never freed.
#[test]
fn a_request_without_free_buffers_fails_like_one_without_an_answer() {
    refused_for_ever(true);
}

fn refused_for_ever(is_dry: bool) {
    let (port, _other) = pair(256, FRAME);
    let own = OwnPort { name: "refusing".into(), mac: MACS[0] };
    let config = at("10.0.0.1/24", Progress::Inline);
    let device = Device::open_on(Refusing { port, is_dry }, own, &config).unwrap();
    let mut a = side(&device, 1 << 18, Capabilities::default(), 16);
    let peer = QpEndpoint { ip: "10.0.0.2".parse().unwrap(), ..a.qp.endpoint() };
    assert!(peer.selective_repeat);
    device.set_neighbour(peer.ip, MACS[1]).unwrap();
    // The first window has more packets than a burst.
    let options = ConnectOptions::new().mtu(Mtu::M256).ack_timeout(AckTimeout::new(4)).retry_count(2);
    a.qp.connect(&peer, &options).unwrap();
    let data = a.region.sge(0, 1 << 18).unwrap();
    a.qp.post_send(SendRequest::write(1, data, a.region.remote().at(0))).unwrap();
    assert_eq!(a.send_cq.wait().unwrap().status, CompletionStatus::RetryExceeded);
    let counters = device.core_counters().unwrap();
    assert!(counters.port_held > 0);
    assert_eq!(counters.pool_dry > 0, is_dry);
}

struct Lossy {
    port: Loopback,
    frames: usize,
}

impl PacketIo for Lossy {
    type Buf = LoopbackBuf;

    fn receive(&mut self, into: &mut Burst<LoopbackBuf>) {
        self.port.receive(into);
    }

    fn alloc(&mut self) -> Option<LoopbackBuf> {
        self.port.alloc()
    }

    fn transmit(&mut self, from: &mut Burst<LoopbackBuf>) {
        let mut leaving = Burst::new();
        for frame in from.drain(..) {
            self.frames += 1;
            if !self.frames.is_multiple_of(50) {
                leaving.push(frame);
            }
        }
        self.port.transmit(&mut leaving);
        leaving.drain(..).for_each(|frame| from.push(frame));
    }

    fn caps(&self) -> Caps {
        self.port.caps()
    }
}

/// Without memory for early packets, data still arrives, because the sender repeats everything after a lost packet.
#[test]
fn a_device_holds_no_more_early_packets_than_early_memory_allows() {
    for (setting, holds) in [("", true), ("\nearly_memory = '0'", false)] {
        let config: DeviceConfig = format!("progress = 'inline'{setting}").parse().unwrap();
        let (left, right) = pair(1024, FRAME);
        let left = Lossy { port: left, frames: 0 };
        let own = OwnPort { name: "lossy".into(), mac: MACS[0] };
        let a = Device::open_on(left, own, &at("10.0.0.1/24", Progress::Inline)).unwrap();
        let b = open(right, 1, &config.address("10.0.0.2/24".parse().unwrap()));
        a.set_neighbour("10.0.0.2".parse().unwrap(), MACS[1]).unwrap();
        b.set_neighbour("10.0.0.1".parse().unwrap(), MACS[0]).unwrap();
        let [mut a, mut b] = [a, b].map(|device| side(&device, 1 << 20, Capabilities::default(), 16));
        connect(&mut a, &mut b, &ConnectOptions::new().ack_timeout(AckTimeout::new(8)));
        let data = pattern(1 << 20, 7);
        a.region.write(0, &data).unwrap();
        let all = a.region.sge(0, 1 << 20).unwrap();
        a.qp.post_send(SendRequest::write(1, all, b.region.remote().at(0))).unwrap();
        success(&mut a.send_cq, &b.device);
        assert!(contents(&b.region, 0, 1 << 20) == data, "{setting}");
        assert_eq!(b.device.counters().unwrap().held_early > 0, holds, "{setting}");
    }
}

#[test]
fn a_request_to_a_peer_that_is_gone_fails_after_its_retries() {
    let [a, b] = devices(Progress::Inline);
    let (mut a, mut b) =
        (side(&a, 4096, Capabilities::default(), 16), side(&b, 4096, Capabilities::default(), 16));
    let options = ConnectOptions::new().ack_timeout(AckTimeout::new(4)).retry_count(2);
    connect(&mut a, &mut b, &options);
    drop(b);
    a.qp.post_send(SendRequest::send(1, Data::inline(b"anyone?"))).unwrap();
    assert_eq!(a.send_cq.wait().unwrap().status, CompletionStatus::RetryExceeded);
    assert_eq!(a.qp.query().unwrap().state, State::Error);
}

#[test]
fn a_foreign_key_range_or_right_is_refused_by_the_responder() {
    let (mut a, b) = connected(Progress::Inline, 4096);
    let before = contents(&b.region, 0, 4096);
    let remote = b.region.remote();
    let wrong_key = RemoteBuffer { rkey: !remote.rkey, ..remote };
    a.qp.post_send(SendRequest::write(1, Data::inline(b"evil"), wrong_key.at(0))).unwrap();
    assert_eq!(next(&mut a.send_cq, &b.device).status, CompletionStatus::RemoteAccess);
    assert_eq!(b.device.counters().unwrap().discarded(Discard::RemoteKey), 1);
    assert_eq!(contents(&b.region, 0, 4096), before);

    let (mut a, b) = connected(Progress::Inline, 4096);
    a.qp.post_send(SendRequest::write(1, Data::inline(b"evil"), b.region.remote().at(4093))).unwrap();
    assert_eq!(next(&mut a.send_cq, &b.device).status, CompletionStatus::RemoteAccess);

    let (mut a, b) = connected(Progress::Inline, 4096);
    let readable = MemoryRegion::alloc(&b.pd, 64, Access::REMOTE_READ).unwrap();
    a.qp.post_send(SendRequest::write(1, Data::inline(b"evil"), readable.remote().at(0))).unwrap();
    assert_eq!(next(&mut a.send_cq, &b.device).status, CompletionStatus::RemoteAccess);
    assert_eq!(contents(&readable, 0, 4), [0; 4]);
}

#[test]
fn a_deregistered_region_is_inaccessible() {
    let (mut a, b) = connected(Progress::Inline, 4096);
    let gone = MemoryRegion::alloc(&b.pd, 64, Access::ALL).unwrap();
    let remote = gone.remote();
    drop(gone);
    a.qp.post_send(SendRequest::write(1, Data::inline(b"late"), remote.at(0))).unwrap();
    assert_eq!(next(&mut a.send_cq, &b.device).status, CompletionStatus::RemoteAccess);
}

#[test]
fn an_overflow_is_reported_after_earlier_completions() {
    for progress in [Progress::Inline, DEDICATED] {
        let [a, b] = devices(progress);
        let (mut a, mut b) =
            (side(&a, 4096, Capabilities::default(), 4), side(&b, 4096, Capabilities::default(), 64));
        connect(&mut a, &mut b, &ConnectOptions::default());
        for id in 0..8 {
            a.qp.post_send(SendRequest::write(id, Data::empty(), b.region.remote().at(0))).unwrap();
        }
        // The test polls a's completion queue only after its queue pair has failed.
        while a.qp.query().unwrap().state != State::Error {
            a.device.progress();
            b.device.progress();
            std::thread::yield_now();
        }
        for id in 0..4 {
            assert_eq!(a.send_cq.poll_one().unwrap().map(|c| c.id), Some(id), "{progress:?}");
        }
        assert_eq!(a.send_cq.poll_one(), Err(PollError::Overflow { depth: 4 }));
        assert_eq!(a.device.core_counters().unwrap().cq_overflows, 1);
    }
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let (mut a, b) = connected(Progress::Inline, 4096);
    let refusals = [
        a.device.create_cq(0).unwrap_err().to_string(),
        a.device.create_cq(u32::MAX).unwrap_err().to_string(),
        MemoryRegion::alloc(&a.pd, 0, Access::ALL).unwrap_err().to_string(),
        MemoryRegion::alloc(&a.pd, usize::MAX / 4, Access::ALL).unwrap_err().to_string(),
        a.region.sge(4000, 97).unwrap_err().to_string(),
        a.region.read(usize::MAX, &mut [0; 2]).unwrap_err().to_string(),
        a.region.write(4095, &[0; 2]).unwrap_err().to_string(),
        a.region.byte(4096).unwrap_err().to_string(),
        a.pd.queue_pair(&b.send_cq, &a.recv_cq).build().unwrap_err().to_string(),
        a.pd.queue_pair(&a.send_cq, &a.recv_cq).gid_index(2).build().unwrap_err().to_string(),
        a.pd.queue_pair(&a.send_cq, &a.recv_cq)
            .capabilities(Capabilities { max_send: 1 << 16, ..Capabilities::default() })
            .build()
            .unwrap_err()
            .to_string(),
        a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap_err().to_string(),
    ];
    for refusal in refusals {
        assert!(!refusal.contains('\n') && refusal.len() > 20, "{refusal}");
    }
    let empty = MemoryRegion::alloc(&a.pd, 0, Access::ALL).unwrap_err().to_string();
    assert!(empty.contains("is 0: it must be at least 1 byte"), "{empty}");
    // SAFETY: a null pointer is refused before it is used.
    let null = unsafe { MemoryRegion::register_raw(&a.pd, std::ptr::null_mut(), 8, Access::ALL) };
    assert!(null.unwrap_err().to_string().contains("null"));
}

#[test]
fn options_out_of_range_name_the_range() {
    let [a, b] = devices(Progress::Inline);
    let (mut a, b) = (side(&a, 64, Capabilities::default(), 16), side(&b, 64, Capabilities::default(), 16));
    let peer = b.qp.endpoint();
    let good = ConnectOptions::default();
    for (options, says) in [
        (good.retry_count(8), "0 to 7"),
        (good.rnr_retry(9), "0 to 7"),
        (good.max_rd_atomic(17), "0 to 16"),
        (good.hop_limit(0), "1 to 255"),
    ] {
        let error = a.qp.connect(&peer, &options).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let small = QpEndpoint { mtu: Mtu::M1024, ..peer };
    let error = a.qp.connect(&small, &good.mtu(Mtu::M4096)).unwrap_err().to_string();
    assert!(error.contains("4096") && error.contains("1024"), "{error}");
    let early = a.qp.post_send(SendRequest::send(1, Data::empty()));
    assert_eq!(early, Err(PostError::State { qpn: a.qp.qpn(), state: State::Init }));
    a.qp.connect(&peer, &good).unwrap();
}

#[test]
fn a_list_is_posted_until_its_first_error() {
    let (mut a, b) = connected(Progress::Inline, 4096);
    let remote = b.region.remote();
    let requests = [
        SendRequest::write(1, Data::inline(b"a"), remote.at(0)),
        SendRequest::write(2, Data::inline(b"b"), remote.at(1)),
        SendRequest::write(3, Data::inline(&[0; 300]), remote.at(2)),
        SendRequest::write(4, Data::inline(b"d"), remote.at(3)),
    ];
    let error = a.qp.post_send_list(requests).unwrap_err();
    assert_eq!(
        error,
        PostListError { posted: 2, error: PostError::InlineTooLong { given: 300, limit: 236 } }
    );
    assert_eq!(success(&mut a.send_cq, &b.device).id, 1);
    assert_eq!(success(&mut a.send_cq, &b.device).id, 2);
    assert_eq!(contents(&b.region, 0, 4), *b"ab\0\0");
}

#[test]
fn objects_are_dropped_in_any_order() {
    for progress in [Progress::Inline, DEDICATED] {
        for rotation in 0..6 {
            let (a, mut b) = connected(progress, 4096);
            b.qp.post_recv(RecvRequest::new(1, b.region.sge(0, 64).unwrap())).unwrap();
            let Side { qp, send_cq, recv_cq, region, pd, device } = a;
            let weigh: Box<dyn std::any::Any> = Box::new(device);
            let mut objects: Vec<Box<dyn std::any::Any>> = vec![
                Box::new(qp),
                Box::new(send_cq),
                Box::new(recv_cq),
                Box::new(region),
                Box::new(pd),
                weigh,
            ];
            objects.rotate_left(rotation);
            objects.into_iter().for_each(drop);
            let Side { device, .. } = b;
            assert_eq!(device.query().unwrap().gids.addresses().count(), 2, "the other side continues");
        }
    }
}

#[test]
fn a_core_can_be_pinned_and_a_missing_cpu_is_refused() {
    let config = DeviceConfig::new().progress(Progress::Dedicated { core: Some(100_000) });
    let (port, _other) = pair(64, FRAME);
    let own = OwnPort { name: "pair".into(), mac: MACS[0] };
    let error = Device::open_on(port, own, &config).unwrap_err().to_string();
    assert!(
        error.starts_with("port pair: progress dedicated:100000: ") && error.contains("write dedicated:"),
        "{error}"
    );
}

#[test]
fn a_port_that_carries_no_packet_is_refused() {
    let (port, _other) = pair(64, 200);
    let own = OwnPort { name: "tiny".into(), mac: MACS[0] };
    let error = Device::open_on(port, own, &DeviceConfig::new()).unwrap_err().to_string();
    assert!(error.contains("200 bytes"), "{error}");
    let (port, _other) = pair(64, 1518);
    let own = OwnPort { name: "usual".into(), mac: MACS[0] };
    let error =
        Device::open_on(port, own.clone(), &DeviceConfig::new().mtu(Mtu::M2048)).unwrap_err().to_string();
    assert!(error.contains("2048") && error.contains("1024") && error.contains("usual"), "{error}");
}

#[test]
fn a_device_has_as_many_queue_pairs_as_configured() {
    for most in [3, 1500] {
        let (device, _other) = lonely(at("10.0.0.1/24", Progress::Inline).queue_pairs(most).unwrap());
        assert_eq!(device.query().unwrap().limits.max_qps, most);
        let (pd, cq) = (device.allocate_pd().unwrap(), device.create_cq(16).unwrap());
        let small = Capabilities { max_send: 1, max_recv: 1, ..Capabilities::default() };
        let build = || pd.queue_pair(&cq, &cq).capabilities(small).build();
        let qps: Vec<_> = (0..most).map(|_| build().unwrap()).collect();
        let refused = build().unwrap_err().to_string();
        assert!(refused.contains(&format!("queues: the limit of {most} is reached")), "{refused}");
        assert!(refused.contains("queue_pairs in ferroce.toml or by FERROCE_QUEUE_PAIRS"), "{refused}");
        drop(qps);
        // Queue pair numbers are not reused immediately, but slots are.
        let shared: Vec<_> = (0..most).map(|_| pd.shared_receive_queue(1, 1).unwrap()).collect();
        assert!(pd.shared_receive_queue(1, 1).is_err());
        drop(shared);
    }
}

#[test]
fn a_connected_queue_pair_is_not_connected_again() {
    let (mut a, b) = connected(Progress::Inline, 64);
    let error = a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap_err().to_string();
    assert!(error.contains("is in ReadyToSend, not in Init; connect one as build() returns it"), "{error}");
}

/// The length of a datagram is checked when it is posted, so the core never refuses an accepted request.
#[test]
fn a_datagram_longer_than_the_path_mtu_is_refused_when_it_is_posted() {
    let [device, other] = devices(Progress::Inline);
    let Side { pd, mut send_cq, region, .. } = side(&device, 8192, Capabilities::default(), 16);
    let mut qp = pd.queue_pair(&send_cq, &send_cq).service(Service::Ud).build().unwrap();
    let gid = "10.0.0.2".parse().unwrap();
    let address = pd.address(gid, &AddressOptions::default()).unwrap();
    let limit = device.query().unwrap().mtu.bytes();
    for round in 0..2 {
        if round > 0 {
            qp.modify(Modify::Reset).unwrap();
            let (queue_key, partition_key) = (DEFAULT_QUEUE_KEY, 0xffff);
            qp.modify(Modify::InitDatagram { queue_key, partition_key }).unwrap();
        }
        qp.open(None).unwrap();
        let to = address.to(Qpn::new(5), DEFAULT_QUEUE_KEY);
        let mut post = |length| qp.post_send(SendRequest::send_to(1, region.sge(0, length).unwrap(), to));
        let given = limit + 1;
        assert_eq!(post(given), Err(PostError::DatagramTooLong { given, limit }));
        assert_eq!(post(limit), Ok(()));
        success(&mut send_cq, &other);
    }
}

/// Requests to which the library and the core must apply the same rules.
#[test]
fn lists_of_buffers_may_have_odd_lengths_and_empty_entries() {
    let (mut a, mut b) = connected(Progress::Inline, 4096);
    let word = 0x1122_3344_5566_7788_u64.to_ne_bytes();
    b.region.write(64, &word).unwrap();
    let parts = [a.region.sge(0, 3).unwrap(), a.region.sge(100, 5).unwrap()];
    let fetch = SendRequest::fetch_add(1, parts[0], b.region.remote().at(64), 0);
    a.qp.post_send(SendRequest { data: (&parts[..]).into(), ..fetch }).unwrap();
    success(&mut a.send_cq, &b.device);
    assert_eq!([contents(&a.region, 0, 3), contents(&a.region, 100, 5)].concat(), word);
    let rest = Sge { length: u32::MAX, ..b.region.sge(0, 0).unwrap() };
    b.qp.post_recv(RecvRequest::scatter(2, &[b.region.sge(0, 8).unwrap(), rest])).unwrap();
    a.qp.post_send(SendRequest::send(3, a.region.sge(0, 3).unwrap())).unwrap();
    success(&mut a.send_cq, &b.device);
    assert_eq!(success(&mut b.recv_cq, &a.device).length, 3);
}

//! Raw packets between two devices, loopback, and refused requests.

use crate::common::{MACS, contents, devices, next, success};
use ferroce_verbs::errors::PostError;
use ferroce_verbs::raw::{EthernetSpec, FlowRule, FlowSpec, Masked};
use ferroce_verbs::service::{Raw, Request};
use ferroce_verbs::{
    Access, CompletionQueue, CompletionStatus, Data, Device, MemoryRegion, Progress, ProtectionDomain,
    QueuePair, RecvRequest, Service,
};

const GROUP: [u8; 6] = [1, 0x50, 0x56, 0x19, 0x20, 0xa7];
/// An EtherType of no protocol that a device implements.
const LOCAL: [u8; 2] = [0x88, 0xb5];

struct Side {
    qp: QueuePair<Raw>,
    cq: CompletionQueue,
    region: MemoryRegion,
    domain: ProtectionDomain,
}

fn side(device: &Device) -> Side {
    let (domain, cq) = (device.allocate_pd().unwrap(), device.create_cq(16).unwrap());
    let region = MemoryRegion::alloc(&domain, 8192, Access::ALL).unwrap();
    let mut qp = domain.queue_pair(&cq, &cq).raw().build().unwrap();
    qp.post_recv(RecvRequest::new(1, region.sge(4096, 4096).unwrap())).unwrap();
    qp.open().unwrap();
    Side { qp, cq, region, domain }
}

fn frame(to: [u8; 6], length: usize) -> Vec<u8> {
    let payload = (0..length - 14).map(|n| n as u8);
    to.into_iter().chain(MACS[0].0).chain(LOCAL).chain(payload).collect()
}

fn local() -> FlowRule {
    let ether_type = Masked::exactly(LOCAL);
    FlowRule::new(vec![FlowSpec::Ethernet(EthernetSpec { ether_type, ..EthernetSpec::default() })])
}

/// A frame to the other device arrives only there, and a frame to a group on both devices. A frame to the sender's own address arrives only
/// on the sender's device.
#[test]
fn a_raw_frame_reaches_its_address_and_the_group() {
    let [here, there] = devices(Progress::Inline);
    let (mut a, mut b) = (side(&here), side(&there));
    let rules = [a.qp.steer(local()).unwrap(), b.qp.steer(local()).unwrap()];
    for (to, at_a, at_b) in [(MACS[1].0, false, true), (GROUP, true, true), (MACS[0].0, true, false)] {
        let sent = frame(to, 1000);
        a.region.write(0, &sent).unwrap();
        a.qp.post_send(Request::frame(2, a.region.sge(0, 1000).unwrap())).unwrap();
        let mut left = success(&mut a.cq, &there);
        if at_a {
            // The copy may complete before the send.
            let other = success(&mut a.cq, &there);
            let received = if left.id == 1 { std::mem::replace(&mut left, other) } else { other };
            assert_eq!((received.id, received.length), (1, 1000));
            assert_eq!(contents(&a.region, 4096, 1000), sent);
            a.qp.post_recv(RecvRequest::new(1, a.region.sge(4096, 4096).unwrap())).unwrap();
        }
        assert_eq!(left.id, 2);
        if at_b {
            let received = success(&mut b.cq, &here);
            assert_eq!((received.id, received.length), (1, 1000));
            assert_eq!(contents(&b.region, 4096, 1000), sent);
            b.qp.post_recv(RecvRequest::new(1, b.region.sge(4096, 4096).unwrap())).unwrap();
        }
        while here.progress() || there.progress() {}
        assert!(a.cq.poll_one().unwrap().is_none() && b.cq.poll_one().unwrap().is_none(), "{to:?}");
    }
    drop(rules);
    let dropped = |device: &Device| device.core_counters().unwrap().not_for_us;
    let before = dropped(&there);
    a.qp.post_send(Request::frame(3, Data::inline(&frame([2; 6], 60))).unsignalled()).unwrap();
    while here.progress() || there.progress() {}
    assert_eq!(dropped(&there), before + 1, "no rule is left");
}

/// A rule for all frames does not affect a connection.
#[test]
fn a_rule_for_all_frames_does_not_affect_connections() {
    let (mut a, mut b) = crate::common::connected(Progress::Inline, 4096);
    let mut raw = side(&b.device);
    let _rule = raw.qp.steer(FlowRule::new(Vec::new())).unwrap();
    b.qp.post_recv(RecvRequest::new(7, b.region.sge(0, 64).unwrap())).unwrap();
    let request = ferroce_verbs::SendRequest::send(8, Data::inline(b"to the queue pair"));
    a.qp.post_send(request).unwrap();
    assert_eq!(next(&mut b.recv_cq, &a.device).id, 7);
    assert_eq!(next(&mut a.send_cq, &b.device).status, CompletionStatus::Success);
    assert!(raw.cq.poll_one().unwrap().is_none());
}

#[test]
fn an_operation_unsupported_by_raw_packets_is_refused() {
    let [device, _other] = devices(Progress::Inline);
    let mut side = side(&device);
    let longest = device.query().unwrap().longest_frame.unwrap();
    let mut post = |length| {
        let buffer = side.region.sge(0, 4096).unwrap();
        let request = Request::frame(1, ferroce_verbs::Sge { length, ..buffer });
        side.qp.post_send(request)
    };
    let refused = |given: u32| Err(PostError::FrameLength { given: given.into(), limit: longest });
    assert_eq!((post(13), post(longest + 1)), (refused(13), refused(longest + 1)));
    let shared = side.domain.shared_receive_queue(8, 1).unwrap();
    let refused = side.domain.queue_pair(&side.cq, &side.cq).raw().receive_from(&shared).build();
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("no shared receive queue; create it without one"), "{said}");
    let datagrams = side.domain.queue_pair(&side.cq, &side.cq).service(Service::Ud).build().unwrap();
    let said = datagrams.steer(local()).unwrap_err().to_string();
    assert!(said.ends_with("not a raw packet queue pair; only those take frames by rules"), "{said}");
}

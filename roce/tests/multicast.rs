//! Packet scripts of multicast: each queue pair attached to a group receives a copy of its packets.

use crate::harness::{Host, Options, path};
use cc::Instant;
use core::net::IpAddr;
use roce::qp::{Congestion, Datagram, Modify, RecvRequest, SendRequest};
use roce::wire::{MAX_OVERHEAD, Mtu, Path, Service};
use roce::{ControlError, Discard, GROUP_QPN, MAX_MEMBERS, Psn, Qpn};

const NOW: Instant = Instant::ZERO;
const KEY: u32 = 0x0123_4567;

fn datagram_qp(host: &mut Host) -> Qpn {
    let qpn = host.endpoint.create_qp(NOW, host.init_of(Service::Ud)).unwrap();
    let congestion = Congestion::new(Options::default().congestion);
    for modify in [
        Modify::InitDatagram { queue_key: KEY, partition_key: 0xffff },
        Modify::ReadyToReceiveDatagrams { mtu: Mtu::M1024, feedback_key: None },
        Modify::ReadyToSendDatagrams { send_psn: Psn::new(7), congestion },
    ] {
        host.endpoint.modify_qp(NOW, qpn, modify).unwrap();
    }
    qpn
}

fn host(core: u8) -> Host {
    let mut host = Host::new(core, &Options { max_qps: 200, ..Options::default() });
    host.qpn = datagram_qp(&mut host);
    host
}

/// Returns a packet of 100 bytes to the group.
fn packet(from: &mut Host, way: &Path) -> Vec<u8> {
    let address = from.endpoint.create_address(from.pd, way).unwrap();
    let to = Datagram { address, qpn: GROUP_QPN, queue_key: KEY };
    let request = SendRequest::send_to(1, from.sge(0, 100), to);
    from.endpoint.post_send(NOW, from.qpn, request).unwrap();
    let mut frame = vec![0; 1024 + MAX_OVERHEAD];
    let length = from.endpoint.poll_transmit(NOW, &from.ram, &mut frame).unwrap();
    frame[..length].to_vec()
}

fn arrive(host: &mut Host, frame: &[u8]) -> Result<(), Discard> {
    host.endpoint.on_frame(NOW, &mut host.ram, frame)
}

fn receive(host: &mut Host, qpn: Qpn, id: u64) {
    let request = RecvRequest::new(id, host.sge(4096 * id, 40 + 100));
    host.endpoint.post_recv(qpn, request).unwrap();
}

/// IBA 10.5.2: every attached queue pair receives the packet, and no other.
#[test]
fn each_attached_queue_pair_receives_a_copy() {
    let v6 = |text: &str| text.parse::<IpAddr>().unwrap();
    for way in [
        Path { destination: v6("239.1.2.3"), ..path(1, 2) },
        Path { source: v6("fd00::1"), destination: v6("ff0e::1:3"), ..path(1, 2) },
    ] {
        let (mut a, mut b, group) = (host(1), host(2), way.destination);
        let frame = packet(&mut a, &way);
        assert_eq!(arrive(&mut b, &frame), Err(Discard::UnknownGroup), "no queue pair is attached");
        let others = [datagram_qp(&mut b), datagram_qp(&mut b)];
        for qpn in [b.qpn, others[0], others[0]] {
            b.endpoint.attach(qpn, group).unwrap();
        }
        for (id, qpn) in [(1, b.qpn), (2, others[0]), (3, others[1])] {
            receive(&mut b, qpn, id);
        }
        assert_eq!(arrive(&mut b, &frame), Ok(()));
        let came: Vec<_> = b.received().iter().map(|came| (came.id, came.length, came.source)).collect();
        assert_eq!(came, [(1, 140, Some(a.qpn)), (2, 140, Some(a.qpn))]);
        assert_eq!(b.bytes(4096 + 40, 100), a.bytes(0, 100));
        // A queue pair without a receive request does not affect the others.
        receive(&mut b, others[0], 4);
        assert_eq!(arrive(&mut b, &frame), Ok(()));
        assert_eq!(b.received().len(), 1);
        assert_eq!(arrive(&mut b, &frame), Err(Discard::ReceiverNotReady));
        b.endpoint.detach(b.qpn, group).unwrap();
        b.endpoint.destroy_qp(NOW, others[0]).unwrap();
        assert_eq!(arrive(&mut b, &frame), Err(Discard::UnknownGroup));
        assert_eq!(b.endpoint.counters().discarded(Discard::UnknownGroup), 2);
    }
}

#[test]
fn an_invalid_attachment_is_refused_with_its_limit() {
    let (mut host, group) = (host(1), IpAddr::from([239, 1, 2, 3]));
    let connected = host.endpoint.create_qp(NOW, host.init_of(Service::Uc)).unwrap();
    assert_eq!(host.endpoint.attach(connected, group), Err(ControlError::NotDatagrams(connected)));
    let one = IpAddr::from([10, 0, 0, 1]);
    assert_eq!(host.endpoint.attach(host.qpn, one), Err(ControlError::NoGroup(one)));
    let refused = ControlError::NotAttached { qpn: host.qpn, group };
    assert_eq!(host.endpoint.detach(host.qpn, group), Err(refused));
    for _ in 0..MAX_MEMBERS {
        let qpn = datagram_qp(&mut host);
        host.endpoint.attach(qpn, group).unwrap();
    }
    let refused = host.endpoint.attach(host.qpn, group).unwrap_err();
    assert_eq!(refused.to_string(), "queue pairs in a multicast group: the limit of 64 is reached");
    for n in 0..1023_u32 {
        host.endpoint.attach(host.qpn, IpAddr::from((0xef02_0000 + n).to_be_bytes())).unwrap();
    }
    let refused = host.endpoint.attach(host.qpn, IpAddr::from([239, 3, 0, 0])).unwrap_err();
    assert_eq!(refused.to_string(), "multicast groups: the limit of 1024 is reached");
}

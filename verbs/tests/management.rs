//! Management datagrams through queue pair 1.

use crate::common::{FRAME, MACS};
use ferroce_verbs::management::{MAD_LENGTH, Sent};
use ferroce_verbs::port::{Loopback, OwnPort, pair};
use ferroce_verbs::{CompletionStatus, Device, DeviceConfig, Progress, RecvRequest};
use std::net::IpAddr;

const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

fn open(port: Loopback, side: usize) -> Device {
    let address = format!("{}/24", ADDRESSES[side]).parse().unwrap();
    let own = OwnPort { name: format!("pair{side}"), mac: MACS[side] };
    // With inline progress, the test decides when a core runs.
    let config = DeviceConfig::new().address(address).progress(Progress::Inline);
    Device::open_on(port, own, &config).unwrap()
}

/// A request is answered even if its sender answers no ARP, so a peer cannot delay this side by its address resolution.
#[test]
fn a_request_is_answered_before_its_sender_is_resolved() {
    let (left, right) = pair(64, FRAME);
    let (asks, answers) = (open(left, 0), open(right, 1));
    let [asker, asked] = ADDRESSES.map(|ip| ip.parse::<IpAddr>().unwrap());
    asks.set_neighbour(asked, MACS[1]).unwrap();
    let (there, here) = (asks.open_management().unwrap(), answers.open_management().unwrap());
    assert_eq!(there.send(asker, asked, [1; MAD_LENGTH]).unwrap(), Sent::Done);
    asks.progress();
    answers.progress();
    assert_eq!(here.receive().unwrap(), Some((asker, [1; MAD_LENGTH])));
    // The sender's core does not run in between, so it cannot answer ARP.
    assert_eq!(here.send(asked, asker, [2; MAD_LENGTH]).unwrap(), Sent::Done);
    answers.progress();
    asks.progress();
    assert_eq!(there.receive().unwrap(), Some((asked, [2; MAD_LENGTH])));
    assert_eq!(there.receive().unwrap(), None);
}

/// A connection may continue after its address was removed. Its DREQ is then sent from that address.
#[test]
fn a_message_leaves_from_an_address_that_was_removed() {
    let (left, right) = pair(64, FRAME);
    let (sends, receives) = (open(left, 0), open(right, 1));
    let [_, to] = ADDRESSES.map(|ip| ip.parse::<IpAddr>().unwrap());
    sends.set_neighbour(to, MACS[1]).unwrap();
    let (there, here) = (sends.open_management().unwrap(), receives.open_management().unwrap());
    let removed = "10.0.0.77".parse().unwrap();
    assert_eq!(there.send(removed, to, [1; MAD_LENGTH]).unwrap(), Sent::Done);
    sends.progress();
    receives.progress();
    assert_eq!(here.receive().unwrap(), Some((removed, [1; MAD_LENGTH])));
}

/// Neither resolving nor sending waits for a peer that does not answer.
#[test]
fn resolving_a_peer_does_not_block() {
    let (left, right) = pair(64, FRAME);
    let (asks, answers) = (open(left, 0), open(right, 1));
    let there = asks.open_management().unwrap();
    let [own, peer] = ADDRESSES.map(|ip| ip.parse::<IpAddr>().unwrap());
    let stranger = "10.0.0.77".parse().unwrap();
    // The peer's core does not run in between.
    for _ in 0..100 {
        assert!(!there.poll_resolution(peer).unwrap());
        assert!(!there.poll_resolution(stranger).unwrap());
        assert_eq!(there.send(own, stranger, [3; MAD_LENGTH]).unwrap(), Sent::Resolving);
    }
    asks.progress();
    answers.progress();
    asks.progress();
    assert!(there.poll_resolution(peer).unwrap());
    assert_eq!(there.send(own, peer, [4; MAD_LENGTH]).unwrap(), Sent::Done);
    assert!(!there.poll_resolution(stranger).unwrap());
}

/// Ending a connection's queue pair flushes its requests.
#[test]
fn a_queue_pair_is_ended_by_its_number() {
    let (mut a, b) = crate::common::connected(Progress::Inline, 4096);
    let port = a.device.open_management().unwrap();
    let qpn = a.qp.qpn();
    a.qp.post_recv(RecvRequest::new(1, a.region.sge(0, 64).unwrap())).unwrap();
    port.end(qpn).unwrap();
    let flushed = crate::common::next(&mut a.recv_cq, &b.device);
    assert_eq!((flushed.id, flushed.status), (1, CompletionStatus::Flushed));
    port.end(qpn).unwrap();
    drop(a.qp);
    assert!(port.end(qpn).is_err(), "it is gone");
}

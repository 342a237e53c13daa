//! Tests of ports on UDP sockets, on a veth pair between two network namespaces. Runs as root, which creates the namespaces.

mod common;

use common::{ip, open, own_network, packet};
use ferroce_datapath::dpdk::{Mbuf, Port};
use ferroce_datapath::io::{BURST, Burst, PacketIo, PortCounters};
use ferroce_datapath::linux::udp::PEER_MAC;
use roce::wire::{self, Mac, Path};
use std::net::{IpAddr, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Turns of a poll loop after which a frame is considered lost.
const TURNS: u64 = 2_000_000;

const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
const V6: [&str; 2] = ["fd00::1", "fd00::2"];

/// Runs the tests one at a time, because the `ip` that one test starts would inherit the descriptors that another closes.
static ALONE: Mutex<()> = Mutex::new(());

/// Two ports: `udp:dpdk0` in this namespace, and another on the other end of the pair, in its own namespace.
struct Pair {
    one: Port,
    other: Port,
    _alone: MutexGuard<'static, ()>,
}

fn ends(name: &str, [v4, v6]: [&str; 2]) {
    ip(&format!("address add {v4}/24 dev {name}"));
    ip(&format!("address add {v6}/64 dev {name} nodad"));
    ip(&format!("link set {name} up"));
}

/// Creates the pair of interfaces. `other` is the name of the other port.
fn pair(other: &'static str) -> Pair {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    own_network();
    let (there, is_there) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel();
    let far = std::thread::spawn(move || {
        own_network();
        // SAFETY: gettid takes nothing.
        there.send(unsafe { libc::gettid() }).unwrap();
        goes.recv().unwrap();
        ends("dpdk1", [V4[1], V6[1]]);
        open(other)
    });
    let far_thread = is_there.recv().unwrap();
    ip(&format!("link add dpdk0 mtu 1500 type veth peer name dpdk1 mtu 1500 netns {far_thread}"));
    ends("dpdk0", [V4[0], V6[0]]);
    go.send(()).unwrap();
    let other = far.join().unwrap();
    Pair { one: open("udp:dpdk0"), other, _alone: alone }
}

impl Pair {
    fn path(&self, [source, destination]: [&str; 2]) -> Path {
        let [source, destination]: [IpAddr; 2] = [source, destination].map(|ip| ip.parse().unwrap());
        let path = Path::new((self.one.info().mac, source), (PEER_MAC, destination));
        Path { traffic_class: 0x6a, hop_limit: 9, ..path }
    }

    /// Sends a burst, and checks that it arrives in order. Everything except the Ethernet addresses, the source port and the identification
    /// must be unchanged, and every ICRC valid.
    fn expect_carried(&mut self, mut out: Burst<Mbuf>) {
        let parts = |frame: &[u8]| {
            let frame = wire::parse(frame).expect("its checksums are right");
            let path = frame.network.path();
            (
                path.source,
                path.destination,
                path.traffic_class,
                path.hop_limit,
                frame.header,
                frame.payload.to_vec(),
            )
        };
        let sent: Vec<_> = out.iter().map(|frame| parts(frame)).collect();
        let (mut received, mut burst) = (Vec::new(), Burst::new());
        for _ in 0..TURNS {
            self.one.transmit(&mut out);
            self.other.receive(&mut burst);
            let packets = burst.drain(..).filter(|frame| wire::destination(frame).is_some());
            received.extend(packets.map(|frame| parts(&frame)));
            if received.len() >= sent.len() {
                break;
            }
        }
        assert_eq!(received.len(), sent.len());
        assert!(received == sent, "packets differ");
    }
}

fn burst(from: &mut Port, path: &Path, payloads: &[usize]) -> Burst<Mbuf> {
    payloads.iter().zip(7..).map(|(payload, number)| packet(from, path, number, 7, *payload)).collect()
}

#[test]
fn bursts_arrive_with_traffic_class_and_hop_limit_and_a_right_icrc() {
    for other in ["udp:dpdk1", "packet:dpdk1"] {
        let mut pair = pair(other);
        for addresses in [V4, V6] {
            let path = pair.path(addresses);
            for payloads in [&[64][..], &[1024; BURST], &[1024, 1024, 12], &[12, 1024, 64], &[0, 0, 0]] {
                let frames = burst(&mut pair.one, &path, payloads);
                pair.expect_carried(frames);
            }
        }
    }
}

#[test]
fn packets_of_a_peer_with_identifications_of_its_own_arrive() {
    let mut pair = pair("packet:dpdk1");
    std::mem::swap(&mut pair.one, &mut pair.other);
    for [one, other] in [V4, V6] {
        let mut path = pair.path([other, one]);
        (path.source_mac, path.destination_mac) = (pair.one.info().mac, pair.other.info().mac);
        for payloads in [&[64][..], &[1024; BURST], &[1024, 12]] {
            let frames = burst(&mut pair.one, &path, payloads);
            pair.expect_carried(frames);
        }
    }
}

#[test]
fn bursts_of_several_flows_leave_from_several_ports_in_order() {
    let mut pair = pair("udp:dpdk1");
    let first = pair.path(V4);
    let second = Path { udp_source: first.udp_source ^ 1, ..first };
    let mut frames = Burst::new();
    for number in 0..BURST as u16 {
        let path = if number / 3 % 2 == 0 { &first } else { &second };
        frames.push(packet(&mut pair.one, path, number, 7, 64 + usize::from(number / 20) * 4));
    }
    pair.expect_carried(frames);
}

#[test]
fn a_frame_that_a_udp_socket_cannot_send_is_counted() {
    let mut pair = pair("udp:dpdk1");
    let path = pair.path(V4);
    let mut frames = Burst::new();
    let foreign = Path { source: "10.0.0.9".parse().unwrap(), ..path };
    frames.push(packet(&mut pair.one, &foreign, 1, 7, 64));
    let mut arp = packet(&mut pair.one, &path, 1, 7, 64);
    arp[12..14].copy_from_slice(&[8, 6]);
    frames.push(arp);
    frames.push(packet(&mut pair.one, &path, 1, 7, 1500));
    pair.one.transmit(&mut frames);
    assert!(frames.is_empty());
    let none = PortCounters::default();
    // The last one was longer than the port's longest frame.
    assert_eq!(pair.one.counters(), PortCounters { refused: 2, bad_length: 1, ..none });
    let frames = burst(&mut pair.one, &path, &[64]);
    pair.expect_carried(frames);
}

#[test]
fn a_port_that_another_program_has_is_named() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    own_network();
    ip("link set lo up");
    let _taken = UdpSocket::bind("0.0.0.0:4791").unwrap();
    let opened = Port::open(common::eal(), &"lo".parse().unwrap(), &common::small());
    let why = opened.err().expect("the port is taken").to_string();
    assert!(why.starts_with("cannot use interface `lo`: another program or user has UDP port 4791"), "{why}");
}

#[test]
fn the_loopback_interface_has_a_stand_in_address() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    own_network();
    ip("link set lo up");
    let port = open("lo");
    let info = port.info();
    assert_ne!(info.mac, Mac::default());
    assert_eq!((info.name.as_str(), info.ip_mtu, info.peer_mac), ("udp:lo", 4500, Some(PEER_MAC)));
}

#[test]
fn buffers_return_to_their_pool() {
    let mut pair = pair("udp:dpdk1");
    let path = pair.path(V4);
    for payloads in [&[64][..], &[1024; BURST], &[256, 128, 64]] {
        let frames = burst(&mut pair.one, &path, payloads);
        pair.expect_carried(frames);
    }
    assert_eq!((pair.one.buffers_in_use(), pair.other.buffers_in_use()), (0, 0));
}

//! Tests of received datagrams: their headers, their identification, and datagrams that no peer sends.

use super::control::ControlMessages;
use super::identification::Identifications;
use super::rebuild::{DatagramInfo, EthernetAddresses};
use super::{PEER_MAC, address, frames_of};
use crate::linux::datagrams::tests::{burst, path};
use proptest::prelude::*;
use roce::wire::{self, Mac, Path};
use std::net::SocketAddr;

const OWN: Mac = Mac([2, 0, 0, 0, 0, 2]);
const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
const V6: [&str; 2] = ["fd00::1", "fd00::2"];

/// Returns the path of frames as this port receives them.
fn seen(addresses: [&str; 2]) -> Path {
    Path { source_mac: PEER_MAC, destination_mac: OWN, traffic_class: 0x6a, hop_limit: 9, ..path(addresses) }
}

/// Returns the control messages that the kernel writes for a datagram along `path`.
fn control(path: &Path, segment: Option<i32>) -> ControlMessages {
    let mut control = ControlMessages::new();
    let (class, hops) = (i32::from(path.traffic_class), i32::from(path.hop_limit));
    match path.destination {
        std::net::IpAddr::V4(ip) => {
            control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &[&[0; 8][..], &ip.octets()].concat());
            control.push(libc::IPPROTO_IP, libc::IP_TOS, &[path.traffic_class]);
            control.push(libc::IPPROTO_IP, libc::IP_TTL, &hops.to_ne_bytes());
        }
        std::net::IpAddr::V6(ip) => {
            control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &[&ip.octets()[..], &[0; 4]].concat());
            control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class.to_ne_bytes());
            control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hops.to_ne_bytes());
        }
    }
    segment.into_iter().for_each(|size| control.push(libc::SOL_UDP, libc::UDP_GRO, &size.to_ne_bytes()));
    control
}

fn name(path: &Path) -> [u8; address::ROOM] {
    address::write(SocketAddr::new(path.source, path.udp_source), 0).0
}

/// Returns the frames that a socket delivers after it received a datagram with the packets `frames`.
fn received(
    identifications: &mut Identifications,
    path: &Path,
    segment: Option<i32>,
    frames: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let headers = if path.source.is_ipv4() { 42 } else { 62 };
    let payload: Vec<u8> = frames.iter().flat_map(|frame| frame[headers..].iter().copied()).collect();
    let mut out = Vec::new();
    frames_of(identifications, &name(path), &control(path, segment), &payload, |frame| {
        out.push(frame.to_vec())
    });
    out
}

#[test]
fn a_datagram_gets_the_headers_of_its_packets() {
    for addresses in [V4, V6] {
        let path = seen(addresses);
        let sent = burst(&path, 0, &[256, 256, 256, 12]);
        let size = sent[0].len() - if addresses == V4 { 42 } else { 62 };
        let frames = received(&mut Identifications::new(), &path, Some(size as i32), &sent);
        assert_eq!(frames, sent, "{addresses:?}");
        let single = received(&mut Identifications::new(), &path, None, &sent[..1]);
        assert_eq!(single, sent[..1]);
    }
}

#[test]
fn packets_from_the_ports_own_address_have_its_ethernet_address() {
    let info = DatagramInfo::read(&name(&seen(V4)), &control(&seen(V4), None)).unwrap();
    let ethernet = EthernetAddresses { own: OWN, peer: PEER_MAC };
    for (is_own, mac) in [(true, OWN), (false, PEER_MAC)] {
        let mut headers = [0; 42];
        assert!(info.write(ethernet, is_own, 100, &mut headers));
        assert_eq!(headers[6..12], mac.0);
    }
}

#[test]
fn any_identification_of_an_unknown_peer_is_found() {
    let path = seen(V4);
    for first in [0, 1, 0x1234, 0xfffe] {
        for payloads in [&[64][..], &[256, 256, 256]] {
            let sent = burst(&path, first, payloads);
            let size = (payloads.len() > 1).then(|| sent[0].len() as i32 - 42);
            assert_eq!(
                received(&mut Identifications::new(), &path, size, &sent),
                sent,
                "{first} {payloads:?}"
            );
        }
    }
}

#[test]
fn a_datagram_that_gro_joined_of_two_calls_is_complete() {
    let path = seen(V4);
    let sent = [burst(&path, 0, &[64; 5]), burst(&path, 0, &[64; 3])].concat();
    let size = sent[0].len() as i32 - 42;
    assert_eq!(received(&mut Identifications::new(), &path, Some(size), &sent), sent);
}

#[test]
fn one_corrupt_packet_of_a_datagram_is_the_only_one_lost() {
    let path = seen(V4);
    for corrupt in 0..4 {
        let mut sent = burst(&path, 0, &[256; 4]);
        sent[corrupt][100] ^= 0x10;
        let size = sent[0].len() as i32 - 42;
        let frames = received(&mut Identifications::new(), &path, Some(size), &sent);
        let whole: Vec<_> = frames.iter().map(|frame| wire::verify(frame).is_ok()).collect();
        let expected: Vec<_> = (0..4).map(|at| at != corrupt).collect();
        assert_eq!(whole, expected);
    }
}

/// The statement of `docs/reference/wire.md`: a packet of a peer on UDP sockets has an identification below 64.
#[test]
fn each_covered_bit_of_a_packet_is_checked_for_known_and_unknown_peers() {
    let path = seen(V4);
    for is_known in [false, true] {
        let mut identifications = Identifications::new();
        let whole = burst(&path, 0, &[256]);
        for _ in 0..if is_known { 2000 } else { 1 } {
            assert_eq!(received(&mut identifications, &path, None, &whole), whole);
        }
        for bit in 8 * 42..8 * whole[0].len() {
            // The reserved byte of the BTH is not covered.
            if bit / 8 == 46 {
                continue;
            }
            let mut damaged = whole.clone();
            damaged[0][bit / 8] ^= 1 << (bit % 8);
            let frames = received(&mut identifications, &path, None, &damaged);
            assert!(wire::verify(&frames[0]).is_err(), "bit {bit}, known {is_known}");
            // Keeps the peer known.
            received(&mut identifications, &path, None, &whole);
        }
    }
}

#[test]
fn a_known_peers_identification_is_small_until_packets_are_refused() {
    let path = seen(V4);
    let mut identifications = Identifications::new();
    let (small, large) = (burst(&path, 0, &[64]), burst(&path, 0x1234, &[64]));
    for _ in 0..2000 {
        received(&mut identifications, &path, None, &small);
    }
    let is_whole =
        |identifications: &mut _| wire::verify(&received(identifications, &path, None, &large)[0]).is_ok();
    let refused = (0..1000).take_while(|_| !is_whole(&mut identifications)).count();
    assert_eq!(refused, 4, "then it may be another program");
    let other = Path { udp_source: 0xc0de, ..path };
    let sent = burst(&other, 0x1234, &[64]);
    assert_eq!(received(&mut identifications, &other, None, &sent), sent, "another port is another peer");
}

#[test]
fn hostile_datagrams_are_refused_or_split_within_their_bytes() {
    for addresses in [V4, V6] {
        let path = seen(addresses);
        let headers = if addresses == V4 { 42 } else { 62 };
        let longest: usize = 65_535 - if addresses == V4 { 28 } else { 8 };
        for (what, length, segment, count) in [
            ("nothing", 0, None, 1),
            ("nothing, in segments", 0, Some(100), 1),
            ("a byte", 1, None, 1),
            ("segments of no bytes", 500, Some(0), 0),
            ("more segments than a kernel makes", 500, Some(1), 0),
            ("segments longer than the datagram", 500, Some(65_535), 1),
            ("a size that is negative", 500, Some(-1), 0),
            ("a size beyond all datagrams", 500, Some(65_536), 0),
            ("length no multiple", 501, Some(100), 6),
            ("64 KiB", longest, Some(1040), longest.div_ceil(1040)),
            ("64 KiB in one", longest, None, 0),
            ("more than 64 KiB", longest + 1, Some(1040), 0),
        ] {
            let (mut frames, payload) = (0, vec![0xa5; length]);
            let mut identifications = Identifications::new();
            frames_of(&mut identifications, &name(&path), &control(&path, segment), &payload, |frame| {
                assert!((headers..=headers + length).contains(&frame.len()), "{what}");
                frames += 1;
            });
            assert_eq!(frames, count, "{what}, {addresses:?}");
        }
    }
}

#[test]
fn a_datagram_without_all_control_messages_is_dropped() {
    let (v4, v6) = (seen(V4), seen(V6));
    let whole = control(&v4, None);
    for length in 0..whole.length() - 8 {
        let mut less = control(&v4, None);
        less.set_length(length);
        assert_eq!(DatagramInfo::read(&name(&v4), &less), None, "{length} bytes");
    }
    assert_eq!(DatagramInfo::read(&name(&v6), &whole), None, "addresses of two families");
    assert_eq!(DatagramInfo::read(&[0; address::ROOM], &whole), None, "no address");
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_split_within_themselves(
        name: [u8; address::ROOM], control in prop::collection::vec(any::<u8>(), 0..300), segment: Option<u16>,
        payload in prop::collection::vec(any::<u8>(), 0..2000), is_v4: bool,
    ) {
        let mut lies = ControlMessages::new();
        lies.fill(&control);
        let (mut identifications, path) = (Identifications::new(), seen(if is_v4 { V4 } else { V6 }));
        frames_of(&mut identifications, &name, &lies, &payload, |_| {});
        let messages = self::control(&path, segment.map(i32::from));
        let mut sum = 0;
        frames_of(&mut identifications, &self::name(&path), &messages, &payload, |frame| {
            sum += frame.len() - if is_v4 { 42 } else { 62 };
        });
        prop_assert!(sum <= payload.len());
    }
}

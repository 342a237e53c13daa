//! Tests that bursts become datagrams and datagrams become bursts, and tests of datagrams that no kernel sends.

use super::headers::NoUdp;
use super::{BadDatagram, Group, HEADROOM, MAX_BYTES, MAX_SEGMENTS, Received, Segmentation, Tag, VnetHeader};
use proptest::prelude::*;
use roce::wire::{self, Bth, Header, Mac, Path, Vlan};
use roce::{Psn, Qpn};
use std::net::IpAddr;

const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
const V6: [&str; 2] = ["fd00::1", "fd00::2"];
/// Offset of the UDP header in an untagged IPv4 frame.
const UDP: usize = 34;

pub(in crate::linux) fn path([from, to]: [&str; 2]) -> Path {
    let [from, to]: [IpAddr; 2] = [from, to].map(|ip| ip.parse().unwrap());
    Path::new((Mac([2, 0, 0, 0, 0, 1]), from), (Mac([2, 0, 0, 0, 0, 2]), to))
}

fn frame(path: &Path, identification: u16, payload: usize) -> Vec<u8> {
    let bth = Bth::new(Qpn::new(7), Psn::new(identification.into()));
    let header = Header::Datagram { bth, queue_key: 1, source: Qpn::new(1), immediate: None };
    let mut bytes = vec![0; payload + 100];
    let mut draft = wire::emit(path, identification, &header, payload, &mut bytes).unwrap();
    draft.payload().iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8 ^ identification as u8);
    let length = draft.seal();
    bytes.truncate(length);
    bytes
}

/// Returns frames with consecutive identifications, starting at `first`.
pub(in crate::linux) fn burst(path: &Path, first: u16, payloads: &[usize]) -> Vec<Vec<u8>> {
    let one = |(at, payload): (usize, &usize)| frame(path, first.wrapping_add(at as u16), *payload);
    payloads.iter().enumerate().map(one).collect()
}

fn count(frames: &[Vec<u8>]) -> usize {
    Group::first_of(frames).map_or(1, |group| group.count())
}

/// Returns the frames as one datagram: its virtio header and its bytes.
fn datagram(frames: &[Vec<u8>]) -> (VnetHeader, Vec<u8>) {
    let group = Group::first_of(frames).expect("the frames are a group");
    assert_eq!(group.count(), frames.len());
    let start = group.start(&frames[0]);
    let (vnet, headers) = start.split_first_chunk().unwrap();
    let payloads = frames.iter().flat_map(|frame| group.payload(frame).iter().copied());
    (VnetHeader::parse(*vnet), headers.iter().copied().chain(payloads).collect())
}

/// Returns the frames of the received `bytes`, with `None` for each that was not received completely.
fn frames(received: &Received, bytes: &[u8]) -> Vec<Option<Vec<u8>>> {
    let mut room = [&[0xaa; HEADROOM], bytes].concat();
    let mut one = |number| {
        let frame = received.frame(number, &mut room).map(|frame| frame.to_vec());
        assert_eq!(
            received.frame(number, &mut room).as_deref(),
            frame.as_deref(),
            "a frame can be assembled again"
        );
        frame
    };
    (0..received.count()).map(&mut one).collect()
}

fn split(vnet: VnetHeader, bytes: &[u8]) -> Result<Vec<Vec<u8>>, BadDatagram> {
    let received = Received::parse(vnet, bytes, bytes.len(), None)?;
    Ok(frames(&received, bytes).into_iter().map(|frame| frame.expect("nothing is missing")).collect())
}

#[test]
fn a_burst_of_one_size_is_one_datagram_and_splits_into_the_same_frames() {
    for addresses in [V4, V6] {
        for payloads in [&[1024; 32][..], &[1024, 1024, 12], &[4, 4], &[0, 0, 0]] {
            let sent = burst(&path(addresses), 0xfff0, payloads);
            let (vnet, bytes) = datagram(&sent);
            assert_eq!(split(vnet, &bytes).unwrap(), sent, "{addresses:?} {payloads:?}");
        }
    }
}

#[test]
fn a_tagged_burst_is_one_datagram_and_splits_into_the_same_frames() {
    for addresses in [V4, V6] {
        let path = Path { vlan: Some(Vlan(5)), ..path(addresses) };
        let sent = burst(&path, 1, &[256, 256, 100]);
        let (vnet, bytes) = datagram(&sent);
        assert_eq!(split(vnet, &bytes).unwrap(), sent);
        // The kernel delivers the tag separately.
        let (untagged, udp) = ([&bytes[..12], &bytes[16..]].concat(), vnet.checksum.unwrap().0 - 4);
        let vnet = VnetHeader { checksum: Some((udp, 6)), ..vnet };
        let tag = Some(Tag([0x81, 0, 0, 5]));
        let received = Received::parse(vnet, &untagged, untagged.len(), tag).unwrap();
        assert_eq!(frames(&received, &untagged).into_iter().flatten().collect::<Vec<_>>(), sent);
    }
}

#[test]
fn the_datagrams_headers_are_those_that_the_kernel_demands() {
    let sent = burst(&path(V4), 9, &[1024; 3]);
    let (vnet, bytes) = datagram(&sent);
    let size = sent[0].len() - 42;
    assert_eq!(vnet, VnetHeader::of_datagram(34, size as u16));
    let word = |at| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    assert_eq!((usize::from(word(16)), word(18)), (bytes.len() - 14, 9));
    assert_eq!(usize::from(word(UDP + 4)), bytes.len() - UDP);
    // RFC 1071: the one's complement sum over the whole header is all ones.
    let sum: u32 = (14..34).step_by(2).map(|at| u32::from(word(at))).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    // 10.0.0.1, 10.0.0.2, protocol UDP, and the UDP length.
    let pseudo = u32::from(word(UDP + 4)) + 17 + 2 * 0x0a00 + 1 + 2;
    assert_eq!(u32::from(word(UDP + 6)), (pseudo & 0xffff) + (pseudo >> 16));
}

#[test]
fn frames_that_differ_leave_in_different_datagrams() {
    let usual = path(V4);
    let sized = |payloads: &[usize]| count(&burst(&usual, 1, payloads));
    assert_eq!(sized(&[1024, 1024, 1028, 1028]), 2, "a longer frame begins another");
    assert_eq!(sized(&[1040, 1024, 1024]), 2, "a shorter one is the last");
    assert_eq!(sized(&[1024, 1040]), 1);
    assert_eq!(sized(&[1024]), 1);
    assert_eq!(count(&[]), 1);
    for (path, what) in [
        (Path { udp_source: 0xc001, ..usual }, "UDP port"),
        (Path { traffic_class: 2, ..usual }, "traffic class"),
        (Path { hop_limit: 3, ..usual }, "TTL"),
        (Path { destination_mac: Mac([2; 6]), ..usual }, "Ethernet address"),
        (Path { destination: "10.0.0.3".parse().unwrap(), ..usual }, "address"),
        (Path { vlan: Some(Vlan(5)), ..usual }, "tag"),
        (path(V6), "family"),
    ] {
        let other = [frame(&usual, 1, 64), frame(&path, 2, 64), frame(&path, 3, 64)];
        assert_eq!((count(&other), count(&other[1..])), (1, 2), "{what}");
    }
    for identification in [1, 3, 0] {
        let gap = [frame(&usual, 1, 64), frame(&usual, identification, 64)];
        assert_eq!(count(&gap), 1, "identification {identification} after 1");
    }
    assert_eq!(count(&burst(&usual, 0xffff, &[64, 64])), 2, "the identification wraps");
}

#[test]
fn frames_that_the_kernel_would_change_leave_singly() {
    let change = |at: usize, byte: u8| {
        let mut frames = burst(&path(V4), 1, &[64; 3]);
        frames.iter_mut().for_each(|frame| frame[at] = byte);
        count(&frames)
    };
    for (at, byte, what) in [
        (13, 6, "ARP"),
        (14, 0x46, "options"),
        (17, 1, "IP's length"),
        (20, 0x20, "a fragment"),
        (23, 6, "TCP"),
        (UDP + 5, 1, "UDP's length"),
        (UDP + 7, 1, "a checksum"),
    ] {
        assert_eq!(change(at, byte), 1, "{what}");
    }
    assert_eq!(change(UDP + 8, 0), 3, "what lies behind UDP is the packets' own");
    // The same for a later frame.
    let mut frames = burst(&path(V4), 1, &[64; 3]);
    frames[2][UDP + 7] = 1;
    assert_eq!(count(&frames), 2);
}

#[test]
fn a_datagram_ends_at_the_kernels_limits() {
    let small = burst(&path(V4), 1, &[4; MAX_SEGMENTS + 1]);
    assert_eq!(count(&small), MAX_SEGMENTS);
    let large = burst(&path(V4), 1, &[4096; 32]);
    let group = count(&large);
    assert_eq!(group, 15);
    assert!((MAX_BYTES - large[0].len()..=MAX_BYTES).contains(&datagram(&large[..group]).1.len()));
}

#[test]
fn an_incomplete_udp_checksum_of_a_single_frame_is_removed() {
    let whole = frame(&path(V4), 1, 64);
    let mut partial = whole.clone();
    partial[UDP + 6..UDP + 8].copy_from_slice(&[0x12, 0x34]);
    let lacks = VnetHeader { checksum: Some((34, 6)), ..VnetHeader::FRAME };
    assert_eq!(split(lacks, &partial).unwrap(), [whole]);
    assert_eq!(split(VnetHeader::FRAME, &partial).unwrap(), [partial.clone()], "a complete one remains");
    // TCP's checksum, which is left unchanged.
    let tcp = VnetHeader { checksum: Some((34, 16)), ..VnetHeader::FRAME };
    assert_eq!(split(tcp, &partial).unwrap(), [partial]);
}

#[test]
fn a_truncated_datagram_loses_only_the_frames_that_are_not_whole() {
    let sent = burst(&path(V4), 1, &[1024, 1024, 1024, 8]);
    let (vnet, bytes) = datagram(&sent);
    for (received, whole) in [(bytes.len() - 1, 3), (2000, 1), (42, 0)] {
        let split = Received::parse(vnet, &bytes[..received], bytes.len(), None).unwrap();
        let frames = frames(&split, &bytes[..received]);
        assert_eq!(frames.len(), 4);
        for (at, frame) in frames.into_iter().enumerate() {
            assert_eq!(frame.as_ref(), sent.get(at).filter(|_| at < whole), "{received} bytes, frame {at}");
        }
    }
    let single = Received::parse(VnetHeader::FRAME, &sent[0][..60], sent[0].len(), None).unwrap();
    assert_eq!(frames(&single, &sent[0][..60]), [None]);
}

#[test]
fn one_corrupt_packet_of_a_datagram_leaves_the_others_whole() {
    let sent = burst(&path(V4), 1, &[256; 4]);
    let (vnet, mut bytes) = datagram(&sent);
    bytes[42 + sent[0].len()] ^= 1;
    let received = split(vnet, &bytes).unwrap();
    let verified: Vec<_> = received.iter().map(|frame| wire::verify(frame).is_ok()).collect();
    assert_eq!(verified, [true, false, true, true]);
}

/// RFC 1624: an incremental update keeps an error in the checksum.
#[test]
fn a_datagram_with_a_damaged_ip_header_splits_into_damaged_frames() {
    let (vnet, mut bytes) = datagram(&burst(&path(V4), 1, &[256; 4]));
    bytes[14 + 10] ^= 1;
    assert!(split(vnet, &bytes).unwrap().iter().all(|frame| wire::verify(frame).is_err()));
}

/// A name, a datagram's virtio header and bytes, and the number of its frames or the reason why it is refused.
type Row = (&'static str, VnetHeader, Vec<u8>, Result<usize, BadDatagram>);

#[test]
fn hostile_datagrams_are_refused_or_split_within_their_bytes() {
    use BadDatagram::{Checksum, Length, NoUdp as No, Segments, Short, Size, Type};
    let udp = |size| VnetHeader::of_datagram(34, size);
    let (v4, v6) = (burst(&path(V4), 1, &[256; 4]), burst(&path(V6), 1, &[256; 4]));
    let (_, bytes) = datagram(&v4);
    let at = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        bytes
    };
    let (v6_vnet, v6_bytes) = datagram(&v6);
    let mut v6_extension = v6_bytes.clone();
    v6_extension[20] = 0;
    let mut v6_version = v6_bytes.clone();
    v6_version[14] = 0x45;
    let longer = [&bytes[..], &[0; 7]].concat();
    let table: &[Row] = &[
        ("length no multiple", udp(250), bytes.clone(), Ok(5)),
        ("segments of other sizes than the packets'", udp(3000), bytes.clone(), Ok(1)),
        ("segments of no bytes", udp(0), bytes.clone(), Err(Size)),
        ("more segments than a kernel makes", udp(1), bytes.clone(), Err(Segments(bytes.len() - 42))),
        (
            "segments of TCP",
            VnetHeader { segmentation: Segmentation::Other(1), ..udp(1) },
            bytes.clone(),
            Err(Type(1)),
        ),
        (
            "fragments (UFO)",
            VnetHeader { segmentation: Segmentation::Other(3), ..udp(1) },
            bytes.clone(),
            Err(Type(3)),
        ),
        ("a checksum elsewhere", VnetHeader::of_datagram(60, 256), bytes.clone(), Err(Checksum)),
        ("a checksum behind its end", VnetHeader::of_datagram(u16::MAX, 256), bytes.clone(), Err(Checksum)),
        ("longer than its headers say", udp(280), longer, Err(Length)),
        ("shorter than its headers say", udp(280), bytes[..200].to_vec(), Err(Length)),
        ("another length of UDP", udp(280), at(UDP + 4, 0), Err(Length)),
        ("IP options", udp(280), at(14, 0x46), Err(No(NoUdp::Options))),
        ("a short IP header", udp(280), at(14, 0x44), Err(No(NoUdp::Options))),
        ("another version of IP", udp(280), at(14, 0x55), Err(No(NoUdp::EtherType))),
        ("a fragment", udp(280), at(21, 1), Err(No(NoUdp::Fragment))),
        ("TCP", udp(280), at(23, 6), Err(No(NoUdp::Protocol))),
        ("ARP", udp(280), at(13, 6), Err(No(NoUdp::EtherType))),
        (
            "two tags",
            udp(280),
            [&bytes[..12], &[0x81, 0, 0, 5, 0x81, 0, 0, 6], &bytes[12..]].concat(),
            Err(No(NoUdp::EtherType)),
        ),
        ("headers that are cut off", udp(280), bytes[..41].to_vec(), Err(No(NoUdp::Short))),
        ("an IPv6 extension header", v6_vnet, v6_extension, Err(No(NoUdp::Protocol))),
        ("another version of IP instead of IPv6", v6_vnet, v6_version, Err(No(NoUdp::EtherType))),
        ("IPv6 with IPv4's checksum place", udp(280), v6_bytes, Err(Checksum)),
        ("no frame", udp(280), vec![0; 12], Err(Short)),
        ("nothing", VnetHeader::FRAME, vec![], Err(Short)),
    ];
    for (what, vnet, bytes, result) in table {
        let split = split(*vnet, bytes).map(|frames| frames.len());
        assert_eq!(split, *result, "{what}");
    }
    // The header length is only a hint of the kernel, and is not used.
    let hint = udp(280).bytes(u16::MAX);
    assert_eq!(split(VnetHeader::parse(hint), &bytes).unwrap(), v4);
    assert!(
        Received::parse(VnetHeader::FRAME, &bytes, bytes.len() - 1, None).is_err(),
        "received more than was sent"
    );
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_split_within_themselves(
        vnet: [u8; 10], bytes in prop::collection::vec(any::<u8>(), 0..300), more in 0..300_usize, tagged: bool,
    ) {
        let tag = tagged.then_some(Tag([0x81, 0, 0, 5]));
        if let Ok(received) = Received::parse(VnetHeader::parse(vnet), &bytes, bytes.len() + more, tag) {
            for frame in frames(&received, &bytes).into_iter().flatten() {
                prop_assert!(frame.len() <= bytes.len() + 4);
            }
        }
    }

    #[test]
    fn a_damaged_datagram_is_refused_or_split_within_itself(at in 0..900_usize, byte: u8, size: u16, kept in 0..=900_usize) {
        let (_, mut bytes) = datagram(&burst(&path(V4), 1, &[128; 6]));
        let end = bytes.len();
        bytes[at.min(end - 1)] = byte;
        let received = Received::parse(VnetHeader::of_datagram(34, size), &bytes[..kept.min(end)], end, None);
        let payload = received.map_or(0, |received| {
            frames(&received, &bytes[..kept.min(end)]).into_iter().flatten().map(|frame| frame.len() - 42).sum()
        });
        prop_assert!(payload <= end - 42);
    }

    #[test]
    fn frames_of_any_sizes_are_the_same_after_all_datagrams(
        payloads in prop::collection::vec(prop::sample::select(vec![0, 4, 252, 256, 1024]), 1..40), first: u16,
    ) {
        let sent = burst(&path(V4), first, &payloads);
        let (mut rest, mut received) = (&sent[..], Vec::new());
        while !rest.is_empty() {
            let (now, later) = rest.split_at(count(rest));
            match now {
                [one] => received.push(one.clone()),
                _ => {
                    let (vnet, bytes) = datagram(now);
                    received.extend(split(vnet, &bytes).unwrap());
                }
            }
            rest = later;
        }
        prop_assert_eq!(received, sent);
    }
}

//! Tests of each format: against its figures, at its limits, and in whole packets.

use super::*;
use crate::wire::constants::UDP_LENGTH;
use crate::wire::inband_tests::path;
use crate::wire::{Bth, Header, Operation, Service, emit, parse, verify};
use crate::{Psn, Qpn};
use cc::{Counter, Rate};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// Length of a frame's buffer. The part after the frame is room to grow.
const BUFFER: usize = 1600;
const OTHERS: [Format; 6] =
    [Format::IntMd, Format::Ioam, Format::Ifa, Format::Aecn, Format::Csig, Format::CsigWide];

/// Returns a buffer with a WRITE packet with `payload` at `gap`, and the packet's length.
fn plain(v6: bool, payload: &[u8], gap: usize) -> (Vec<u8>, usize) {
    let bth = Bth::new(Qpn::new(7), Psn::new(1));
    let header = Header::Connected { service: Service::Rc, bth, operation: Operation::WriteMiddle };
    let mut frame = vec![0xa5; BUFFER];
    let mut draft = emit(&path(v6), 9, &header, payload.len(), &mut frame[gap..]).expect("a legal packet");
    draft.payload().copy_from_slice(payload);
    let length = draft.seal();
    (frame, length)
}

/// Returns the same packet with telemetry.
fn inserted(format: Format, v6: bool, payload: &[u8]) -> (Vec<u8>, usize) {
    let (mut frame, length) = plain(v6, payload, format.inserted());
    let length = format.insert(&mut frame, length, Numbers::DEFAULT).expect("it fits");
    (frame, length)
}

fn port(number: u16) -> PortState {
    let n = u64::from(number);
    PortState {
        switch: number,
        port: 3,
        rate: Rate::from_gbps(10),
        time: 5_000_000_000 * n + 7_654_321,
        tx_bytes: (1 << 31) * n + 77,
        queue: 8_000 * n,
        sojourn: 6_400,
        load: aecn::Load {
            inflight: (40 * number).min(255) as u8,
            rate: 3,
            queue: 9,
            delay: 100,
            congested: 1,
        },
    }
}

fn stamped(frame: &mut [u8], length: usize, port: &PortState) -> Option<usize> {
    Request::find(&frame[..length], Numbers::DEFAULT)?.stamp(frame, length, port)
}

fn reading(frame: &[u8]) -> Reading {
    parse(frame)
        .expect("telemetry is outside the ICRC")
        .network
        .telemetry()
        .expect("it is there")
        .read()
        .expect("it is ours")
}

/// Linux computes the UDP checksum of packets that it splits off a large datagram.
#[test]
fn a_stamped_packet_with_a_udp_checksum_is_received() {
    for (format, is_v6) in [(Format::IntMd, false), (Format::Ifa, false), (Format::Ioam, true)] {
        let (mut frame, length) = inserted(format, is_v6, &[1; 8]);
        let layers = Layers::locate(&frame[..length], Numbers::DEFAULT).unwrap();
        let place = layers.udp + 6;
        let is_right = |checksum: &u16| {
            frame[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
            layers.verify_checksums(&frame[..length]).is_ok()
        };
        assert!((1..=u16::MAX).find(is_right).is_some(), "{format:?}");
        let length = stamped(&mut frame, length, &port(1)).expect("room");
        reading(&frame[..length]);
    }
}

/// Returns the bytes between UDP's header and the BTH, or in the hop-by-hop header.
fn region(frame: &[u8]) -> &[u8] {
    let layers = Layers::locate(frame, Numbers::DEFAULT).unwrap();
    match layers.carried.unwrap() {
        InsertedTelemetry::IntMd | InsertedTelemetry::Ifa => &frame[layers.udp + UDP_LENGTH..layers.bth],
        InsertedTelemetry::Ioam(..) | InsertedTelemetry::Aecn(..) => &frame[layers.ip + 40..layers.udp],
        InsertedTelemetry::Csig(length) => &frame[layers.ip - 2 - usize::from(length)..layers.ip],
    }
}

/// P4 INT v2.1, 5.6 and 5.7: shim, header, one hop's metadata.
/// RFC 4727 6: the port is one for experiments.
#[test]
fn int_md_has_the_layout_of_its_figures() {
    let (mut frame, length) = inserted(Format::IntMd, false, &[1; 8]);
    let asked = [
        0x14, 3, 0x12, 0xb7, // INT-MD, NPT 1, 3 words, port 4791
        0x20, 0, 6, 5, // version 2, 6 words a hop, 5 hops left
        0x94, 0, 0x46, 0x52, // node, queue, egress time; our domain
        0xc0, 0, 0, 0, // txBytes, rate
    ];
    assert_eq!(region(&frame[..length]), asked);
    assert_eq!(frame[36..38], 1021_u16.to_be_bytes(), "UDP's destination port");
    let length = stamped(&mut frame, length, &port(1)).expect("room");
    let hop = [
        0, 0, 0, 1, // node
        0, 0, 0x1f, 0x40, // queue 0, 8000 bytes
        0, 0, 0, 1, 0x2a, 0x7a, 0xbd, 0xb1, // 5.007654321 s
        0x80, 0, 0, 77, // txBytes
        0, 0x98, 0x96, 0x80, // 10 Gb/s in kbit/s
    ];
    assert_eq!(
        region(&frame[..length]),
        [&[0x14, 9, 0x12, 0xb7, 0x20, 0, 6, 4], &asked[8..], &hop[..]].concat()
    );
}

/// RFC 9197 4.4.1 and 4.4.2 in RFC 9486 3, in the layout of Linux's encapsulation.
#[test]
fn ioam_has_the_layout_of_its_figures() {
    let (mut frame, length) = inserted(Format::Ioam, true, &[1; 8]);
    let region_of = |frame: &[u8]| region(frame).to_vec();
    let asked = [
        17, 19, 1, 0, // UDP follows, 160 bytes; PadN of 2
        0x31, 150, 0, 0, // IOAM, 150 bytes, reserved, pre-allocated trace
        0, 0, 0x38, 35, // namespace 0, 7 words a node, no flags, 35 words left
        0xb6, 0x20, 0, 0, // bits 0, 2, 3, 5, 6, 10
    ];
    assert_eq!(region_of(&frame[..length])[..16], asked);
    assert_eq!(region_of(&frame[..length])[156..], [1, 2, 0, 0], "PadN of 4");
    assert_eq!(stamped(&mut frame, length, &port(1)), Some(length), "in place");
    let region = region_of(&frame[..length]);
    assert_eq!(region[8..12], [0, 0, 0x38, 28]);
    let node = [
        64, 0, 0, 1, // hop limit, node
        0, 0, 0, 5, 0, 0, 0x1d, 0xe6, // 5 s, 7654 µs
        0, 0x98, 0x96, 0x80, // 10 Gb/s in kbit/s
        0, 0, 0x1f, 0x40, // 8000 bytes
        0x50, 0x40, 0, 0, 0x80, 0, 0, 77, // 321 ns, txBytes
    ];
    assert_eq!(region[128..156], node, "the first node takes the tail");
}

/// draft-kumar-ippm-ifa: header, metadata header, one hop of 32 bytes.
/// RFC 3692: the protocol number is one for experiments.
#[test]
fn ifa_has_the_layout_of_its_figures() {
    let (mut frame, length) = inserted(Format::Ifa, false, &[1; 8]);
    assert_eq!(frame[23], 253, "IP's protocol");
    assert_eq!(frame[34..38], [0x2f, 17, 0, 40], "version 2, GNS 15, UDP, 40 words at most");
    let udp_length = u16::from_be_bytes([frame[42], frame[43]]);
    assert_eq!(region(&frame[..length]), [0, 0, 5, 0]);
    let length = stamped(&mut frame, length, &port(1)).expect("room");
    let metadata = [
        0, 0, 4, 8, // 4 hops left, 8 words
        0x10, 0, 1, 64, // LNS 1, device 1, TTL
        0x08, 0, 0, 5, // 10 Gb/s, ECT(0), queue 0, arrived at 5 s
        0, 3, 0xff, 0xff, // egress, ingress port
        0, 0x74, 0xb2, 0xb1, // arrived at 7647921 ns
        0, 0, 0x19, 0, // 6400 ns inside
        0x80, 0, 0, 77, // txBytes
        0, 0, 0, 100, 0, 0, 0, 0, // 100 cells
    ];
    assert_eq!(region(&frame[..length]), metadata);
    assert_eq!(u16::from_be_bytes([frame[42], frame[43]]), udp_length, "the UDP length does not include it");
}

/// draft-shi-ippm-advanced-ecn-00, Figure 2 and Table 1.
/// RFC 4727 3.6: the option's type is one for experiments.
#[test]
fn aecn_has_the_layout_of_its_figures() {
    let (mut frame, length) = inserted(Format::Aecn, true, &[1; 8]);
    assert_eq!(region(&frame[..length]), [17, 1, 0x3e, 9, 0, 0xf8, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0]);
    for number in [1, 3, 2] {
        assert_eq!(stamped(&mut frame, length, &port(number)), Some(length));
    }
    let (max, add) = ([120, 3, 9], [255, 3]);
    assert_eq!(region(&frame[..length])[8..13], [&max[..], &add[..]].concat(), "300 µs stop at 255");
    assert_eq!(reading(&frame[..length]), Reading::Inflight(120 << 13));
}

#[test]
fn aecn_updates_requested_values_and_only_in_bitmaps() {
    let own = port(1);
    let mut two = [0, 0x50, 0, 0, 0, 1];
    assert!(aecn::stamp(&mut two, &own), "the rate and the delay");
    assert_eq!(two, [0, 0x50, 0, 0, 3, 101]);
    assert_eq!(aecn::load(&two).map(|load| (load.rate, load.delay, load.inflight)), Some((3, 101, 0)));
    assert_eq!(aecn::read(&two), None, "no in-flight share was asked for");
    for data in [&[1, 0xf8, 0, 0, 0, 0, 0, 0, 0][..], &[0, 0xf8, 0, 0, 0, 0, 0, 0], &[0, 0xf8], &[0, 0, 0, 1]]
    {
        let mut data = data.to_vec();
        let before = data.clone();
        assert!(!aecn::stamp(&mut data, &own), "customized, short, shorter, or of no known kind");
        assert_eq!(data, before);
    }
}

/// Returns the values that each format transports of `port`: B, ts and txBytes as counters, and qlen.
fn transported(format: Format, of: &PortState) -> HopReading {
    let (time, tx_bytes) = match format {
        Format::IntMd => (Counter::of::<64, 1>(of.time), Counter::of::<32, 1>(of.tx_bytes & 0xffff_ffff)),
        Format::Ioam => (Counter::of::<32, 1>(of.time), Counter::of::<54, 1>(of.tx_bytes)),
        Format::Ifa => (Counter::of::<32, 1>(of.time), Counter::of::<32, 1>(of.tx_bytes & 0xffff_ffff)),
        Format::Hpcc | Format::Aecn | Format::Csig | Format::CsigWide => {
            unreachable!("not of hops of these formats")
        }
    };
    HopReading { bandwidth: Some(of.rate), time, tx_bytes: Some(tx_bytes), queue: of.queue }
}

fn equal(a: &HopReading, b: &HopReading) -> bool {
    let same = |a: Counter, b: Counter| (a.raw(), a.bits(), a.unit()) == (b.raw(), b.bits(), b.unit());
    (a.bandwidth, a.queue) == (b.bandwidth, b.queue)
        && same(a.time, b.time)
        && a.tx_bytes.zip(b.tx_bytes).is_some_and(|(a, b)| same(a, b))
}

#[test]
fn switches_beyond_the_room_write_only_the_overflow_flag() {
    for format in [Format::IntMd, Format::Ioam, Format::Ifa] {
        let (mut frame, mut length) = inserted(format, true, &[1; 64]);
        for number in 1..=u16::from(HOPS) {
            length = stamped(&mut frame, length, &port(number)).expect("room");
        }
        assert_eq!(length, plain(true, &[1; 64], 0).1 + format.longest(), "{format}");
        assert_eq!(stamped(&mut frame, length, &port(6)), None, "{format}");
        let Reading::Hops(hops) = reading(&frame[..length]) else { panic!("{format}") };
        assert_eq!((hops.count(), hops.path_id()), (5, (1..=5).fold(0, |path, id| path ^ id)));
        for (hop, number) in hops.iter().zip(1..) {
            assert!(equal(hop, &transported(format, &port(number))), "{format} {number}: {hop:?}");
        }
        match format {
            Format::IntMd => assert_eq!(region(&frame[..length])[4], 0x24, "E"),
            Format::Ioam => assert_eq!(region(&frame[..length])[10] & 4, 4, "O"),
            _ => {}
        }
    }
}

#[test]
fn a_buffer_without_room_keeps_the_packet_whole() {
    for format in [Format::IntMd, Format::Ifa] {
        let (mut frame, length) = inserted(format, false, &[1; 64]);
        frame.truncate(length + 10);
        assert_eq!(stamped(&mut frame, length, &port(1)), None);
        assert!(parse(&frame[..length]).is_ok());
        if format == Format::IntMd {
            assert_eq!(region(&frame[..length])[4], 0x22, "M");
        }
    }
}

#[test]
fn linux_as_an_ioam_node_writes_queue_and_microseconds() {
    let (mut frame, length) = inserted(Format::Ioam, true, &[1; 8]);
    assert!(
        Request::find(&frame[..length], Numbers::DEFAULT)
            .expect("it asks")
            .stamp_as_linux(&mut frame, &port(1))
    );
    let node = 14 + 40 + 128;
    assert_eq!(frame[node + 20..node + 28], [0xff; 8], "no wide namespace data");
    // Makes the namespace data unavailable, too.
    frame[node + 12..node + 16].fill(0xff);
    let Reading::Hops(hops) = reading(&frame[..length]) else { panic!() };
    let hop = hops.iter().next().unwrap();
    assert_eq!((hop.bandwidth, hop.tx_bytes, hop.queue), (None, None, 8000));
    assert_eq!((hop.time.raw(), hop.time.unit()), (5_007_654, 1000));
    let (mut other, length) = inserted(Format::Ifa, true, &[1; 8]);
    assert!(
        !Request::find(&other[..length], Numbers::DEFAULT)
            .expect("it asks")
            .stamp_as_linux(&mut other, &port(1))
    );
}

/// RFC 9197 4.3: a node ignores a namespace that it does not know.
#[test]
fn foreign_namespaces_instructions_and_name_spaces_are_left_alone() {
    for (format, at) in [(Format::IntMd, 8), (Format::Ioam, 9), (Format::Ifa, 4)] {
        let (mut frame, mut length) = inserted(format, true, &[1; 8]);
        if format == Format::Ifa {
            length = stamped(&mut frame, length, &port(1)).expect("room");
        }
        let start = region(&frame[..length]).as_ptr() as usize - frame.as_ptr() as usize;
        frame[start + at] ^= 0x80;
        let carried = parse(&frame[..length]).expect("the packet itself is good").network.telemetry();
        assert_eq!(carried.and_then(|carried| carried.read()), None, "{format}");
        if format != Format::Ifa {
            let before = frame.clone();
            assert_eq!(stamped(&mut frame, length, &port(1)), None, "{format}");
            assert_eq!(frame, before);
        }
    }
}

/// draft-ravi-ippm-csig-01: the tag is after a VLAN's, and before the EtherType of IP. Packets request two signals in turn.
#[test]
fn the_csig_tag_is_between_ethernet_and_ip() {
    for (v6, (format, tpid)) in [false, true]
        .into_iter()
        .flat_map(|v6| [(Format::Csig, 0x9900_u16), (Format::CsigWide, 0x9901)].map(|tag| (v6, tag)))
    {
        let (before, plain_length) = plain(v6, &[1; 8], 0);
        let ip = Layers::locate(&before[..plain_length], Numbers::DEFAULT).unwrap().ip;
        let (mut frame, length) = inserted(format, v6, &[1; 8]);
        assert_eq!(frame[..ip - 2], before[..ip - 2], "{format}");
        assert_eq!(frame[ip - 2..ip], tpid.to_be_bytes(), "{format}");
        assert_eq!(frame[ip - 2 + format.inserted()..length], before[ip - 2..plain_length], "{format}");
        // PSN 1: the longest wait. The wide tag's locator is first.
        let tag = |frame: &[u8]| frame[ip..ip - 2 + format.inserted()].to_vec();
        let is_wide = format == Format::CsigWide;
        assert_eq!(tag(&frame), if is_wide { vec![0, 0, 0x20, 0, 0, 0] } else { vec![0x40, 0] });
        assert_eq!(stamped(&mut frame, length, &port(5)), Some(length));
        // 6.4 µs are 25 times 256 ns, and 64 ns doubled less than 7 times.
        let expected = if is_wide { vec![0x10, 5, 0x20, 0, 0x19, 0] } else { vec![0x43, 0x85] };
        assert_eq!(tag(&frame), expected, "{format}");
        let transported = if is_wide { 6_400 } else { 96 << 6 };
        assert_eq!(reading(&frame[..length]), Reading::Signal(Signal::Delay(transported)));
        let other = Numbers::DEFAULT.with_csig_tpid(0x88b5).unwrap();
        assert_eq!(other.parse(&frame[..length]), Err(Discard::EtherType), "another network's");
        let class = crate::wire::traffic_class(&frame[..length]);
        assert_eq!(class, crate::wire::traffic_class(&before[..plain_length]), "classes need no numbers");
    }
    for tpid in [0x05ff, 0x0800, 0x07ff, 0x8100, 0x86dc, 0xffff] {
        assert_eq!(Numbers::DEFAULT.with_csig_tpid(tpid), Err(NumbersError::CsigTpid(tpid)));
    }
}

/// RFC 8200 4.3: the header follows IPv6's own.
#[test]
fn hop_by_hop_options_need_ipv6() {
    for format in [Format::Ioam, Format::Aecn] {
        let (mut frame, length) = plain(false, &[1; 8], format.inserted());
        assert_eq!(format.insert(&mut frame, length, Numbers::DEFAULT), Err(Discard::IpHeader));
        assert!(!format.fits(path(false).destination) && format.fits(path(true).destination));
    }
    assert_eq!("ifa".parse(), Ok(Format::Ifa));
    assert!("ebpf".parse::<Format>().is_err());
}

/// RFC 8200 4.2, RFC 9486 4: an option's type determines whether it may be skipped.
#[test]
fn an_unknown_option_that_must_not_be_skipped_is_an_error() {
    let (mut frame, length) = inserted(Format::Aecn, true, &[1; 8]);
    frame[54 + 2] = 0x05;
    assert!(
        parse(&frame[..length]).is_ok_and(|frame| frame.network.telemetry().is_none()),
        "router alert may be skipped"
    );
    frame[54 + 2] = 0xc2;
    assert_eq!(parse(&frame[..length]), Err(Discard::IpHeader), "a jumbo payload may not");
    frame[54 + 2..54 + 4].copy_from_slice(&[0x3e, 200]);
    assert_eq!(parse(&frame[..length]), Err(Discard::IpHeader), "an option longer than its header");
}

fn any_port() -> impl Strategy<Value = PortState> {
    let rate = prop::sample::select(vec![10, 100, 1_000, 10_000, 100_000, 400_000]);
    (any::<[u64; 3]>(), rate, any::<[u8; 5]>(), 0u16..4096).prop_map(
        |([time, tx_bytes, queue], mbps, [inflight, rate, share, delay, congested], switch)| PortState {
            switch,
            port: 1,
            rate: Rate::from_mbps(mbps),
            time: time >> 8,
            tx_bytes,
            queue: queue % (0xffff * 80) / 80 * 80,
            sojourn: u64::from(delay) * 1000,
            load: aecn::Load { inflight, rate, queue: share, delay, congested },
        },
    )
}

proptest! {
    #[test]
    fn the_icrc_stays_valid_and_the_records_of_all_switches_are_read(
        format in prop::sample::select(&OTHERS[..]),
        v6: bool,
        payload in prop::collection::vec(any::<u8>(), 0..300),
        ports in prop::collection::vec(any_port(), 0..8),
    ) {
        let v6 = v6 || !format.fits(path(false).destination);
        let (before, plain_length) = plain(v6, &payload, 0);
        let (mut frame, mut length) = inserted(format, v6, &payload);
        prop_assert_eq!(length, plain_length + format.inserted());
        prop_assert_eq!(&frame[length - 4..length], &before[plain_length - 4..plain_length]);
        for port in &ports {
            length = stamped(&mut frame, length, port).unwrap_or(length);
        }
        let parsed = parse(&frame[..length]).expect("telemetry is outside the ICRC");
        prop_assert_eq!((parsed.payload, parsed.network.path()), (&payload[..], path(v6)));
        let is_csig = matches!(format, Format::Csig | Format::CsigWide);
        if is_csig && ports.is_empty() {
            prop_assert_eq!(parsed.network.telemetry().and_then(|carried| carried.read()), None);
            return Ok(());
        }
        match reading(&frame[..length]) {
            Reading::Hops(hops) => {
                prop_assert_eq!(usize::from(hops.count()), ports.len().min(HOPS.into()));
                for (hop, port) in hops.iter().zip(&ports) {
                    let expected = transported(format, port);
                    // Seconds have 20 bits in IFA and 32 in IOAM. Higher bits appear in the low bits of ns.
                    let hop = HopReading { time: expected.time, ..*hop };
                    prop_assert!(equal(&hop, &expected), "{:?} {:?}", hop, expected);
                }
            }
            Reading::Inflight(share) => {
                let most = ports.iter().map(|port| port.load.inflight).max().unwrap_or(0);
                prop_assert_eq!(share, u32::from(most) << 13);
            }
            Reading::Signal(Signal::Available(share)) => {
                let most = ports.iter().map(|port| port.load.inflight.min(128)).max().unwrap_or(0);
                prop_assert!(share.abs_diff((128 - u32::from(most)) << 13) <= 4 << 13);
            }
            Reading::Signal(Signal::Delay(nanos)) => {
                let most = ports.iter().map(|port| port.sojourn).max().unwrap_or(0);
                prop_assert!(nanos <= most * 3 / 2 && nanos + 256 >= most * 3 / 4, "{} of {}", nanos, most);
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_detected_or_harmless(
        format in prop::sample::select(&OTHERS[..]),
        at in 0usize..400,
        bit in 0u8..8,
        stamps in 0u16..3,
    ) {
        let (mut frame, mut length) = inserted(format, true, &[3; 64]);
        for number in 0..stamps {
            length = stamped(&mut frame, length, &port(number)).unwrap_or(length);
        }
        frame[14 + at % (length - 14)] ^= 1 << bit;
        if let Ok(parsed) = parse(&frame[..length]) {
            prop_assert_eq!(parsed.payload, &[3; 64]);
            let _ = parsed.network.telemetry().and_then(|carried| carried.read());
        }
        let before = verify(&frame[..length]);
        let after = stamped(&mut frame, length, &port(9)).unwrap_or(length);
        prop_assert_eq!(verify(&frame[..after]), before, "a switch changes only what it may");
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for format in OTHERS {
            let _ = Telemetry { format, bytes: &bytes }.read();
        }
        let mut data = bytes.clone();
        for node in [ioam::Node::Ferroce, ioam::Node::Linux] {
            let _ = ioam::stamp(&mut data, 64, &port(1), node);
        }
        let _ = aecn::stamp(&mut data, &port(1));
        let _ = hop_by_hop::options(&bytes, 0, Numbers::DEFAULT);
        let mut frame = bytes;
        let length = frame.len();
        frame.resize(length + 64, 0);
        let _ = stamped(&mut frame, length, &port(1));
    }
}

//! Tests of parsing and emitting.

use super::telemetry::{HopRecord, IntHeader, Speed, stamp};
use super::*;
use crate::{Discard, Psn, Qpn, Rkey, SrqNumber};
use core::net::{IpAddr, Ipv4Addr};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const HEADERS_AT_MOST: usize = MAX_OVERHEAD;

fn bth() -> impl Strategy<Value = Bth> {
    let congestion = prop_oneof![Just(0), any::<u8>()];
    (any::<(bool, bool, u16, u32, bool, u32)>(), congestion).prop_map(
        |((solicited, migration, partition_key, destination, ack_request, psn), congestion)| Bth {
            solicited,
            migration,
            partition_key,
            // Telemetry in data packets and in Acknowledges has separate tests.
            congestion: congestion & !Bth::TELEMETRY,
            destination: Qpn::new(destination),
            ack_request,
            psn: Psn::new(psn),
        },
    )
}

fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(address, rkey, length)| Reth {
        address,
        rkey: Rkey::new(rkey),
        length,
    })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    (any::<u8>().prop_filter_map("reserved", Syndrome::from_code), 0..1u32 << 24)
        .prop_map(|(syndrome, msn)| Aeth { syndrome, msn })
}

fn tail() -> impl Strategy<Value = SendTail> {
    prop_oneof![
        Just(SendTail::Plain),
        any::<[u8; 4]>().prop_map(SendTail::Immediate),
        any::<u32>().prop_map(|key| SendTail::Invalidate(Rkey::new(key))),
    ]
}

fn data_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        Just(Operation::SendFirst),
        Just(Operation::SendMiddle),
        tail().prop_map(Operation::SendLast),
        tail().prop_map(Operation::SendOnly),
        reth().prop_map(Operation::WriteFirst),
        Just(Operation::WriteMiddle),
        any::<Option<[u8; 4]>>().prop_map(Operation::WriteLast),
        (reth(), any::<Option<[u8; 4]>>()).prop_map(|(reth, data)| Operation::WriteOnly(reth, data)),
        aeth().prop_map(Operation::ReadResponseFirst),
        Just(Operation::ReadResponseMiddle),
        aeth().prop_map(Operation::ReadResponseLast),
        aeth().prop_map(Operation::ReadResponseOnly),
        reth().prop_map(Operation::AtomicWrite),
    ]
}

fn bare_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        reth().prop_map(Operation::ReadRequest),
        (any::<u32>(), reth()).prop_map(|(word, reth)| Operation::Flush(Feth::unpack(word), reth)),
        aeth().prop_map(Operation::Acknowledge),
        (aeth(), any::<u64>()).prop_map(|(aeth, original)| Operation::AtomicAcknowledge { aeth, original }),
        any::<(u64, u32, u64, u64)>().prop_map(|(address, rkey, compare, swap)| {
            let operands = CompareSwap { compare, swap };
            Operation::CompareSwap(AtomicEth { address, rkey: Rkey::new(rkey), operands })
        }),
        any::<(u64, u32, u64)>().prop_map(|(address, rkey, add)| {
            Operation::FetchAdd(AtomicEth { address, rkey: Rkey::new(rkey), operands: FetchAdd { add } })
        }),
    ]
}

fn record() -> impl Strategy<Value = HopRecord> {
    (0..15u8, any::<(u64, u64)>(), 0..6_000_000u64).prop_map(|(speed, (time, bytes), queue)| {
        HopRecord::new(Speed::from_code(speed).expect("a code"), time, bytes, queue)
    })
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        proptest::collection::vec(any::<u8>(), 4080..=4096)
    ]
}

fn response() -> impl Strategy<Value = Header> {
    let hops = (1..=15u8).prop_flat_map(|hops| (Just(hops), 0..hops, record()));
    let busiest =
        prop_oneof![Just((0, None)), hops.prop_map(|(hops, index, record)| (hops, Some((index, record)))),];
    (bth(), 0..1u16 << 12, busiest).prop_map(|(bth, path_id, (hops, busiest))| {
        let report = Report::Busiest { path_id, hops, busiest };
        Header::TelemetryResponse { bth, feedback: Feedback { report, seal: None } }
    })
}

/// Returns an XRC header: a request has an XRCETH, an answer has none.
fn xrc(bth: Bth, srq: u32, operation: Operation) -> Header {
    match operation.is_answer() {
        true => Header::Connected { service: Service::Xrc, bth, operation },
        false => Header::Extended { bth, srq: SrqNumber::new(srq), operation },
    }
}

/// Generates every kind of header, with a payload that fits it.
fn packet() -> impl Strategy<Value = (Header, Vec<u8>)> {
    let rc = |bth, operation| Header::Connected { service: Service::Rc, bth, operation };
    let uc = Opcode(0x20);
    let has_uc = move |header: &Header| Opcode(header.opcode().0 | uc.0).shape().is_some();
    prop_oneof![
        (bth(), data_operation(), payload()).prop_map(move |(b, o, p)| (rc(b, o), p)),
        (bth(), bare_operation()).prop_map(move |(b, o)| (rc(b, o), Vec::new())),
        (bth(), data_operation(), payload()).prop_filter_map(
            "not a UC operation",
            move |(bth, operation, p)| {
                has_uc(&rc(bth, operation))
                    .then_some((Header::Connected { service: Service::Uc, bth, operation }, p))
            }
        ),
        (bth(), any::<u32>(), data_operation(), payload()).prop_map(|(b, srq, o, p)| (xrc(b, srq, o), p)),
        (bth(), any::<u32>(), bare_operation()).prop_map(|(b, srq, o)| (xrc(b, srq, o), Vec::new())),
        (bth(), any::<(u32, u32, Option<[u8; 4]>)>(), payload()).prop_map(
            |(bth, (queue_key, qpn, immediate), p)| {
                (Header::Datagram { bth, queue_key, source: Qpn::new(qpn), immediate }, p)
            }
        ),
        (bth(), any::<(u32, u32)>()).prop_map(|(bth, (queue_key, qpn))| {
            (Header::DatagramTelemetryRequest { bth, queue_key, source: Qpn::new(qpn) }, Vec::new())
        }),
        bth().prop_map(|bth| (Header::CongestionNotification { bth }, Vec::new())),
        (bth(), 0..=15u8).prop_map(|(bth, room)| {
            let int = IntHeader::with_room(room);
            (Header::TelemetryRequest { bth, int }, vec![0; int.room_bytes()])
        }),
        response().prop_map(|header| (header, Vec::new())),
        (bth(), 0..1u32 << 24, any::<u8>(), any::<u128>()).prop_map(|(bth, msn, ahead, held)| {
            (Header::SelectiveAcknowledge { bth, msn, ahead, held }, Vec::new())
        }),
        (bth(), any::<bool>(), 0..1u32 << 24, 0..1u32 << 24).prop_map(|(bth, accepts, sent, received)| {
            let (first_sent, first_received) = (Psn::new(sent), Psn::new(received));
            (Header::SelectiveOffer { bth, accepts, first_sent, first_received }, Vec::new())
        }),
    ]
}

fn path() -> impl Strategy<Value = (Path, u16)> {
    let addresses = prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
        any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
    ];
    (any::<([u8; 6], [u8; 6], Option<u16>, u16, u8, u8, u16)>(), 0..1u32 << 20, addresses).prop_map(
        |((from, to, vlan, udp_source, traffic_class, hop_limit, id), flow_label, (source, destination))| {
            let v4 = source.is_ipv4();
            let path = Path {
                source_mac: Mac(from),
                destination_mac: Mac(to),
                vlan: vlan.map(Vlan),
                source,
                destination,
                udp_source,
                traffic_class,
                hop_limit,
                flow_label: if v4 { 0 } else { flow_label },
            };
            (path, if v4 { id } else { 0 })
        },
    )
}

fn emitted(path: &Path, id: u16, header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xa5; HEADERS_AT_MOST + MAX_PAYLOAD];
    let mut draft = emit(path, id, header, payload.len(), &mut frame).expect("a legal packet");
    draft.payload().copy_from_slice(payload);
    let length = draft.seal();
    frame.truncate(length);
    frame
}

proptest! {
    // Prevents the end of a long run with PROPTEST_CASES at packets that a property excludes.
    #![proptest_config(ProptestConfig { max_global_rejects: 1 << 24, max_local_rejects: 1 << 24, ..ProptestConfig::default() })]

    #[test]
    fn an_emitted_packet_parses_to_its_fields((path, identification) in path(), (header, payload) in packet()) {
        let frame = emitted(&path, identification, &header, &payload);
        let ip = 14 + if path.vlan.is_some() { 4 } else { 0 };
        let network = &frame[ip..ip + if path.source.is_ipv4() { 20 } else { 40 }];
        let parsed = parse(&frame).expect("a legal packet");
        prop_assert_eq!((parsed.network.path(), parsed.network.identification(), parsed.network.ip_header()), (path, identification, network));
        prop_assert_eq!((parsed.header, parsed.payload), (header, &payload[..]));
        prop_assert!(!parsed.carries_telemetry());
        prop_assert_eq!(parse_unverified(&frame), parse(&frame));
        prop_assert_eq!(destination(&frame), Some(header.bth().destination));
    }

    #[test]
    fn a_plain_packet_reads_the_same_both_ways(
        (path, id) in path(), (header, payload) in packet(), place in any::<prop::sample::Index>(), change in prop_oneof![Just(0), any::<u8>()],
    ) {
        let mut frame = emitted(&path, id, &header, &payload);
        let place = place.index(frame.len());
        frame[place] ^= change;
        if let Some(plain) = FastPathPacket::of(&frame) {
            let connected = |(bth, operation, payload)| (Header::Connected { service: Service::Rc, bth, operation }, payload);
            prop_assert_eq!(plain.read().map(connected), parse(&frame).map(|frame| (frame.header, frame.payload)));
            if let Ok(frame) = parse(&frame) {
                prop_assert_eq!(plain.destination(), header.bth().destination);
                prop_assert_eq!(plain.partition_key(), header.bth().partition_key);
                prop_assert_eq!(plain.addresses().map(|bits| IpAddr::from(Ipv4Addr::from_bits(bits))), [frame.network.source(), frame.network.destination()]);
            }
        } else if let Header::Connected { service: Service::Rc, bth, .. } = header {
            let is_usual = change == 0 && path.vlan.is_none() && path.source.is_ipv4() && path.traffic_class & 3 != 3 && bth.congestion == 0;
            prop_assert!(!is_usual, "the fast path parses the usual packets");
        }
    }

    #[test]
    fn a_flipped_bit_is_refused(
        (path, id) in path(), (header, payload) in packet(), place in any::<prop::sample::Index>(), bit in 0..8u8,
    ) {
        let mut frame = emitted(&path, id, &header, &payload);
        let ip = if path.vlan.is_some() { 18 } else { 14 };
        let at = ip + place.index(frame.len() - ip);
        let v6 = path.source.is_ipv6();
        let bth = ip + if v6 { 48 } else { 28 };
        let masked_v6 = v6 && (at == ip && bit < 4 || (ip + 1..ip + 4).contains(&at) || at == ip + 7);
        let telemetry = matches!(header, Header::TelemetryRequest { .. }) && at >= bth + 12 && at < frame.len() - 4;
        prop_assume!(!masked_v6 && !telemetry && at != bth + 4);
        // DF, the reserved flag and the identification are covered by the header checksum.
        frame[at] ^= 1 << bit;
        prop_assert!(parse(&frame).is_err(), "byte {} of {}", at, frame.len());
    }

    #[test]
    fn a_truncated_packet_is_refused((path, id) in path(), (header, payload) in packet(), cut in 1..200usize) {
        let frame = emitted(&path, id, &header, &payload);
        let short = &frame[..frame.len().saturating_sub(cut)];
        prop_assert_eq!(parse(short), Err(Discard::Truncated));
    }

    #[test]
    fn padding_of_a_short_ethernet_frame_is_ignored((path, id) in path(), (header, payload) in packet()) {
        let mut frame = emitted(&path, id, &header, &payload);
        frame.extend([0; 7]);
        prop_assert!(parse(&frame).is_ok());
    }

    #[test]
    fn any_bytes_are_parsed_without_a_panic(
        (path, id) in path(), (header, payload) in packet(),
        edits in proptest::collection::vec(any::<(prop::sample::Index, u8)>(), 0..6),
        noise in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut frame = emitted(&path, id, &header, &payload);
        for (place, byte) in edits {
            let at = place.index(frame.len().min(120));
            frame[at] = byte;
        }
        let record = HopRecord::new(Speed::from_code(9).expect("1 Gb/s"), 1, 2, 3);
        for bytes in [&mut frame[..], &mut noise.clone()[..]] {
            let length = bytes.len();
            stamp(bytes, 0xfff, record);
            mark_ce(bytes);
            let _ = (parse_unverified(bytes), destination(bytes));
            if let Ok(frame) = parse(bytes) {
                prop_assert!(frame.payload.len() < length);
            }
        }
    }

    /// rtgwg-00 6.1: each switch adds a record.
    #[test]
    fn switches_stamp_until_the_room_is_full(
        (path, id) in path(), bth in bth(), room in 0..=15u8,
        stamps in proptest::collection::vec((any::<u16>(), record()), 0..18),
    ) {
        let int = IntHeader::with_room(room);
        let sent = emitted(&path, id, &Header::TelemetryRequest { bth, int }, &vec![0; int.room_bytes()]);
        let mut frame = sent.clone();
        for (number, (switch, record)) in stamps.iter().enumerate() {
            prop_assert_eq!(stamp(&mut frame, *switch, *record), number < usize::from(room));
        }
        let fit = &stamps[..stamps.len().min(usize::from(room))];
        let got = parse(&frame).expect("telemetry is outside the ICRC");
        let Header::TelemetryRequest { int, .. } = got.header else { panic!("not a probe") };
        prop_assert_eq!(usize::from(int.hops()), fit.len());
        prop_assert_eq!(int.path_id(), fit.iter().fold(0, |id, (switch, _)| id ^ switch & 0xfff));
        let records: Vec<_> = int.records(got.payload).collect();
        prop_assert_eq!(records, fit.iter().map(|(_, record)| *record).collect::<Vec<_>>());
        let word = sent.len() - 4 - int.room_bytes() - 4;
        prop_assert_eq!(&frame[..word], &sent[..word]);
        prop_assert_eq!(&frame[frame.len() - 4..], &sent[sent.len() - 4..]);
    }

    #[test]
    fn only_probes_are_stamped((path, id) in path(), (header, payload) in packet()) {
        prop_assume!(!matches!(header, Header::TelemetryRequest { .. }));
        let mut frame = emitted(&path, id, &header, &payload);
        let before = frame.clone();
        prop_assert!(!stamp(&mut frame, 1, HopRecord::new(Speed::from_code(9).expect("1 Gb/s"), 1, 2, 3)));
        prop_assert_eq!(frame, before);
    }

    /// RFC 3168 and RFC 1624: the mark, and the IPv4 checksum after it.
    #[test]
    fn a_marked_packet_is_the_same_but_for_ce((path, id) in path(), (header, payload) in packet()) {
        let mut frame = emitted(&path, id, &header, &payload);
        let before = Ecn::from_traffic_class(path.traffic_class);
        prop_assert_eq!(ecn(&frame), Some(before));
        prop_assert_eq!(mark_ce(&mut frame), before != Ecn::NotCapable);
        let traffic_class = path.traffic_class | if before == Ecn::NotCapable { 0 } else { 3 };
        let got = parse(&frame).expect("checksums follow");
        prop_assert_eq!(got.network.path(), Path { traffic_class, ..path });
    }
}

/// IBA table 43, table 46.
#[test]
fn every_syndrome_code_is_preserved_or_reserved() {
    let legal: Vec<u8> = (0..=255).filter(|&code| Syndrome::from_code(code).is_some()).collect();
    assert_eq!(legal, (0..0x40).chain(0x60..=0x64).collect::<Vec<u8>>());
    for code in legal {
        assert_eq!(Syndrome::from_code(code).map(Syndrome::code), Some(code));
    }
}

/// IBA table 45.
#[test]
fn rnr_timers_are_those_of_iba_table_45() {
    let micros = |code| RnrTimer::new(code).duration().as_micros();
    assert_eq!([0, 1, 12, 14, 31].map(micros), [655_360, 10, 640, 1_280, 491_520]);
    assert!((2..32).all(|code| micros(code) > micros(code - 1)));
    assert_eq!(RnrTimer::at_least(core::time::Duration::from_micros(11)).code(), 2);
    assert_eq!(RnrTimer::at_least(core::time::Duration::from_secs(9)).code(), 0);
}

/// IBA table 38, 9.2.1.
#[test]
fn opcodes_are_those_of_iba_table_38() {
    let known: Vec<u8> = (0..=255).filter(|&code| Opcode(code).shape().is_some()).collect();
    let rc = (0..=20).chain([22, 23, 28, 29]);
    let xrc = rc.clone().map(|code| 0xa0 + code);
    let ours = [0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc8, 0xc9];
    let expected = rc.chain(0x20..=0x2b).chain([0x64, 0x65, 0x81]).chain(xrc).chain(ours);
    assert_eq!(known, expected.collect::<Vec<u8>>());
}

/// rtgwg-00 Figure 4, 6.1: rate, time, bytes sent and queue of a port.
#[test]
fn a_hop_record_has_the_layout_of_figure_4() {
    // 1 Gb/s is 9; 0x123456 ns; 0x789ab × 128 bytes; 0xcdef × 80 bytes.
    let record = HopRecord::new(
        Speed::from_rate(cc::Rate::from_gbps(1)).expect("a code"),
        0xff12_3456,
        0x789ab * 128 + 127,
        0xcdef * 80 + 79,
    );
    assert_eq!(record.pack(), [0x91, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
    assert_eq!(HopRecord::unpack([0xf0, 0, 0, 0, 0, 0, 0, 0]), None);
    let hop = cc::Hop::from(record);
    assert_eq!((hop.bandwidth, hop.queue), (cc::Rate::from_gbps(1), 0xcdef * 80));
    assert_eq!((hop.time.period(), hop.tx_bytes.period()), (1 << 24, 128 << 20));
}

fn plain_path() -> Path {
    Path {
        udp_source: 0xc123,
        traffic_class: 2,
        ..Path::new(
            (Mac([2, 0, 0, 0, 0, 1]), IpAddr::from([10, 0, 0, 1])),
            (Mac([2, 0, 0, 0, 0, 2]), IpAddr::from([10, 0, 0, 2])),
        )
    }
}

fn plain_bth() -> Bth {
    Bth::new(Qpn::new(7), Psn::new(1))
}

#[test]
fn a_header_that_does_not_fit_the_path_or_service_is_not_emitted() {
    let write =
        Header::Connected { service: Service::Rc, bth: plain_bth(), operation: Operation::WriteMiddle };
    let read = |service| Header::Connected {
        service,
        bth: plain_bth(),
        operation: Operation::ReadRequest(Reth { address: 0, rkey: Rkey::new(1), length: 8 }),
    };
    let report = Report::Busiest { path_id: 1, hops: 3, busiest: None };
    let feedback = Feedback { report, seal: None };
    let answer = Header::TelemetryResponse { bth: plain_bth(), feedback };
    let mixed = Path { destination: IpAddr::from([0; 16]), ..plain_path() };
    let frame = &mut [0xee; 5000][..];
    let mut refused = |path: &Path, header: &Header, length| emit(path, 0, header, length, frame).err();
    assert_eq!(refused(&plain_path(), &read(Service::Uc), 0), Some(EmitError::Opcode(0x2c)));
    assert_eq!(refused(&plain_path(), &read(Service::Ud), 0), Some(EmitError::Opcode(0x6c)));
    // Requests of XRC have an XRCETH, answers have none.
    assert_eq!(refused(&plain_path(), &read(Service::Xrc), 0), Some(EmitError::Opcode(0xac)));
    let answer_to = Header::Extended {
        bth: plain_bth(),
        srq: SrqNumber::new(1),
        operation: Operation::ReadResponseMiddle,
    };
    assert_eq!(refused(&plain_path(), &answer_to, 0), Some(EmitError::Opcode(0xae)));
    let too_much = |opcode, length, limit| Some(EmitError::Payload { opcode, length, limit });
    assert_eq!(refused(&plain_path(), &read(Service::Rc), 1), too_much(12, 1, 0));
    assert_eq!(refused(&plain_path(), &write, 4097), too_much(7, 4097, 4096));
    assert_eq!(refused(&plain_path(), &answer, 0), Some(EmitError::Hops { hops: 3 }));
    assert!(matches!(refused(&mixed, &write, 4), Some(EmitError::Families { .. })));
    assert_eq!(frame, [0xee; 5000]);
    let short = &mut [0; 61];
    let room = emit(&plain_path(), 0, &write, 1, short).err();
    assert_eq!(room, Some(EmitError::Room { needed: 62, room: 61 }));
}

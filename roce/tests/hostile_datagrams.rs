//! Datagram probes from unknown senders, and unsolicited responses: the answers, and the effects.

use crate::datagrams::{KEY, Network, at, closed, host, hpcc, idle};
use crate::harness::{Host, path};
use cc::{Instant, Rate};
use core::time::Duration;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use roce::qp::{Congestion, FeedbackKey, Modify};
use roce::wire::telemetry::{HopRecord, Speed};
use roce::wire::{Bth, Feedback, Header, Mtu, Path, Report, emit, parse, reseal};
use roce::{Discard, Psn, Qpn};

/// A receiver to which the test delivers its own packets.
struct UnknownSender {
    host: Host,
    now: Instant,
}

impl UnknownSender {
    fn new(congestion: Congestion) -> Self {
        Self { host: host(2, congestion), now: at(1) }
    }

    fn probe(&mut self, path: &Path, number: u32, queue_key: u32) -> Result<(), Discard> {
        let bth = Bth {
            congestion: Bth::TELEMETRY,
            partition_key: 0xffff,
            ..Bth::new(self.host.qpn, Psn::new(number))
        };
        let header = Header::DatagramTelemetryRequest { bth, queue_key, source: Qpn::new(0x99) };
        self.send(path, &header)
    }

    fn send(&mut self, path: &Path, header: &Header) -> Result<(), Discard> {
        let mut frame = vec![0; 500];
        let length = emit(path, 0, header, 0, &mut frame).unwrap().seal();
        for _ in 0..3 {
            idle(&mut frame[..length], self.now);
        }
        self.host.endpoint.on_frame(self.now, &mut self.host.ram, &frame[..length])
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut frame = vec![0; 1500];
        core::iter::from_fn(|| {
            let length = self.host.endpoint.poll_transmit(self.now, &self.host.ram, &mut frame)?;
            Some(frame[..length].to_vec())
        })
        .collect()
    }
}

#[test]
fn an_answer_returns_to_the_prober_and_is_no_longer_than_the_probe() {
    for key in [None, Some(FeedbackKey([7; 16]))] {
        let mut sender = UnknownSender::new(Congestion { feedback_key: key, ..hpcc() });
        let way = Path { udp_source: 0xd123, traffic_class: 0x22, hop_limit: 3, ..path(9, 2) };
        assert_eq!(sender.probe(&way, 77, KEY), Ok(()));
        let sent = sender.sent();
        let [answer] = &sent[..] else { panic!("{} answers", sent.len()) };
        let frame = parse(answer).unwrap();
        assert_eq!(frame.network.path(), Path { traffic_class: 0x20, hop_limit: 64, ..way.back() });
        let Header::TelemetryResponse { bth, feedback } = frame.header else { panic!("{:?}", frame.header) };
        assert_eq!((bth.destination, bth.psn), (Qpn::new(0x99), Psn::new(77)));
        assert_eq!(feedback.seal.is_some(), key.is_some());
        let Report::All { records, .. } = feedback.report else { panic!("{feedback:?}") };
        assert_eq!(records.count(), 3);
        let mut probe = vec![0; 500];
        let bth = Bth { congestion: Bth::TELEMETRY, ..Bth::new(Qpn::new(1), Psn::new(0)) };
        let header = Header::DatagramTelemetryRequest { bth, queue_key: KEY, source: Qpn::new(1) };
        let length = emit(&way, 0, &header, 0, &mut probe).unwrap().seal();
        assert!(answer.len() <= length, "{} bytes for {length}", answer.len());
    }
}

/// A receiver need not enter RTS. If it does, its counter goes on, so that no answer looks like a replay.
#[test]
fn a_datagram_queue_pair_in_rtr_seals_its_answers() {
    let feedback_key = Some(FeedbackKey([7; 16]));
    let mut sender = UnknownSender { host: closed(2), now: at(1) };
    let mut counters = Vec::new();
    for (number, modifies) in (1..).zip([
        vec![
            Modify::InitDatagram { queue_key: KEY, partition_key: 0xffff },
            Modify::ReadyToReceiveDatagrams { mtu: Mtu::M1024, feedback_key },
        ],
        vec![Modify::ReadyToSendDatagrams {
            send_psn: Psn::new(7),
            congestion: Congestion { feedback_key, ..hpcc() },
        }],
    ]) {
        for modify in modifies {
            sender.host.endpoint.modify_qp(sender.now, sender.host.qpn, modify).unwrap();
        }
        sender.probe(&path(9, 2), number, KEY).unwrap();
        let sent = sender.sent();
        let [answer] = &sent[..] else { panic!("{} answers", sent.len()) };
        let Header::TelemetryResponse { feedback, .. } = parse(answer).unwrap().header else { panic!() };
        counters.push(feedback.seal.unwrap().counter);
    }
    assert_eq!(counters, [1, 2]);
}

#[test]
fn a_probe_with_another_key_or_to_a_group_or_without_room_gets_no_answer() {
    let mut sender = UnknownSender::new(hpcc());
    assert_eq!(sender.probe(&path(9, 2), 1, KEY + 1), Err(Discard::QueueKey));
    let group = core::net::IpAddr::from([224, 0, 0, 9]);
    let nobody = core::net::IpAddr::from([0, 0, 0, 0]);
    for way in [
        Path { destination: group, ..path(9, 2) },
        Path { source: group, ..path(9, 2) },
        Path { source: nobody, ..path(9, 2) },
        Path { source: core::net::IpAddr::from([255; 4]), ..path(9, 2) },
    ] {
        assert_eq!(sender.probe(&way, 1, KEY), Err(Discard::Address), "{way:?}");
    }
    // Without the telemetry bit there is no INT header.
    let bth = Bth { partition_key: 0xffff, ..Bth::new(sender.host.qpn, Psn::new(1)) };
    let bare = Header::DatagramTelemetryRequest { bth, queue_key: KEY, source: Qpn::new(0x99) };
    assert_eq!(sender.send(&path(9, 2), &bare), Err(Discard::Telemetry));
    assert!(sender.sent().is_empty());
    let mut silent = UnknownSender::new(Congestion { ratio_only: true, ..hpcc() });
    assert_eq!(silent.probe(&path(9, 2), 1, KEY), Err(Discard::Telemetry));
    assert!(silent.sent().is_empty());
}

#[test]
fn a_full_queue_of_answers_is_counted() {
    let mut sender = UnknownSender::new(hpcc());
    let taken = (0..20).filter(|&number| sender.probe(&path(9, 2), number, KEY).is_ok()).count();
    assert_eq!(taken, 8);
    assert_eq!(sender.host.endpoint.counters().discarded(Discard::AnswersFull), 12);
    assert_eq!(sender.sent().len(), 8);
    assert_eq!(sender.probe(&path(9, 2), 21, KEY), Ok(()), "there is room again");
}

/// Responses from another source, with another number, or repeated change only a counter.
#[test]
fn forged_and_stale_answers_change_nothing() {
    let key = Some(FeedbackKey([7; 16]));
    for sealed in [false, true] {
        let mut network = Network::new(Congestion { feedback_key: key.filter(|_| sealed), ..hpcc() }, 1);
        network.wire = Box::new(|_, frame, now| {
            idle(frame, now);
            true
        });
        network.load(&[1], at(300));
        network.run(at(1000));
        let answered = network.hosts[0].endpoint.counters().probe_responses;
        assert!(answered > 10);
        let before = network.hosts[0].endpoint.report(network.hosts[0].qpn).unwrap();
        let speed = Speed::from_rate(Rate::from_gbps(1)).unwrap();
        let busiest = Some((0, HopRecord::new(speed, 1, 1, 5_000_000)));
        let report = Report::Busiest { path_id: 4, hops: 1, busiest };
        let last = answered as u32 - 1;
        let mut hear = |from: u8, number: u32| {
            let host = &mut network.hosts[0];
            let bth = Bth { partition_key: 0xffff, ..Bth::new(host.qpn, Psn::new(number)) };
            let header = Header::TelemetryResponse { bth, feedback: Feedback { report, seal: None } };
            let mut frame = vec![0; 500];
            let length = emit(&path(from, 1), 0, &header, 0, &mut frame).unwrap().seal();
            host.endpoint.on_frame(network.now, &mut host.ram, &frame[..length])
        };
        for (from, number) in [(3, last + 1), (2, last), (2, last - 1), (2, last + 1), (2, 0xff_ffff)] {
            assert_eq!(hear(from, number), Err(Discard::Telemetry), "{from} {number}");
        }
        let after = network.hosts[0].endpoint.report(network.hosts[0].qpn).unwrap();
        assert_eq!((before.rate, before.busiest), (after.rate, after.busiest));
        if sealed {
            // The response has an outstanding probe, but no seal.
            network.wire = Box::new(|_, frame, _| {
                !matches!(parse(frame).unwrap().header, Header::DatagramTelemetryRequest { .. })
            });
            network.post(&[1]);
            network.run(at(1100));
            let host = &mut network.hosts[0];
            let bth = Bth { partition_key: 0xffff, ..Bth::new(host.qpn, Psn::new(last + 1)) };
            let header = Header::TelemetryResponse { bth, feedback: Feedback { report, seal: None } };
            let mut frame = vec![0; 500];
            let length = emit(&path(2, 1), 0, &header, 0, &mut frame).unwrap().seal();
            let heard = host.endpoint.on_frame(network.now, &mut host.ram, &frame[..length]);
            assert_eq!(heard, Err(Discard::ForgedFeedback));
        }
    }
}

proptest! {
    /// The endpoint sends no more and no longer frames than it receives, and allocates no memory for the senders of probes.
    #[test]
    fn unknown_senders_get_no_more_bytes_than_they_sent(
        packets in vec((any::<bool>(), 0..4u32, 0..3u8, vec((any::<Index>(), any::<u8>()), 0..4), any::<bool>()), 1..60),
        seals: bool,
    ) {
        let feedback_key = seals.then_some(FeedbackKey([7; 16]));
        let mut sender = UnknownSender::new(Congestion { feedback_key, ..hpcc() });
        let qpn = sender.host.qpn;
        let (mut came, mut left) = ((0, 0), (0, 0));
        for (asks, number, from, edits, sends) in packets {
            let bth = Bth { congestion: Bth::TELEMETRY, partition_key: 0xffff, ..Bth::new(qpn, Psn::new(number)) };
            let report = Report::Busiest { path_id: 0, hops: 0, busiest: None };
            let header = if asks {
                Header::DatagramTelemetryRequest { bth, queue_key: KEY, source: Qpn::new(number) }
            } else {
                Header::TelemetryResponse { bth, feedback: Feedback { report, seal: None } }
            };
            let mut frame = vec![0; 500];
            let length = emit(&path(3 + from, 2), 0, &header, 0, &mut frame).unwrap().seal();
            frame.truncate(length);
            idle(&mut frame, sender.now);
            for (place, byte) in edits {
                let at = 42 + place.index(length - 42);
                frame[at] = byte;
            }
            let _ = reseal(&mut frame);
            came = (came.0 + 1, came.1 + length);
            let _ = sender.host.endpoint.on_frame(sender.now, &mut sender.host.ram, &frame);
            if sends {
                left = sender.sent().iter().fold(left, |(count, bytes), frame| (count + 1, bytes + frame.len()));
            }
            prop_assert!(left.0 <= came.0 && left.1 <= came.1, "{left:?} for {came:?}");
            sender.now = sender.now + Duration::from_nanos(100);
        }
        prop_assert_eq!(sender.host.endpoint.poll_timeout(), None);
    }
}

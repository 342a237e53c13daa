//! Selective repeat between two peers that agreed on it: which packets a receiver holds and reports, and which a sender retransmits.

use crate::harness::script::{LAST, PSN, SEND, Script, ack, nak, rnr};
use crate::harness::{BASE, Faults, Options, Pair, paced};
use core::time::Duration;
use roce::Discard;
use roce::qp::{CompletionStatus, RecvRequest, Remote, SendRequest};
use roce::wire::{Aeth, AtomicEth, FetchAdd, Header, NakCode, Operation, Reth, Syndrome};

pub(crate) const FULL: [u8; 1024] = [0xa5; 1024];
pub(crate) const ANSWERED: Aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 };

pub(crate) fn options() -> Options {
    Options { memory: 1 << 16, selective_repeat: true, ack_timeout: 14, ..Options::default() }
}

pub(crate) fn script() -> Script {
    Script::new(options())
}

fn receive(script: &mut Script, id: u64) {
    let (qpn, sge) = (script.host.qpn, script.host.sge(0x8000 + id * 4096, 4096));
    script.host.endpoint.post_recv(qpn, RecvRequest::new(id, sge)).unwrap();
}

/// Returns the next packet of the endpoint, which is a Selective Acknowledge, as (PSN relative to the first, held packets).
fn selective(script: &mut Script) -> (u32, u128) {
    match script.next_header() {
        Some((Header::SelectiveAcknowledge { bth, held, .. }, _)) => (bth.psn.get() - PSN, held),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn say(script: &mut Script, psn: u32, held: u128) -> Result<(), Discard> {
    say_ahead(script, psn, 0, held)
}

pub(crate) fn say_ahead(script: &mut Script, psn: u32, ahead: u8, held: u128) -> Result<(), Discard> {
    let bth = script.bth(PSN.wrapping_add(psn));
    script.send_header(&Header::SelectiveAcknowledge { bth, msn: 0, ahead, held }, &[])
}

/// The reordering window while no round-trip time is measured, and a tick of the timing wheel.
pub(crate) const LATE: Duration = Duration::from_micros(25);
pub(crate) const TICK: Duration = Duration::from_micros(5);

/// Advances time while nothing is sent. It polls first, because polling sets a queue pair's timer.
pub(crate) fn pass(script: &mut Script, time: Duration) {
    assert_eq!(script.drain(), []);
    script.wait(time);
}

/// Returns the PSNs that the endpoint sends now, relative to the first.
pub(crate) fn sends(script: &mut Script) -> Vec<u32> {
    script.drain().iter().map(|(psn, _)| psn - PSN).collect()
}

pub(crate) fn post(script: &mut Script, request: SendRequest) {
    let qpn = script.host.qpn;
    script.host.endpoint.post_send(script.now, qpn, request).unwrap();
}

pub(crate) fn write(script: &Script, id: u64, length: u32) -> SendRequest {
    SendRequest::write(id, script.host.sge(0, length), Remote { address: BASE, rkey: script.rkey() })
}

#[test]
fn a_receiver_holds_and_reports_early_packets() {
    let mut script = script();
    let write = |offset| Operation::WriteOnly(script.reth(offset, 1), None);
    let [zero, one, two, three] = [0, 1, 2, 3].map(write);
    assert_eq!(script.send(PSN, zero, &[9]), Ok(()));
    assert_eq!(script.drain(), [(PSN, ack(1))]);
    assert_eq!(script.send(PSN + 2, two, &[7]), Ok(()));
    assert_eq!(selective(&mut script), (1, 0b10));
    assert_eq!(script.send(PSN + 3, three, &[6]), Ok(()));
    assert_eq!(selective(&mut script), (1, 0b110));
    assert_eq!(script.host.bytes(0, 4), [9, 0, 0, 0], "nothing is done early");
    assert_eq!(script.send(PSN + 3, three, &[1]), Err(Discard::Duplicate));
    assert_eq!(selective(&mut script), (1, 0b110));
    assert_eq!(script.send(PSN + 1, one, &[8]), Ok(()));
    assert_eq!(script.drain(), [(PSN + 3, ack(4))]);
    assert_eq!(script.host.bytes(0, 4), [9, 8, 7, 6]);
    assert_eq!(script.host.endpoint.counters().held_early, 2);
}

#[test]
fn sends_and_atomics_keep_their_order() {
    let mut script = script();
    (0..2).for_each(|id| receive(&mut script, id));
    let add = |add| {
        Operation::FetchAdd(AtomicEth { address: BASE, rkey: script.rkey(), operands: FetchAdd { add } })
    };
    let (first, second) = (add(5), add(7));
    assert_eq!(script.send(PSN + 4, second, &[]), Ok(()));
    assert_eq!(script.send(PSN + 3, SEND, &[4]), Ok(()));
    assert_eq!(script.send(PSN + 2, LAST, &[3]), Ok(()));
    assert_eq!(script.send(PSN + 1, first, &[]), Ok(()));
    assert_eq!(selective(&mut script), (0, 0b11110));
    assert!(script.host.received().is_empty());
    // The SEND that PSN + 2 ends has no first packet, which is an error of the peer. The NAK is sent when that PSN is next.
    assert_eq!(script.send(PSN, SEND, &[1]), Err(Discard::Sequence));
    let answers = script.drain();
    assert_eq!(
        answers[0],
        (PSN + 1, Operation::AtomicAcknowledge { aeth: Aeth { msn: 2, ..ANSWERED }, original: 0 })
    );
    assert_eq!(answers[1], (PSN + 2, nak(NakCode::InvalidRequest, 2)));
    let received: Vec<_> = script.host.received().iter().map(|c| (c.id, c.status)).collect();
    assert_eq!(received, [(0, CompletionStatus::Success), (1, CompletionStatus::Flushed)]);
    assert_eq!(script.host.bytes(0, 8), 5u64.to_ne_bytes());
}

#[test]
fn a_held_send_without_a_receive_gets_an_rnr_nak() {
    let mut script = script();
    receive(&mut script, 0);
    assert_eq!(script.send(PSN + 1, SEND, &[2]), Ok(()));
    assert_eq!(script.send(PSN + 2, SEND, &[3]), Ok(()));
    assert_eq!(selective(&mut script), (0, 0b110));
    assert_eq!(script.send(PSN, SEND, &[1]), Ok(()));
    assert_eq!(script.drain(), [(PSN + 1, rnr(1, 1))]);
    (1..3).for_each(|id| receive(&mut script, id));
    // It is retransmitted; the packet after it is still held.
    assert_eq!(script.send(PSN + 1, SEND, &[2]), Ok(()));
    assert_eq!(script.drain(), [(PSN + 2, ack(3))]);
    assert_eq!(script.host.received().iter().map(|c| c.id).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!([0, 1, 2].map(|id| script.host.bytes(0x8000 + id * 4096, 1)[0]), [1, 2, 3]);
}

#[test]
fn the_number_of_held_packets_is_limited() {
    let mut script = script();
    let write = Operation::WriteOnly(script.reth(0, 1), None);
    for ahead in 1..4096 {
        assert_eq!(script.send(PSN + ahead, write, &[1]), Ok(()));
    }
    // Each packet is reported once, 128 at a time.
    assert_eq!(selective(&mut script), (0, u128::MAX - 1));
    let mut told = u128::BITS;
    while let Some((Header::SelectiveAcknowledge { bth, ahead, held, .. }, _)) = script.next_header() {
        let from = u32::from(ahead) * 64;
        assert!(bth.psn.get() == PSN && from <= told && (held == u128::MAX || from + u128::BITS > 4096));
        told = from + u128::BITS - held.leading_zeros();
    }
    assert_eq!(told, 4096);
    assert_eq!(script.send(PSN + 4096, write, &[1]), Err(Discard::PsnGap));
    assert_eq!(script.drain(), [(PSN, nak(NakCode::PsnSequenceError, 0))]);
    assert_eq!(script.send(PSN + 5, write, &[1; 1025]), Err(Discard::PsnGap));
    assert_eq!(script.send(PSN, write, &[1]), Ok(()));
    assert_eq!(script.drain(), [(PSN + 4095, ack(4096))]);
}

/// Only the first of a READ's PSNs belongs to a request. Held packets with the others are dropped and do not block the responder.
#[test]
fn held_packets_within_the_psns_of_a_read_are_dropped() {
    let mut script = script();
    let write = Operation::WriteOnly(script.reth(0, 1), None);
    assert_eq!(script.send(PSN + 1, write, &[1]), Ok(()));
    assert_eq!(script.send(PSN + 4, write, &[4]), Ok(()));
    assert_eq!(script.send(PSN, Operation::ReadRequest(script.reth(4096, 3000)), &[]), Ok(()));
    assert_eq!(script.send(PSN + 3, write, &[3]), Ok(()));
    assert_eq!(script.host.bytes(0, 1), [4]);
    assert_eq!(sends(&mut script), [0, 1, 2, 4]);
}

#[test]
fn no_more_bytes_are_held_than_two_mebibytes() {
    let mut script = script();
    let write = Operation::WriteOnly(script.reth(0, 1024), None);
    for ahead in 1..=2048 {
        assert_eq!(script.send(PSN + ahead, write, &FULL), Ok(()));
    }
    assert_eq!(script.send(PSN + 2049, write, &FULL), Err(Discard::PsnGap));
    assert_eq!(script.send(PSN, write, &FULL), Ok(()));
    // Freed buffers are used again.
    assert_eq!(script.send(PSN + 2050, write, &FULL), Ok(()));
    // They are also used for payloads of another length.
    assert_eq!(script.send(PSN + 2049, write, &FULL), Ok(()));
    let short = Operation::WriteOnly(script.reth(0, 8), None);
    assert_eq!(script.send(PSN + 2052, short, &FULL[..8]), Ok(()));
}

#[test]
fn a_sender_retransmits_only_missing_packets_and_each_once() {
    let mut script = script();
    let request = write(&script, 1, 8 * 1024);
    post(&mut script, request);
    assert_eq!(sends(&mut script), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(say(&mut script, 1, 0b10), Ok(()));
    assert_eq!(sends(&mut script), [], "it may only be late");
    pass(&mut script, LATE);
    assert_eq!(sends(&mut script), [1]);
    // More packets arrive and reveal another gap; the retransmission is still in flight.
    assert_eq!(say(&mut script, 1, 0b1010), Ok(()));
    pass(&mut script, LATE);
    assert_eq!(sends(&mut script), [3]);
    assert_eq!(say(&mut script, 1, 0b111_1010), Ok(()));
    assert_eq!(sends(&mut script), []);
    script.send(PSN + 7, ack(1), &[]).unwrap();
    assert_eq!(script.host.sent()[0].status, CompletionStatus::Success);
    assert_eq!(script.host.endpoint.counters().retransmitted, 2);
}

#[test]
fn a_lost_retransmission_is_retransmitted() {
    let mut script = script();
    let request = write(&script, 1, 4 * 1024);
    post(&mut script, request.clone());
    assert_eq!(sends(&mut script), [0, 1, 2, 3]);
    pass(&mut script, Duration::from_micros(100));
    // The acknowledgement of packet 3 measures 100 µs; this is the reordering window of packet 0.
    say(&mut script, 0, 0b1110).unwrap();
    pass(&mut script, Duration::from_micros(99));
    assert_eq!(sends(&mut script), []);
    pass(&mut script, TICK);
    assert_eq!(sends(&mut script), [0]);
    post(&mut script, request);
    assert_eq!(sends(&mut script), [4, 5, 6, 7]);
    // A round trip and the reordering window have passed: it was lost again.
    pass(&mut script, Duration::from_micros(199));
    say(&mut script, 0, 0b11110).unwrap();
    assert_eq!(sends(&mut script), []);
    pass(&mut script, TICK);
    assert_eq!(sends(&mut script), [0]);
    say(&mut script, 0, 0b111110).unwrap();
    assert_eq!(sends(&mut script), []);
    // Nothing else arrives: timeouts retransmit the missing packets, not the held ones.
    let mut again = Vec::new();
    for _ in 0..700 {
        pass(&mut script, Duration::from_micros(100));
        again.extend(sends(&mut script));
    }
    again.sort_unstable();
    again.dedup();
    assert_eq!(again, [0, 6, 7]);
}

#[test]
fn the_missing_part_of_a_read_is_requested_again() {
    let mut script = script();
    let remote = Remote { address: BASE, rkey: script.rkey() };
    let read = SendRequest::read(1, script.host.sge(8192, 6 * 1024), remote);
    post(&mut script, read);
    assert_eq!(sends(&mut script), [0]);
    pass(&mut script, Duration::from_micros(100));
    script.send(PSN, Operation::ReadResponseFirst(ANSWERED), &FULL).unwrap();
    script.send(PSN + 2, Operation::ReadResponseMiddle, &FULL).unwrap();
    let stretch = |psn: u64, packets: u32| {
        let reth = Reth { address: BASE + psn * 1024, length: packets * 1024, rkey: remote.rkey };
        (PSN + psn as u32, Operation::ReadRequest(reth))
    };
    let round_trip = Duration::from_micros(100) + TICK;
    pass(&mut script, round_trip);
    assert_eq!(script.drain(), [stretch(1, 1)]);
    script.send(PSN + 5, Operation::ReadResponseLast(ANSWERED), &FULL).unwrap();
    pass(&mut script, round_trip);
    assert_eq!(script.drain(), [stretch(3, 2)]);
    // The first part has still not arrived.
    pass(&mut script, round_trip);
    assert_eq!(script.drain(), [stretch(1, 1)]);
    script.send(PSN + 3, Operation::ReadResponseFirst(ANSWERED), &FULL).unwrap();
    script.send(PSN + 1, Operation::ReadResponseOnly(ANSWERED), &FULL).unwrap();
    assert!(script.host.sent().is_empty());
    script.send(PSN + 4, Operation::ReadResponseLast(ANSWERED), &FULL).unwrap();
    assert_eq!(script.host.sent()[0].status, CompletionStatus::Success);
    assert_eq!(script.host.bytes(8192, 6 * 1024), [0xa5; 6 * 1024]);
    assert_eq!(script.drain(), []);
}

#[test]
fn a_stretch_of_a_read_is_answered_and_no_more() {
    let mut script = script();
    assert_eq!(script.send(PSN, Operation::ReadRequest(script.reth(0, 5000)), &[]), Ok(()));
    assert_eq!(sends(&mut script), [0, 1, 2, 3, 4]);
    assert_eq!(
        script.send(PSN + 1, Operation::ReadRequest(script.reth(1024, 2048)), &[]),
        Err(Discard::Duplicate)
    );
    assert_eq!(
        script.send(PSN + 4, Operation::ReadRequest(script.reth(4096, 904)), &[]),
        Err(Discard::Duplicate)
    );
    assert_eq!(sends(&mut script), [1, 2, 4]);
    // These ranges are not parts of the READ.
    for reth in [script.reth(1024, 1000), script.reth(0, 1024), script.reth(1024, 0), script.reth(1024, 5120)]
    {
        assert_eq!(script.send(PSN + 1, Operation::ReadRequest(reth), &[]), Err(Discard::Duplicate));
    }
    assert_eq!(sends(&mut script), []);
}

/// A peer with a short timeout repeats the request for responses that are still being sent. Once all have arrived, it may send the next
/// request.
#[test]
fn a_stretch_that_has_not_left_is_not_sent_before_its_turn() {
    let mut script = Script::new(Options { max_dest_rd_atomic: 1, ..options() });
    script.send(PSN, Operation::ReadRequest(script.reth(0, 3072)), &[]).unwrap();
    assert_eq!(script.next().map(|(psn, _)| psn - PSN), Some(0));
    let again = Operation::ReadRequest(script.reth(0, 3072));
    assert_eq!(script.send(PSN, again, &[]), Err(Discard::Duplicate));
    let left: Vec<_> = (0..3).filter_map(|_| script.next().map(|(psn, _)| psn - PSN)).collect();
    assert_eq!(left, [0, 1, 2]);
    assert_eq!(script.send(PSN + 3, Operation::ReadRequest(script.reth(0, 8)), &[]), Ok(()));
    assert_eq!(sends(&mut script), [3]);
}

#[test]
fn a_selective_acknowledgement_without_an_agreement_is_dropped() {
    let mut script = Script::new(Options { selective_repeat: false, ..options() });
    let request = write(&script, 1, 2048);
    post(&mut script, request);
    sends(&mut script);
    assert_eq!(say(&mut script, 0, 0b10), Err(Discard::Opcode));
    assert_eq!(sends(&mut script), []);
}

#[test]
fn a_selective_acknowledgement_of_unsent_packets_is_dropped() {
    let mut script = script();
    let request = write(&script, 1, 3 * 1024);
    post(&mut script, request.clone());
    sends(&mut script);
    let before = script.host.endpoint.report(script.host.qpn);
    let rows = [
        ("the next packet is missing", 3, 0, 0),
        ("behind the next", 3, 0, 0b10),
        ("the next is there", 0, 0, 0b1000),
        ("all are there", 0, 0, u128::MAX - 1),
        ("farther than a bitmap", 0, 2, 1),
        ("farther than a window", 0, 255, 1 << 127),
        ("far ahead is missing", 1 << 22, 0, 0),
        ("what was acknowledged is missing", u32::MAX, 0, 0b10),
        ("what is missing is there", 0, 0, 0b11),
    ];
    for (count, (name, psn, ahead, held)) in (1..).zip(rows) {
        assert_eq!(say_ahead(&mut script, psn, ahead, held), Err(Discard::StaleAcknowledge), "{name}");
        pass(&mut script, LATE);
        assert_eq!(sends(&mut script), [], "{name}");
        assert_eq!(script.host.endpoint.report(script.host.qpn), before, "{name}");
        assert_eq!(script.host.endpoint.counters().discarded(Discard::StaleAcknowledge), count, "{name}");
    }
    post(&mut script, request);
    assert_eq!(sends(&mut script), [3, 4, 5]);
    // Only the first of a READ's PSNs is a packet of this side: no peer holds the others.
    let remote = Remote { address: BASE, rkey: script.rkey() };
    let read = SendRequest::read(3, script.host.sge(8192, 2048), remote);
    post(&mut script, read);
    assert_eq!(sends(&mut script), [6]);
    assert_eq!(say(&mut script, 6, 0b10), Ok(()));
    pass(&mut script, LATE);
    assert_eq!(sends(&mut script), []);
}

/// A peer that reported a packet as held may drop it because no receive is posted.
#[test]
fn a_held_packet_that_the_peer_dropped_is_retransmitted() {
    let mut script = script();
    let request = write(&script, 1, 3 * 1024);
    post(&mut script, request);
    assert_eq!(sends(&mut script), [0, 1, 2]);
    assert_eq!(say(&mut script, 0, 0b10), Ok(()));
    script.send(PSN + 1, rnr(1, 0), &[]).unwrap();
    assert_eq!(sends(&mut script), []);
    pass(&mut script, Duration::from_millis(1));
    assert_eq!(sends(&mut script), [1, 2]);
    // The RNR NAK was lost: the next acknowledgement implies it.
    assert_eq!(say(&mut script, 1, 0b10), Ok(()));
    assert_eq!(say(&mut script, 2, 0), Ok(()));
    pass(&mut script, LATE);
    assert_eq!(sends(&mut script), [2]);
}

/// RFC 8985 7, 7.2: the last packet is lost, and no later packet can reveal it.
#[test]
fn a_lost_tail_is_probed_after_two_round_trips() {
    let mut script = script();
    let request = write(&script, 1, 1024);
    post(&mut script, request);
    assert_eq!(sends(&mut script), [0]);
    pass(&mut script, Duration::from_micros(100));
    script.send(PSN, ack(1), &[]).unwrap();
    let request = write(&script, 2, 3 * 1024);
    post(&mut script, request);
    assert_eq!(sends(&mut script), [1, 2, 3]);
    pass(&mut script, Duration::from_micros(299));
    assert_eq!(sends(&mut script), []);
    pass(&mut script, TICK);
    assert_eq!(sends(&mut script), [3]);
    // Its acknowledgement reveals the others.
    assert_eq!(say(&mut script, 1, 0b100), Ok(()));
    pass(&mut script, Duration::from_micros(120));
    assert_eq!(sends(&mut script), [1, 2]);
    assert_eq!(script.host.endpoint.counters().timeouts, 0);
}

/// RFC 8985: the reordering window is a round trip. After eight losses in a row without reordering it is a quarter, until a packet is
/// reordered.
#[test]
fn the_reordering_window_follows_observed_reordering() {
    let mut script = script();
    let mut psn = 0;
    let mut again = |script: &mut Script, late: u64, comes: bool| {
        let request = write(script, 1, 2 * 1024);
        post(script, request);
        assert_eq!(sends(script), [psn, psn + 1]);
        pass(script, Duration::from_micros(100));
        say(script, psn, 0b10).unwrap();
        pass(script, Duration::from_micros(late));
        let sent = sends(script);
        if !sent.is_empty() {
            pass(script, Duration::from_micros(if comes { 10 } else { 100 }));
        }
        script.send(PSN + psn + 1, ack(1), &[]).unwrap();
        psn += 2;
        sent.len()
    };
    for _ in 0..8 {
        assert_eq!(again(&mut script, 110, false), 1);
    }
    assert_eq!(
        again(&mut script, 40, true),
        1,
        "it was only late: the answer comes too soon for a repetition"
    );
    assert_eq!(again(&mut script, 90, false), 0);
}

/// Returns the goodput in Mb/s of 4 MiB in messages of 64 KiB, at 10 Gb/s with a round trip of 100 µs.
fn goodput(selective_repeat: bool, loss: u64, read: bool) -> u64 {
    const MESSAGE: u32 = 64 << 10;
    const MESSAGES: u64 = 64;
    let mut pair = Pair::connect(Options {
        selective_repeat,
        congestion: paced(256 << 10, cc::Rate::from_gbps(10)),
        delay: Duration::from_micros(50),
        ack_timeout: 8,
        ..Options::default()
    });
    pair.faults = Faults { loss, ..Faults::default() };
    for id in 0..MESSAGES {
        let (sge, rkey) = (pair.hosts[0].sge(0, MESSAGE), pair.hosts[1].region.rkey);
        let remote = Remote { address: BASE, rkey };
        pair.post(
            0,
            if read { SendRequest::read(id, sge, remote) } else { SendRequest::write(id, sge, remote) },
        );
    }
    let mut done = 0;
    let mut last = pair.now;
    while done < MESSAGES {
        assert!(pair.step(), "it ended with {done} messages");
        let sent = pair.hosts[0].sent();
        assert!(sent.iter().all(|completion| completion.status == CompletionStatus::Success), "{sent:?}");
        if !sent.is_empty() {
            (done, last) = (done + sent.len() as u64, pair.now);
        }
    }
    MESSAGES * u64::from(MESSAGE) * 8 * 1000 / last.as_nanos()
}

/// `cargo test -p ferroce-roce selective_repeat -- --nocapture` prints the table.
#[test]
fn the_gain_of_selective_repeat_grows_with_loss() {
    println!("goodput in Mb/s at 10 Gb/s, 100 µs of round trip, MTU 1024, window 256 KiB");
    println!(
        "{:>6}  {:>17} {:>17}  {:>17} {:>17}",
        "loss", "WRITE go-back-N", "selective", "READ go-back-N", "selective"
    );
    for (loss, gain) in [(0, 100), (1, 105), (10, 150), (50, 250)] {
        let [go_back, selective] = [false, true].map(|selective| goodput(selective, loss, false));
        let [read_back, read_selective] = [false, true].map(|selective| goodput(selective, loss, true));
        let percent = loss as f64 / 10.0;
        println!("{percent:>4} %  {go_back:>17} {selective:>17}  {read_back:>17} {read_selective:>17}");
        assert!(selective * 100 >= go_back * gain, "{percent} %: {selective} against {go_back} Mb/s");
        assert!(
            read_selective * 100 >= read_back * gain,
            "{percent} %: READ {read_selective} against {read_back}"
        );
    }
}

//! The times at which selective repeat retransmits, and its timeouts.

use crate::harness::script::{PSN, Script, ack};
use crate::harness::{BASE, Options, open_window, paced};
use crate::selective_repeat::{
    ANSWERED, FULL, TICK, options, pass, post, say, say_ahead, script, sends, write,
};
use cc::{DctcpConfig, HpccConfig, Rate, SWIFT};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::Discard;
use roce::qp::{CongestionAlgorithm, Remote, SendRequest};
use roce::wire::Operation;

/// The round-trip time of [`measured`].
const ROUND_TRIP: Duration = Duration::from_micros(100);

/// Measures the round trip with an acknowledged packet. Its variation is half of the round trip, so the timeout is three round trips.
fn measured(mut script: Script) -> Script {
    let request = write(&script, 0, 1024);
    post(&mut script, request);
    assert_eq!(sends(&mut script), [0]);
    pass(&mut script, ROUND_TRIP);
    script.send(PSN, ack(1), &[]).unwrap();
    script
}

/// RFC 9002 6.2.1: the timer runs from the last packet sent, not from the last acknowledgement.
#[test]
fn a_lost_tail_is_probed_independently_of_the_answer_before_it() {
    let mut script = measured(script());
    let request = write(&script, 1, 3 * 1024);
    post(&mut script, request);
    assert_eq!(sends(&mut script), [1, 2, 3]);
    pass(&mut script, ROUND_TRIP);
    script.send(PSN + 2, ack(1), &[]).unwrap();
    pass(&mut script, 2 * ROUND_TRIP - TICK);
    assert_eq!(sends(&mut script), []);
    pass(&mut script, 2 * TICK);
    assert_eq!(sends(&mut script), [3]);
}

/// The wait is extended from the newest packet only once: packets that are less than a wait apart must not postpone the probe for ever.
#[test]
fn a_sender_of_sparse_packets_probes_the_newest() {
    let mut script = measured(script());
    for id in 1..20 {
        let request = write(&script, id, 64);
        post(&mut script, request);
        sends(&mut script);
        pass(&mut script, ROUND_TRIP / 2);
    }
    assert!(script.host.endpoint.counters().retransmitted > 0);
}

/// The age of a READ shows its length, and not the round trip.
#[test]
fn a_long_read_whose_last_response_is_lost_is_requested_again_soon() {
    const RESPONSES: u32 = 100;
    let mut script = measured(Script::new(Options { memory: 1 << 18, ..options() }));
    let remote = Remote { address: BASE, rkey: script.host.region.rkey };
    let request = SendRequest::read(1, script.host.sge(0, RESPONSES * 1024), remote);
    post(&mut script, request);
    assert_eq!(sends(&mut script), [1]);
    for n in 1..RESPONSES {
        pass(&mut script, ROUND_TRIP);
        let response =
            if n == 1 { Operation::ReadResponseFirst(ANSWERED) } else { Operation::ReadResponseMiddle };
        script.send(PSN + n, response, &FULL).unwrap();
    }
    pass(&mut script, 8 * ROUND_TRIP);
    assert_eq!(sends(&mut script), [RESPONSES]);
}

/// Of 384 packets three are lost, and all acknowledgements but the last, which reports the last 118 packets and the first missing one.
#[test]
fn packets_that_no_acknowledgement_covers_are_not_retransmitted() {
    let mut script = measured(Script::new(Options { congestion: open_window(), ..options() }));
    for id in 1..7 {
        let request = write(&script, id, 64 * 1024);
        post(&mut script, request);
    }
    assert_eq!(sends(&mut script).len(), 384);
    pass(&mut script, ROUND_TRIP);
    let told = (1 << 118) - 1;
    say_ahead(&mut script, 11, 4, told & !(1 << (380 - 11 - 256))).unwrap();
    pass(&mut script, ROUND_TRIP + TICK);
    assert_eq!(sends(&mut script), [11, 380]);
    pass(&mut script, ROUND_TRIP);
    // Both retransmissions arrived, and the next missing packet is 100.
    say_ahead(&mut script, 100, 4, (1 << 28) - 1).unwrap();
    say(&mut script, 100, u128::MAX - 1).unwrap();
    // The measured round trip has increased, because acknowledgements were lost.
    pass(&mut script, ROUND_TRIP * 3 / 2);
    assert_eq!(sends(&mut script), [100]);
    script.send(PSN + 384, ack(7), &[]).unwrap();
    assert_eq!(script.host.sent().len(), 7);
    assert_eq!(script.host.endpoint.counters().retransmitted, 3);
}

/// A packet is sent every 0.8 ms, which is much longer than the time of the probe timer.
#[test]
fn a_retransmission_that_waits_for_the_pacer_marks_no_other_packet_lost() {
    let rate = Rate::from_bps(10_000_000);
    let mut script = measured(Script::new(Options { congestion: paced(1 << 20, rate), ..options() }));
    let request = write(&script, 1, 3 * 1024);
    post(&mut script, request);
    let mut sent = Vec::new();
    while sent.len() < 3 {
        sent.extend(sends(&mut script));
        script.wait(Duration::from_micros(50));
    }
    assert_eq!(sent, [1, 2, 3]);
    say(&mut script, 1, 0b10).unwrap();
    // Packet 1 is lost a round trip later. The pacer delays it, and packet 3 is in flight all the time.
    for _ in 0..10 {
        script.wait(Duration::from_micros(50));
        assert_eq!(sends(&mut script), []);
    }
    assert_eq!(script.host.endpoint.report(script.host.qpn).unwrap().in_flight, 1024);
    script.wait(Duration::from_micros(300));
    assert_eq!(sends(&mut script), [1]);
    script.send(PSN + 3, ack(2), &[]).unwrap();
    assert_eq!(script.host.sent().len(), 2);
}

/// The timeout after each lost retransmission of a packet doubles (RFC 6298 5.5), while the peer receives the new packets.
#[test]
fn the_interval_between_retransmissions_of_a_packet_doubles() {
    let mut script = measured(script());
    let request = write(&script, 1, 64 * 1024);
    post(&mut script, request);
    assert_eq!(sends(&mut script).len(), 64);
    let mut at = Vec::new();
    for step in 1..63 {
        say(&mut script, 1, (2 << step) - 2).unwrap();
        for part in 0..4 {
            let sent = script.drain();
            script.wait(ROUND_TRIP / 4);
            assert!(sent.iter().all(|&(psn, _)| psn == PSN + 1), "{sent:?}");
            at.extend(sent.iter().map(|_| step * 4 + part));
        }
    }
    let gaps: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Two round trips at first, in quarters. The measured round trip increases slightly meanwhile.
    assert_eq!(gaps.len(), 4, "{at:?}");
    for (gap, expected) in gaps.into_iter().zip([8, 16, 32, 64]) {
        assert!((expected..=expected * 5 / 4).contains(&gap), "{at:?}");
    }
}

/// Twelve responses are missing. After one request they arrive one per round trip, in order: none of them is requested again.
#[test]
fn a_slow_repeated_answer_is_not_requested_again_while_it_arrives() {
    let mut script = measured(script());
    let remote = Remote { address: BASE, rkey: script.rkey() };
    let read = SendRequest::read(1, script.host.sge(8192, 14 * 1024), remote);
    post(&mut script, read);
    assert_eq!(sends(&mut script), [1]);
    pass(&mut script, ROUND_TRIP);
    let answer = |script: &mut Script, number: u32, operation| {
        script.send(PSN + number, operation, &FULL).unwrap();
    };
    answer(&mut script, 1, Operation::ReadResponseFirst(ANSWERED));
    answer(&mut script, 14, Operation::ReadResponseLast(ANSWERED));
    pass(&mut script, ROUND_TRIP + TICK);
    assert_eq!(sends(&mut script), [2]);
    for number in 2..14 {
        pass(&mut script, ROUND_TRIP + TICK);
        answer(&mut script, number, Operation::ReadResponseMiddle);
        assert_eq!(sends(&mut script), [], "behind {number}");
    }
    assert_eq!(script.host.sent().len(), 2);
}

#[test]
fn a_stretch_that_waits_to_be_repeated_is_repeated_once() {
    let mut script = script();
    script.send(PSN, Operation::ReadRequest(script.reth(0, 6 * 1024)), &[]).unwrap();
    assert_eq!(sends(&mut script), [0, 1, 2, 3, 4, 5]);
    let again = |script: &mut Script, from: u32, packets: u32| {
        let reth = script.reth(u64::from(from) * 1024, packets * 1024);
        assert_eq!(script.send(PSN + from, Operation::ReadRequest(reth), &[]), Err(Discard::Duplicate));
    };
    again(&mut script, 1, 4);
    assert_eq!(script.next().map(|(psn, _)| psn - PSN), Some(1));
    again(&mut script, 2, 3);
    again(&mut script, 4, 1);
    assert_eq!(sends(&mut script), [2, 3, 4]);
    // Packets that were lost after they were sent may be requested again.
    again(&mut script, 2, 3);
    assert_eq!(sends(&mut script), [2, 3, 4]);
}

/// Karn: a WRITE after a READ is measured when its acknowledgement arrives, not when the READ has recovered.
#[test]
fn a_round_trip_is_measured_without_the_recovery_of_another_request() {
    let mut script = measured(script());
    let remote = Remote { address: BASE, rkey: script.rkey() };
    let read = SendRequest::read(1, script.host.sge(8192, 2048), remote);
    post(&mut script, read);
    assert_eq!(sends(&mut script), [1]);
    pass(&mut script, ROUND_TRIP);
    script.send(PSN + 1, Operation::ReadResponseFirst(ANSWERED), &FULL).unwrap();
    let request = write(&script, 2, 1024);
    post(&mut script, request);
    assert_eq!(sends(&mut script), [3]);
    pass(&mut script, ROUND_TRIP);
    script.send(PSN + 3, ack(1), &[]).unwrap();
    for _ in 0..20 {
        script.wait(ROUND_TRIP / 4);
        script.drain();
    }
    script.send(PSN + 2, Operation::ReadResponseLast(ANSWERED), &FULL).unwrap();
    assert_eq!(script.host.sent().len(), 3);
    let report = script.host.endpoint.report(script.host.qpn).unwrap();
    assert_eq!(report.round_trip.unwrap().0, ROUND_TRIP);
}

/// Returns the rate in b/s around two losses, while the peer receives all other packets: before and after the loss of a packet, and before
/// and after the loss of its retransmission.
fn rates_around_two_losses(congestion: CongestionAlgorithm) -> [[u64; 2]; 2] {
    let mut script = measured(Script::new(Options { congestion, ..options() }));
    let mut held = 0;
    [1, 2].map(|id| {
        let request = write(&script, id, 8 * 1024);
        post(&mut script, request);
        let mut sent = Vec::new();
        while sent.len() < 8 {
            sent.extend(sends(&mut script));
            script.wait(TICK);
        }
        script.wait(ROUND_TRIP - 8 * TICK);
        // All but packet 1 arrived.
        held |= sent.iter().filter(|&&psn| psn != 1).fold(0, |held, psn| held | 1 << (psn - 1));
        say(&mut script, 1, held).unwrap();
        let rate = |script: &Script| {
            script.host.endpoint.report(script.host.qpn).and_then(|report| report.rate).unwrap().as_bps()
        };
        let before = rate(&script);
        let again = core::iter::repeat_with(|| {
            script.wait(TICK);
            sends(&mut script)
        });
        assert_eq!(again.take(60).find(|sent| !sent.is_empty()), Some(vec![1]));
        [before, rate(&script)]
    })
}

/// RFC 5681 4.3: the loss of a retransmission is a separate indication of congestion.
#[test]
fn a_lost_retransmission_is_a_congestion_signal() {
    let line_rate = Rate::from_gbps(10);
    let config = HpccConfig::new(line_rate, ROUND_TRIP, NonZeroU32::MIN);
    let swift = CongestionAlgorithm::Registered(&SWIFT, config.into());
    let dctcp = CongestionAlgorithm::Dctcp(DctcpConfig::new(line_rate, ROUND_TRIP));
    for congestion in [swift, dctcp] {
        let [first, second] = rates_around_two_losses(congestion);
        for [before, after] in [first, second] {
            assert!(after <= before / 2, "{congestion:?}: {first:?}, {second:?}");
        }
    }
}

//! The waiting times of queue pairs: the states sum to the elapsed time in every case, and each cause has its state.

use crate::harness::{BASE, Faults, Options, Pair, paced};
use cc::{Instant, Rate};
use core::time::Duration;
use proptest::prelude::*;
use roce::qp::{Capabilities, CongestionAlgorithm, Remote, SendRequest, Waiting};
use roce::wire::Mtu;
use roce::{FailureReason, Observation, Outbox};

const WINDOW: u64 = 4096;

fn fixed(window: u64) -> CongestionAlgorithm {
    CongestionAlgorithm::Fixed { window, rate: None }
}

fn remote(pair: &Pair, offset: u64) -> Remote {
    Remote { address: BASE + offset, rkey: pair.hosts[1].region.rkey }
}

fn write(pair: &mut Pair, id: u64, length: u32) {
    let (from, to) = (pair.hosts[0].sge(0, length), remote(pair, 0));
    pair.post(0, SendRequest::write(id, from, to));
}

fn read(pair: &mut Pair, id: u64, length: u32) {
    let (into, from) = (pair.hosts[0].sge(0, length), remote(pair, 0));
    pair.post(0, SendRequest::read(id, into, from));
}

fn observe(pair: &Pair, host: usize) -> Observation {
    let (mut seen, more) = pair.hosts[host].endpoint.observe(pair.now, 0, 16);
    assert_eq!((seen.len(), more), (1, None));
    seen.remove(0)
}

/// Returns the state with the longest time since the queue pair was created, other than idle.
fn most(pair: &Pair) -> Waiting {
    let waited = observe(pair, 0).waited;
    let busy = Waiting::ALL.iter().copied().filter(|&state| state != Waiting::Idle);
    busy.max_by_key(|&state| waited.nanos(state)).unwrap()
}

fn after(options: Options, begin: impl FnOnce(&mut Pair), time: Duration) -> Pair {
    let mut pair = Pair::connect(options);
    begin(&mut pair);
    while pair.now < Instant::ZERO + time && pair.step() {}
    pair
}

const SHORT: Duration = Duration::from_micros(400);

#[test]
fn a_small_window_is_the_waiting_state() {
    let options = Options { congestion: fixed(WINDOW), ..Options::default() };
    let pair = after(options, |pair| write(pair, 1, 1 << 19), SHORT);
    assert_eq!(most(&pair), Waiting::Window);
    assert_eq!(observe(&pair, 0).report.window, WINDOW);
}

#[test]
fn a_slow_pace_is_the_waiting_state() {
    let options = Options { congestion: paced(1 << 30, Rate::from_mbps(500)), ..Options::default() };
    assert_eq!(most(&after(options, |pair| write(pair, 1, 1 << 19), SHORT)), Waiting::Pacing);
}

#[test]
fn a_receiver_without_a_receive_is_the_waiting_state() {
    let options = Options { rnr_timer: 14, ..Options::default() };
    let send = |pair: &mut Pair| {
        let sge = pair.hosts[0].sge(0, 64);
        pair.post(0, SendRequest::send(1, sge));
    };
    let pair = after(options, send, SHORT);
    assert_eq!(most(&pair), Waiting::ReceiverNotReady);
    assert_eq!(observe(&pair, 0).suspected, Some(FailureReason::NoReceive));
}

#[test]
fn a_peer_that_does_not_answer_is_the_waiting_state_silence() {
    let begin = |pair: &mut Pair| {
        pair.filter = Some(Box::new(|_, _| false));
        write(pair, 1, 64);
    };
    let pair = after(Options::default(), begin, 4 * SHORT);
    assert_eq!(most(&pair), Waiting::Silence);
    assert_eq!(observe(&pair, 0).suspected, Some(FailureReason::NeverAnswered));
}

/// A port that is full from the first turn on, like that of a peer that receives nothing.
#[test]
fn a_port_without_room_is_the_waiting_state() {
    struct Full(Waiting);
    impl Outbox for Full {
        fn room(&mut self) -> Option<&mut [u8]> {
            None
        }
        fn commit(&mut self, _: usize) {}
        fn why_full(&self) -> Waiting {
            self.0
        }
    }
    for why in [Waiting::Port, Waiting::Pool] {
        let mut pair = Pair::connect(Options::default());
        write(&mut pair, 1, 64);
        let host = &mut pair.hosts[0];
        host.endpoint.transmit(pair.now, &host.ram, &mut Full(why));
        assert_eq!(observe(&pair, 0).waiting, why);
        pair.run(SHORT);
        assert_eq!(observe(&pair, 0).waiting, Waiting::Idle);
    }
}

/// While the peer does not respond, an observer gets the reason that the failure will have.
#[test]
fn the_reason_of_a_silence_is_suspected_before_the_queue_pair_fails() {
    let suspected = |longest: usize, length: u32| {
        let mut pair = Pair::connect(Options { mtu: Mtu::M4096, ..Options::default() });
        (1..=9).for_each(|id| write(&mut pair, id, 64));
        pair.run(Duration::from_secs(1));
        assert_eq!(observe(&pair, 0).suspected, None);
        pair.filter = Some(Box::new(move |_, frame| frame.len() < longest));
        let end = pair.now + 4 * SHORT;
        write(&mut pair, 10, length);
        while pair.now < end && pair.step() {}
        let seen = observe(&pair, 0);
        assert_eq!(seen.report.failure, None);
        seen.suspected
    };
    assert_eq!(suspected(0, 64), Some(FailureReason::WentDark));
    let large = FailureReason::LargePackets { lost: 4096, arrived: 64 };
    assert_eq!(suspected(1500, 4096), Some(large));
}

#[test]
fn the_limit_of_reads_is_the_waiting_state() {
    let begin = |pair: &mut Pair| (0..60).for_each(|id| read(pair, id, 64));
    let options = Options { max_rd_atomic: 1, ..Options::default() };
    assert_eq!(most(&after(options, begin, SHORT)), Waiting::Reads);
}

#[test]
fn a_fence_is_the_waiting_state() {
    let begin = |pair: &mut Pair| {
        for id in 0..20 {
            read(pair, id, 64);
            let (from, to) = (pair.hosts[0].sge(0, 64), remote(pair, 0));
            pair.post(0, SendRequest::write(id, from, to).fenced());
        }
    };
    assert_eq!(most(&after(Options::default(), begin, SHORT)), Waiting::Fence);
}

#[test]
fn one_request_at_a_time_waits_for_the_answer() {
    let pair = after(Options::default(), |pair| write(pair, 1, 64), SHORT);
    assert_eq!(most(&pair), Waiting::Answer);
    let round_trip = Duration::from_micros(10);
    assert_eq!(observe(&pair, 0).report.round_trip, Some((round_trip, round_trip)));
    assert_eq!(observe(&pair, 0).waiting, Waiting::Idle);
}

/// Recovery lasts from the NAK to the end of the retransmission.
#[test]
fn a_loss_is_recovered_from() {
    let begin = |pair: &mut Pair| {
        let mut count = 0;
        pair.filter = Some(Box::new(move |from, _| {
            count += u64::from(from == 0);
            from != 0 || count % 8 != 3
        }));
        write(pair, 1, 1 << 19);
    };
    let options = Options { congestion: fixed(8192), ..Options::default() };
    assert_eq!(most(&after(options, begin, SHORT)), Waiting::Recovery);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever is posted and lost, the states of each queue pair sum to its age. The states of an endpoint sum to those of all its queue
    /// pairs.
    #[test]
    fn the_states_sum_to_the_elapsed_time(
        seed in any::<u64>(),
        loss in 0..200u64,
        window in prop_oneof![Just(1u64), Just(5000), Just(1 << 20)],
        reads in 1..4u8,
        posts in proptest::collection::vec((0..3u8, 0..20_000u32, 0..300_000u64), 1..40),
    ) {
        let capabilities = Capabilities { max_send: 64, ..Capabilities::default() };
        let options = Options { congestion: fixed(window), max_rd_atomic: reads, capabilities, ..Options::default() };
        let mut pair = Pair::connect(options);
        pair.random.0 = seed;
        pair.faults = Faults { loss, ..Faults::default() };
        for (id, &(kind, length, pause)) in posts.iter().enumerate() {
            match kind {
                0 => write(&mut pair, id as u64, length),
                1 => read(&mut pair, id as u64, length),
                _ => {
                    let sge = pair.hosts[0].sge(0, length);
                    pair.post(0, SendRequest::send(id as u64, sge));
                }
            }
            if kind == 2 && pause % 2 == 0 {
                let sge = pair.hosts[1].sge(0, 20_000);
                pair.receive(1, id as u64, sge);
            }
            let until = pair.now + Duration::from_nanos(pause);
            pair.run_until(until);
            for host in 0..2 {
                let now = pair.now.as_nanos();
                prop_assert_eq!(observe(&pair, host).waited.total(), now);
                prop_assert_eq!(pair.hosts[host].endpoint.waited(pair.now).total(), now);
            }
        }
        let (now, qpn) = (pair.now, pair.hosts[0].qpn);
        pair.hosts[0].endpoint.destroy_qp(now, qpn).unwrap();
        prop_assert_eq!(pair.hosts[0].endpoint.waited(now).total(), now.as_nanos());
    }
}

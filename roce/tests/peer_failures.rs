//! A peer that fails at every step of an exchange: each request ends, in order and within the retry time.

use crate::harness::{BASE, Faults, Options, Pair, paced};
use cc::{Instant, Rate};
use core::time::Duration;
use roce::qp::{Completion, CompletionStatus, Modify, Remote, SendRequest, State};
use roce::{Event, FailureCause};

/// Ack timeout code 5.
const TIMEOUT: Duration = Duration::from_nanos(4096 << 5);
/// Number of timeouts: eight attempts that last 1, 2 and then 4 timeouts each.
const ROUNDS: u32 = 1 + 2 + 6 * 4;
const REQUESTS: u64 = 8;

#[derive(Clone, Copy, Debug)]
enum Death {
    /// The peer destroys its queue pair and drops the packets for it.
    Destroyed,
    /// The peer's program moves it to ERR.
    Failed,
    /// The peer resets the queue pair and reuses its number.
    Reset,
    /// The link is cut; both sides detect it by timeout.
    Cut,
}

const DEATHS: [Death; 4] = [Death::Destroyed, Death::Failed, Death::Reset, Death::Cut];

/// Both sides have outstanding requests of all kinds, and too few receives.
fn exchange(selective_repeat: bool) -> Pair {
    let congestion = paced(4096, Rate::from_gbps(10));
    let mut pair =
        Pair::connect(Options { selective_repeat, max_rd_atomic: 2, congestion, ..Options::default() });
    for host in [0, 1] {
        let rkey = pair.hosts[1 - host].region.rkey;
        let remote = |offset| Remote { address: BASE + offset, rkey };
        let sge = |pair: &Pair, length| pair.hosts[host].sge(0, length);
        for id in 0..4 {
            let into = pair.hosts[host].sge(600_000 + id * 8192, 8192);
            pair.receive(host, id, into);
        }
        for id in 0..REQUESTS {
            let request = match id % 4 {
                0 => SendRequest::send(id, sge(&pair, 3000)),
                1 => SendRequest::write(id, sge(&pair, 5000), remote(100_000)),
                2 => SendRequest::read(id, pair.hosts[host].sge(300_000, 4000), remote(0)),
                _ => SendRequest::fetch_add(id, pair.hosts[host].sge(400_000, 8), remote(500_000), 1),
            };
            pair.post(host, request);
        }
    }
    pair
}

fn die(pair: &mut Pair, death: Death) {
    let (now, qpn) = (pair.now, pair.hosts[1].qpn);
    let endpoint = &mut pair.hosts[1].endpoint;
    match death {
        Death::Destroyed => endpoint.destroy_qp(now, qpn).unwrap(),
        Death::Failed => endpoint.modify_qp(now, qpn, Modify::Error).unwrap(),
        Death::Reset => endpoint.modify_qp(now, qpn, Modify::Reset).unwrap(),
        Death::Cut => pair.faults = Faults { loss: 1000, ..Faults::default() },
    }
}

/// Runs until no event is left; returns when the last send request of each side ended.
fn finish(pair: &mut Pair, sent: &mut [Vec<Completion>; 2]) -> [Instant; 2] {
    let mut last = [pair.now; 2];
    loop {
        let busy = pair.step();
        for host in [0, 1] {
            let new = pair.hosts[host].sent();
            if !new.is_empty() {
                last[host] = pair.now;
            }
            sent[host].extend(new);
        }
        if !busy {
            return last;
        }
    }
}

fn check(pair: &mut Pair, host: usize, sent: &[Completion], context: &str) {
    let ids: Vec<_> = sent.iter().map(|completion| completion.id).collect();
    assert_eq!(ids, (0..REQUESTS).collect::<Vec<_>>(), "{context}: each request ends once and in order");
    let failed = sent.iter().position(|completion| completion.status != CompletionStatus::Success);
    let Some(failed) = failed else {
        assert_eq!(pair.reports()[host].unwrap().state, State::ReadyToSend, "{context}");
        return;
    };
    assert_eq!(sent[failed].status, CompletionStatus::RetryExceeded, "{context}");
    assert!(sent[failed + 1..].iter().all(|c| c.status == CompletionStatus::Flushed), "{context}: {sent:?}");
    assert_eq!(pair.reports()[host].unwrap().state, State::Error, "{context}");
    let cause = FailureCause::Request(CompletionStatus::RetryExceeded);
    let told = core::iter::from_fn(|| pair.hosts[host].endpoint.poll_event());
    let told =
        told.filter(|event| matches!(event, Event::QpFailed(failure) if failure.cause == cause)).count();
    assert_eq!(told, 1, "{context}: an event says so");
    let received = pair.hosts[host].received();
    assert_eq!(received.len(), 4, "{context}: every receive ends");
    let good =
        received.iter().take_while(|completion| completion.status == CompletionStatus::Success).count();
    assert!(received[good..].iter().all(|c| c.status == CompletionStatus::Flushed), "{context}");
}

/// Fails the peer after `steps` events. Returns whether any event was left then.
fn dies_after(steps: u32, death: Death, selective_repeat: bool) -> bool {
    let context = format!("{death:?} after {steps} steps, selective repeat {selective_repeat}");
    let mut pair = exchange(selective_repeat);
    let mut sent = [Vec::new(), Vec::new()];
    for _ in 0..steps {
        if !pair.step() {
            return false;
        }
        for host in [0, 1] {
            sent[host].extend(pair.hosts[host].sent());
        }
    }
    let died = pair.now;
    die(&mut pair, death);
    let last = finish(&mut pair, &mut sent);
    let sides = if matches!(death, Death::Cut) { &[0, 1][..] } else { &[0] };
    for &host in sides {
        check(&mut pair, host, &sent[host], &context);
        // Packets in flight may have arrived later and restarted the timer.
        let limit = TIMEOUT * ROUNDS + 4 * pair.options.delay + TIMEOUT / 8;
        let took = last[host].saturating_since(died);
        assert!(took <= limit, "{context}: it took {took:?}, {limit:?} were allowed");
    }
    true
}

#[test]
fn every_request_ends_in_time_when_a_peer_fails() {
    for selective_repeat in [false, true] {
        for death in DEATHS {
            let moments = (0..).take_while(|&steps| dies_after(steps, death, selective_repeat)).count();
            assert!(moments > 20, "{death:?}: only {moments} moments");
        }
    }
}

/// IBA 9.7.6.1.3: with an infinite timeout only the program can end a request without a response.
#[test]
fn without_a_timeout_only_the_program_ends_it() {
    let mut pair = Pair::connect(Options { ack_timeout: 0, ..Options::default() });
    pair.faults = Faults { loss: 1000, ..Faults::default() };
    let (sge, rkey) = (pair.hosts[0].sge(0, 100), pair.hosts[1].region.rkey);
    pair.post(0, SendRequest::write(1, sge, Remote { address: BASE, rkey }));
    pair.run(Duration::from_secs(1));
    assert!(pair.hosts[0].sent().is_empty());
    let (now, qpn) = (pair.now, pair.hosts[0].qpn);
    pair.hosts[0].endpoint.modify_qp(now, qpn, Modify::Error).unwrap();
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Flushed);
}

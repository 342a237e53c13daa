//! Registered memory that is no longer mapped: the request that uses it fails, on either side.

use crate::harness::{BASE, Options, Pair};
use core::time::Duration;
use roce::Discard;
use roce::qp::{CompletionStatus, Data, Remote, SendRequest, State};

const LIMIT: Duration = Duration::from_secs(60);
const LENGTH: u32 = 5000;

/// Runs `request` between offsets 2048 and 7048 of two hosts, with the memory of `loser` truncated to 4 KiB, and returns its status.
fn outcome(loser: usize, request: impl FnOnce(&Pair, Remote) -> SendRequest) -> (CompletionStatus, Pair) {
    let mut pair = Pair::connect(Options::default());
    let receive = pair.hosts[1].sge(2048, LENGTH);
    pair.receive(1, 7, receive);
    let remote = Remote { address: BASE + 2048, rkey: pair.hosts[1].region.rkey };
    let request = request(&pair, remote);
    pair.post(0, request);
    pair.hosts[loser].ram.0.truncate(4096);
    pair.run(LIMIT);
    let sent = pair.hosts[0].sent();
    assert_eq!(sent.len(), 1);
    (sent[0].status, pair)
}

fn state(pair: &Pair, host: usize) -> State {
    let host = &pair.hosts[host];
    host.endpoint.report(host.qpn).unwrap().state
}

#[test]
fn a_request_whose_memory_vanished_fails_on_either_side() {
    use CompletionStatus::{LocalProtection, RemoteAccess, RemoteOperation};
    let here = |pair: &Pair| pair.hosts[0].sge(2048, LENGTH);
    for (name, theirs, make) in [
        ("WRITE", RemoteAccess, (|sge, to| SendRequest::write(1, sge, to)) as fn(_, _) -> _),
        ("READ", RemoteAccess, |sge, from| SendRequest::read(1, sge, from)),
        ("SEND", RemoteOperation, |sge, _| SendRequest::send(1, sge)),
    ] {
        for (loser, expected) in [(0, LocalProtection), (1, theirs)] {
            let (status, mut pair) = outcome(loser, |pair, remote| make(here(pair), remote));
            assert_eq!(status, expected, "{name}, host {loser}");
            assert_eq!(state(&pair, 0), State::Error, "{name}, host {loser}");
            if loser == 1 {
                assert_eq!(state(&pair, 1), State::Error, "{name}");
                let counters = pair.hosts[1].endpoint.counters();
                assert_eq!(counters.discarded(Discard::Vanished) == 1, name == "WRITE", "{name}");
                let receive = if name == "SEND" { LocalProtection } else { CompletionStatus::Flushed };
                assert_eq!(pair.hosts[1].received()[0].status, receive, "{name}");
            }
        }
    }
}

#[test]
fn an_atomic_whose_memory_vanished_fails_on_either_side() {
    for (loser, expected) in [(0, CompletionStatus::LocalProtection), (1, CompletionStatus::RemoteAccess)] {
        for which in 0..3 {
            let (status, pair) = outcome(loser, |pair, remote| {
                let remote = Remote { address: BASE + 6000, ..remote };
                let sge = pair.hosts[0].sge(6000, 8);
                match which {
                    0 => SendRequest::fetch_add(1, sge, remote, 1),
                    1 => SendRequest::compare_swap(1, sge, remote, 0, 1),
                    // An inline ATOMIC WRITE uses no local memory.
                    _ => SendRequest::atomic_write(1, Data::inline(&[7; 8]), remote),
                }
            });
            let expected = if which == 2 && loser == 0 { CompletionStatus::Success } else { expected };
            assert_eq!(status, expected, "{which}, host {loser}");
            assert_eq!(state(&pair, 0) == State::Error, expected != CompletionStatus::Success);
        }
    }
}

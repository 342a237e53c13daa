//! The datapath allocates no memory in steady state: not in posts, turns or polls.

use crate::common::*;
use ferroce_verbs::{Data, Progress, RecvRequest, SendRequest};

const MESSAGE: u32 = 20_000;

/// Sends one message of each kind, and polls its completions.
fn round(a: &mut Side, b: &mut Side) {
    let remote = b.region.remote();
    let buffer = a.region.sge(0, MESSAGE).unwrap();
    let word = a.region.sge(0, 8).unwrap();
    b.qp.post_recv(RecvRequest::new(1, b.region.sge(0, MESSAGE).unwrap())).unwrap();
    for request in [
        SendRequest::send(1, buffer),
        SendRequest::write(2, buffer, remote.at(0)),
        SendRequest::write(3, Data::inline(&[7; 64]), remote.at(0)).unsignalled(),
        SendRequest::read(4, buffer, remote.at(0)),
        SendRequest::fetch_add(5, word, remote.at(0), 1),
        SendRequest::compare_swap(6, word, remote.at(0), 1, 2),
    ] {
        a.qp.post_send(request).unwrap();
    }
    for id in [1, 2, 4, 5, 6] {
        assert_eq!(success(&mut a.send_cq, &b.device).id, id);
    }
    success(&mut b.recv_cq, &a.device);
}

#[test]
fn nothing_is_allocated_per_packet() {
    let (mut a, mut b) = connected(Progress::Inline, 65_536);
    for _ in 0..20 {
        round(&mut a, &mut b);
    }
    let frames = a.device.counters().unwrap().tx_frames;
    let mut rounds = || {
        allocation_counter::measure(|| {
            for _ in 0..200 {
                round(&mut a, &mut b);
            }
        })
    };
    // A pause of the test machine causes retransmissions, whose answers may allocate, but not ten times in a row.
    assert!((0..10).any(|_| rounds().count_total == 0));
    assert!(a.device.counters().unwrap().tx_frames - frames > 2000);
}

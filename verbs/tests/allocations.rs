//! The path of data allocates nothing once it runs: not in a post, not in a turn, not in a poll.

mod common;

use common::*;
use ferroce_verbs::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local!(static COUNT: Cell<u64> = const { Cell::new(0) });

/// Counts each thread's own allocations, so that tests side by side don't meet.
struct Counting;

// SAFETY: all is passed on to the system's allocator; the count is of plain integers and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MESSAGE: u32 = 20_000;

/// One message of each kind, there and completed.
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
    let before = COUNT.get();
    for _ in 0..200 {
        round(&mut a, &mut b);
    }
    let allocations = COUNT.get() - before;
    assert!(a.device.counters().unwrap().tx_frames - frames > 2000);
    assert_eq!(allocations, 0);
}

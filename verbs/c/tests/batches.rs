//! From `ibv_wr_start` to `ibv_wr_complete`, a queue pair belongs to one thread; all requests are posted, or none (ibv_wr_post(3)).

mod common;

use common::*;
use ferroce_c::abi::*;
use std::ffi::{c_int, c_uint};
use std::thread;

/// Depth of the send queue (`common::init`).
const DEPTH: u64 = 4;

/// Access to a queue pair from several threads.
#[derive(Clone, Copy)]
struct Extended(*mut ibv_qp_ex);

// SAFETY: any thread may call the functions of a queue pair.
unsafe impl Send for Extended {}
// SAFETY: as above.
unsafe impl Sync for Extended {}

impl Extended {
    fn of(objects: &Objects) -> Self {
        Self(objects.qp.cast())
    }

    fn start(self) {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.0).wr_start.unwrap()(self.0) }
    }

    /// Adds an empty WRITE with this id to the batch.
    fn write(self, id: u64) {
        // SAFETY: the queue pair is alive, and the caller has started a batch.
        unsafe {
            ((*self.0).wr_id, (*self.0).wr_flags) = (id, IBV_SEND_SIGNALED as c_uint);
            (*self.0).wr_rdma_write.unwrap()(self.0, 0, 0);
        }
    }

    fn complete(self) -> c_int {
        // SAFETY: as above.
        unsafe { (*self.0).wr_complete.unwrap()(self.0) }
    }

    /// Posts a batch of WRITEs with these ids, and checks that these alone complete.
    fn write_all(self, objects: &Objects, batch: &[u64]) {
        self.start();
        batch.iter().for_each(|id| self.write(*id));
        assert_eq!(self.complete(), 0);
        assert_eq!(ids(objects, batch.len() as u64), batch);
    }
}

fn ids(objects: &Objects, count: u64) -> Vec<u64> {
    let one = || {
        let wc = objects.poll();
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        wc.wr_id
    };
    (0..count).map(|_| one()).collect()
}

#[test]
fn a_batch_that_does_not_fit_posts_nothing() {
    let objects = Objects::new();
    objects.connect();
    let qp = Extended::of(&objects);
    qp.start();
    (0..=DEPTH).for_each(|id| qp.write(id));
    assert_eq!(qp.complete(), libc::ENOMEM);

    qp.write_all(&objects, &[10, 11, 12, 13]);
}

#[test]
fn a_batch_with_a_request_that_breaks_a_rule_posts_nothing() {
    let objects = Objects::new();
    objects.connect();
    let qp = Extended::of(&objects);
    qp.start();
    qp.write(1);
    // SAFETY: the queue pair is alive.
    unsafe { (*qp.0).wr_atomic_fetch_add.unwrap()(qp.0, 0, 0, 1) };
    assert_eq!(qp.complete(), libc::EINVAL, "an atomic without memory for its result");

    qp.write_all(&objects, &[2]);
}

#[test]
fn a_thread_that_starts_again_without_completing_drops_its_requests() {
    let objects = Objects::new();
    objects.connect();
    let qp = Extended::of(&objects);
    qp.start();
    qp.write(1);
    qp.write_all(&objects, &[2]);
}

#[test]
fn batches_of_two_threads_do_not_mix() {
    const BATCHES: u64 = 2000;
    let objects = Objects::new();
    objects.connect();
    let qp = Extended::of(&objects);
    let post = |thread: u64| {
        for batch in 0..BATCHES {
            let first = (thread * BATCHES + batch) * 2;
            let mut posted = false;
            // The queue is full now and then.
            while !posted {
                qp.start();
                qp.write(first);
                thread::yield_now();
                qp.write(first + 1);
                posted = qp.complete() == 0;
                thread::yield_now();
            }
        }
    };
    let mut seen = Vec::new();
    thread::scope(|scope| {
        for thread in [0, 1] {
            let post = &post;
            scope.spawn(move || post(thread));
        }
        while seen.len() < 4 * BATCHES as usize {
            seen.extend(ids(&objects, 1));
        }
    });
    let pairs: Vec<[u64; 2]> = seen.chunks(2).map(|pair| [pair[0], pair[1]]).collect();
    assert!(pairs.iter().all(|[first, second]| first % 2 == 0 && *second == first + 1), "batches mixed");
    seen.sort_unstable();
    assert_eq!(seen, (0..4 * BATCHES).collect::<Vec<_>>(), "each request is posted once");
}

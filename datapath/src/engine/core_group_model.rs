//! Loom model of the rings between the cores of a port, run by `ci/loom`. It follows `rtrb`, which itself cannot run under loom.
//!
//! As in `rtrb` 0.3, only the producer stores the tail and only the consumer stores the head, both with Release. Each loads the other's
//! index with Acquire. `rtrb` also caches the other's index, which saves loads and orders nothing.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// Slots of a ring. The second frame reuses the slot of the first.
const SLOTS: usize = 1;
const FRAMES: usize = 2;

struct Ring {
    slots: [UnsafeCell<usize>; SLOTS],
    head: AtomicUsize,
    tail: AtomicUsize,
    /// Memory orderings of the stores to head and tail.
    stores: [Ordering; 2],
}

impl Ring {
    fn new(stores: [Ordering; 2]) -> Self {
        let slots = std::array::from_fn(|_| UnsafeCell::new(usize::MAX));
        Self { slots, head: AtomicUsize::new(0), tail: AtomicUsize::new(0), stores }
    }

    /// Waits for room and adds a buffer.
    fn push(&self, buffer: usize) {
        let tail = self.tail.load(Ordering::Relaxed);
        while tail - self.head.load(Ordering::Acquire) == SLOTS {
            thread::yield_now();
        }
        // SAFETY: the consumer has released this slot, and does not read it before it sees the new tail. loom checks this.
        self.slots[tail % SLOTS].with_mut(|place| unsafe { *place = buffer });
        self.tail.store(tail + 1, self.stores[1]);
    }

    /// Waits for a buffer and removes it.
    fn pop(&self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        while self.tail.load(Ordering::Acquire) == head {
            thread::yield_now();
        }
        // SAFETY: the producer has released this slot, and does not write to it before it sees the new head. loom checks this.
        let buffer = self.slots[head % SLOTS].with(|place| unsafe { *place });
        self.head.store(head + 1, self.stores[0]);
        buffer
    }
}

/// The rings in both directions between core 0 and a worker core, and the contents of the buffers.
struct WorkerRings {
    received: Ring,
    outgoing: Ring,
    buffers: [UnsafeCell<u32>; FRAMES],
}

impl WorkerRings {
    fn write(&self, buffer: usize, bytes: u32) {
        // SAFETY: only one core has the buffer at a time. loom checks this.
        self.buffers[buffer].with_mut(|place| unsafe { *place = bytes });
    }

    fn read(&self, buffer: usize) -> u32 {
        // SAFETY: only one core has the buffer at a time. loom checks this.
        self.buffers[buffer].with(|place| unsafe { *place })
    }
}

/// Core 0 passes frames to the worker core, which answers each in the same buffer.
fn forward(stores: [Ordering; 2]) {
    loom::model(move || {
        let buffers = std::array::from_fn(|_| UnsafeCell::new(0));
        let rings =
            Arc::new(WorkerRings { received: Ring::new(stores), outgoing: Ring::new(stores), buffers });
        let worker = {
            let rings = rings.clone();
            thread::spawn(move || {
                for _ in 0..FRAMES {
                    let buffer = rings.received.pop();
                    rings.write(buffer, rings.read(buffer) + 10);
                    rings.outgoing.push(buffer);
                }
            })
        };
        for frame in 0..FRAMES {
            rings.write(frame, frame as u32);
            rings.received.push(frame);
        }
        for frame in 0..FRAMES as u32 {
            assert_eq!(rings.read(rings.outgoing.pop()), frame + 10);
        }
        worker.join().unwrap();
    });
}

/// No core accesses a buffer that the other core has, and frames stay in order.
#[test]
fn buffers_belong_to_one_core_at_a_time() {
    forward([Ordering::Release; 2]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_head_is_noticed() {
    forward([Ordering::Relaxed, Ordering::Release]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_tail_is_noticed() {
    forward([Ordering::Release, Ordering::Relaxed]);
}

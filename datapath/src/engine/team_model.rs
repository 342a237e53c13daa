//! The rings between the cores of a port, for loom: `rtrb`'s protocol, because `rtrb` itself cannot run under loom. `ci/loom` runs it.
//!
//! As in `rtrb` 0.3, the producer alone stores the tail and the consumer alone the head, both by Release, and each reads the other's by
//! Acquire. What `rtrb` remembers of the other's index saves loads and orders nothing.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// Places of a ring. The second frame reuses the place of the first.
const PLACES: usize = 1;
const FRAMES: usize = 2;

/// A ring of buffers, by their numbers.
struct Ring {
    places: [UnsafeCell<usize>; PLACES],
    head: AtomicUsize,
    tail: AtomicUsize,
    /// The orderings of the stores to the head and to the tail.
    stores: [Ordering; 2],
}

impl Ring {
    fn new(stores: [Ordering; 2]) -> Self {
        let places = std::array::from_fn(|_| UnsafeCell::new(usize::MAX));
        Self { places, head: AtomicUsize::new(0), tail: AtomicUsize::new(0), stores }
    }

    /// Puts a buffer in as soon as there is room.
    fn push(&self, buffer: usize) {
        let tail = self.tail.load(Ordering::Relaxed);
        while tail - self.head.load(Ordering::Acquire) == PLACES {
            thread::yield_now();
        }
        // SAFETY: the consumer has left this place, and does not look at it before the new tail. loom checks it.
        self.places[tail % PLACES].with_mut(|place| unsafe { *place = buffer });
        self.tail.store(tail + 1, self.stores[1]);
    }

    /// Takes a buffer out as soon as there is one.
    fn pop(&self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        while self.tail.load(Ordering::Acquire) == head {
            thread::yield_now();
        }
        // SAFETY: the producer has left this place, and does not write it before the new head. loom checks it.
        let buffer = self.places[head % PLACES].with(|place| unsafe { *place });
        self.head.store(head + 1, self.stores[0]);
        buffer
    }
}

/// A ring of each direction between core 0 and another core, and the bytes of the buffers.
struct Link {
    received: Ring,
    leaving: Ring,
    buffers: [UnsafeCell<u32>; FRAMES],
}

impl Link {
    fn write(&self, buffer: usize, bytes: u32) {
        // SAFETY: one core has the buffer. loom checks it.
        self.buffers[buffer].with_mut(|place| unsafe { *place = bytes });
    }

    fn read(&self, buffer: usize) -> u32 {
        // SAFETY: as for `write`.
        self.buffers[buffer].with(|place| unsafe { *place })
    }
}

/// Core 0 hands frames over, and the other core answers each in its own buffer.
fn hand_over(stores: [Ordering; 2]) {
    loom::model(move || {
        let buffers = std::array::from_fn(|_| UnsafeCell::new(0));
        let link = Arc::new(Link { received: Ring::new(stores), leaving: Ring::new(stores), buffers });
        let member = {
            let link = link.clone();
            thread::spawn(move || {
                for _ in 0..FRAMES {
                    let buffer = link.received.pop();
                    link.write(buffer, link.read(buffer) + 10);
                    link.leaving.push(buffer);
                }
            })
        };
        for frame in 0..FRAMES {
            link.write(frame, frame as u32);
            link.received.push(frame);
        }
        for frame in 0..FRAMES as u32 {
            assert_eq!(link.read(link.leaving.pop()), frame + 10);
        }
        member.join().unwrap();
    });
}

/// No core touches the bytes of a buffer that the other has, and frames stay in order.
#[test]
fn buffers_belong_to_one_core_at_a_time() {
    hand_over([Ordering::Release; 2]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_head_is_noticed() {
    hand_over([Ordering::Relaxed, Ordering::Release]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_tail_is_noticed() {
    hand_over([Ordering::Release, Ordering::Relaxed]);
}

//! Measures how fast this machine hands bytes from one core to the other now. On a shared machine that changes threefold within seconds: it
//! depends on the physical CPUs on which the host runs the two virtual ones, and on the other users of their caches. Every figure of two
//! cores changes with it.

use crate::cpu;
use crate::host::Side;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A 4 KiB WRITE's frame, and the slots of a port's ring.
const FRAME: usize = 4096 + 74;
const SLOTS: usize = 1024;
/// Frames handed over at a time, and those that may be on their way: a window's worth.
const BURST: usize = 32;
const WINDOW: usize = 128;
/// Pieces of a measurement. The middle one counts: in some the kernel took a CPU away.
const PIECES: usize = 101;
const PIECE: usize = 8 * BURST;

struct Ring {
    slots: Vec<Mutex<[u8; FRAME]>>,
    /// Frames put in and taken out, ever.
    put: AtomicUsize,
    taken: AtomicUsize,
    over: AtomicBool,
}

impl Ring {
    fn new() -> Self {
        let slots = (0..SLOTS).map(|_| Mutex::new([0; FRAME])).collect();
        let zero = || AtomicUsize::new(0);
        Self { slots, put: zero(), taken: zero(), over: AtomicBool::new(false) }
    }

    fn with(&self, frame: usize, copy: impl FnOnce(&mut [u8; FRAME])) {
        copy(&mut self.slots[frame % SLOTS].lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn put_burst(&self, from: &[u8; FRAME]) {
        let put = self.put.load(Ordering::Relaxed);
        while put + BURST > self.taken.load(Ordering::Acquire) + WINDOW {
            std::thread::yield_now();
        }
        (put..put + BURST).for_each(|frame| self.with(frame, |slot| slot.copy_from_slice(from)));
        self.put.store(put + BURST, Ordering::Release);
    }

    /// Takes all there is, until it is over.
    fn take_all(&self) -> usize {
        let mut into = [0; FRAME];
        loop {
            let (taken, put) = (self.taken.load(Ordering::Relaxed), self.put.load(Ordering::Acquire));
            (taken..put).for_each(|frame| self.with(frame, |slot| into.copy_from_slice(slot)));
            black_box(&into);
            self.taken.store(put, Ordering::Release);
            if taken == put {
                if self.over.load(Ordering::Relaxed) {
                    return taken;
                }
                std::thread::yield_now();
            }
        }
    }
}

/// Gb/s of frames of 4 KiB that the client's CPU copies into shared memory and the server's copies out of it, and how many
/// frames that were.
pub fn measure() -> (f64, usize) {
    let ring = Ring::new();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            cpu::pin(Side::Server.cpu());
            ring.take_all()
        });
        let client = scope.spawn(|| {
            cpu::pin(Side::Client.cpu());
            let from = [0x5a; FRAME];
            let mut rates: Vec<f64> = (0..PIECES)
                .map(|_| {
                    let start = Instant::now();
                    (0..PIECE / BURST).for_each(|_| ring.put_burst(&from));
                    (PIECE * FRAME * 8) as f64 / start.elapsed().as_secs_f64() / 1e9
                })
                .collect();
            ring.over.store(true, Ordering::Relaxed);
            rates.sort_by(f64::total_cmp);
            rates[PIECES / 2]
        });
        let died = "neither side panics";
        let rate = client.join().expect(died);
        (rate, server.join().expect(died))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_that_is_put_in_is_taken_out() {
        let (rate, frames) = super::measure();
        assert_eq!(frames, super::PIECES * super::PIECE);
        assert!(rate > 0.0);
    }
}

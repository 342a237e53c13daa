//! Measures the current rate at which this machine passes bytes from one core to another.
//!
//! On a shared machine the rate changes threefold within seconds. It depends on the physical CPUs that run the two virtual CPUs, and on the
//! other users of their caches. Every figure of two cores changes with it.

use crate::cpu;
use crate::host::Side;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The size of the frame of a 4 KiB WRITE, bytes, and the number of slots of a port's ring.
const FRAME: usize = 4096 + 74;
const SLOTS: usize = 1024;
/// Frames passed at a time, and the limit on frames in the ring, which is that of a window.
const BURST: usize = 32;
const WINDOW: usize = 128;
/// The number of measured rates. Their median is used, because the kernel may preempt a thread in some of them.
const PIECES: usize = 101;
const PIECE: usize = 8 * BURST;

struct Ring {
    slots: Vec<Mutex<[u8; FRAME]>>,
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

/// Returns the rate, Gb/s, and the number of frames. The client's CPU copies frames of 4 KiB into shared memory while the server's CPU
/// copies them out.
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
    fn every_frame_put_into_the_ring_is_taken_out() {
        let (rate, frames) = super::measure();
        assert_eq!(frames, super::PIECES * super::PIECE);
        assert!(rate > 0.0);
    }
}

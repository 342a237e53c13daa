//! A message that is repeated until it is answered, with the time of the next copy.

use super::Mad;
use std::time::{Duration, Instant};

/// Delay before the first check whether a peer's Ethernet address is resolved.
pub const FIRST_CHECK: Duration = Duration::from_millis(1);

/// Delay after the first copy. It doubles with each copy, up to [`MAX_DELAY`].
const FIRST: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_millis(4295);

/// Delay after the first rejection because no program listens. The request is repeated after at most [`MAX_REFUSALS`] such rejections.
const FIRST_REFUSAL: Duration = Duration::from_millis(10);
const MAX_REFUSALS: u32 = 7;

/// A message and its schedule of repetitions.
#[derive(Debug)]
pub struct Pending {
    pub mad: Mad,
    /// Time at which the next copy is due.
    pub next: Instant,
    /// Time at which the message times out.
    pub until: Instant,
    timeout: Duration,
    copies: u32,
    refusals: u32,
    /// Delay before the next check whether the receiver's Ethernet address is resolved.
    check_delay: Duration,
    /// The sender's communication id. It is random, so that the clients of a busy server do not repeat at the same times.
    seed: u32,
}

impl Pending {
    /// Returns a message of communication id `local` that is due now and is repeated for `timeout`.
    pub fn new(mad: Mad, local: u32, now: Instant, timeout: Duration) -> Self {
        Self {
            mad,
            next: now,
            until: now + timeout,
            timeout,
            copies: 0,
            refusals: 0,
            check_delay: FIRST_CHECK,
            seed: local,
        }
    }

    /// Schedules the next copy after one was sent. The delay is shortened at random by up to a quarter.
    pub fn sent(&mut self, now: Instant) {
        let pause = (FIRST * 2_u32.pow(self.copies.min(8))).min(MAX_DELAY);
        self.copies = self.copies.saturating_add(1);
        // The odd multiplier spreads similar ids.
        let random = self.seed.wrapping_add(self.copies).wrapping_mul(0x9e37_79b1) >> 16;
        self.schedule(now + pause - pause / 4 * random / 0x1_0000);
    }

    /// Schedules another attempt at a copy that was not sent, because the receiver's Ethernet address is being resolved.
    pub fn postpone(&mut self, now: Instant) {
        self.schedule(now + self.check_delay);
        self.check_delay = (2 * self.check_delay).min(FIRST);
    }

    /// Postpones the next copy by `time`, the service timeout of the receiver (IBA 12.6.6). If `restarts`, the sender's timeout restarts
    /// after that time.
    pub fn wait(&mut self, now: Instant, time: Duration, restarts: bool) {
        if restarts {
            self.until = now + time + self.timeout;
        }
        self.schedule(now + time);
    }

    /// Returns when to repeat a request that was rejected because no program listens: after 10 ms, then after a delay that doubles each
    /// time, 1.3 s in all. Returns `None` if the failure is to be reported to the program.
    ///
    /// Some servers listen only after they have told their clients over a socket to connect (`perftest -R`). A client on Linux starts
    /// slowly enough for that; this one does not.
    pub fn refused(&mut self, now: Instant) -> Option<Instant> {
        if self.refusals >= MAX_REFUSALS {
            return None;
        }
        self.next = now + FIRST_REFUSAL * 2_u32.pow(self.refusals);
        self.refusals += 1;
        Some(self.next)
    }

    fn schedule(&mut self, next: Instant) {
        self.next = next.min(self.until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The service timeout that Linux sends.
    const TIMEOUT: Duration = Duration::from_secs(69);

    #[test]
    fn the_pauses_double_up_to_a_limit_and_differ_by_communication_id() {
        let now = Instant::now();
        let times = |local: u32| {
            let mut pending = Pending::new([0; 256], local, now, TIMEOUT);
            let mut times = Vec::new();
            while pending.next < pending.until {
                times.push(pending.next - now);
                let next = pending.next;
                pending.sent(next);
                assert!(pending.next - next >= FIRST * 3 / 4 && pending.next - next <= MAX_DELAY);
            }
            times
        };
        let (one, other) = (times(1), times(2));
        assert!((17..=24).contains(&one.len()), "{one:?}");
        assert_ne!(one[1..], other[1..]);
        let second: Vec<Duration> = (0..200).map(|local| times(local)[1]).collect();
        let spread = *second.iter().max().unwrap() - *second.iter().min().unwrap();
        assert!(spread > FIRST / 5, "{spread:?}");
    }

    /// IBA 12.6.6: the service timeout delays the next copy, and can restart the sender's timeout.
    #[test]
    fn an_mra_delays_the_next_copy_and_restarts_the_timeout_only_with_restarts() {
        let (now, chosen, time) = (Instant::now(), Duration::from_secs(8), Duration::from_secs(5));
        for (restarts, until) in [(false, now + chosen), (true, now + time + chosen)] {
            let mut pending = Pending::new([0; 256], 1, now, chosen);
            pending.wait(now, time, restarts);
            assert_eq!((pending.next, pending.until), (now + time, until), "restarts: {restarts}");
        }
        let mut pending = Pending::new([0; 256], 1, now, chosen);
        pending.wait(now, 2 * chosen, false);
        assert_eq!(pending.next, now + chosen, "no copy is later than the end of the timeout");
    }
}

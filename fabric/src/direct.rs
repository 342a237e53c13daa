//! Telemetry responses that a congested switch sends directly to senders (pan-01 6.3).

use crate::load::LoadMeter;
use cc::Instant;
use roce::qp::FeedbackKey;
use roce::wire::{Bth, Numbers, Seal, Subscription};
use std::time::Duration;

/// Settings of direct responses: a congested switch sends telemetry to the senders of packets that subscribe (pan-01 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    /// Waiting bytes above which the port is congested.
    pub threshold: u64,
    /// Interval in which a sender receives at most one response.
    pub interval: Duration,
    /// DSCP of data packets that subscribe without a flag, if any.
    pub dscp: Option<u8>,
    /// Key that authenticates the responses; the time is their counter.
    pub key: Option<FeedbackKey>,
    /// Time 0 of the switch in ns since 1970; 0 without a key.
    pub epoch: u64,
}

impl Direct {
    /// Creates settings without authentication, with which only flagged packets subscribe.
    #[must_use]
    pub const fn new(threshold: u64, interval: Duration) -> Self {
        Self { threshold, interval, dscp: None, key: None, epoch: 0 }
    }
}

const WORDS: usize = 128;
const BITS: u64 = WORDS as u64 * 64;

/// The senders to which the switch has responded in the current interval: a Bloom filter, cleared after each interval. A false positive
/// suppresses a response.
pub(crate) struct DirectResponder {
    config: Direct,
    numbers: Numbers,
    bits: [u64; WORDS],
    since: Instant,
}

impl DirectResponder {
    pub(crate) const fn new(config: Direct, numbers: Numbers) -> Self {
        Self { config, numbers, bits: [0; WORDS], since: Instant::ZERO }
    }

    fn seal(&self, now: Instant, bth: &Bth, content: &[u8]) -> Option<Seal> {
        let counter = self.config.epoch + now.as_nanos();
        self.config.key.map(|key| key.seal_direct(bth, content, counter))
    }

    /// Returns the subscription of a frame whose queue holds `waiting` bytes, if its sender must receive a response now.
    pub(crate) fn subscription(&mut self, now: Instant, frame: &[u8], waiting: u64) -> Option<Subscription> {
        if !self.is_congested(waiting) {
            return None;
        }
        Subscription::find(frame, self.config.dscp, self.numbers)
            .filter(|subscription| self.must_respond(now, subscription.key()))
    }

    /// Writes the response to a subscription; returns its length.
    pub(crate) fn answer(
        &self,
        now: Instant,
        subscription: &Subscription,
        (load, waiting): (&LoadMeter, u64),
        into: &mut [u8],
    ) -> Option<usize> {
        let utilisation = (load.inflight(waiting) * f64::from(1 << 20)) as u32;
        let interval = u32::try_from(load.period().as_nanos()).unwrap_or(u32::MAX);
        let seal = |bth: &Bth, content: &[u8]| self.seal(now, bth, content);
        subscription.respond((utilisation, interval), seal, into).ok()
    }

    const fn is_congested(&self, waiting: u64) -> bool {
        waiting > self.config.threshold
    }

    /// Returns whether the sender must receive a response now, and records the response.
    fn must_respond(&mut self, now: Instant, key: u64) -> bool {
        if now.saturating_since(self.since) >= self.config.interval {
            self.bits = [0; WORDS];
            self.since = now;
        }
        let mut is_new = false;
        for bit in hashes(key) {
            let word = &mut self.bits[(bit / 64) as usize];
            is_new |= *word & 1 << (bit % 64) == 0;
            *word |= 1 << (bit % 64);
        }
        is_new
    }
}

fn hashes(key: u64) -> [u64; 3] {
    let mut mixed = key;
    [0x9e37_79b9_7f4a_7c15_u64, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb].map(|odd| {
        mixed = (mixed ^ mixed >> 29).wrapping_mul(odd);
        (mixed >> 32) % BITS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_gets_one_response_per_interval() {
        let mut responder =
            DirectResponder::new(Direct::new(1000, Duration::from_micros(50)), Numbers::DEFAULT);
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        assert!(responder.is_congested(1001) && !responder.is_congested(1000));
        assert!(
            responder.must_respond(at(100), 7)
                && !responder.must_respond(at(101), 7)
                && responder.must_respond(at(101), 8)
        );
        assert!(!responder.must_respond(at(149), 7) && responder.must_respond(at(150), 7));
        let responses = (0..400).filter(|key| responder.must_respond(at(151), key * 1_000_003)).count();
        assert!(responses > 390, "few of 400 seem to have no response: {responses}");
    }
}

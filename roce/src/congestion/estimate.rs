//! Estimates the values that switches omit from their telemetry. Stock Linux as an IOAM node writes queue and time, but no transmitted
//! bytes. It writes the rate of the link only if the namespace's data contains it.
//!
//! The estimate of `txBytes` between two readings of a port depends on the queue:
//! - a queue in both: the link was busy for the whole time, so it transmitted as much as its rate allows;
//! - otherwise the link was not full. A lower bound is known: this flow's own bytes. If the estimate were that bound, each of several flows
//!   would compute that the rest of the link is free, and use it at once. So the link is estimated to be used to just below the target at
//!   least: HPCC++ then increases additively, and decreases by the queue that this causes. At the target itself it would decrease
//!   continuously, and converge where its increase compensates for that.

use crate::wire::format::{HOPS, HopReading};
use cc::{Counter, Hop, Rate};
use core::time::Duration;

/// Age in ns after which a reading is obsolete.
const STALE: u64 = 1_000_000_000;

/// Least share of the target that a link is estimated to be used.
const BELOW_TARGET: f64 = 0.98;

#[derive(Clone, Copy, Debug)]
struct Last {
    time: Counter,
    queue: u64,
    /// This flow's bytes until the reading.
    received: u64,
    /// Estimated `txBytes`.
    sent: u64,
}

/// Ports of a path whose switches write no `txBytes`, up to the length of the array.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Estimates {
    /// Payload bytes of this flow.
    received: u64,
    last: [Option<Last>; HOPS as usize],
}

impl Estimates {
    pub(super) const fn on_received(&mut self, bytes: usize) {
        self.received = self.received.wrapping_add(bytes as u64);
    }

    /// Completes the reading of the switch at `index`. If the switch does not write its link's rate, `line_rate` of the flow replaces it.
    /// Returns `None` if neither is known. `target` is the flow's target utilisation.
    pub(super) fn complete(
        &mut self,
        index: usize,
        reading: &HopReading,
        line_rate: Option<Rate>,
        target: f64,
    ) -> Option<Hop> {
        if let Some(hop) = reading.complete() {
            return Some(hop);
        }
        let bandwidth = reading.bandwidth.or(line_rate)?;
        if let Some(tx_bytes) = reading.tx_bytes {
            return Some(Hop { bandwidth, time: reading.time, tx_bytes, queue: reading.queue });
        }
        let received = self.received;
        let place = self.last.get_mut(index)?;
        // A 64-bit counter, which wraps: with a link of 2^64 b/s it wraps after a few readings.
        let sent = place
            .map_or(0, |last| last.sent.wrapping_add(since(&last, reading, bandwidth, received, target)));
        let HopReading { time, queue, .. } = *reading;
        *place = Some(Last { time, queue, received, sent });
        Some(Hop { bandwidth, time, tx_bytes: Counter::of::<64, 1>(sent), queue })
    }
}

/// Returns the estimated bytes that the port sent since its last reading.
fn since(last: &Last, reading: &HopReading, bandwidth: Rate, received: u64, target: f64) -> u64 {
    let nanos = reading.time.since(last.time);
    if nanos > STALE {
        return 0;
    }
    let most = bandwidth.bytes_in(Duration::from_nanos(nanos));
    if last.queue > 0 && reading.queue > 0 {
        return most;
    }
    let own = received.wrapping_sub(last.received);
    own.max((most as f64 * target * BELOW_TARGET) as u64).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a reading as Linux writes it: µs, bytes queued.
    fn reading(micros: u64, queue: u64) -> HopReading {
        HopReading { bandwidth: None, time: Counter::of::<32, 1000>(micros), tx_bytes: None, queue }
    }

    const RATE: Rate = Rate::from_mbps(80);

    /// Returns the estimate of the bytes transmitted between two readings, 1 ms apart, at 10 bytes/µs.
    fn sent(queues: [u64; 2], own: usize) -> u64 {
        let mut estimates = Estimates::default();
        let first =
            estimates.complete(0, &reading(u64::from(u32::MAX), queues[0]), Some(RATE), 0.95).unwrap();
        estimates.on_received(own);
        let second = estimates.complete(0, &reading(999, queues[1]), Some(RATE), 0.95).unwrap();
        assert_eq!(second.time.since(first.time), 1_000_000, "across the wrap");
        second.tx_bytes.since(first.tx_bytes)
    }

    #[test]
    fn a_standing_queue_is_a_busy_link() {
        assert_eq!(sent([1500, 3000], 100), 10_000);
        assert_eq!(sent([0, 3000], 100), 9_310, "not full, so just below the target");
        assert_eq!(sent([1500, 0], 9_800), 9_800, "own bytes were more");
        assert_eq!(sent([0, 0], 20_000), 10_000, "never more than the link carries");
    }

    /// A peer's setup may contain any line rate, and a switch may write any time.
    #[test]
    fn the_estimate_wraps_as_a_counter_does() {
        let mut estimates = Estimates::default();
        let rate = Rate::from_bps(u64::MAX);
        let mut complete = |second: u64| {
            estimates.complete(0, &reading(second * 1_000_000, 1), Some(rate), 0.95).unwrap().tx_bytes
        };
        let mut last = complete(0);
        for second in 1..20 {
            let next = complete(second);
            assert_eq!(next.since(last), u64::MAX / 8);
            last = next;
        }
    }

    #[test]
    fn a_hop_without_rate_or_room_has_no_estimate() {
        let mut estimates = Estimates::default();
        assert_eq!(estimates.complete(0, &reading(0, 0), None, 0.95), None, "no rate");
        assert_eq!(estimates.complete(HOPS.into(), &reading(0, 0), Some(RATE), 0.95), None, "no room");
        let with_rate = HopReading { bandwidth: Some(Rate::from_gbps(1)), ..reading(0, 7) };
        let hop = estimates.complete(0, &with_rate, Some(RATE), 0.95).unwrap();
        assert_eq!((hop.bandwidth, hop.queue), (Rate::from_gbps(1), 7));
    }
}

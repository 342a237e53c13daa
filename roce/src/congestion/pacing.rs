//! The pacer: a token bucket with the algorithm's rate.

use crate::wire::Bth;
use cc::{Ack, Algorithm, CongestionController, Instant, Rate};
use core::time::Duration;

/// Window in KiB of a flow without a measurement of its path: 100 Gb/s over 5 µs. Flows that start together send as many bytes each before
/// any feedback arrives.
const FIRST_WINDOW: u16 = 64;

/// Value of [`Flow::limit`] without a limit.
const OPEN: u16 = u16::MAX;

/// Burst in bytes with which a delayed queue pair catches up. Pollers pause occasionally. With a smaller burst, every pause would lose
/// bandwidth; with a larger one, the burst would queue in the network.
const FIXED_BURST: u64 = 16 * 1024;
/// Burst if the rate is computed: the algorithm compensates for pauses, so a burst would only queue.
const COMPUTED_BURST: u64 = 2 * 1024;
/// Shortest catch-up, for the frequent pauses of a poll loop.
const MIN_CATCH_UP: Duration = Duration::from_micros(20);
/// Longest catch-up, for slow flows.
const MAX_CATCH_UP: Duration = Duration::from_millis(1);

/// Round trip of an empty path in units of [`Flow::pace_factor`]. The factor is limited, so that a flow whose answers are lost does not
/// stop.
const PACE_ONE: u32 = 256;
const MAX_PACE_FACTOR: u32 = 64 * PACE_ONE;

/// Algorithm of a queue pair, and the token bucket of its pacing rate.
#[derive(Debug)]
pub(super) struct Flow {
    algorithm: Algorithm,
    /// Congestion byte of data packets' BTHs.
    data_bits: u8,
    /// Window in bytes and pacing rate, read when the turn began.
    window: u64,
    /// Limit of the window until the path is measured, KiB: at first [`FIRST_WINDOW`], more if it grows, and [`OPEN`] without a limit.
    limit: u16,
    rate: Option<Rate>,
    /// When the bytes sent so far have been transmitted at the pacing rate.
    free_at: Instant,
    /// Whether the last frame was at most half of the window; false if it had unacknowledged data.
    is_clocked: bool,
    /// Round trip of unacknowledged data in units of 1/[`PACE_ONE`] base round trip, at least [`PACE_ONE`].
    pace_factor: u32,
    /// Last and shortest round trip in ns, 1 s and more as 4.3 s; 0 before the first.
    round_trip: (u32, u32),
}

impl Flow {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        let data_bits = if algorithm.counts_marks() { Bth::EXACT_ECHO } else { 0 };
        let (window, rate) = (algorithm.window(), algorithm.pacing_rate());
        Self {
            algorithm,
            data_bits,
            window,
            limit: OPEN,
            rate,
            free_at: Instant::ZERO,
            is_clocked: false,
            pace_factor: PACE_ONE,
            round_trip: (0, 0),
        }
    }

    /// Reads window and rate for the packets of a turn. A new rate also applies to the rest of the present pause. Otherwise a flow whose
    /// window is three packets would react late by a third of a round trip. With a window below two packets, the pause remains: it is what
    /// spreads the packets of many slow flows, whose rates rise at the same time when their queue is empty. So does that of unacknowledged
    /// data, which has no window.
    #[inline]
    pub(super) fn begin_turn(&mut self, now: Instant) {
        let before = self.rate;
        self.read();
        if self.rate != before && self.free_at > now && self.is_clocked {
            self.rescale_pause(now, before);
        }
    }

    /// Reads window and rate; the present pause stays.
    pub(super) fn read(&mut self) {
        (self.window, self.rate) = (self.next_window(), self.algorithm.pacing_rate());
    }

    #[inline(never)]
    fn rescale_pause(&mut self, now: Instant, before: Option<Rate>) {
        if let (Some(before), Some(rate)) = (before, self.rate) {
            let rest = self.free_at.saturating_since(now).as_nanos() as f64;
            // The cast saturates.
            let nanos = rest * before.as_bps() as f64 / rate.as_bps().max(1) as f64;
            self.free_at = now + Duration::from_nanos(nanos as u64);
        }
    }

    pub(super) fn next_window(&self) -> u64 {
        let limit = if self.limit == OPEN { u64::MAX } else { u64::from(self.limit) << 10 };
        self.algorithm.window().min(limit)
    }

    /// Limits the window to [`FIRST_WINDOW`] until [`open_window`](Self::open_window).
    pub(super) fn limit_window(&mut self) {
        self.limit = FIRST_WINDOW;
        self.read();
    }

    /// Ends the limit on the window, because the path is measured.
    pub(super) const fn open_window(&mut self) {
        self.limit = OPEN;
    }

    /// Doubles the limit in each round trip from now on, because the path cannot be measured. If switches mark the packets, a mark ends
    /// this before a queue of several windows exists.
    pub(super) const fn grow_window(&mut self) {
        if self.limit == FIRST_WINDOW {
            self.limit += 1;
        }
    }

    #[inline]
    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    /// Returns the congestion byte of data packets' BTHs, which determines how the peer echoes marks.
    pub(super) const fn data_bits(&self) -> u8 {
        self.data_bits
    }

    pub(super) const fn free_at(&self) -> Instant {
        self.free_at
    }

    pub(super) fn round_trip(&self) -> Option<(Duration, Duration)> {
        let (last, least) = self.round_trip;
        let nanos = |nanos: u32| Duration::from_nanos(nanos.into());
        (last > 0).then(|| (nanos(last), nanos(least)))
    }

    pub(super) const fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    pub(super) const fn algorithm_mut(&mut self) -> &mut Algorithm {
        &mut self.algorithm
    }

    /// Spends the tokens of a frame of `bytes` bytes.
    #[inline]
    pub(super) fn on_wire(&mut self, now: Instant, bytes: usize) {
        let Some(rate) = self.rate else {
            self.free_at = now;
            return;
        };
        // A delay below the shortest catch-up needs no limit.
        if self.free_at < now - MIN_CATCH_UP {
            self.catch_up(now, rate);
        }
        self.free_at = rate.passed_at(self.free_at, bytes as u64);
        self.is_clocked = bytes as u64 <= self.window / 2;
    }

    /// Spends the tokens of a probe of `bytes` bytes that is sent among data. Otherwise the data of many slow flows would use their shares
    /// of a link completely, and their probes would exceed its rate.
    pub(super) fn on_probe(&mut self, bytes: usize) {
        if let Some(rate) = self.rate {
            self.free_at = rate.passed_at(self.free_at, bytes as u64);
        }
    }

    /// Spends the tokens of a frame of unacknowledged data. Its pace replaces a window. While the round trip exceeds the base round trip,
    /// the bytes per round trip are limited to what the algorithm allows per base round trip. `rounds` is the least length of the current
    /// round trip, which no answer has measured yet, in base round trips.
    #[inline]
    pub(super) fn on_wire_unacknowledged(&mut self, now: Instant, bytes: usize, rounds: u64) {
        let pace_factor =
            (rounds * u64::from(PACE_ONE)).clamp(self.pace_factor.into(), MAX_PACE_FACTOR.into());
        self.on_wire(now, bytes * pace_factor as usize / PACE_ONE as usize);
        self.is_clocked = false;
    }

    /// Adapts the pace of unacknowledged data to the round trip of a probe.
    pub(super) fn on_probe_rtt(&mut self, rtt: Duration, base_rtt: Duration) {
        let pace_factor = rtt.as_nanos() * u128::from(PACE_ONE) / base_rtt.as_nanos().max(1);
        self.pace_factor = u32::try_from(pace_factor)
            .map_or(MAX_PACE_FACTOR, |pace_factor| pace_factor.clamp(PACE_ONE, MAX_PACE_FACTOR));
    }

    #[cold]
    fn catch_up(&mut self, now: Instant, rate: Rate) {
        let burst = if matches!(self.algorithm, Algorithm::Fixed(_)) { FIXED_BURST } else { COMPUTED_BURST };
        let catch_up = rate.time_for(burst).clamp(MIN_CATCH_UP, MAX_CATCH_UP);
        self.free_at = self.free_at.max(now - catch_up);
    }

    pub(super) fn on_path_change(&mut self) {
        self.algorithm.on_path_change();
        self.read();
    }

    /// Handles acknowledged data, all of it marked or none of it. `una` and `next` are packet numbers.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        (una, next): (u64, u64),
        bytes: u64,
        is_marked: bool,
        rtt: Option<Duration>,
    ) {
        if let Some(rtt) = rtt {
            let last = if rtt.as_secs() == 0 { rtt.subsec_nanos().max(1) } else { u32::MAX };
            let (before, least) = self.round_trip;
            self.round_trip = (last, if before == 0 { last } else { least.min(last) });
        }
        if self.limit != OPEN && self.limit > FIRST_WINDOW {
            self.limit = self.limit.saturating_add(u16::try_from(bytes.div_ceil(1024)).unwrap_or(OPEN));
        }
        let acked_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        // A READ request has no payload bytes, but its mark counts.
        let ce_bytes = if is_marked { acked_bytes.max(1) } else { 0 };
        self.algorithm.on_ack(&Ack { now, seq: una, next, acked_bytes, ce_bytes, rtt });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc::{Fixed, Rate};

    /// 2 KiB take 81.92 µs at 200 Mb/s, 16 KiB 655.36 µs.
    #[test]
    fn computed_rates_catch_up_by_less() {
        let rate = Rate::from_mbps(200);
        let computed = cc::Dctcp::new(cc::DctcpConfig::new(rate, Duration::from_millis(1))).unwrap();
        let fixed = Fixed::new(1, Some(rate)).unwrap();
        let start = Instant::from_nanos(1_000_000);
        for (algorithm, catch_up) in
            [(Algorithm::Dctcp(computed), 81_920), (Algorithm::Fixed(fixed), 655_360)]
        {
            let mut flow = Flow::new(algorithm);
            flow.on_wire(start, 1000);
            assert_eq!(flow.free_at(), start - Duration::from_nanos(catch_up) + Duration::from_micros(40));
        }
    }

    /// A packet of 1000 bytes at 8 Mb/s pauses the flow for 1 ms.
    #[test]
    fn a_new_rate_applies_to_the_rest_of_a_pause() {
        let algorithm =
            |window, mbps| Algorithm::Fixed(Fixed::new(window, Some(Rate::from_mbps(mbps))).unwrap());
        let start = Instant::from_nanos(1_000_000);
        let paused = |window| {
            let mut flow = Flow::new(algorithm(window, 8));
            flow.free_at = start;
            flow.on_wire(start, 1000);
            assert_eq!(flow.free_at(), start + Duration::from_millis(1));
            flow
        };
        let half = start + Duration::from_micros(500);
        let mut flow = paused(3000);
        *flow.algorithm_mut() = algorithm(3000, 80);
        for _ in 0..2 {
            flow.begin_turn(half);
            assert_eq!(flow.free_at(), half + Duration::from_micros(50), "once for each change");
        }
        *flow.algorithm_mut() = algorithm(3000, 8);
        flow.begin_turn(half + Duration::from_micros(50));
        assert_eq!(flow.free_at(), half + Duration::from_micros(50), "the pause has ended");
        let mut slow = paused(1999);
        *slow.algorithm_mut() = algorithm(1999, 80);
        slow.begin_turn(half);
        assert_eq!(slow.free_at(), start + Duration::from_millis(1), "a window below two packets");
    }

    /// A probe of 100 bytes at 8 Mb/s takes 100 µs.
    #[test]
    fn a_probe_spends_tokens_as_data_does() {
        let mut flow = Flow::new(Algorithm::Fixed(Fixed::new(3000, Some(Rate::from_mbps(8))).unwrap()));
        let start = Instant::from_nanos(1_000_000);
        flow.free_at = start;
        flow.on_wire(start, 1000);
        flow.on_probe(100);
        assert_eq!(flow.free_at(), start + Duration::from_micros(1100));
    }

    #[test]
    fn a_pause_is_caught_up_to_a_bound() {
        let rate = Rate::from_gbps(8);
        let mut flow = Flow::new(Algorithm::Fixed(Fixed::new(1, Some(rate)).unwrap()));
        let start = Instant::from_nanos(1_000_000);
        flow.on_wire(start, 1000);
        // 20 µs of tokens were available; 1000 bytes at 1 byte/ns used one of them.
        assert_eq!(flow.free_at(), start - Duration::from_micros(19));
        for _ in 0..20 {
            flow.on_wire(start, 1000);
        }
        assert_eq!(flow.free_at(), start + Duration::from_micros(1));
        let later = start + Duration::from_secs(1);
        flow.on_wire(later, 1000);
        assert_eq!(flow.free_at(), later - Duration::from_micros(19));
    }
}

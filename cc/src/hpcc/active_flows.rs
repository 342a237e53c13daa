//! The number of flows that share a receiver's link (rtgwg-00 6.3.2: N).

use crate::Instant;
use core::num::NonZeroU32;
use core::time::Duration;

/// The last period in which [`ActiveFlows`] counted a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowMark(u64);

/// The number of active flows of a receiver: those that sent in the current period or, if that is greater, in the one before.
///
/// A receiver with several cores counts in each core. Each publishes its count ([`published`](Self::published)), and adds those of the
/// others ([`set_others`](Self::set_others)), because all share the receiver's link.
#[derive(Clone, Copy, Debug)]
pub struct ActiveFlows {
    /// Number of the period, from 1.
    period: u64,
    since: Instant,
    now: u32,
    before: u32,
    /// Flows that other cores count.
    others: u32,
    /// When no flow of the current period is active any more, unless packets arrive.
    until: Instant,
}

impl Default for ActiveFlows {
    fn default() -> Self {
        Self::new()
    }
}

impl ActiveFlows {
    /// Creates a count of no flows.
    #[must_use]
    pub const fn new() -> Self {
        Self { period: 1, since: Instant::ZERO, now: 0, before: 0, others: 0, until: Instant::ZERO }
    }

    /// Counts a packet of the flow with `mark`. A period ends with the first packet after `length`, which should be several round trips, so
    /// that slow flows send in each.
    pub fn on_packet(&mut self, now: Instant, length: Duration, mark: &mut FlowMark) {
        if now.saturating_since(self.since) >= length {
            self.before =
                if now.saturating_since(self.since) >= length.saturating_mul(2) { 0 } else { self.now };
            (self.now, self.since) = (0, now);
            self.period = self.period.wrapping_add(1);
        }
        if mark.0 != self.period {
            mark.0 = self.period;
            self.now = self.now.saturating_add(1);
            self.until = self.until.max(self.since.after(length.saturating_mul(2)));
        }
    }

    /// Sets the number of flows that the other cores of the receiver count.
    pub const fn set_others(&mut self, others: u32) {
        self.others = others;
    }

    /// Returns the number of flows of all cores; at least 1.
    #[must_use]
    pub fn count(&self) -> NonZeroU32 {
        NonZeroU32::new(self.now.max(self.before).saturating_add(self.others)).unwrap_or(NonZeroU32::MIN)
    }

    /// Returns the number of flows of this core alone, for the other cores.
    #[must_use]
    pub fn published(&self) -> PublishedFlows {
        PublishedFlows::new(self.now.max(self.before), self.until)
    }
}

/// A number of active flows that one core publishes for the others, with the time until which it holds: a core that receives nothing does
/// not correct its number. The time is that of a clock that all of them read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishedFlows {
    count: u32,
    /// In units of 2^[`Self::SHIFT`] ns, rounded up.
    until: u64,
}

impl PublishedFlows {
    /// Largest number: more queue pairs than a core can have.
    pub const MAX: u32 = (1 << Self::COUNT_BITS) - 1;
    /// Longest time for which a number holds. A later end is not valid: the clocks differ, or the publisher is faulty.
    pub const LONGEST: Duration = Duration::from_millis(500);

    const COUNT_BITS: u32 = 20;
    /// Units of 16 µs let 44 bits hold nine years.
    const SHIFT: u32 = 14;

    /// Creates the number `count`, at most [`MAX`](Self::MAX), which holds until `until`.
    #[must_use]
    pub fn new(count: u32, until: Instant) -> Self {
        Self { count: count.min(Self::MAX), until: until.as_nanos().div_ceil(1 << Self::SHIFT) }
    }

    /// Returns the number at `now`; 0 if it holds no longer, or for longer than [`LONGEST`](Self::LONGEST).
    #[must_use]
    pub fn at(self, now: Instant) -> u32 {
        let last = Self::new(0, now.after(Self::LONGEST)).until;
        let is_valid = now.as_nanos() >> Self::SHIFT < self.until && self.until <= last;
        if is_valid { self.count } else { 0 }
    }

    /// Returns the end of the time for which the number holds, at most 16 µs later than it was given.
    #[must_use]
    pub const fn until(self) -> Instant {
        Instant::from_nanos(self.until.saturating_mul(1 << Self::SHIFT))
    }

    /// Returns the number as a word that is read and written at once.
    #[must_use]
    pub const fn into_bits(self) -> u64 {
        (self.until << Self::COUNT_BITS) | self.count as u64
    }

    /// Returns the number in a word of [`into_bits`](Self::into_bits). Any word is a number.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { count: bits as u32 & Self::MAX, until: bits >> Self::COUNT_BITS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn flows_are_counted_while_they_send() {
        let mut active = ActiveFlows::default();
        let mut marks = [FlowMark::default(); 3];
        let mut arrive = |micros: u64, flow: usize| {
            active.on_packet(at(micros * 1000), Duration::from_micros(10), &mut marks[flow]);
            active.count().get()
        };
        assert_eq!([arrive(0, 0), arrive(1, 1), arrive(2, 0), arrive(3, 2)], [1, 2, 2, 3]);
        assert_eq!(arrive(12, 0), 3, "the period before counts until this one has more");
        assert_eq!(arrive(13, 1), 3);
        assert_eq!(arrive(24, 0), 2, "the third did not send in a whole period");
        assert_eq!(arrive(100, 1), 1, "no flow sent in the period before");
    }

    #[test]
    fn the_flows_of_other_cores_are_part_of_the_count_while_they_are_active() {
        let length = Duration::from_micros(100);
        let (mut one, mut other) = (ActiveFlows::new(), ActiveFlows::new());
        let mut marks = [FlowMark::default(); 5];
        for mark in &mut marks[..4] {
            one.on_packet(at(1_000_000), length, mark);
        }
        let published = PublishedFlows::from_bits(one.published().into_bits());
        assert_eq!(published, one.published());
        other.set_others(published.at(at(1_000_000)));
        other.on_packet(at(1_000_000), length, &mut marks[4]);
        assert_eq!((one.count().get(), other.count().get()), (4, 5));
        assert_eq!(other.published().at(at(1_000_000)), 1, "each core publishes its own");
        assert_eq!(published.at(at(1_199_000)), 4);
        assert_eq!(published.at(at(1_220_000)), 0, "no packet arrived for two periods");
    }

    #[test]
    fn a_published_number_is_bounded_in_size_and_time() {
        let now = at(3_600_000_000_000);
        let end = |after: Duration| PublishedFlows::new(u32::MAX, now.after(after));
        assert_eq!(end(PublishedFlows::LONGEST).at(now), PublishedFlows::MAX);
        assert_eq!(end(Duration::from_secs(1)).at(now), 0, "as from another clock");
        assert_eq!(PublishedFlows::default().at(now), 0);
        assert_eq!(PublishedFlows::from_bits(u64::MAX).at(now), 0);
        assert!(end(Duration::ZERO).until() >= now);
    }
}

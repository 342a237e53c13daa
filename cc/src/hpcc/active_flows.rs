//! The number of flows that share a receiver's link (rtgwg-00 6.3.2: N).

use crate::Instant;
use core::num::NonZeroU32;
use core::time::Duration;

/// The last period in which [`ActiveFlows`] counted a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowMark(u64);

/// The number of active flows of a receiver: those that sent in the current period or, if that is greater, in the one before.
#[derive(Clone, Copy, Debug)]
pub struct ActiveFlows {
    /// Number of the period, from 1.
    period: u64,
    since: Instant,
    now: u32,
    before: u32,
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
        Self { period: 1, since: Instant::ZERO, now: 0, before: 0 }
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
        }
    }

    /// Returns the number of flows; at least 1.
    #[must_use]
    pub fn count(&self) -> NonZeroU32 {
        NonZeroU32::new(self.now.max(self.before)).unwrap_or(NonZeroU32::MIN)
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
}

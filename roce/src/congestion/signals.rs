//! Converts the signals of CSIG's tags, one per packet, to the in-flight share with which HPCC++ computes.

use crate::wire::format::Signal;
use core::time::Duration;

/// Share of 1, in units of 2^-20.
const ONE: u32 = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Signals {
    /// Used share of the busiest link, in 2^-20, at most 1.
    used: Option<u32>,
    /// Longest wait at a hop, ns.
    waited: u64,
}

impl Signals {
    /// Handles a signal. Returns the path's in-flight share in 2^-20 if the signal determines it. While the busiest link is not full, it is
    /// the used share; otherwise 1 plus the longest wait as a share of `base_rtt`.
    pub(super) fn on_signal(&mut self, signal: Signal, base_rtt: Duration) -> Option<u32> {
        match signal {
            Signal::Available(share) => self.used = Some(ONE.saturating_sub(share)),
            Signal::Delay(nanos) => {
                self.waited = nanos;
                self.used.filter(|&used| used == ONE)?;
            }
        }
        let used = self.used?;
        if used < ONE {
            return Some(used);
        }
        let base_rtt = base_rtt.as_nanos().max(1);
        let queue = u128::from(self.waited) * u128::from(ONE) / base_rtt;
        Some(u32::try_from(queue).unwrap_or(u32::MAX).saturating_add(ONE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_counts_only_on_a_full_link() {
        let (mut signals, base_rtt) = (Signals::default(), Duration::from_micros(10));
        let mut on_signal = |signal| signals.on_signal(signal, base_rtt);
        assert_eq!(on_signal(Signal::Delay(5_000)), None, "the load of the link is not known yet");
        assert_eq!(on_signal(Signal::Available(ONE / 4)), Some(3 * ONE / 4));
        assert_eq!(on_signal(Signal::Delay(2_500)), None, "packets that meet by chance wait too");
        assert_eq!(on_signal(Signal::Available(0)), Some(ONE + ONE / 4));
        assert_eq!(on_signal(Signal::Delay(10_000)), Some(2 * ONE));
        assert_eq!(on_signal(Signal::Delay(u64::MAX)), Some(u32::MAX));
        assert_eq!(on_signal(Signal::Available(ONE)), Some(0));
    }
}

//! The load of the bottleneck over a time: how long it was busy, and how long the queue had each length.

use crate::run::Interval;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// The time for which the link was busy, ns.
    pub busy: f64,
    /// Queue lengths, bytes, and how long each lasted, ns. Sorted by length.
    pub queue: Vec<(u64, f64)>,
}

impl Load {
    /// Returns the sum of the intervals.
    pub fn of(intervals: &[&Interval]) -> Self {
        let mut load = Self::default();
        for interval in intervals {
            load.busy += interval.busy;
            load.queue.extend(&interval.queue);
        }
        load.sort();
        load
    }

    fn sort(&mut self) {
        self.queue.sort_by_key(|(bytes, _)| *bytes);
        self.queue.dedup_by(|(bytes, nanos), (before, sum)| {
            let same = bytes == before;
            *sum += if same { *nanos } else { 0.0 };
            same
        });
    }

    /// Returns the total time, ns.
    pub fn time(&self) -> f64 {
        self.queue.iter().map(|(_, nanos)| nanos).sum()
    }

    /// Returns the busy part of the time; 0 without any time.
    pub fn utilisation(&self) -> f64 {
        let time = self.time();
        if time > 0.0 { self.busy / time } else { 0.0 }
    }

    /// Returns the queue length, bytes, that was not exceeded for `share` of the time.
    pub fn quantile(&self, share: f64) -> u64 {
        let enough = self.time() * share;
        let mut sum = 0.0;
        let reached = self.queue.iter().find(|(_, nanos)| {
            sum += nanos;
            sum >= enough
        });
        reached.or(self.queue.last()).map_or(0, |(bytes, _)| *bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_add_up_length_by_length() {
        let interval = |busy, queue: &[(u64, f64)]| Interval { end: 0.0, busy, queue: queue.to_vec() };
        let (first, second) =
            (interval(8.0, &[(4000, 4.0), (0, 6.0)]), interval(10.0, &[(0, 2.0), (8000, 8.0)]));
        let both = Load::of(&[&first, &second]);
        assert_eq!(both, Load { busy: 18.0, queue: vec![(0, 8.0), (4000, 4.0), (8000, 8.0)] });
        assert_eq!((both.time(), both.utilisation()), (20.0, 0.9));
        assert_eq!([0.4, 0.5, 0.99].map(|share| both.quantile(share)), [0, 4000, 8000]);
        assert_eq!((Load::default().utilisation(), Load::default().quantile(0.5)), (0.0, 0));
    }
}

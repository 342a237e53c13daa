//! ECN marks above a threshold (DCTCP) or with a probability (RED, for DCQCN).

use crate::fault::Probability;
use crate::random::Random;

/// Random early detection: the probability of a mark grows with the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Red {
    /// Waiting bytes up to which no frame is marked.
    pub from: u64,
    /// Waiting bytes above which every frame is marked.
    pub to: u64,
    /// Probability at `to`; it is proportional between `from` and `to`.
    pub most: Probability,
}

#[derive(Debug)]
pub(crate) struct Marker {
    red: Option<Red>,
    random: Random,
}

impl Marker {
    /// Creates a marker with `red` or, without it, with a threshold as in DCTCP.
    pub(crate) fn new(red: Option<Red>, threshold: Option<u64>, seed: u64) -> Self {
        let all_above = |bytes| Red { from: bytes, to: bytes, most: Probability::ALWAYS };
        Self { red: red.or(threshold.map(all_above)), random: Random::new(seed) }
    }

    pub(crate) const fn change(&mut self, red: Option<Red>) {
        self.red = red;
    }

    pub(crate) fn marks(&mut self, waiting: u64) -> bool {
        let Some(Red { from, to, most }) = self.red else { return false };
        if waiting <= from {
            return false;
        }
        if waiting > to {
            return true;
        }
        most.share(waiting - from, to - from).happens(&mut self.random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(marker: &mut Marker, waiting: u64) -> usize {
        (0..10_000).filter(|_| marker.marks(waiting)).count()
    }

    #[test]
    fn red_marks_in_proportion_to_the_queue() {
        let red = Red { from: 5_000, to: 205_000, most: Probability::new(0.2).unwrap() };
        let mut marker = Marker::new(Some(red), Some(1), 7);
        assert_eq!(marked(&mut marker, 5_000), 0);
        assert!((900..1100).contains(&marked(&mut marker, 105_000)), "half of 20 %");
        assert!((1850..2150).contains(&marked(&mut marker, 205_000)), "20 %");
        assert_eq!(marked(&mut marker, 205_001), 10_000);
    }

    #[test]
    fn a_threshold_marks_all_above_it() {
        let mut marker = Marker::new(None, Some(3_000), 1);
        assert_eq!((marked(&mut marker, 3_000), marked(&mut marker, 3_001)), (0, 10_000));
        assert_eq!(marked(&mut Marker::new(None, None, 1), u64::MAX), 0);
    }
}

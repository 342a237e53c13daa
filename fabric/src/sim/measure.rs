//! Time series, and the distribution of queue lengths.

/// A port's part of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRow {
    /// Waiting bytes.
    pub queue: u64,
    /// Bytes sent since the start.
    pub tx_bytes: u64,
}

/// A row of the time series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Virtual time, ns.
    pub time: u64,
    /// Queued bytes of the first sampled port.
    pub queue: u64,
    /// Bytes that the first sampled port has sent since the start.
    pub tx_bytes: u64,
    /// The other sampled ports.
    pub others: Vec<PortRow>,
    /// Pacing rate per flow, bit/s; 0 before its start and after its end.
    pub rates: Vec<u64>,
    /// Acknowledged bytes per flow.
    pub acked: Vec<u64>,
}

impl Row {
    /// Adds the figures of another thread's ports and flows. Those of this thread are 0 there.
    pub(super) fn add(&mut self, other: &Self) {
        self.queue += other.queue;
        self.tx_bytes += other.tx_bytes;
        for (port, more) in self.others.iter_mut().zip(&other.others) {
            (port.queue, port.tx_bytes) = (port.queue + more.queue, port.tx_bytes + more.tx_bytes);
        }
        self.rates.iter_mut().zip(&other.rates).for_each(|(rate, more)| *rate += more);
        self.acked.iter_mut().zip(&other.acked).for_each(|(acked, more)| *acked += more);
    }
}

/// A time series.
pub type Series = Vec<Row>;

/// Bytes per bin.
const BIN: u64 = 1000;
const BINS: usize = 1 << 15;

/// The time at each queue length, summed over all ports of all switches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Queues {
    /// Time in ps, per kB of queue length.
    bins: Vec<u64>,
}

impl Queues {
    #[inline]
    pub(super) fn was(&mut self, bytes: u64, picos: u64) {
        let bin = ((bytes / BIN) as usize).min(BINS - 1);
        if bin >= self.bins.len() {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += picos;
    }

    /// Adds the times of other ports.
    pub(super) fn add(&mut self, other: &Self) {
        self.bins.resize(self.bins.len().max(other.bins.len()), 0);
        self.bins.iter_mut().zip(&other.bins).for_each(|(sum, time)| *sum += time);
    }

    /// Returns the kB that queues did not exceed for `share` of the time, rounded down.
    pub(super) fn quantile(&self, share: f64) -> u64 {
        let total: u64 = self.bins.iter().sum();
        let wanted = total as f64 * share;
        let mut sum = 0;
        let bin = self.bins.iter().position(|&time| {
            sum += time;
            sum as f64 >= wanted
        });
        bin.unwrap_or(0) as u64
    }

    /// Returns the share of time with a queue of at least 1 kB.
    pub(super) fn busy(&self) -> f64 {
        let total: u64 = self.bins.iter().sum();
        let first = self.bins.first().copied().unwrap_or(0);
        if total == 0 { 0.0 } else { 1.0 - first as f64 / total as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_weighted_by_time() {
        let mut queues = Queues::default();
        for (bytes, picos) in [(0, 90), (5_500, 9), (100_000, 1)] {
            queues.was(bytes, picos);
        }
        assert_eq!([0.5, 0.95, 0.99, 1.0].map(|share| queues.quantile(share)), [0, 5, 5, 100]);
        assert!((queues.busy() - 0.1).abs() < 1e-9);
    }
}

//! Random flows: Poisson or bursty arrivals with sizes from a distribution, and additional incasts.

use super::setup::Flow;
use crate::random::Random;
use cc::Rate;
use std::time::Duration;

/// The distribution of flow lengths.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeDistribution {
    /// Bytes, and the share of flows of at most that size. The share is linear between points.
    points: Vec<(f64, f64)>,
}

impl SizeDistribution {
    /// Creates a distribution from sizes in bytes and shares of flows of at most that size. Returns `None` if sizes or shares decrease, the
    /// last size is 0, or the last share is not 1.
    #[must_use]
    pub fn new(points: &[(u64, f64)]) -> Option<Self> {
        let rises = points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1);
        let ends = points.last().is_some_and(|last| (last.1 - 1.0).abs() < 1e-9 && last.0 > 0);
        let points = points.iter().map(|&(bytes, share)| (bytes as f64, share)).collect();
        (rises && ends).then_some(Self { points })
    }

    /// Returns the flow sizes of web search (DCTCP paper): median 73 kB, mean 1.7 MB.
    #[must_use]
    pub fn web_search() -> Self {
        Self::of(&[
            (1, 0.0),
            (10_000, 0.15),
            (20_000, 0.2),
            (30_000, 0.3),
            (50_000, 0.4),
            (80_000, 0.53),
            (200_000, 0.6),
            (1_000_000, 0.7),
            (2_000_000, 0.8),
            (5_000_000, 0.9),
            (10_000_000, 0.97),
            (30_000_000, 1.0),
        ])
    }

    /// Returns the flow sizes of a Hadoop cluster (FB_Hadoop of the HPCC paper): median 1.1 kB, up to 10 MB.
    #[must_use]
    pub fn fb_hadoop() -> Self {
        Self::of(&[
            (1, 0.0),
            (180, 0.1),
            (216, 0.2),
            (560, 0.3),
            (900, 0.4),
            (1_100, 0.5),
            (1_870, 0.6),
            (3_160, 0.7),
            (10_000, 0.8),
            (400_000, 0.9),
            (3_160_000, 0.95),
            (10_000_000, 1.0),
        ])
    }

    /// Returns the uniform distribution from 1 to `most` bytes.
    #[must_use]
    pub fn uniform(most: u64) -> Self {
        Self::of(&[(1, 0.0), (most.max(2), 1.0)])
    }

    fn of(points: &[(u64, f64)]) -> Self {
        Self { points: points.iter().map(|&(bytes, share)| (bytes as f64, share)).collect() }
    }

    /// Returns the mean, in bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let part = |pair: &[(f64, f64)]| (pair[1].1 - pair[0].1) * (pair[0].0 + pair[1].0) / 2.0;
        self.points.windows(2).map(part).sum::<f64>() + self.points[0].0 * self.points[0].1
    }

    /// Returns the size in bytes that `share` of the flows do not exceed; at least 1.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let next = self.points.partition_point(|point| point.1 < share);
        let (Some(&high), Some(&low)) = (self.points.get(next), self.points.get(next.saturating_sub(1)))
        else {
            return 1;
        };
        let width = high.1 - low.1;
        let part = if width > 0.0 { (share - low.1) / width } else { 1.0 };
        (low.0 + (high.0 - low.0) * part).max(1.0) as u64
    }
}

/// Incasts: at random times, many hosts send to one host at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Incast {
    /// Senders per incast.
    pub senders: u32,
    /// Bytes per sender.
    pub bytes: u64,
    /// Mean share of every host's link that incasts use.
    pub load: f64,
}

/// The start times of random flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrivals {
    /// Mean share of every host's link that the flows use.
    pub load: f64,
    /// Number of flows that a host begins at once, at least 1. Bursts arrive as a Poisson process.
    pub burst: u32,
    /// Flows begin within this time.
    pub time: Duration,
    /// Additional incasts.
    pub incast: Option<Incast>,
}

fn share(random: &mut Random) -> f64 {
    ((random.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// Returns the time to the next arrival of a Poisson process with this mean. The logarithm is the only function here whose rounding may
/// differ between machines.
fn gap(random: &mut Random, mean: f64) -> f64 {
    -share(random).ln() * mean
}

/// Returns flows between `hosts` hosts that start within `time` and load each host's link of `rate` to `load`, and the flows of `incast`.
#[must_use]
pub fn poisson(
    hosts: u32,
    rate: Rate,
    sizes: &SizeDistribution,
    load: f64,
    time: Duration,
    incast: Option<Incast>,
    seed: u64,
) -> Vec<Flow> {
    random_flows(hosts, rate, sizes, &Arrivals { load, burst: 1, time, incast }, seed)
}

/// Returns flows between `hosts` hosts with links of `rate`.
#[must_use]
pub fn random_flows(
    hosts: u32,
    rate: Rate,
    sizes: &SizeDistribution,
    &Arrivals { load, burst, time, incast }: &Arrivals,
    seed: u64,
) -> Vec<Flow> {
    let mut random = Random::new(seed);
    let end = time.as_nanos() as f64;
    let bytes_per_nano = rate.as_bps() as f64 / 8e9;
    let mut flows = Vec::new();
    let mean = f64::from(burst) * sizes.mean() / (bytes_per_nano * load * f64::from(hosts));
    let mut at = gap(&mut random, mean);
    while at < end && load > 0.0 {
        let source = random.below(u64::from(hosts)) as u32;
        for _ in 0..burst {
            let destination = (source + 1 + random.below(u64::from(hosts) - 1) as u32) % hosts;
            let bytes = sizes.quantile(share(&mut random));
            let start = Duration::from_nanos(at as u64);
            flows.push(Flow { source, destination, bytes, start, is_incast: false, dscp: 0 });
        }
        at += gap(&mut random, mean);
    }
    if let Some(Incast { senders, bytes, load }) = incast {
        let senders = senders.min(hosts - 1);
        let mean = f64::from(senders) * bytes as f64 / (bytes_per_nano * load * f64::from(hosts));
        let mut at = gap(&mut random, mean);
        while at < end && load > 0.0 {
            let destination = random.below(u64::from(hosts)) as u32;
            let first = random.below(u64::from(hosts)) as u32;
            let others = (0..hosts).map(|step| (first + step) % hosts).filter(|&host| host != destination);
            let start = Duration::from_nanos(at as u64);
            let flow = |source| Flow { source, destination, bytes, start, is_incast: true, dscp: 0 };
            flows.extend(others.take(senders as usize).map(flow));
            at += gap(&mut random, mean);
        }
    }
    flows.sort_by_key(|flow| flow.start);
    flows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_have_their_means() {
        let search = SizeDistribution::web_search();
        assert!((1.5e6..1.8e6).contains(&search.mean()), "{}", search.mean());
        assert_eq!(search.quantile(0.8), 2_000_000);
        assert_eq!(SizeDistribution::uniform(1001).mean(), 501.0);
        assert!(SizeDistribution::new(&[(1, 0.0), (5, 0.9)]).is_none());
    }

    #[test]
    fn the_generated_load_is_the_requested_one() {
        let (rate, time) = (Rate::from_gbps(100), Duration::from_millis(20));
        let incast = Incast { senders: 20, bytes: 10_000, load: 0.02 };
        let flows = poisson(64, rate, &SizeDistribution::fb_hadoop(), 0.5, time, Some(incast), 3);
        let bytes =
            |incast| flows.iter().filter(|flow| flow.is_incast == incast).map(|flow| flow.bytes).sum::<u64>();
        let whole = 64.0 * 12.5e9 * time.as_secs_f64();
        assert!((0.42..0.58).contains(&(bytes(false) as f64 / whole)), "{}", bytes(false) as f64 / whole);
        assert!((0.01..0.03).contains(&(bytes(true) as f64 / whole)));
        assert!(flows.iter().all(|flow| flow.source != flow.destination));
    }

    #[test]
    fn bursts_have_the_same_load_and_begin_at_once() {
        let sizes = SizeDistribution::uniform(20_000);
        let arrivals = Arrivals { load: 0.5, burst: 8, time: Duration::from_millis(10), incast: None };
        let flows = random_flows(16, Rate::from_gbps(100), &sizes, &arrivals, 3);
        let whole = 16.0 * 12.5e9 * arrivals.time.as_secs_f64();
        let load = flows.iter().map(|flow| flow.bytes).sum::<u64>() as f64 / whole;
        assert!((0.45..0.55).contains(&load), "{load}");
        for burst in flows.chunks(8) {
            let first = (burst[0].source, burst[0].start);
            assert!(burst.iter().all(|flow| (flow.source, flow.start) == first), "{burst:?}");
        }
    }
}

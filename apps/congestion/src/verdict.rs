//! Each phase, from when flows joined or left until they next do: what it settled to, and how soon.

use crate::run::{Interval, Run};

/// What is promised.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of a full frame.
    pub packet: u64,
    /// Seconds in which a join or a leave settles.
    pub settle: f64,
}

/// The least utilisation, and the longest queue in packets that 99 % of the time may see, once settled.
const UTILISATION: f64 = 0.9;
const QUEUE: f64 = 3.0;
/// Probes and setups stand between the packets: a quarter packet's worth of them is not counted.
const BETWEEN: f64 = 0.25;
/// Over so many seconds together a phase counts as settled or not: longer than it takes those that leave to send their last.
const LOOK: f64 = 0.2;

/// One phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Flows that send.
    pub flows: usize,
    /// Busy time by time, once settled.
    pub utilisation: f64,
    /// Packets waiting, 50 % and 99 % of the time no more, once settled.
    pub queue: (f64, f64),
    /// The longest queue at all, joining flows included, in packets.
    pub peak: f64,
    /// Seconds after which utilisation and queue had settled; none where they never did.
    pub settled: Option<f64>,
}

/// The phases of a run.
pub fn phases(run: &Run, bounds: &Bounds) -> Vec<Phase> {
    let counts = counts(run);
    let ends = counts.iter().skip(1).map(|(at, _)| *at);
    let last = run.samples.iter().filter(|sample| sample.active).map(|sample| sample.at).fold(0.0, f64::max);
    let ends: Vec<f64> = ends.chain([last]).collect();
    let phase = |((start, flows), end): (&(f64, usize), f64)| {
        let all = between(run, *start, end);
        let settled = between(run, start + bounds.settle, end);
        let packets = |bytes: u64| bytes as f64 / bounds.packet as f64;
        Phase {
            flows: *flows,
            utilisation: utilisation(&settled),
            queue: (packets(quantile(&settled, 0.5)), packets(quantile(&settled, 0.99))),
            peak: packets(quantile(&all, 1.0)),
            settled: settles(&all, *start, bounds),
        }
    };
    counts.iter().zip(ends).map(phase).collect()
}

/// How many flows send, and from when on. What was told in one breath is one change.
fn counts(run: &Run) -> Vec<(f64, usize)> {
    let mut counts: Vec<(f64, usize)> = Vec::new();
    for group in run.samples.chunk_by(|one, other| one.at.to_bits() == other.at.to_bits()) {
        let active = group.iter().filter(|sample| sample.active).count();
        if active > 0 && counts.last().is_none_or(|(_, before)| *before != active) {
            counts.push((group[0].at, active));
        }
    }
    counts
}

fn between(run: &Run, start: f64, end: f64) -> Vec<&Interval> {
    run.intervals.iter().filter(|interval| interval.end > start && interval.end <= end).collect()
}

fn time(intervals: &[&Interval]) -> f64 {
    intervals.iter().flat_map(|interval| &interval.queue).map(|(_, nanos)| nanos).sum()
}

fn utilisation(intervals: &[&Interval]) -> f64 {
    let busy: f64 = intervals.iter().map(|interval| interval.busy).sum();
    let time = time(intervals);
    if time > 0.0 { busy / time } else { 0.0 }
}

/// Bytes that so large a share of the time saw no more than.
fn quantile(intervals: &[&Interval], share: f64) -> u64 {
    let mut queue: Vec<(u64, f64)> = intervals.iter().flat_map(|interval| interval.queue.clone()).collect();
    queue.sort_by_key(|(bytes, _)| *bytes);
    let enough = time(intervals) * share;
    let mut sum = 0.0;
    let reached = queue.iter().find(|(_, nanos)| {
        sum += nanos;
        sum >= enough
    });
    reached.or(queue.last()).map_or(0, |(bytes, _)| *bytes)
}

/// The first moment from which on [`LOOK`] together is as promised.
fn settles(intervals: &[&Interval], start: f64, bounds: &Bounds) -> Option<f64> {
    let limit = ((QUEUE + BETWEEN) * bounds.packet as f64) as u64;
    (0..intervals.len()).find_map(|first| {
        let begin = intervals[first].end;
        let length = intervals[first..].iter().take_while(|interval| interval.end <= begin + LOOK).count();
        let (look, is_whole) = (&intervals[first..first + length], first + length < intervals.len());
        let good = utilisation(look) >= UTILISATION && quantile(look, 0.9) <= limit;
        (is_whole && good).then_some(begin - start)
    })
}

/// A line of the table.
pub fn line(name: &str, phases: &[Phase], bounds: &Bounds) -> String {
    let mut line = name.to_owned();
    for phase in phases {
        let settled = match phase.settled {
            Some(time) if time <= bounds.settle => format!("{:.0} ms", time * 1e3),
            Some(time) => format!("{:.0} ms!", time * 1e3),
            None => "never".into(),
        };
        let Phase { flows, utilisation, queue: (half, most), peak, .. } = phase;
        line += &format!("\t{flows}: {:.1} % {half:.1}/{most:.1}/{peak:.0} {settled}", utilisation * 100.0);
    }
    line
}

/// The promises that were not kept.
pub fn broken(phases: &[Phase], bounds: &Bounds) -> Vec<String> {
    let mut broken = Vec::new();
    for phase in phases {
        let Phase { flows, utilisation, queue: (_, p99), settled, .. } = *phase;
        if utilisation < UTILISATION {
            broken.push(format!(
                "{flows} flows keep the link {:.1} % busy: less than 90 %",
                utilisation * 100.0
            ));
        }
        if p99 > QUEUE + BETWEEN {
            broken.push(format!("{flows} flows: the queue's p99 is {p99:.1} packets: more than {QUEUE}"));
        }
        match settled {
            Some(time) if time <= bounds.settle => {}
            Some(time) => broken
                .push(format!("{flows} flows settled after {time:.3} s: later than {} s", bounds.settle)),
            None => broken.push(format!("{flows} flows never settled")),
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Sample;

    const BOUNDS: Bounds = Bounds { packet: 1000, settle: 0.2 };

    /// One flow for a second, two for another; each joins with so much of the time a queue of 9000 bytes.
    fn run(joining: f64, settled: f64, busy: f64) -> Run {
        let mut run = Run::default();
        for step in 0..200u32 {
            let end = f64::from(step) / 100.0;
            let long = if step % 100 < 10 { joining } else { settled };
            let queue = vec![(1000, 1e7 * (1.0 - long)), (9000, 1e7 * long)];
            run.intervals.push(Interval { end, busy: 1e7 * busy, queue });
            for flow in 0..2 {
                let active = flow == 0 || step >= 100;
                run.samples.push(Sample { at: end, flow, active, rate: Some(50.0), bytes: u64::from(step) });
            }
        }
        run
    }

    #[test]
    fn what_happens_while_flows_join_counts_for_the_peak_only() {
        let phases = phases(&run(0.5, 0.0, 0.95), &BOUNDS);
        assert_eq!(phases.iter().map(|phase| phase.flows).collect::<Vec<_>>(), [1, 2]);
        for phase in &phases {
            assert!((phase.utilisation - 0.95).abs() < 1e-9, "{phase:?}");
            assert!(phase.queue == (1.0, 1.0) && phase.peak == 9.0, "{phase:?}");
            assert!(phase.settled.is_some_and(|time| time > 0.05 && time <= 0.11), "{phase:?}");
        }
        assert_eq!(broken(&phases, &BOUNDS), Vec::<String>::new());
        assert!(line("hpcc", &phases, &BOUNDS).contains("2: 95.0 % 1.0/1.0/9"));
    }

    #[test]
    fn a_queue_an_idle_link_and_a_late_settling_are_told() {
        let told = |run: &Run| broken(&phases(run, &BOUNDS), &BOUNDS).join("; ");
        assert!(told(&run(0.5, 0.02, 0.95)).contains("p99 is 9.0 packets"));
        assert!(told(&run(0.0, 0.0, 0.8)).contains("80.0 % busy"));
        assert!(told(&run(0.0, 0.0, 0.8)).contains("never settled"));
        let late = Bounds { settle: 0.05, ..BOUNDS };
        assert!(broken(&phases(&run(0.5, 0.0, 0.95), &late), &late).join("; ").contains("later than 0.05 s"));
    }
}

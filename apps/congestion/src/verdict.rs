//! Judges each phase, from a change in the number of flows to the next: the state to which it settled, and how soon.

use crate::load::Load;
use crate::run::{Interval, Pause, Run};

/// The limits that are promised, and properties of the run.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// A full frame, bytes.
    pub packet: u64,
    /// The time within which a join or a leave settles, s.
    pub settle: f64,
    /// The pause of the machine, s, above which the time from its begin until the flows have recovered is not judged.
    pub pause: f64,
    /// The base RTT of the flows, s.
    pub round_trip: f64,
}

impl Bounds {
    /// Returns how long a pause affects the flows, s. A pause of less than half of T reduces `U` by at most half: rates grow by that much
    /// for one round trip and are cut in the next. The queue drains in two more, and `maxStage` increases restore what was cut too far.
    /// After a longer pause the flows begin as if they joined.
    fn recovery(&self, pause: &Pause) -> f64 {
        if pause.length < self.round_trip / 2.0 {
            (10.0 * self.round_trip).min(self.settle)
        } else {
            self.settle
        }
    }
}

/// The least utilisation, and the 99th percentile of the queue, packets, after a phase has settled.
const UTILISATION: f64 = 0.9;
const QUEUE: f64 = 3.0;
/// The allowance for probes and setups between the packets, packets.
const BETWEEN: f64 = 0.25;
/// The time over which a phase counts as settled, s: longer than leaving flows need for their last packets.
const LOOK: f64 = 0.2;
/// The resolution of the times of pauses, s: one row of their file.
const LINE: f64 = 0.01;
/// The least time of a phase that can be judged, s.
const ENOUGH: f64 = 0.4;

/// A time with a constant number of sending flows.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// The number of flows that send.
    pub flows: usize,
    /// The load in the time that is judged: settled, and not affected by pauses.
    pub load: Load,
    /// The longest queue, bytes, including the time of joins.
    pub peak: u64,
    /// The time after which utilisation and queue had settled, s; `None` if they did not.
    pub settled: Option<f64>,
    /// True if the phase settled late or not at all, and the machine paused meanwhile.
    pub disturbed: bool,
}

/// Returns the pauses longer than the limit.
pub fn pauses<'a>(run: &'a Run, bounds: &Bounds) -> Vec<&'a Pause> {
    run.pauses.iter().filter(|pause| pause.length > bounds.pause && pause.end > 0.0).collect()
}

/// Returns the phases of a run.
pub fn phases(run: &Run, bounds: &Bounds) -> Vec<Phase> {
    let counts = counts(run);
    let ends = counts.iter().skip(1).map(|(at, _)| *at);
    let last = run.samples.iter().filter(|sample| sample.active).map(|sample| sample.at).fold(0.0, f64::max);
    let ends: Vec<f64> = ends.chain([last]).collect();
    let pauses = pauses(run, bounds);
    let begins = |pause: &Pause| pause.end - pause.length - LINE;
    let is_clean = |from: f64, to: f64| {
        !pauses.iter().any(|pause| to > begins(pause) && from < pause.end + bounds.recovery(pause))
    };
    let phase = |((start, flows), end): (&(f64, usize), f64)| {
        let all = between(run, *start, end);
        let mut settled = between(run, start + bounds.settle, end);
        settled.retain(|interval| is_clean(interval.end - LINE, interval.end));
        let mut settling = pauses.iter().filter(|pause| pause.end > *start);
        let settled_after = settles(&all, *start, bounds);
        Phase {
            flows: *flows,
            load: Load::of(&settled),
            peak: Load::of(&all).quantile(1.0),
            settled: settled_after,
            disturbed: settled_after.is_none_or(|time| time > bounds.settle)
                && settling.any(|pause| begins(pause) < start + bounds.settle + LOOK),
        }
    };
    counts.iter().zip(ends).map(phase).collect()
}

/// Returns the times at which the number of sending flows changed, and the numbers. Simultaneous changes count as one.
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

/// Returns the time, s since `start`, at which utilisation and queue first are as promised for [`LOOK`].
fn settles(intervals: &[&Interval], start: f64, bounds: &Bounds) -> Option<f64> {
    let limit = ((QUEUE + BETWEEN) * bounds.packet as f64) as u64;
    (0..intervals.len()).find_map(|first| {
        let begin = intervals[first].end;
        let length = intervals[first..].iter().take_while(|interval| interval.end <= begin + LOOK).count();
        let (look, is_whole) = (&intervals[first..first + length], first + length < intervals.len());
        let look = Load::of(look);
        let good = look.utilisation() >= UTILISATION && look.quantile(0.9) <= limit;
        (is_whole && good).then_some(begin - start)
    })
}

/// Returns the row of a run in the table. The seconds that were judged are in brackets; `?` stands for a pause of the machine.
pub fn line(name: &str, phases: &[Phase], bounds: &Bounds) -> String {
    let mut line = name.to_owned();
    for phase in phases {
        let settled = match phase.settled {
            _ if phase.disturbed => "?".into(),
            Some(time) if time <= bounds.settle => format!("{:.0} ms", time * 1e3),
            Some(time) => format!("{:.0} ms!", time * 1e3),
            None => "never".into(),
        };
        let packets = |bytes: u64| bytes as f64 / bounds.packet as f64;
        let [p50, p99] = [0.5, 0.99].map(|share| packets(phase.load.quantile(share)));
        let (flows, busy, peak) = (phase.flows, phase.load.utilisation() * 100.0, packets(phase.peak));
        line += &format!(
            "\t{flows}: {busy:.1} % {p50:.1}/{p99:.1}/{peak:.0} {settled} [{:.1} s]",
            phase.judged()
        );
    }
    line
}

impl Phase {
    /// Returns the time that was judged, s.
    fn judged(&self) -> f64 {
        self.load.time() / 1e9
    }

    fn is_whole(&self) -> bool {
        self.judged() >= ENOUGH && !self.disturbed
    }
}

/// The verdict on one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Kept,
    Broken(Vec<String>),
    /// Less than [`ENOUGH`] can be judged, or the machine paused while the phase settled.
    Unjudged(String),
}

pub fn verdicts(run: &Run, phases: &[Phase], bounds: &Bounds) -> Vec<Verdict> {
    phases.iter().map(|phase| verdict(run, phase, bounds)).collect()
}

fn verdict(run: &Run, phase: &Phase, bounds: &Bounds) -> Verdict {
    let broken = broken(phase, bounds);
    if !broken.is_empty() {
        return Verdict::Broken(broken);
    }
    if phase.is_whole() {
        return Verdict::Kept;
    }
    let pauses = pauses(run, bounds);
    let longest = pauses.iter().max_by(|one, other| one.length.total_cmp(&other.length));
    let reason = longest.map_or("the phase is too short".into(), |longest| {
        let (count, length, whose) = (pauses.len(), longest.length * 1e3, &longest.whose);
        format!(
            "the machine paused {count} times for more than {:.1} ms, {whose} for {length:.1} ms",
            bounds.pause * 1e3
        )
    });
    Verdict::Unjudged(format!(
        "{} flows: {:.1} s are left to judge by: {reason}",
        phase.flows,
        phase.judged()
    ))
}

fn broken(phase: &Phase, bounds: &Bounds) -> Vec<String> {
    let mut broken = Vec::new();
    let Phase { flows, settled, disturbed, .. } = *phase;
    let (enough, utilisation) = (phase.judged() >= ENOUGH, phase.load.utilisation());
    let p99 = phase.load.quantile(0.99) as f64 / bounds.packet as f64;
    if enough && utilisation < UTILISATION {
        broken.push(format!("{flows} flows keep the link {:.1} % busy: less than 90 %", utilisation * 100.0));
    }
    if enough && p99 > QUEUE + BETWEEN {
        broken.push(format!("{flows} flows: the queue's p99 is {p99:.1} packets: more than {QUEUE}"));
    }
    match settled {
        _ if disturbed => {}
        Some(time) if time <= bounds.settle => {}
        Some(time) => {
            broken.push(format!("{flows} flows settled after {time:.3} s: later than {} s", bounds.settle));
        }
        None => broken.push(format!("{flows} flows never settled")),
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Sample;

    const BOUNDS: Bounds = Bounds { packet: 1000, settle: 0.2, pause: 0.001, round_trip: 0.01 };

    /// Returns one flow for 1 s and two for another. `joining` and `settled` are the parts of the time with a queue of 9000 bytes, in the
    /// first 100 ms of each phase and after.
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
    fn the_queue_while_flows_join_counts_only_for_the_peak() {
        let phases = phases(&run(0.5, 0.0, 0.95), &BOUNDS);
        assert_eq!(phases.iter().map(|phase| phase.flows).collect::<Vec<_>>(), [1, 2]);
        for phase in &phases {
            assert!((phase.load.utilisation() - 0.95).abs() < 1e-9, "{phase:?}");
            let queue = [0.5, 0.99].map(|share| phase.load.quantile(share));
            assert!(queue == [1000, 1000] && phase.peak == 9000, "{phase:?}");
            assert!(phase.settled.is_some_and(|time| time > 0.05 && time <= 0.11), "{phase:?}");
        }
        assert_eq!(verdicts(&run(0.5, 0.0, 0.95), &phases, &BOUNDS), [Verdict::Kept, Verdict::Kept]);
        assert!(line("hpcc", &phases, &BOUNDS).contains("2: 95.0 % 1.0/1.0/9"));
    }

    #[test]
    fn long_queues_idle_links_and_late_settling_are_reported() {
        let told = |run: &Run, bounds| format!("{:?}", verdicts(run, &phases(run, bounds), bounds));
        assert!(told(&run(0.5, 0.02, 0.95), &BOUNDS).contains("p99 is 9.0 packets"));
        assert!(told(&run(0.0, 0.0, 0.8), &BOUNDS).contains("80.0 % busy"));
        assert!(told(&run(0.0, 0.0, 0.8), &BOUNDS).contains("never settled"));
        let late = Bounds { settle: 0.05, ..BOUNDS };
        assert!(told(&run(0.5, 0.0, 0.95), &late).contains("later than 0.05 s"));
    }

    #[test]
    fn time_after_pauses_is_not_judged_nor_a_phase_with_too_many() {
        let mut run = run(0.0, 0.0, 0.95);
        for interval in &mut run.intervals[50..60] {
            interval.queue = vec![(9000, 1e7)];
        }
        let of = |run: &Run| verdicts(run, &phases(run, &BOUNDS), &BOUNDS);
        assert!(matches!(of(&run)[..], [Verdict::Broken(_), Verdict::Kept]));
        let pause = |end| Pause { end, length: 0.005, whose: "thread core".into() };
        run.pauses = vec![pause(0.5), Pause { length: 0.0005, ..pause(0.1) }];
        let first = phases(&run, &BOUNDS).remove(0);
        let judged = first.judged();
        assert!(
            first.load.quantile(0.99) == 1000 && (0.5..0.65).contains(&judged) && !first.disturbed,
            "{first:?}"
        );
        assert_eq!(of(&run), [Verdict::Kept, Verdict::Kept]);
        run.pauses.push(pause(1.05));
        for interval in &mut run.intervals[101..125] {
            interval.queue = vec![(9000, 1e7)];
        }
        assert!(phases(&run, &BOUNDS)[1].disturbed);
        let [Verdict::Kept, Verdict::Unjudged(reason)] = &of(&run)[..] else { panic!("{:?}", of(&run)) };
        assert!(
            reason.ends_with("the machine paused 2 times for more than 1.0 ms, thread core for 5.0 ms"),
            "{reason}"
        );
    }

    #[test]
    fn ten_round_trips_after_a_short_pause_are_left_out_except_for_settling() {
        let bounds = Bounds { settle: 0.5, ..BOUNDS };
        let mut run = run(0.0, 0.0, 0.95);
        let judged = |run: &Run| phases(run, &bounds)[1].judged();
        let without = judged(&run);
        let pause = |length| Pause { end: 1.6, length, whose: "thread core".into() };
        run.pauses = vec![pause(0.004)];
        assert!((0.1..0.14).contains(&(without - judged(&run))), "{}", judged(&run));
        run.pauses = vec![pause(0.005)];
        assert!(without - judged(&run) > 0.35, "{}", judged(&run));
        run.pauses = vec![Pause { end: 1.1, ..pause(0.002) }];
        let phase = &phases(&run, &bounds)[1];
        assert!(phase.settled.is_some() && !phase.disturbed, "{phase:?}");
    }
}

//! A figure: Ferroce and a baseline, measured alternately on the same machine.

use crate::handover;
use serde::Serialize;
use std::time::Instant;

/// The goal for the ratio of Ferroce's value to the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The ratio is at least this.
    Least(f64),
    /// The ratio is at most this.
    Most(f64),
    /// The ratio is at least `ratio`, or Ferroce's value is at least `ours`.
    LeastOr {
        ratio: f64,
        /// In the unit of the figure.
        ours: f64,
    },
}

/// A function that measures once, and returns a value in the unit of the figure, or an error.
pub type Run = Box<dyn FnMut() -> Result<f64, String>>;

pub struct Figure {
    /// The name for `--only`.
    pub name: String,
    /// The description of the measured quantity.
    pub what: String,
    /// The unit of both values.
    pub unit: &'static str,
    /// The description of the baseline.
    pub yardstick: &'static str,
    pub goal: Goal,
    /// Measures Ferroce.
    pub ours: Run,
    /// Measures the baseline.
    pub theirs: Run,
}

/// The median and the range of several values.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

/// The result of a figure.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The name for `--only`.
    pub name: String,
    /// The description of the measured quantity.
    pub what: String,
    /// The unit of the values.
    pub unit: &'static str,
    /// The description of the baseline.
    pub yardstick: &'static str,
    /// The goal as text.
    pub goal: String,
    /// The values of Ferroce.
    pub ours: Spread,
    /// The values of the baseline.
    pub theirs: Spread,
    /// The ratios of both values, pair by pair.
    pub ratio: Spread,
    /// The rate at which one core passed 4 KiB frames to another during the measurement, Gb/s.
    pub handover: Spread,
    /// The duration of all runs, s.
    pub seconds: f64,
    /// True if the median meets the goal.
    pub met: bool,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { median: values[values.len() / 2], least: values[0], most: values[values.len() - 1] }
    }
}

impl Goal {
    fn is_met(self, ratio: f64, value: f64) -> bool {
        match self {
            Self::Least(least) => ratio >= least,
            Self::Most(most) => ratio <= most,
            Self::LeastOr { ratio: least, ours } => ratio >= least || value >= ours,
        }
    }

    fn text(self, unit: &str) -> String {
        match self {
            Self::Least(least) => format!("≥ {least}"),
            Self::Most(most) => format!("≤ {most}"),
            Self::LeastOr { ratio, ours } => format!("≥ {ratio} or {ours} {unit}"),
        }
    }
}

impl Figure {
    /// Runs both once to warm up, then `repetitions` times alternately. Repeats a failed run once, because a port that is still in use, or
    /// a pause of the machine, should not fail the whole figure.
    ///
    /// # Errors
    /// Returns the error of a run that fails twice.
    pub fn measure(mut self, repetitions: u32, mut tick: impl FnMut()) -> Result<Outcome, String> {
        let begin = Instant::now();
        let mut ours_once = || again(&self.name, &mut self.ours);
        let mut theirs_once = || again(&self.name, &mut self.theirs);
        ours_once()?;
        theirs_once()?;
        let (mut ours, mut theirs, mut handovers) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..repetitions {
            ours.push(ours_once()?);
            handovers.push(handover::measure().0);
            theirs.push(theirs_once()?);
            tick();
        }
        if theirs.iter().any(|&value| value <= 0.0) {
            return Err(format!("the yardstick ({}) measured nothing", self.yardstick));
        }
        let ratio = Spread::of(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect());
        let ours = Spread::of(ours);
        let met = self.goal.is_met(ratio.median, ours.median);
        Ok(Outcome {
            name: self.name,
            what: self.what,
            unit: self.unit,
            yardstick: self.yardstick,
            goal: self.goal.text(self.unit),
            met,
            ours,
            theirs: Spread::of(theirs),
            handover: Spread::of(handovers),
            seconds: begin.elapsed().as_secs_f64(),
            ratio,
        })
    }
}

fn again(name: &str, run: &mut Run) -> Result<f64, String> {
    run().or_else(|error| {
        eprintln!("{name}: {error}; once more");
        run()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(ours: f64, goal: Goal) -> Figure {
        let mut turn = 0.0;
        let rising = move || {
            turn += 1.0;
            Ok(ours * turn)
        };
        let flat = || Ok(10.0);
        let (name, what, unit, yardstick) = ("f".into(), "a figure".into(), "M/s", "a rule");
        Figure { name, what, unit, yardstick, goal, ours: Box::new(rising), theirs: Box::new(flat) }
    }

    #[test]
    fn the_first_run_is_a_warm_up_and_the_middle_one_counts() {
        let outcome = figure(1.0, Goal::Least(0.3)).measure(3, || {}).unwrap();
        assert_eq!((outcome.ours.least, outcome.ours.median, outcome.ours.most), (2.0, 3.0, 4.0));
        assert_eq!(outcome.ratio.median, 0.3);
        assert!(outcome.met);
    }

    #[test]
    fn a_goal_may_be_a_ratio_or_a_value() {
        let goal = Goal::LeastOr { ratio: 0.5, ours: 3.0 };
        assert!(figure(1.0, goal).measure(3, || {}).unwrap().met, "3 M/s");
        assert!(!figure(0.9, goal).measure(3, || {}).unwrap().met, "2.7 M/s and 0.27");
        assert!(!figure(1.0, Goal::Most(0.2)).measure(3, || {}).unwrap().met);
    }

    #[test]
    fn a_run_that_fails_once_is_run_again() {
        let mut figure = figure(1.0, Goal::Least(0.1));
        let mut turn = 0;
        figure.theirs = Box::new(move || {
            turn += 1;
            if turn == 2 { Err("its port is taken".into()) } else { Ok(10.0) }
        });
        assert!(figure.measure(1, || {}).unwrap().met);
    }

    #[test]
    fn a_run_that_fails_returns_its_error() {
        let mut figure = figure(1.0, Goal::Least(1.0));
        figure.theirs = Box::new(|| Err("testpmd is not installed".into()));
        assert_eq!(figure.measure(1, || {}).unwrap_err(), "testpmd is not installed");
    }
}

//! Measures the cost of each step of a packet: ns, and instructions by callgrind, which do not change with the machine's load.

pub mod application;
pub mod hostile;
mod loss;
mod one_core;
mod parts;
mod path;
mod two_cores;
mod wire;

use crate::instructions::Cost;
use std::time::{Duration, Instant};

/// One step: what `--only` calls it, what is counted once per what, how many instructions it may take, and what runs it.
pub struct Step {
    pub name: &'static str,
    pub what: &'static str,
    pub budget: u64,
    pub run: fn(&mut Meter),
}

/// Measures the parts of a step that count.
pub struct Meter {
    /// The number of rounds of a step.
    pub rounds: u32,
    time: Duration,
    units: u64,
}

impl Meter {
    pub const fn new(rounds: u32) -> Self {
        Self { rounds, time: Duration::ZERO, units: 0 }
    }

    /// Runs what counts, `units` times what the step is about.
    pub fn part(&mut self, units: usize, work: &mut dyn FnMut()) {
        let start = Instant::now();
        collected(work);
        self.time += start.elapsed();
        self.units += units as u64;
    }

    pub const fn units(&self) -> u64 {
        self.units
    }

    pub fn nanos(&self) -> f64 {
        self.time.as_nanos() as f64 / self.units.max(1) as f64
    }
}

/// callgrind collects in here and nowhere else.
#[inline(never)]
fn collected(work: &mut dyn FnMut()) {
    work();
    std::hint::black_box(());
}

/// callgrind writes down what it collected when this returns.
#[inline(never)]
pub fn step_ends(name: &str) {
    std::hint::black_box(name);
}

/// Every step, in the order of the table.
pub fn all() -> Vec<Step> {
    let groups = [
        wire::STEPS,
        parts::STEPS,
        path::STEPS,
        application::STEPS,
        one_core::STEPS,
        two_cores::STEPS,
        hostile::STEPS,
        loss::STEPS,
    ];
    groups.into_iter().flatten().map(|step| Step { ..*step }).collect()
}

/// Returns what a step may take, given what those before it took: with selective repeat 2 % more than without, and with the default
/// congestion control 3 % more than with a fixed window. What two cores may take is in [`application`] and [`two_cores`].
pub fn budget(step: &Step, before: &[Cost]) -> u64 {
    if let Some(budget) = application::budget(step, before).or_else(|| two_cores::budget(step, before)) {
        return budget;
    }
    let Some(plain) = step.name.strip_suffix("-selective") else {
        return hostile::budget(step, before).min(one_core::budget(step, before));
    };
    let plain = before.iter().find(|cost| cost.name == plain);
    plain.map_or(step.budget, |plain| step.budget.min(plain.instructions * 102 / 100))
}

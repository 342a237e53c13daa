//! Measures the cost of each step of a packet: ns, and instructions with callgrind, which do not depend on the machine's load.

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

/// A step: the name for `--only`, the description of one unit, the limit on instructions, and the function that runs it.
pub struct Step {
    pub name: &'static str,
    pub what: &'static str,
    pub budget: u64,
    pub run: fn(&mut Meter),
}

/// Measures the relevant parts of a step.
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

    /// Runs and measures `work`, which contains `units` units of the step.
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

/// The only function in which callgrind counts instructions.
#[inline(never)]
fn collected(work: &mut dyn FnMut()) {
    work();
    std::hint::black_box(());
}

/// Makes callgrind dump its counts on return.
#[inline(never)]
pub fn step_ends(name: &str) {
    std::hint::black_box(name);
}

/// Returns every step, in the order of the table.
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

/// Returns the limit of a step, given the costs of earlier steps: with selective repeat 2 % more than without, and with the default
/// congestion control 3 % more than with a fixed window. [`application`] and [`two_cores`] have the limits for two cores.
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

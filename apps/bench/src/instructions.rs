//! Counts the instructions of each step with callgrind.

use crate::steps::{self, Meter, Step};
use serde::Serialize;
use std::path::Path;
use std::process::Command;

/// Rounds under callgrind, which is fifty times slower; timed rounds; and the number of timed runs, of which the fastest is used.
const COUNTED: u32 = 8;
const TIMED: u32 = 300;
const RUNS: usize = 7;
/// The number of times that a step above its limit is counted again. The lowest count is used, because a timer that expires in a counted
/// turn is not a cost of the step.
const RECOUNTS: usize = 2;

/// The cost of a step.
#[derive(Debug, Serialize)]
pub struct Cost {
    pub name: &'static str,
    pub what: &'static str,
    /// Time with warm caches, ns: the shortest of several runs.
    pub nanos: f64,
    /// Instructions per unit.
    pub instructions: u64,
    /// The limit on instructions.
    pub budget: u64,
}

impl Cost {
    pub const fn is_within(&self) -> bool {
        self.instructions <= self.budget
    }
}

/// Runs the named steps once, in the child process under callgrind. Prints the number of units of each.
pub fn count(names: &[String]) {
    for step in steps::all().into_iter().filter(|step| names.iter().any(|name| name == step.name)) {
        let mut meter = Meter::new(COUNTED);
        (step.run)(&mut meter);
        println!("{} {}", step.name, meter.units());
        steps::step_ends(step.name);
    }
}

pub fn chosen(only: &[String]) -> Vec<Step> {
    let is_chosen =
        |step: &Step| only.is_empty() || only.iter().any(|part| step.name.contains(part.as_str()));
    steps::all().into_iter().filter(is_chosen).collect()
}

/// Times the steps if `timed`, and counts their instructions.
///
/// # Errors
/// Returns an error if valgrind is not installed, or its report cannot be parsed.
pub fn measure(only: &[String], timed: bool, mut each: impl FnMut(&Cost)) -> Result<Vec<Cost>, String> {
    let steps = chosen(only);
    let names: Vec<String> = steps.iter().map(|step| step.name.to_owned()).collect();
    let counts = side_by_side(&names)?;
    let mut costs = Vec::new();
    for (step, instructions) in steps.into_iter().zip(counts) {
        let budget = steps::budget(&step, &costs);
        let instructions = recounted(&step, instructions, budget)?;
        let Step { name, what, run, .. } = step;
        let time = |_| {
            let mut meter = Meter::new(TIMED);
            run(&mut meter);
            meter.nanos()
        };
        let nanos = if timed { (0..RUNS).map(time).fold(f64::INFINITY, f64::min) } else { 0.0 };
        let cost = Cost { name, what, nanos, instructions, budget };
        each(&cost);
        costs.push(cost);
    }
    Ok(costs)
}

fn recounted(step: &Step, mut instructions: u64, budget: u64) -> Result<u64, String> {
    for _ in 0..RECOUNTS {
        if instructions <= budget {
            break;
        }
        let again = under_callgrind(&[step.name.to_owned()])?;
        instructions = again.into_iter().fold(instructions, u64::min);
    }
    Ok(instructions)
}

/// Counts the steps in two processes at the same time, because callgrind uses one CPU.
fn side_by_side(names: &[String]) -> Result<Vec<u64>, String> {
    let (first, second) = names.split_at(names.len() / 2);
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| under_callgrind(second));
        (under_callgrind(first), second.join())
    });
    let second = second.map_err(|_panic| "counting the second half of the steps panicked")??;
    Ok([first?, second].concat())
}

fn under_callgrind(names: &[String]) -> Result<Vec<u64>, String> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let out = folder.path().join("out");
    let mut command = Command::new("valgrind");
    command.args([
        "--tool=callgrind",
        "--toggle-collect=*steps::collected*",
        "--dump-after=*steps::step_ends*",
    ]);
    command.arg(format!("--callgrind-out-file={}", out.display())).arg(own).arg("count");
    command.args(names.iter().flat_map(|name| ["--only", name]));
    let output = command.output().map_err(|error| format!("valgrind: {error}; install valgrind"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let units: Vec<u64> = said.lines().filter_map(|line| line.split_once(' ')?.1.parse().ok()).collect();
    if units.len() != names.len() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let tail: Vec<_> = errors.lines().rev().take(12).collect();
        return Err(format!(
            "{} of {} steps ran under callgrind: {}",
            units.len(),
            names.len(),
            tail.join(" / ")
        ));
    }
    units.into_iter().enumerate().map(|(n, units)| Ok(total(&out, n + 1)? / units.max(1))).collect()
}

fn total(out: &Path, number: usize) -> Result<u64, String> {
    let file = format!("{}.{number}", out.display());
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    totals(&text).ok_or_else(|| format!("{file} has no totals"))
}

fn totals(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("totals:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{chosen, totals};

    #[test]
    fn the_total_is_read_from_a_callgrind_dump() {
        assert_eq!(totals("# callgrind format\nsummary: 12\n\nfn=(1)\n3 4\ntotals: 4711\n"), Some(4711));
        assert_eq!(totals("summary: 12\n"), None);
    }

    #[test]
    fn every_step_runs_and_counts_its_units() {
        for step in chosen(&[]) {
            let mut meter = crate::steps::Meter::new(2);
            (step.run)(&mut meter);
            assert!(meter.units() > 0, "{}", step.name);
        }
    }
}

//! Prints the progress of a run: a heading and an outcome for each job, the remaining time, and at the end the failures. Used by `main` and
//! `lanes`.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use crate::attempt::Outcome;
use crate::table::{Job, Load};
use crate::times::Times;

/// Words in lines that probably describe the failure of a job.
const TELLING: [&str; 6] = ["UNEXPECTED", "FAILED", "panicked", "error", "broken", "less than"];
/// The number of lines shown after such a line, the limit on these lines in total, and the number of lines shown from the end of a log.
const LINES_AFTER: usize = 6;
const MOST_TELLING: usize = 60;
const LAST_LINES: usize = 15;

#[derive(Debug)]
pub struct Report {
    times: Times,
    /// Jobs that have not begun, and jobs of the second lane that have not ended.
    waiting: Vec<&'static Job>,
    total: usize,
    ended: Vec<Outcome>,
    terminal: bool,
}

impl Report {
    pub fn new(jobs: &[&'static Job], times: Times) -> Report {
        Report {
            times,
            waiting: jobs.to_vec(),
            total: jobs.len(),
            ended: Vec::new(),
            terminal: io::stdout().is_terminal(),
        }
    }

    /// Returns true if the output of jobs goes to a terminal.
    pub fn terminal(&self) -> bool {
        self.terminal
    }

    /// Prints the heading of a job before its output.
    pub fn begins(&mut self, job: &'static Job) {
        let left = self.seconds_left();
        self.no_longer_waits(job);
        let number = self.total - self.waiting.len();
        let left = format!("({number} of {}, about {} min {:02} s left)", self.total, left / 60, left % 60);
        self.print(&format!("\n{}== {}{}  {left}", self.colour("\x1b[1m"), job.name, self.colour("\x1b[0m")));
    }

    /// Prints the outcome of a job, after its output.
    pub fn ended(&mut self, outcome: Outcome) {
        let (job, took) = (outcome.job, outcome.took.as_secs());
        let cost = format!("({took} s, {} s of processor time)", outcome.processor.as_secs());
        let plain = self.colour("\x1b[0m");
        if outcome.passed {
            self.print(&format!("{}== {}: ok{plain} {cost}", self.colour("\x1b[32m"), job.name));
            self.times.remember(job, took);
        } else {
            self.print(&format!(
                "{}== {}: FAILED{plain} {cost}; by hand: ci/{}",
                self.colour("\x1b[31m"),
                job.name,
                job.name
            ));
        }
        self.ended.push(outcome);
    }

    /// Prints the output and the outcome of a job of the second lane.
    pub fn ended_beside(&mut self, outcome: Outcome) {
        self.print(&format!(
            "\n{}== {}{}  (beside the others)",
            self.colour("\x1b[1m"),
            outcome.job.name,
            self.colour("\x1b[0m")
        ));
        if let Some(text) = outcome.log.as_deref().and_then(read) {
            self.print(text.trim_end());
        }
        self.no_longer_waits(outcome.job);
        self.ended(outcome);
    }

    /// Prints the failures again, for readers of the end of a long log, and the numbers of jobs that passed and failed. Returns true if all
    /// passed.
    pub fn finish(&self) -> bool {
        let failed: Vec<&Outcome> = self.failed().collect();
        for outcome in &failed {
            let Some(text) = outcome.log.as_deref().and_then(read) else { continue };
            let (red, plain) = (self.colour("\x1b[31m"), self.colour("\x1b[0m"));
            self.print(&format!(
                "\n{red}== {}{plain}, what looks like its failure and its last lines",
                outcome.job.name
            ));
            self.print(&excerpt(&text));
        }
        let names: Vec<&str> = failed.iter().map(|outcome| outcome.job.name).collect();
        self.print("");
        if !names.is_empty() {
            self.print(&format!("failed: {}", names.join(" ")));
        }
        self.print(&format!("jobs: {} passed, {} failed", self.ended.len() - failed.len(), failed.len()));
        failed.is_empty()
    }

    /// Returns the number of failed runs.
    pub fn failures(&self) -> usize {
        self.failed().count()
    }

    fn failed(&self) -> impl Iterator<Item = &Outcome> {
        self.ended.iter().filter(|outcome| !outcome.passed)
    }

    fn no_longer_waits(&mut self, job: &Job) {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.name == job.name) {
            self.waiting.remove(at);
        }
    }

    /// Returns the estimated remaining time, s: the time of the longer lane, and of the jobs that measure.
    fn seconds_left(&self) -> u64 {
        let of = |load| {
            self.waiting.iter().filter(|job| job.load == load).map(|job| self.times.of(job)).sum::<u64>()
        };
        of(Load::Packets).max(of(Load::Computes)) + of(Load::Measures)
    }

    fn colour(&self, code: &'static str) -> &'static str {
        if self.terminal { code } else { "" }
    }

    /// Prints a line, and ignores a closed standard output.
    fn print(&self, line: &str) {
        let mut out = io::stdout().lock();
        _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

fn read(log: &Path) -> Option<String> {
    fs::read(log).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the lines of `log` that probably describe a failure, numbered and with the lines after each, and the last lines of `log`.
fn excerpt(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let mut until = 0;
    let mut shown = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if TELLING.iter().any(|word| line.contains(word)) {
            until = at + LINES_AFTER;
        }
        if at <= until && until > 0 {
            shown.push(format!("{}: {line}", at + 1));
        }
    }
    shown.truncate(MOST_TELLING);
    shown.push("...".to_owned());
    shown.extend(lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|&line| line.to_owned()));
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_has_the_error_lines_their_context_and_the_end() {
        let log: String = (1..=100)
            .map(|n| if n == 40 { "error: no memory\n".to_owned() } else { format!("line {n}\n") })
            .collect();
        let excerpt = excerpt(&log);
        assert!(excerpt.starts_with("40: error: no memory\n41: line 41\n"), "{excerpt}");
        assert!(excerpt.contains("46: line 46\n...\nline 86\n"), "{excerpt}");
        assert!(excerpt.ends_with("line 100"), "{excerpt}");
    }
}

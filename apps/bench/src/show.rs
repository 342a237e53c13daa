//! Prints figures and steps as tables.

use crate::figure::{Outcome, Spread};
use crate::instructions::Cost;
use anstream::{eprint, println};
use anstyle::{AnsiColor, Style};
use std::io::IsTerminal;

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default();
const DIM: Style = Style::new().dimmed();

pub fn list() {
    let none = crate::host::Veth::af_packet("", "");
    let place = crate::figures::Place {
        ferroce: "ferroce".into(),
        memif: crate::host::Link::Memif("/tmp".into()),
        virtio: crate::host::Link::Virtio("/tmp".into()),
        af_packet: Some(none),
        guests: Some("guests-measure".into()),
    };
    for figure in crate::figures::all(&place) {
        println!("{:<22} {} [{}] beside {}", figure.name, figure.what, figure.unit, figure.yardstick);
    }
}

pub fn head() {
    println!(
        "{:<22} {:>24} {:>24} {:>22}  {:<18} met",
        "figure", "ours (min–max)", "yardstick (min–max)", "ratio (min–max)", "goal"
    );
}

/// Shows that a pair of runs has ended, if standard error is a terminal.
pub fn tick(name: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{DIM}{name} …{DIM:#}\x1b[K\r");
    }
}

pub fn row(outcome: &Outcome) {
    let style = if outcome.met { GOOD } else { BAD };
    println!(
        "{:<22} {:>24} {:>24} {:>22}  {:<18} {style}{}{style:#}",
        outcome.name,
        format!("{} {}", spread(outcome.ours), outcome.unit),
        format!("{} {}", spread(outcome.theirs), outcome.unit),
        spread(outcome.ratio),
        outcome.goal,
        if outcome.met { "yes" } else { "no" },
    );
    if !outcome.met {
        let handover = spread(outcome.handover);
        println!(
            "{DIM}{:<22} meanwhile one core handed the other {handover} Gb/s, 4 KiB at a time{DIM:#}",
            ""
        );
    }
}

/// Returns an outcome as cells of a table in a document.
pub fn row_cells(outcome: &Outcome) -> Vec<String> {
    let Outcome { name, what, unit, yardstick, goal, ours, theirs, ratio, met, .. } = outcome;
    let goal = if *met { format!("**{goal}**") } else { goal.clone() };
    let name = format!("`{name}`");
    let (ours, theirs) = (format!("{} {unit}", spread(*ours)), format!("{} {unit}", spread(*theirs)));
    vec![name, format!("{what}, beside {yardstick}"), ours, theirs, spread(*ratio), goal]
}

/// Returns a cost as cells of a table in a document. Omits the time, which is valid only for one machine.
pub fn step_cells(cost: &Cost) -> Vec<String> {
    vec![format!("`{}`", cost.name), cost.what.into(), cost.instructions.to_string(), cost.budget.to_string()]
}

pub fn failure(name: &str, why: &str) {
    println!("{name:<22} {BAD}{why}{BAD:#}");
}

pub fn steps_head(timed: bool) {
    let nanos = if timed { "      ns" } else { "" };
    println!("{:<16} {:<52}{nanos}  instructions  at most", "step", "counted once for");
}

pub fn step(cost: &Cost, timed: bool) {
    let style = if cost.is_within() { GOOD } else { BAD };
    let nanos = if timed { format!("{:8.1}", cost.nanos) } else { String::new() };
    println!(
        "{:<16} {:<52}{nanos}  {style}{:>12}{style:#}  {:>7}",
        cost.name, cost.what, cost.instructions, cost.budget
    );
}

pub fn foot(outcomes: &[Outcome]) {
    let seconds = outcomes.iter().fold(0.0, |sum, outcome| sum + outcome.seconds);
    let longest = outcomes.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let longest = longest.map(|it| format!(", {} the longest with {:.0} s", it.name, it.seconds));
    println!("\n{} figures in {:.1} min{}", outcomes.len(), seconds / 60.0, longest.unwrap_or_default());
    println!();
    for outcome in outcomes {
        println!("{DIM}{:<22} {}, beside {}{DIM:#}", outcome.name, outcome.what, outcome.yardstick);
    }
}

fn spread(values: Spread) -> String {
    let Spread { median, least, most } = values;
    format!("{} ({}–{})", short(median), short(least), short(most))
}

fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

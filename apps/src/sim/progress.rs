//! Shows the progress of a run: a bar on a terminal or, with `--follow`, the state of the run once a second.

use super::scenario::Scenario;
use crate::failure::Failure;
use fabric::sim::{Observer, RunState};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// The interval between two lines of `--follow`, and between two computations of the rate.
const INTERVAL: Duration = Duration::from_secs(1);

enum Display {
    /// A bar on standard error, if it is a terminal.
    Bar(ProgressBar),
    /// A line on the terminal, which is rewritten.
    Line(ProgressBar),
    /// A line of text per interval on standard error.
    Text,
    /// A JSON object per interval on standard output.
    Json,
}

impl Display {
    fn new(flows: usize, follow: bool, json: bool) -> Self {
        if follow && json {
            return Self::Json;
        }
        let bar = ProgressBar::new(flows as u64);
        let template = if follow { "{msg}" } else { "{bar:30} {pos}/{len} flows  {msg}" };
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        match follow {
            false => Self::Bar(bar),
            true if bar.is_hidden() => Self::Text,
            true => Self::Line(bar),
        }
    }
}

/// Shows the progress of a run.
pub(super) struct Progress<'a> {
    display: Display,
    scenario: &'a Scenario,
    /// Time and number of events of the last computation of the rate.
    last: (Instant, u64),
    /// Events per second; `None` before the first report.
    rate: Option<f64>,
    failure: Option<Failure>,
}

impl<'a> Progress<'a> {
    /// Creates the display of the progress of `scenario`: a bar, or with `follow` the whole state, as JSON if `json` is also set.
    pub(super) fn new(scenario: &'a Scenario, follow: bool, json: bool) -> Self {
        let display = Display::new(scenario.setup.flows.len(), follow, json);
        Self { display, scenario, last: (Instant::now(), 0), rate: None, failure: None }
    }

    /// Removes the bar or the line from the terminal.
    ///
    /// # Errors
    /// Returns a failure if a line could not be written.
    pub(super) fn end(self) -> Result<(), Failure> {
        if let Display::Bar(bar) | Display::Line(bar) = self.display {
            bar.finish_and_clear();
        }
        self.failure.map_or(Ok(()), Err)
    }
}

impl Observer for Progress<'_> {
    fn state(&mut self, state: &RunState<'_>) -> ControlFlow<()> {
        let (now, (before, events)) = (Instant::now(), self.last);
        let is_due = self.rate.is_none() || now - before >= INTERVAL;
        if is_due {
            self.rate = Some((state.events - events) as f64 / (now - before).as_secs_f64());
            self.last = (now, state.events);
        }
        let rate = self.rate.unwrap_or_default();
        match &self.display {
            Display::Bar(bar) => {
                bar.set_position(state.finished as u64);
                bar.set_message(format!("{:.3} ms, {:.1} M events/s", millis(state), rate / 1e6));
            }
            Display::Line(bar) => bar.set_message(line(self.scenario, state, rate)),
            Display::Text if is_due => note!("{}", line(self.scenario, state, rate)),
            Display::Json if is_due => self.failure = outln!("{}", object(self.scenario, state, rate)).err(),
            Display::Text | Display::Json => {}
        }
        if self.failure.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn millis(state: &RunState<'_>) -> f64 {
    state.time.as_nanos() as f64 / 1e6
}

/// Returns the state of a run as text.
fn line(scenario: &Scenario, state: &RunState<'_>, rate: f64) -> String {
    let mut text = format!(
        "{:.3} ms, {} of {} flows ended, {:.1} M events/s",
        millis(state),
        state.finished,
        scenario.setup.flows.len(),
        rate / 1e6
    );
    for (place, (port, queue)) in scenario.ports.iter().zip(state.queues).enumerate() {
        let before = if place == 0 { ", queues: " } else { ", " };
        let _ = write!(text, "{before}{port} {queue} B");
    }
    text
}

/// Returns the state of a run as JSON, with the keys of the summary.
fn object(scenario: &Scenario, state: &RunState<'_>, rate: f64) -> Value {
    let queues = scenario.ports.iter().zip(state.queues).map(|(port, queue)| (port.clone(), json!(queue)));
    json!({ "progress": {
        "virtual_us": state.time.as_nanos() as f64 / 1e3,
        "events": state.events,
        "events_per_second": rate.round(),
        "finished": state.finished,
        "flows": scenario.setup.flows.len(),
        "queue_bytes": queues.collect::<Map<_, _>>(),
    } })
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{self, Options};
    use super::*;

    #[test]
    fn a_state_is_shown_with_the_queues_of_the_sampled_ports() {
        let text = "topology = \"dumbbell\"\nhosts = 1\nrate = \"100G\"\ndelay = \"1us\"\ncongestion = \"auto\"\nsample = \"1us\"\n\
            sample_ports = [[\"s1\", \"s2\"], [\"s2\", \"h2\"]]\nflow = [{ source = 1, destination = 2, bytes = 1000 }]\n";
        let scenario = scenario::read("x.toml", text, &Options::default()).unwrap();
        let time = Duration::from_nanos(1_234_567);
        let state = RunState { finished: 0, events: 3_000_000, time, queues: &[70_000, 5] };
        assert_eq!(
            line(&scenario, &state, 2.56e6),
            "1.235 ms, 0 of 1 flows ended, 2.6 M events/s, queues: s1_s2 70000 B, s2_h2 5 B"
        );
        let expected = json!({ "progress": {
            "virtual_us": 1234.567, "events": 3_000_000, "events_per_second": 2_560_000.0, "finished": 0, "flows": 1,
            "queue_bytes": { "s1_s2": 70_000, "s2_h2": 5 },
        } });
        assert_eq!(object(&scenario, &state, 2.56e6), expected);
    }
}

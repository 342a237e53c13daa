//! The progress of a run on a terminal.

use super::scenario::Scenario;
use fabric::sim::{Observer, RunState};
use indicatif::{ProgressBar, ProgressStyle};
use std::ops::ControlFlow;
use std::time::Instant;

/// A progress bar, which disappears at the end of the run.
pub(super) struct Bar {
    bar: ProgressBar,
    begin: Instant,
}

impl Bar {
    /// Creates a bar, which is displayed if standard error is a terminal.
    pub(super) fn new(scenario: &Scenario) -> Self {
        let bar = ProgressBar::new(scenario.setup.flows.len() as u64);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} flows  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, begin: Instant::now() }
    }
}

impl Observer for Bar {
    fn state(&mut self, state: &RunState<'_>) -> ControlFlow<()> {
        let rate = state.events as f64 / self.begin.elapsed().as_secs_f64() / 1e6;
        self.bar.set_position(state.finished as u64);
        let millis = state.time.as_nanos() as f64 / 1e6;
        self.bar.set_message(format!("{millis:.3} ms, {rate:.1} M events/s"));
        ControlFlow::Continue(())
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

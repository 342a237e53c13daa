//! The product's own endpoints and switch in virtual time: one heap of events, one seed, no threads, no clock.
//!
//! Hosts are [`roce::Endpoint`]s behind a network card that sends a frame at a time at its line rate; the switch is
//! [`Switch`](crate::Switch), shaped ports and telemetry included; links have a rate and a delay. Frames are real, to the
//! ICRC; what they carry is not kept, since only sizes and times are asked for.
//!
//! Events are ordered by time and then by number, times are picoseconds, and nothing else decides: the same scenario and
//! seed give the same [`Outcome`], trace hash and all, in every build.

mod event;
mod frame;
mod host;
mod network;
mod outcome;
mod scenario;

pub use outcome::{Completed, Outcome};
pub use scenario::{Flow, Scenario, ScenarioError};

/// Runs a scenario to the end of its last flow. `watch` is told of the progress now and then: flows done, events so far
/// and the virtual time in ns.
///
/// # Errors
/// What the scenario asks for that can't be, or a flow that failed.
pub fn run(scenario: &Scenario, watch: &mut dyn FnMut(usize, u64, u64)) -> Result<Outcome, ScenarioError> {
    network::Network::new(scenario)?.run(watch)
}

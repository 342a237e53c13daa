//! The fabric at scale: hundreds of hosts and tens of thousands of flows in virtual time.
//!
//! What decides is the product's own: every sender runs an algorithm of `cc`. What carries is a model: packets are
//! descriptors whose payload only counts, hosts acknowledge each packet and go back where one is missing, switches have a
//! shared buffer, ECN, PFC and telemetry. [`crate::sim`] runs the whole endpoints instead, on one switch.
//!
//! Events are ordered by time (ps) and then by number, and one seed draws everything: equal runs are equal.

mod engine;
mod events;
mod flow;
mod measure;
mod outcome;
mod packet;
mod port;
mod setup;
mod shared_buffer;
mod steady;
mod topology;
mod traffic;

pub use measure::{Row, Series};
pub use outcome::{Finished, Outcome};
pub use setup::{Conventions, Flow, Pfc, Red, Sampling, Setup, SetupError};
pub use steady::{Steady, window};
pub use topology::Topology;
pub use traffic::{Incast, SizeDistribution, poisson};

/// Runs a setup until its last flow has ended, or to its limit. `watch` is told now and then: flows done, events so far,
/// and the virtual time in ns.
///
/// # Errors
/// What can't be run.
pub fn run(setup: &Setup, watch: &mut dyn FnMut(usize, u64, u64)) -> Result<Outcome, SetupError> {
    setup.check()?;
    Ok(engine::Engine::new(setup)?.run(watch))
}

//! The simulator: hosts, links and switches in virtual time, up to hundreds of hosts and tens of thousands of flows.
//!
//! Hosts are endpoints of `roce` or a faster model of them ([`Hosts`]); both use the algorithms of `cc`. Switches have a shared buffer,
//! PFC and ECMP, and use the classes, marks and telemetry of [`Switch`](crate::Switch).
//!
//! Events are ordered by time (ps), then by when and by what they are, and all random numbers come from one seed. Equal runs therefore
//! have equal outcomes, trace included, in every build and on any number of threads.

mod captures;
mod change;
mod collective;
mod cores;
mod counts;
mod endpoints;
mod engine;
mod event;
mod exchange;
mod faults;
mod flow;
mod frame;
mod link_changes;
mod link_faults;
mod measure;
mod model;
mod network;
mod nic;
mod observer;
mod outcome;
mod packet;
mod packet_pool;
mod partition;
mod port;
mod setup;
mod shared_buffer;
mod steady;
mod topology;
mod traffic;

pub use change::{Change, LinkChange};
pub use collective::Collective;
pub use faults::ScriptedFault;
pub use measure::{PortRow, Row, Series};
pub use observer::{Observer, PortFrame, RunState};
pub use outcome::{Finished, Outcome};
pub use setup::{
    Application, Conventions, Dependency, Flow, Hosts, Pfc, Requests, Rival, Sampling, Setup, SetupError,
    Verb, Which, check_rate, circle,
};
pub use steady::{Steady, window};
pub use topology::{GraphError, Link, Topology};
pub use traffic::{Arrivals, Incast, SizeDistribution, poisson, random_flows};

/// The contents of `scenarios/graph.toml`, which describes a network as a graph: the example in the reference of scenarios.
pub const GRAPH: &str = include_str!("../../scenarios/graph.toml");

/// The scenarios in which `ferroce sim --arena` compares algorithms: names, and contents of the files in `scenarios/`.
pub const ARENA: [(&str, &str); 17] = [
    ("two-to-one", include_str!("../../scenarios/two-to-one.toml")),
    ("fairness", include_str!("../../scenarios/fairness.toml")),
    ("long-short", include_str!("../../scenarios/long-short.toml")),
    ("incast-16", include_str!("../../scenarios/incast-16.toml")),
    ("incast-256", include_str!("../../scenarios/incast-256.toml")),
    ("parking-lot", include_str!("../../scenarios/parking-lot.toml")),
    ("unequal-rtts", include_str!("../../scenarios/unequal-rtts.toml")),
    ("seven-switches", include_str!("../../scenarios/seven-switches.toml")),
    ("trunk-10g", include_str!("../../scenarios/trunk-10g.toml")),
    ("trunk-100g", include_str!("../../scenarios/trunk-100g.toml")),
    ("victims", include_str!("../../scenarios/victims.toml")),
    ("churn-50", include_str!("../../scenarios/churn-50.toml")),
    ("churn-85", include_str!("../../scenarios/churn-85.toml")),
    ("churn-120", include_str!("../../scenarios/churn-120.toml")),
    ("beside-hpcc", include_str!("../../scenarios/beside-hpcc.toml")),
    ("leaf-spine", include_str!("../../scenarios/leaf-spine.toml")),
    ("fat-tree", include_str!("../../scenarios/fat-tree.toml")),
];

/// Runs a setup until its last flow has ended or its limit is reached, and reports to `observer`.
///
/// # Errors
/// Returns a [`SetupError`] if the setup cannot run, or a flow fails.
pub fn run(setup: &Setup, observer: &mut dyn Observer) -> Result<Outcome, SetupError> {
    run_on(1, setup, observer)
}

/// Runs a setup as [`run`] on several threads, at most one per switch with hosts. The outcome is the same with any number, except
/// [`Outcome::packets_most`]. Flows that wait for others, scripts of faults, random loss and delays, forged reports, captures, and links
/// without delay need one thread.
///
/// # Errors
/// As [`run`].
pub fn run_on(threads: usize, setup: &Setup, observer: &mut dyn Observer) -> Result<Outcome, SetupError> {
    setup.check()?;
    match setup.hosts {
        Hosts::Endpoints => engine::run::<endpoints::Endpoints<'_>>(setup, threads, observer),
        Hosts::Model => engine::run::<model::Model<'_>>(setup, threads, observer),
    }
}

//! A soak test: endpoints and switches in virtual time under every fault, with all decisions from a seed.
//!
//! A seed and the number of cores per host determine hosts, topology, connections of every service, their requests, and the faults. While
//! faults occur, the test looks for wrong bytes, completions twice or out of order, and more bytes in flight than the window. Then
//! the faults stop: everything alive must finish, every buffer must be freed, and every endpoint must become silent.
//!
//! A run that breaks a rule is reduced while it still breaks one. The smallest run is reported with its frames.

mod asking;
mod connection;
mod core_group;
mod ledger;
mod memory;
mod network;
mod plan;
mod reached;
mod repeats;
mod shrink;
mod verdict;
mod windows;
mod world;

pub use reached::Reached;

use plan::Plan;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds that once broke a rule: one per line, followed by what it found. Lines that start with # are comments.
pub const SEEDS: &str = include_str!("../../soak/seeds.txt");

/// A frame as its host sent it, and the fault that it met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Virtual time, ns.
    pub at: u64,
    /// The frame, unchanged.
    pub frame: Vec<u8>,
    /// The fault on its first link; empty if none.
    pub harm: &'static str,
}

/// A failed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The seed.
    pub seed: u64,
    /// The broken rule, and what was observed.
    pub why: String,
    /// The smallest plan that still breaks a rule.
    pub smallest: String,
    /// The frames of that run.
    pub frames: Vec<Captured>,
}

/// Runs one seed on hosts with `cores` cores each, 1 to 16; returns how often each rare path was taken.
///
/// # Errors
/// Returns the broken rule and the smallest failing run that was found.
pub fn run(seed: u64, cores: u8) -> Result<Reached, Box<Broken>> {
    let plan = Plan { cores_per_host: cores, ..Plan::draw(seed) };
    attempt(&plan, false).0.map_err(|why| {
        let (smallest, frames) = shrink::smallest(&plan);
        Box::new(Broken { seed, why, smallest: format!("{smallest:#?}"), frames })
    })
}

/// Runs a plan; a panic counts as a broken rule.
fn attempt(plan: &Plan, capture: bool) -> (Result<Reached, String>, Vec<Captured>) {
    let mut frames = Vec::new();
    let ran = catch_unwind(AssertUnwindSafe(|| world::run(plan, capture.then_some(&mut frames))));
    let outcome = ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into())).unwrap_or_default())
    });
    (outcome, frames)
}

//! A soak test: endpoints and switches in virtual time with all kinds of faults. A seed determines all decisions.
//!
//! A seed and the number of cores per host determine hosts, topology, connections of every service, their requests, and the faults. While
//! faults occur, the test checks for wrong bytes, duplicate or reordered completions, and more bytes in flight than the window. Then the
//! faults stop: all live connections must finish, all buffers must be freed, and all endpoints must become idle.
//!
//! A run that breaks a rule is reduced while the reduced run still breaks one. The report has the smallest run with its frames.

mod connection;
mod core_group;
mod memory;
mod network;
mod plan;
mod program;
mod reached;
mod repeats;
mod requests;
mod shrink;
mod verdict;
mod windows;
mod world;

pub use reached::Reached;

use plan::Plan;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds that broke a rule in the past: one per line, followed by a description. Lines that start with # are comments.
pub const SEEDS: &str = include_str!("../../soak/seeds.txt");

/// A frame as its host sent it, and the fault that affected it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Virtual time, ns.
    pub at: u64,
    /// The frame, unchanged.
    pub frame: Vec<u8>,
    /// Fault on the frame's first link; empty if none.
    pub harm: &'static str,
}

/// A failed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The seed.
    pub seed: u64,
    /// The broken rule, and the observation.
    pub why: String,
    /// The smallest plan that still breaks a rule.
    pub smallest: String,
    /// The frames of the smallest run.
    pub frames: Vec<Captured>,
}

/// Runs one seed on hosts with `cores` cores each, 1 to 16. Returns how often each rare path was taken.
///
/// # Errors
/// Returns the broken rule and the smallest failing run that the search found.
pub fn run(seed: u64, cores: u8) -> Result<Reached, Box<Broken>> {
    let plan = Plan { cores_per_host: cores, ..Plan::draw(seed) };
    attempt(&plan, false).0.map_err(|why| {
        let (smallest, frames) = shrink::smallest(&plan);
        Box::new(Broken { seed, why, smallest: format!("{smallest:#?}"), frames })
    })
}

/// Runs a plan. A panic counts as a broken rule.
fn attempt(plan: &Plan, capture: bool) -> (Result<Reached, String>, Vec<Captured>) {
    let mut frames = Vec::new();
    let ran = catch_unwind(AssertUnwindSafe(|| world::run(plan, capture.then_some(&mut frames))));
    let outcome = ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into())).unwrap_or_default())
    });
    (outcome, frames)
}

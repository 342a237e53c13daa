//! Correctness by seed: the product's endpoints and switches in virtual time, with everything that can go wrong.
//!
//! A seed and the number of cores of each host decide all: hosts, topology, connections of every service, their requests, and the
//! faults. While the faults
//! last, what must never happen is looked for: wrong bytes, completions twice or out of order, more in flight than the
//! window. Then the faults stop, and all that is alive must come to its end, every buffer be given back, and every endpoint fall silent.
//!
//! A run that breaks a rule is made smaller as long as it still breaks one; the smallest is reported with its frames.

mod asking;
mod connection;
mod ledger;
mod memory;
mod network;
mod plan;
mod reached;
mod repeats;
mod shrink;
mod team;
mod verdict;
mod windows;
mod world;

pub use reached::Reached;

use plan::Plan;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The seeds that once broke a rule: one per line, followed by what it found; lines that begin with # are comments.
pub const SEEDS: &str = include_str!("../../soak/seeds.txt");

/// A frame as it left its host, and what the network did to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// When, in ns of virtual time.
    pub at: u64,
    /// The frame, before anything happened to it.
    pub frame: Vec<u8>,
    /// The harm done to it on its first link; empty if none was.
    pub harm: &'static str,
}

/// A seed that broke a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The seed.
    pub seed: u64,
    /// The rule, and what was seen.
    pub why: String,
    /// The smaller run that still fails.
    pub smallest: String,
    /// The frames of that run.
    pub frames: Vec<Captured>,
}

/// Runs one seed on hosts with `cores` cores each, 1 to 16; returns how often each rare path was reached.
///
/// # Errors
/// Returns the rule that was broken, with the smallest run that was found.
pub fn run(seed: u64, cores: u8) -> Result<Reached, Box<Broken>> {
    let plan = Plan { team: cores, ..Plan::draw(seed) };
    attempt(&plan, false).0.map_err(|why| {
        let (smallest, frames) = shrink::smallest(&plan);
        Box::new(Broken { seed, why, smallest: format!("{smallest:#?}"), frames })
    })
}

/// Runs a plan; a panic of the product is a broken rule like any other.
fn attempt(plan: &Plan, capture: bool) -> (Result<Reached, String>, Vec<Captured>) {
    let mut frames = Vec::new();
    let ran = catch_unwind(AssertUnwindSafe(|| world::run(plan, capture.then_some(&mut frames))));
    let outcome = ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into())).unwrap_or_default())
    });
    (outcome, frames)
}

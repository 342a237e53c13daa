//! What tests, benchmarks and fuzz targets of several crates share: two endpoints over virtual time and a link with seeded faults, packet
//! scripts, a model of what any operations may do, and the table of malformed requests.
#![allow(missing_docs, reason = "each is used by tests alone, beside which it is read")]
#![allow(clippy::should_implement_trait, reason = "`next` of a script or of random numbers never ends")]

pub mod congestion_reports;
pub mod harness;
pub mod model;

/// Malformed requests: a table, and what delivers them.
pub mod hostile_requests {
    pub mod datagrams;
    pub mod many_queue_pairs;
    pub mod table;
    pub mod windows;
}

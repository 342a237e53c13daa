//! What tests, benchmarks and fuzz targets of several crates share: two endpoints in virtual time on a link with seeded faults, packet
//! scripts, a model that checks the results of arbitrary operations, and the table of malformed requests.
#![allow(missing_docs, reason = "only tests use these items")]
#![allow(clippy::should_implement_trait, reason = "`next` of a script or of random numbers never ends")]

pub mod congestion_reports;
pub mod harness;
pub mod model;

/// Malformed requests: a table, and the code that delivers them.
pub mod hostile_requests {
    pub mod datagrams;
    pub mod many_queue_pairs;
    pub mod table;
    pub mod windows;
}

//! The kernel's part of HPCC++ on its own TCP (rtgwg-00 7.2): a congestion control that user space leads, and sockets for the probes.
//!
//! The algorithm is `struct tcp_congestion_ops`, built of eBPF programs (`programs`). It is CUBIC, except for a flow that has a valid
//! [`Lease`]: then window and pacing rate are those of the lease. A lease ends by itself, so nothing that happens to this process leaves a
//! flow with an old rate.

mod algorithm;
mod error;
mod probes;
mod programs;

pub use algorithm::{Algorithm, Flow, Lease, MOST_FLOWS};
pub use error::TcpError;
pub use probes::Probes;

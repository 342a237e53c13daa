//! HPCC++ for the kernel's own TCP (rtgwg-00 7.2): a congestion control algorithm that user space controls, and sockets for its probes.
//!
//! The algorithm is a `struct tcp_congestion_ops` of eBPF programs (`programs`). It is CUBIC, except for a flow with a valid [`Lease`],
//! which determines its window and pacing rate. A lease has an expiry time, so a flow never keeps an old rate if this process ends.

mod algorithm;
mod error;
mod probes;
mod programs;

pub use algorithm::{Algorithm, Flow, Lease, MAX_FLOWS};
pub use error::TcpError;
pub use probes::Probes;

//! `librdmacm.so.1`: connection management by the IB CM's messages over queue pair 1, as Linux and hardware speak it.
//!
//! Queue pairs are created and modified by the same calls of libibverbs that a program would use. The state machine is that of the Rust API
//! ([`verbs::cm`]), `world` what it reports to programs, `manager` the thread that receives messages and runs the timers, `id` the
//! program's handles, `socket` streams with the calls of sockets. Calls on an identifier without a channel wait.

mod address;
mod connect;
mod datagram;
mod device;
mod endpoint;
mod errno;
mod events;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod id;
mod incoming;
mod manager;
mod multicast;
mod options;
#[cfg(test)]
mod pairs;
#[cfg(any(test, fuzzing))]
mod placeholder;
mod process;
mod query;
mod queue_pair;
mod resolve;
mod shared;
mod socket;
mod tables;
mod unsupported;
mod world;
mod xrc;

pub use connect::*;
pub use endpoint::*;
pub use events::*;
pub use id::*;
pub use multicast::*;
pub use options::*;
pub use queue_pair::*;
pub use resolve::*;
pub use shared::*;
pub use socket::*;
pub use unsupported::*;

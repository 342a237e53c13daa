//! `librdmacm.so.1`: connection management with the messages of the IB CM over queue pair 1, as Linux and NICs use them.
//!
//! The library creates and modifies queue pairs by the calls of libibverbs that a program would use. The state machine is that of the Rust
//! API ([`verbs::cm`]). `environment` reports its events to programs, and `manager` is the thread that receives messages and runs the
//! timers. `id` has the program's handles, and `socket` has streams and datagrams with the calls of sockets. Calls with an identifier
//! without a channel wait for their events.

mod address;
mod connect;
mod datagram;
mod device;
mod endpoint;
mod environment;
mod errno;
mod events;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod id;
mod incoming;
#[cfg(test)]
mod interop_tests;
mod manager;
mod multicast;
mod options;
mod process;
mod query;
mod queue_pair;
mod resolve;
mod shared;
mod socket;
mod tables;
#[cfg(any(test, fuzzing))]
mod test_environment;
mod unsupported;
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

//! `librdmacm.so.1` for unmodified programs: connection management by the IB CM's messages over queue pair 1, as Linux and
//! hardware speak it.
//!
//! It uses the C interface of this project's `libibverbs.so.1`, which the program has loaded too: queue pairs are created and modified by
//! the same calls that a program would use. `machine` is the state machine of the Rust API, `world` what it reports to programs, `manager` the
//! thread that receives messages and runs the timers, `id` the program's handles, `socket` streams with the calls of sockets. Calls on an
//! identifier without a channel wait.
//!
//! # What every exported function relies on
//! Callers keep the contract of the manual pages: pointers are null or come from the function that creates such objects, and
//! are not used after their destruction. Null is refused with `EINVAL`.
#![warn(clippy::disallowed_methods)]
// Exported functions have the contract of their manual page, said once above.
#![allow(clippy::missing_safety_doc, clippy::not_unsafe_ptr_arg_deref)]

pub mod abi;
mod address;
#[path = "../../c/src/cancel.rs"]
mod cancel;
mod claim;
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
#[path = "../../src/cm/machine/mod.rs"]
mod machine;
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
mod service;
mod shared;
mod siblings;
mod socket;
mod tables;
mod unsupported;
mod world;
mod xrc;

use claim::Claim;
use machine::message;

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

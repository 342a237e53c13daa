//! `librdmacm.so.1` for unmodified programs: connection management by the IB CM's messages over queue pair 1, as Linux and
//! hardware speak it.
//!
//! It uses the C interface of this project's `libibverbs.so.1`, which the program has loaded too: queue pairs are created and modified by
//! the same calls that a program would use. `message` has the messages, `manager` the thread that receives them and repeats those that are
//! not answered, `strangers` the requests of unresolved peers, `id` the program's handles, `socket` streams with the calls of sockets.
//! Calls on an identifier without a channel wait.
//!
//! # What every exported function relies on
//! Callers keep the contract of the manual pages: pointers are null or come from the function that creates such objects, and
//! are not used after their destruction. Null is refused with `EINVAL`.
#![warn(clippy::disallowed_methods)]
// Exported functions have the contract of their manual page, said once above.
#![allow(clippy::missing_safety_doc, clippy::not_unsafe_ptr_arg_deref)]

pub mod abi;
mod address;
mod admit;
#[path = "../../dropin/src/cancel.rs"]
mod cancel;
mod connect;
mod datagram;
mod device;
mod early;
mod endpoint;
mod errno;
mod events;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod id;
mod manager;
#[path = "../../src/cm/machine/message/mod.rs"]
mod message;
mod multicast;
mod options;
#[cfg(any(test, fuzzing))]
mod pretend;
mod process;
mod query;
mod queue_pair;
mod resolve;
mod service;
mod shared;
mod siblings;
mod socket;
#[path = "../../src/cm/machine/unresolved.rs"]
mod strangers;
mod tables;
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

//! `libibverbs.so.1` for unmodified programs, on Ferroce's verbs.
//!
//! The C interface is a thin layer: each file has one family of verbs, turns C's arguments into those of
//! [`ferroce_verbs`](verbs), and errors into rdma-core's `errno` values. Structures are those of the installed headers
//! ([`abi`]). `scripts/build` builds the shared library.
//!
//! # What every exported function relies on
//! Callers keep the contract of the manual pages: pointers are null or come from the function that creates such objects, and
//! are not used after their destruction; arrays are as long as the caller says. Null is refused with `EINVAL`.
#![warn(clippy::disallowed_methods)]
// Exported functions have the contract of their manual page, said once above.
#![allow(clippy::missing_safety_doc, clippy::not_unsafe_ptr_arg_deref)]

pub mod abi;
mod address;
mod cancel;
mod channel;
mod completion;
mod completion_ex;
mod congestion;
mod context;
mod device;
mod device_memory;
mod domain;
mod errno;
mod event;
mod failure;
mod flow;
mod live;
mod lock;
mod log;
mod management;
mod modify;
mod multicast;
mod names;
mod on_demand;
mod parent;
mod post;
mod post_ex;
mod private;
mod query;
mod queue_pair;
mod region;
mod reserve;
mod siblings;
mod srq;
mod sysfs;
mod transitions;
mod unsupported;
mod window;
mod work_queue;
mod xrc;

pub use address::*;
pub use channel::*;
pub use completion::*;
pub use congestion::*;
pub use device::*;
pub use domain::*;
pub use event::*;
pub use failure::*;
pub use management::*;
pub use modify::*;
pub use names::*;
pub use private::*;
pub use query::*;
pub use queue_pair::*;
pub use region::*;
pub use siblings::*;
pub use srq::*;
pub use unsupported::*;

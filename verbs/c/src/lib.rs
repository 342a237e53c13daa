//! C interfaces for unmodified programs, implemented with Ferroce's verbs: `ibverbs` has the functions of `libibverbs.so.1`, `rdmacm` those
//! of `librdmacm.so.1`.
//!
//! Structures are those of the installed headers ([`abi`]). `scripts/build` builds the shared libraries: `libibverbs.so.1` contains this
//! whole crate, and `librdmacm.so.1` only jumps to it.
//!
//! # Contract of all exported functions
//! Callers obey the contract of the manual pages: pointers are null or were returned by the function that creates such objects, and are not
//! used after their destruction; arrays have the length that the caller passes. Null is refused with `EINVAL`.
#![warn(clippy::disallowed_methods)]
// Exported functions have the contract of their manual page, as stated above.
#![allow(clippy::missing_safety_doc, clippy::not_unsafe_ptr_arg_deref)]

pub mod abi;
mod cancel;
mod errno;
mod ibverbs;
mod memory_reserve;
mod rdmacm;

pub use ibverbs::*;
pub use rdmacm::*;

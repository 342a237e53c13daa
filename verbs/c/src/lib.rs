//! The C interface: `libibverbs.so.1` for unmodified programs, on Ferroce's verbs.
//!
//! It is a thin layer: [`ibverbs`] turns C's arguments into those of [`ferroce_verbs`](verbs). Structures are those of the installed headers
//! ([`abi`]). `scripts/build` builds the shared library.
//!
//! # What every exported function relies on
//! Callers keep the contract of the manual pages: pointers are null or come from the function that creates such objects, and
//! are not used after their destruction; arrays are as long as the caller says. Null is refused with `EINVAL`.
#![warn(clippy::disallowed_methods)]
// Exported functions have the contract of their manual page, said once above.
#![allow(clippy::missing_safety_doc, clippy::not_unsafe_ptr_arg_deref)]

pub mod abi;
mod cancel;
mod errno;
pub mod ibverbs;
mod reserve;

pub use ibverbs::*;

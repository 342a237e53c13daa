//! DPDK 22.11's C interface, bound at build time from the installed headers.
//!
//! Only what Ferroce calls is bound (the lists are in `build.rs`). Functions that DPDK defines inline in its headers
//! come as `ferroce_*` from a small C shim. Drivers aren't linked: DPDK's shared build loads them at start from
//! [`DRIVER_DIR`]. `net_ring` is the exception, because a call creates its ports.
//!
//! Nothing here is safe by itself; `ferroce-datapath` wraps it.

mod bindings {
    #![allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code)]
    #![allow(unsafe_op_in_unsafe_fn, clippy::all, clippy::undocumented_unsafe_blocks, clippy::too_many_lines)]
    include!(concat!(env!("OUT_DIR"), "/dpdk.rs"));
}

pub use bindings::*;

/// The folder of the drivers that the installed DPDK loads at start.
pub const DRIVER_DIR: &str = env!("DPDK_DRIVER_DIR");

//! Bindings of DPDK 22.11's C interface, generated at build time from the installed headers.
//!
//! Only what Ferroce calls is bound; `build.rs` has the lists. Functions that are inline in DPDK's headers are bound through a small C
//! shim, as `ferroce_*`. Drivers are not linked: DPDK loads them at start from [`DRIVER_DIR`]. The exception is `net_ring`, whose ports are
//! created by a function. A build with `FERROCE_DPDK=static` links all of DPDK, see [`LINKED_DRIVERS`].
//!
//! `ferroce-datapath` provides a safe interface.

mod bindings {
    #![allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code)]
    #![allow(unsafe_op_in_unsafe_fn, clippy::all, clippy::undocumented_unsafe_blocks, clippy::too_many_lines)]
    include!(concat!(env!("OUT_DIR"), "/dpdk.rs"));
}

pub use bindings::*;

/// The directory from which the installed DPDK loads its drivers.
pub const DRIVER_DIR: &str = env!("DPDK_DRIVER_DIR");

/// The Ethernet drivers that this build contains, separated by commas, such as `memif,tap`; `None` if DPDK loads them from [`DRIVER_DIR`].
pub const LINKED_DRIVERS: Option<&str> = option_env!("DPDK_LINKED_DRIVERS");

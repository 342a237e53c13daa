//! Unsupported verbs. Each fails as rdma-core does for a device without the feature. `tests/symbols.rs` lists them.

use crate::abi::*;
use crate::errno::{self, UNSUPPORTED};
use std::ffi::{c_int, c_void};

/// Defines verbs that return an error number.
macro_rules! refuse {
    ($($(#[$doc:meta])* $name:ident)*) => { $(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            errno::set(UNSUPPORTED);
            UNSUPPORTED.0
        }
    )* };
}

/// Defines verbs that return an object.
macro_rules! none {
    ($($(#[$doc:meta])* $name:ident)*) => { $(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> *mut c_void {
            errno::set(UNSUPPORTED);
            std::ptr::null_mut()
        }
    )* };
}

refuse! {
    /// Unsupported: enhanced connection establishment, which negotiates options of vendors.
    ibv_set_ece
    /// Unsupported: enhanced connection establishment, which negotiates options of vendors.
    ibv_query_ece
    /// Unsupported and not needed, because the transition to RTR resolves the Ethernet address.
    ibv_resolve_eth_l2_from_gid
    /// Unsupported: conversion of structures of the kernel's interface.
    ibv_copy_ah_attr_from_kern
    /// Unsupported: conversion of structures of the kernel's interface.
    ibv_copy_path_rec_from_kern
    /// Unsupported: conversion of structures of the kernel's interface.
    ibv_copy_path_rec_to_kern
    /// Unsupported: conversion of structures of the kernel's interface.
    ibv_copy_qp_attr_from_kern
}

none! {
    /// Unsupported: regions of the memory of other devices.
    ibv_reg_dmabuf_mr
    /// Unsupported: objects of other processes.
    ibv_import_device
    /// Unsupported: objects of other processes.
    ibv_import_pd
    /// Unsupported: objects of other processes.
    ibv_import_mr
    /// Unsupported: objects of other processes.
    ibv_import_dm
}

/// Does nothing, because no object can be imported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

/// Does nothing, because no object can be imported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

/// Does nothing, because no object can be imported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_dm(_dm: *mut ibv_dm) {}

/// Returns 0 without effect: no memory is pinned, so fork(2) copies it as usual.
///
/// A forked child inherits an open device's memory, but neither its threads nor its network. In the child, verbs that need the core fail,
/// no completions arrive, and closing the device does not affect the parent's. Before `fork` returns in the child, the library closes the
/// child's copies of three kinds of descriptors: the device's packet socket, the sockets that reserve RoCEv2's ports, and the program at
/// the interface's ingress. The child shares the C program's descriptors (completion and event channels). It cannot open a device if the
/// parent opened one before the fork: open the first device after the fork, or execute another program.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Returns that fork(2) needs no preparation, because no memory is pinned.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

/// Returns 0 without effect, because no memory is pinned.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Returns 0 without effect, because no memory is pinned.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

unsafe extern "C" fn none() -> *mut c_void {
    errno::set(UNSUPPORTED);
    std::ptr::null_mut()
}

/// Returns the table of functions. Every slot returns an error, because programs call them without checking for null.
pub(crate) fn table() -> ibv_context_ops {
    ibv_context_ops {
        _compat_alloc_pd: Some(none),
        _compat_dealloc_pd: Some(none),
        _compat_reg_mr: Some(none),
        _compat_rereg_mr: Some(none),
        _compat_dereg_mr: Some(none),
        _compat_create_cq: Some(none),
        _compat_cq_event: Some(none),
        _compat_resize_cq: Some(none),
        _compat_destroy_cq: Some(none),
        _compat_create_srq: Some(none),
        _compat_modify_srq: Some(none),
        _compat_query_srq: Some(none),
        _compat_destroy_srq: Some(none),
        _compat_create_qp: Some(none),
        _compat_query_qp: Some(none),
        _compat_modify_qp: Some(none),
        _compat_destroy_qp: Some(none),
        _compat_create_ah: Some(none),
        _compat_destroy_ah: Some(none),
        _compat_attach_mcast: Some(none),
        _compat_detach_mcast: Some(none),
        _compat_async_event: Some(none),
        ..Default::default()
    }
}

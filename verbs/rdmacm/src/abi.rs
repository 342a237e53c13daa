//! The structures of `rdma/rdma_cma.h`, as its compiler lays them out, and the functions of libibverbs used here.
#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unused)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, unnecessary_transmutes)]

include!(concat!(env!("OUT_DIR"), "/rdma.rs"));

/// Only tests are linked here; programs bring their libibverbs.
#[link(name = "ibverbs")]
unsafe extern "C" {}

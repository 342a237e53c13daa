//! The structures of `infiniband/verbs.h` and `rdma/rdma_cma.h`, with the layout of the installed headers.
#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unused)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, unnecessary_transmutes)]

include!(concat!(env!("OUT_DIR"), "/abi.rs"));

//! Threads that call librdmacm in any order. The calls are those of `verbs/rdmacm/tests/stress.c`, which is the target.
#![no_main]

// They are linked, and called from C.
use {dropin as _, libfuzzer_sys as _, rdmacm as _};

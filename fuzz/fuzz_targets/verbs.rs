//! Threads that call the verbs of the C library in any order, as written in `verbs/c/tests/stress.c`.
#![no_main]

// Linked, and called from C.
use {c as _, libfuzzer_sys as _};

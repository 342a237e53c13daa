//! Threads that call the verbs of the C library in any order. The calls are those of `verbs/c/tests/stress.c`, which is the target.
#![no_main]

// They are linked, and called from C.
use {c as _, libfuzzer_sys as _};

//! Threads that call librdmacm in any order. The calls are those of `verbs/c/tests/cm_stress.c`, which is the target.
#![no_main]

// They are linked, and called from C.
use {c as _, libfuzzer_sys as _};

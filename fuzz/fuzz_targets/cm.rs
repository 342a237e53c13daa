//! Threads that call librdmacm in any order, as written in `verbs/c/tests/cm_stress.c`.
#![no_main]

// Linked, and called from C.
use {c as _, libfuzzer_sys as _};

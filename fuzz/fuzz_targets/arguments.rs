//! Threads that call the verbs of the C library with any arguments, as written in `verbs/c/tests/argument_stress.c`.
#![no_main]

// Linked, and called from C.
use {c as _, libfuzzer_sys as _};

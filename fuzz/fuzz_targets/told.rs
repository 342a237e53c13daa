//! A queue pair with any congestion control algorithm that receives any telemetry reports, as in the property test.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../roce/tests/harness/mod.rs"]
mod harness;
#[path = "../../roce/tests/told/mod.rs"]
mod told;

fuzz_target!(|bytes: &[u8]| told::run(bytes));

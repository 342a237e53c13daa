//! A queue pair of any algorithm that receives any reports about the network: the property test's run, with coverage to lead the way.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../roce/tests/harness/mod.rs"]
mod harness;
#[path = "../../roce/tests/told/mod.rs"]
mod told;

fuzz_target!(|bytes: &[u8]| told::run(bytes));

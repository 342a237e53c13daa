//! A queue pair with any congestion control algorithm that receives any telemetry reports, as in the property test.
#![no_main]

use libfuzzer_sys::fuzz_target;

use testkit::congestion_reports;

fuzz_target!(|bytes: &[u8]| congestion_reports::run(bytes));

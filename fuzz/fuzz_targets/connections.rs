//! The connection manager of a server, whose peers send any messages in any order.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| c::fuzz::run(bytes));

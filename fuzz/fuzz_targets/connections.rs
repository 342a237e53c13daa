//! The connection manager: a server before peers that say anything in any order.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| c::fuzz::run(bytes));

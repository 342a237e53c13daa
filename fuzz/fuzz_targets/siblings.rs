//! A process of the same interface that sends any message, and writes anything into the memory that it shares.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| datapath::siblings::fuzz::run(bytes).expect("descriptors and memory are left"));

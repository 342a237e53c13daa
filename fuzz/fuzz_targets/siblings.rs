//! A process on the same interface that sends any messages, and writes anything to the shared memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| datapath::siblings::fuzz::run(bytes).expect("descriptors and memory are left"));

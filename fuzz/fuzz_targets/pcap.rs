//! Reads a capture file with any contents.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../apps/src/pcap/reader/mod.rs"]
#[allow(dead_code, reason = "the tool uses all of it")]
mod reader;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = reader::Reader::new(bytes) else { return };
    while let Ok(Some(packet)) = reader.next() {
        assert!(packet.is_cut || packet.bytes.len() <= bytes.len() + 14);
    }
});

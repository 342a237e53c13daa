//! A switch changes only what it may.
#![no_main]

use libfuzzer_sys::fuzz_target;
use roce::wire::telemetry::{HopRecord, Speed, stamp};
use roce::wire::{self, Header};

#[path = "../../roce/tests/harness/mod.rs"]
mod harness;

fuzz_target!(|bytes: &[u8]| {
    let sealed = harness::raw::Raw::around(bytes).map(|raw| raw.frame(roce::Qpn::new(5)));
    let bytes = sealed.as_deref().unwrap_or(bytes);
    let mut frame = bytes.to_vec();
    let record = HopRecord::new(Speed::from_code(9).expect("1 Gb/s"), 1, 2, 3);
    let intact = wire::verify(bytes);
    if stamp(&mut frame, 0x123, record) {
        assert_eq!(wire::verify(&frame), intact);
        if let Ok(Header::TelemetryRequest { int, .. }) = wire::parse(&frame).map(|frame| frame.header) {
            assert!(int.hops() > 0);
        }
    } else {
        assert_eq!(frame, bytes);
    }
    wire::mark_ce(&mut frame);
});

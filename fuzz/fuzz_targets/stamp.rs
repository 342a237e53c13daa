//! Checks that a switch that stamps a frame leaves its ICRC as valid or invalid as before, and does not change a frame without a telemetry
//! request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use roce::wire::format::{PortState, Request};
use roce::wire::telemetry::{HopRecord, Speed, stamp};
use roce::wire::{self, Header};

use testkit::harness;

fuzz_target!(|bytes: &[u8]| {
    let sealed = harness::raw::Raw::around(bytes).map(|raw| raw.frame(roce::Qpn::new(5)));
    let bytes = sealed.as_deref().unwrap_or(bytes);
    any_format(bytes);
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

/// Checks that stamping a frame in any telemetry format leaves its ICRC as valid or invalid as before.
fn any_format(bytes: &[u8]) {
    let Some(request) = Request::find(bytes, wire::Numbers::DEFAULT) else { return };
    let port = PortState {
        switch: 0x123,
        port: 1,
        rate: cc::Rate::from_gbps(10),
        time: 5_000_000_001,
        tx_bytes: 77,
        queue: 1600,
        sojourn: 99,
        load: Default::default(),
    };
    let mut frame = bytes.to_vec();
    frame.resize(bytes.len() + request.growth(), 0);
    let length = request.stamp(&mut frame, bytes.len(), &port).unwrap_or(bytes.len());
    assert_eq!(wire::verify(&frame[..length]), wire::verify(bytes));
}

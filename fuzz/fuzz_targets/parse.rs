//! What parses with any checksums can be emitted; what is emitted parses to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use roce::wire;

#[path = "../../roce/tests/harness/mod.rs"]
mod harness;

fuzz_target!(|bytes: &[u8]| {
    // A good frame's headers around half of all inputs, or few would get as far as the BTH.
    let sealed = harness::raw::Raw::around(bytes).map(|raw| raw.frame(roce::Qpn::new(5)));
    let bytes = sealed.as_deref().unwrap_or(bytes);
    let _ = wire::parse(bytes);
    let Ok(frame) = wire::parse_unverified(bytes) else { return };
    // What is emitted has room for a fixed number of hops, and none of them is there yet.
    // Nor are there options of no telemetry.
    let has_options = frame.network.len() == 40 && frame.network[6] != 17;
    if frame.in_band.is_some() || frame.carried.is_some() || has_options {
        return;
    }
    let mut again = vec![0; wire::MAX_OVERHEAD + wire::MAX_PAYLOAD];
    let mut draft =
        wire::emit(&frame.path, frame.identification, &frame.header, frame.payload.len(), &mut again)
            .expect("what was parsed can be emitted");
    draft.payload().copy_from_slice(frame.payload);
    let length = draft.seal();
    assert_eq!(wire::parse(&again[..length]), Ok(frame));
});

//! Checks that a frame that parses, whatever its checksums, can be emitted, and that the emitted frame parses to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use roce::wire;

use testkit::harness;

fuzz_target!(|bytes: &[u8]| {
    // Wraps half of all inputs in valid headers, because few others would reach the BTH.
    let sealed = harness::raw::Raw::around(bytes).map(|raw| raw.frame(roce::Qpn::new(5)));
    let bytes = sealed.as_deref().unwrap_or(bytes);
    let _ = wire::parse(bytes);
    let Ok(frame) = wire::parse_unverified(bytes) else { return };
    // Skips frames that `emit` cannot reproduce: it writes telemetry headers without records and with room for a fixed number of hops, and
    // no IPv6 extension header without telemetry.
    let network = frame.network;
    let has_options = network.ip_header().len() == 40 && network.ip_header()[6] != 17;
    if frame.in_band.is_some() || network.telemetry().is_some() || has_options {
        return;
    }
    let mut again = vec![0; wire::MAX_OVERHEAD + wire::MAX_PAYLOAD];
    let (path, identification) = (network.path(), network.identification());
    let mut draft = wire::emit(&path, identification, &frame.header, frame.payload.len(), &mut again)
        .expect("what was parsed can be emitted");
    draft.payload().copy_from_slice(frame.payload);
    let length = draft.seal();
    let emitted = wire::parse(&again[..length]).expect("what was emitted is good");
    assert_eq!((emitted.network.path(), emitted.network.identification()), (path, identification));
    assert_eq!((emitted.header, emitted.in_band, emitted.payload), (frame.header, None, frame.payload));
});

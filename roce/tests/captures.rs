//! The codec against packets of Linux Soft-RoCE and of a raw-socket peer that probed it.

use crate::harness::capture::frames;
use ferroce_roce::Discard;
use ferroce_roce::wire::{self, Frame, Header, NakCode, Operation, Service, Syndrome};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns all captures of the folder `FERROCE_CAPTURES`, or those of the repository.
fn captures() -> Vec<(String, Vec<Vec<u8>>)> {
    let ours = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let folder = std::env::var_os("FERROCE_CAPTURES").map_or_else(ours, PathBuf::from);
    let entries = fs::read_dir(&folder).expect("the folder of captures");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "pcap"));
    files.sort();
    let name = |file: &Path| file.file_stem().expect("a name").to_string_lossy().into_owned();
    files.iter().map(|file| (name(file), frames(file))).collect()
}

fn emitted(frame: &Frame<'_>, room: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; room];
    let mut draft = wire::emit(
        &frame.network.path(),
        frame.network.identification(),
        &frame.header,
        frame.payload.len(),
        &mut bytes,
    )
    .expect("what was parsed can be emitted");
    draft.payload().copy_from_slice(frame.payload);
    let length = draft.seal();
    bytes.truncate(length);
    bytes
}

/// The prober sent this frame with transport version 1, to check that it is not answered.
const REFUSED: (&str, usize, Discard) = ("probe_rxe_k61", 98, Discard::TransportVersion);

/// IBA 9.2, 9.3.2, 9.3.3, 9.3.4, A17: headers as another implementation writes them.
#[test]
fn every_frame_parses_and_is_emitted_byte_for_byte() {
    let captures = captures();
    assert_eq!(captures.len(), 20);
    let mut refused = Vec::new();
    for (name, frames) in &captures {
        for (number, bytes) in frames.iter().enumerate() {
            match wire::parse(bytes) {
                Ok(frame) => assert_eq!(emitted(&frame, bytes.len()), *bytes, "{name} frame {number}"),
                Err(reason) => refused.push((name.as_str(), number, reason)),
            }
        }
    }
    assert_eq!(refused, [REFUSED]);
}

#[test]
fn a_flipped_byte_is_refused_wherever_it_is() {
    for (name, frames) in &captures() {
        for (number, bytes) in frames.iter().enumerate().take(12) {
            let transport = if bytes[12] == 0x08 { 14 + 28 } else { 14 + 48 };
            for at in (transport..bytes.len()).filter(|&at| at != transport + 4) {
                let mut flipped = bytes.clone();
                flipped[at] ^= 0x10;
                assert_eq!(wire::parse(&flipped), Err(Discard::Icrc), "{name} frame {number} byte {at}");
            }
        }
    }
}

/// Returns service, operation and PSN of the frames of one capture.
fn connected(wanted: &str) -> Vec<(Service, Operation, u32)> {
    let (_, frames) =
        captures().into_iter().find(|(name, _)| name == wanted).expect("a capture of that name");
    let read = |bytes: &Vec<u8>| match wire::parse(bytes).expect("a good packet").header {
        Header::Connected { service, bth, operation } => (service, operation, bth.psn.get()),
        other => panic!("{other:?}"),
    };
    frames.iter().map(read).collect()
}

/// Soft-RoCE executes requests with a window's key, invalidates the window on request, and then refuses the key. It acknowledges a SEND
/// with invalidate of a wrong key, but does not count it.
#[test]
fn a_window_is_used_and_taken_back() {
    use wire::SendTail::Invalidate;
    let frames = connected("rc_windows");
    let operations: Vec<_> = frames.iter().map(|(_, operation, _)| *operation).collect();
    let Operation::WriteOnly(lent, None) = operations[0] else { panic!("{:?}", operations[0]) };
    assert_eq!(operations[2], Operation::SendOnly(Invalidate(lent.rkey)));
    let ack = |msn| Operation::Acknowledge(wire::Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn });
    assert_eq!([operations[1], operations[3]], [ack(1), ack(2)]);
    let nak = Syndrome::Nak(NakCode::RemoteAccessError);
    assert_eq!(operations[7], Operation::Acknowledge(wire::Aeth { syndrome: nak, msn: 3 }));
    assert!(matches!(operations[8], Operation::SendOnly(Invalidate(_))));
    assert_eq!(operations[9], ack(0));
    assert!(matches!(operations[10], Operation::SendOnly(Invalidate(_))), "one of its own");
}

/// IBA 9.3.5.
#[test]
fn an_atomic_has_a_request_and_a_response() {
    let frames = connected("rc_fetch_add");
    let (_, Operation::FetchAdd(eth), asked) = frames[0] else { panic!("{:?}", frames[0]) };
    let (_, Operation::AtomicAcknowledge { aeth, .. }, answered) = frames[2] else {
        panic!("{:?}", frames[2])
    };
    assert_eq!((eth.operands.add, aeth.msn), (1, 1));
    assert_eq!(aeth.syndrome, Syndrome::Ack { credits: Syndrome::NO_CREDITS });
    assert_eq!((asked, answered), (11_592_641, 11_592_641));
}

#[test]
fn a_gap_draws_a_nak() {
    let naks = |(_, operation, psn): &(Service, Operation, u32)| match operation {
        Operation::Acknowledge(aeth) if aeth.syndrome == Syndrome::Nak(NakCode::PsnSequenceError) => {
            Some(*psn)
        }
        _ => None,
    };
    assert_eq!(connected("rc_write_loss").iter().find_map(naks), Some(264_706));
}

#[test]
fn an_unreliable_connection_has_its_own_opcodes() {
    let first: Vec<_> = connected("uc_send_3k").into_iter().take(2).collect();
    let expected =
        [(Service::Uc, Operation::SendFirst, 13_265_345), (Service::Uc, Operation::SendMiddle, 13_265_346)];
    assert_eq!(first, expected);
}

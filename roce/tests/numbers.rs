//! INT's UDP port and AECN's option type are the network's to choose. They are a process's, so this test has one of its own.

use roce::wire::format::{Numbers, NumbersError};
use roce::wire::{Bth, Format, Header, Mac, Operation, Path, Service, emit, parse};
use roce::{Discard, Psn, Qpn};

fn packet(format: Format) -> Vec<u8> {
    let address = |last: u8| core::net::IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    let path = Path::new((Mac([2, 0, 0, 0, 0, 1]), address(1)), (Mac([2, 0, 0, 0, 0, 2]), address(2)));
    let bth = Bth::new(Qpn::new(7), Psn::new(1));
    let header = Header::Connected { service: Service::Rc, bth, operation: Operation::WriteMiddle };
    let (mut frame, gap) = (vec![0; 600], format.inserted());
    let length = emit(&path, 0, &header, 100, &mut frame[gap..]).unwrap().seal();
    let whole = format.insert(&mut frame, length).unwrap();
    frame.truncate(whole);
    frame
}

#[test]
fn what_is_chosen_is_sent_and_understood_and_the_other_is_not() {
    let [int_md, aecn] = [Format::IntMd, Format::Aecn].map(packet);
    assert_eq!((&int_md[56..58], aecn[56]), (&1021_u16.to_be_bytes()[..], 0x3e));
    let is_carried = |frame: &[u8]| parse(frame).map(|frame| frame.carried.is_some());
    assert_eq!((is_carried(&int_md), is_carried(&aecn)), (Ok(true), Ok(true)));

    Numbers::new(5000, 0x3f).unwrap().apply();
    assert_eq!(is_carried(&int_md), Err(Discard::NotRoce), "another port is somebody else's");
    assert_eq!(is_carried(&aecn), Ok(false), "an unknown option is skipped");
    let [int_md, aecn] = [Format::IntMd, Format::Aecn].map(packet);
    assert_eq!((&int_md[56..58], aecn[56]), (&5000_u16.to_be_bytes()[..], 0x3f));
    assert_eq!((is_carried(&int_md), is_carried(&aecn)), (Ok(true), Ok(true)));

    for port in [0, 4791] {
        assert_eq!(Numbers::new(port, 0x3e), Err(NumbersError::IntPort(port)));
    }
    // Not skipped, not to change on the way, padding, IOAM's.
    for option in [0x7e, 0x1e, 0x01, 0x31] {
        assert_eq!(Numbers::new(1021, option), Err(NumbersError::AecnOption(option)));
    }
}

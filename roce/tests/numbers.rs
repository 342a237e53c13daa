//! INT's UDP port and AECN's option type are chosen for each network, and two devices of one process may be in different networks.

use cc::Instant;
use roce::wire::format::{Numbers, NumbersError, PortState, Request, aecn::Load};
use roce::wire::{Bth, Format, Header, Mac, Operation, Path, Service, emit, parse};
use roce::{Discard, Endpoint, EndpointConfig, Psn, Qpn};

fn packet(format: Format, numbers: Numbers) -> Vec<u8> {
    let address = |last: u8| core::net::IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    let path = Path::new((Mac([2, 0, 0, 0, 0, 1]), address(1)), (Mac([2, 0, 0, 0, 0, 2]), address(2)));
    let bth = Bth::new(Qpn::new(7), Psn::new(1));
    let header = Header::Connected { service: Service::Rc, bth, operation: Operation::WriteMiddle };
    let (mut frame, gap) = (vec![0; 600], format.inserted());
    let length = emit(&path, 0, &header, 100, &mut frame[gap..]).unwrap().seal();
    let whole = format.insert(&mut frame, length, numbers).unwrap();
    frame.truncate(whole);
    frame
}

fn other() -> Numbers {
    Numbers::new(5000, 0x3f).unwrap()
}

#[test]
fn configured_numbers_are_sent_and_accepted_and_others_are_not() {
    for (numbers, port, option, stranger) in
        [(Numbers::DEFAULT, 1021_u16, 0x3e, other()), (other(), 5000, 0x3f, Numbers::DEFAULT)]
    {
        let [int_md, aecn] = [Format::IntMd, Format::Aecn].map(|format| packet(format, numbers));
        assert_eq!((&int_md[56..58], aecn[56]), (&port.to_be_bytes()[..], option));
        let is_carried = |frame: &[u8], numbers: Numbers| {
            numbers.parse(frame).map(|frame| frame.network.telemetry().is_some())
        };
        assert_eq!((is_carried(&int_md, numbers), is_carried(&aecn, numbers)), (Ok(true), Ok(true)));
        assert_eq!(is_carried(&int_md, stranger), Err(Discard::NotRoce), "another port is not that of INT");
        assert_eq!(is_carried(&aecn, stranger), Ok(false), "an unknown option is skipped");
    }
    assert_eq!(parse(&packet(Format::IntMd, other())), Err(Discard::NotRoce));
}

#[test]
fn two_endpoints_and_two_switches_differ() {
    let endpoint = |numbers| {
        Endpoint::new(EndpointConfig {
            max_qps: 1,
            max_cqs: 1,
            max_regions: 1,
            seed: [1; 32],
            process: 0,
            numbers,
        })
    };
    let mut endpoints = [Numbers::DEFAULT, other()].map(endpoint);
    let mut ram = crate::harness::Ram(Vec::new());
    for (network, numbers) in [Numbers::DEFAULT, other()].into_iter().enumerate() {
        let frame = packet(Format::IntMd, numbers);
        for (at, endpoint) in endpoints.iter_mut().enumerate() {
            // The packet is recognised, but its queue pair does not exist.
            let taken = if at == network { Discard::UnknownQp } else { Discard::NotRoce };
            assert_eq!(endpoint.on_frame(Instant::ZERO, &mut ram, &frame), Err(taken));
        }
        for switch in [Numbers::DEFAULT, other()] {
            let mut frame = [&frame[..], &[0; 64]].concat();
            let length = frame.len() - 64;
            let state = PortState {
                switch: 1,
                port: 1,
                rate: cc::Rate::from_gbps(10),
                time: 1,
                tx_bytes: 2,
                queue: 3,
                sojourn: 4,
                load: Load::default(),
            };
            let stamped = Request::find(&frame[..length], switch)
                .and_then(|request| request.stamp(&mut frame, length, &state));
            assert_eq!(stamped.is_some(), switch == numbers);
        }
    }
}

#[test]
fn ports_and_option_types_with_another_meaning_are_refused() {
    for port in [0, 4791] {
        assert_eq!(Numbers::new(port, 0x3e), Err(NumbersError::IntPort(port)));
    }
    // Not skippable, immutable in transit, padding, and the type of IOAM.
    for option in [0x7e, 0x1e, 0x01, 0x31] {
        assert_eq!(Numbers::new(1021, option), Err(NumbersError::AecnOption(option)));
    }
}

//! Direct responses: during congestion, a subscribed sender receives one per interval, with the PSN of the packet that triggered it.

use crate::script::{Script, at, byte_a_microsecond, station};
use ferroce_fabric::{Direct, PortConfig};
use roce::qp::FeedbackKey;
use roce::wire::telemetry::{HopRecord, Speed, stamp};
use roce::wire::{
    Bth, Feedback, Header, MAX_FEEDBACK, Mac, Numbers, Operation, Path, Report, SUBSCRIPTION_LENGTH, Service,
    Subscription, emit, parse,
};
use roce::{Psn, Qpn};
use std::net::IpAddr;
use std::time::Duration;

/// Returns packet `psn` of a WRITE, with 1000 bytes.
fn data(sender: u32, psn: u32, subscribes: bool, v6: bool) -> Vec<u8> {
    let address = |last: u8| match v6 {
        true => IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
        false => IpAddr::from([10, 0, 0, last]),
    };
    let path = Path::new((Mac(station(0)), address(1)), (Mac(station(1)), address(2)));
    let bth = Bth::new(Qpn::new(7), Psn::new(psn));
    let header = Header::Connected { service: Service::Rc, bth, operation: Operation::WriteMiddle };
    let mut bytes = vec![0; 1200];
    let gap = if subscribes { SUBSCRIPTION_LENGTH } else { 0 };
    let mut draft = emit(&path, 0, &header, 1000, &mut bytes[gap..]).unwrap();
    draft.payload().fill(psn as u8);
    let mut length = draft.seal();
    if subscribes {
        length = Subscription::insert(&mut bytes, length, Qpn::new(sender)).unwrap();
    }
    bytes.truncate(length);
    bytes
}

fn direct() -> Script {
    let direct = Some(Direct::new(5_000, Duration::from_millis(50)));
    let port = PortConfig { direct, load_period: Duration::from_millis(10), ..byte_a_microsecond() };
    Script::new(&[PortConfig::default(), port])
}

/// Returns destination QP, PSN and utilisation of each response that leaves towards the senders.
fn responses(script: &mut Script, micros: u64) -> Vec<(u32, u32, f64)> {
    let left = script.leaving(at(micros), 0);
    let read = |bytes: &Vec<u8>| {
        let frame = parse(bytes).expect("checksums and all");
        let (header, path) = (frame.header, frame.network.path());
        assert_eq!((path.source_mac, path.destination_mac), (Mac(station(1)), Mac(station(0))));
        let Header::DirectResponse { bth, feedback: Feedback { report, seal: None } } = header else {
            panic!("{header:?}")
        };
        let Report::Ratio { utilisation, interval: 10_000_000, .. } = report else { panic!("{report:?}") };
        (bth.destination.get(), bth.psn.get(), f64::from(utilisation) / f64::from(1 << 20))
    };
    left.iter().map(read).collect()
}

#[test]
fn congestion_is_reported_once_an_interval_with_the_packets_psn() {
    for v6 in [false, true] {
        let mut script = direct();
        for psn in 0..12 {
            script.send(at(100_000), 0, &data(0x1234, psn, true, v6));
        }
        let told = responses(&mut script, 100_000);
        let [(qpn, psn, share)] = told[..] else { panic!("{told:?}") };
        // The first packet is in transmission. The seventh finds more than 5000 bytes queued, half of what the link carries in 10 ms.
        assert_eq!((qpn, psn), (7, 6), "the packet's own destination: the switch knows no other");
        assert!((0.5..0.7).contains(&share), "{share}");
        script.send(at(101_000), 0, &data(0x1234, 12, true, v6));
        script.send(at(101_000), 0, &data(0x77, 3, true, v6));
        assert_eq!(responses(&mut script, 101_000).iter().map(|told| told.1).collect::<Vec<_>>(), [3]);
        for psn in 13..60 {
            script.send(at(150_000), 0, &data(0x1234, psn, true, v6));
        }
        assert_eq!(responses(&mut script, 150_000).len(), 1, "the timer has run out");
        assert_eq!(script.switch.report(at(150_000)).ports[1].counters.direct_responses, 3);
    }
}

#[test]
fn no_response_is_sent_without_a_subscription_or_congestion() {
    let mut script = direct();
    for psn in 0..20 {
        script.send(at(0), 0, &data(0x1234, psn, false, false));
    }
    assert_eq!(responses(&mut script, 0), []);
    let mut script = direct();
    for psn in 0..5 {
        script.send(at(0), 0, &data(0x1234, psn, true, false));
    }
    assert_eq!(responses(&mut script, 0), []);
}

#[test]
fn a_subscription_is_outside_the_icrc_and_no_switch_writes_into_it() {
    let (plain, mut subscribed) = (data(9, 1, false, true), data(9, 1, true, true));
    assert_eq!(subscribed.len(), plain.len() + SUBSCRIPTION_LENGTH);
    assert_eq!(subscribed[subscribed.len() - 4..], plain[plain.len() - 4..]);
    let record = HopRecord::new(Speed::from_code(2).unwrap(), 1, 2, 3);
    assert!(!stamp(&mut subscribed, 1, record));
    let parsed = parse(&subscribed).unwrap();
    assert_eq!(parsed.payload, parse(&plain).unwrap().payload);
    assert!(parsed.in_band.is_some_and(|int| int.int.is_subscription() && int.records().count() == 0));
    assert_eq!(Subscription::find(&plain, None, Numbers::DEFAULT), None);
}

/// Data packets of the DSCP subscribe; acknowledgements and packets of other classes do not.
#[test]
fn a_dscp_subscribes_without_a_flag_and_a_key_seals_the_responses() {
    let key = FeedbackKey([3; 16]);
    let subscribed = Direct {
        dscp: Some(26),
        key: Some(key),
        epoch: 1_000,
        ..Direct::new(5_000, Duration::from_millis(50))
    };
    let port = PortConfig { direct: Some(subscribed), ..byte_a_microsecond() };
    let mut script = Script::new(&[PortConfig::default(), port]);
    let of_class = |psn, class: u8| {
        let mut frame = data(0x1234, psn, false, true);
        // IPv6's traffic class is between the version and the flow label.
        frame[14] = 0x60 | class >> 4;
        frame[15] = class << 4;
        frame
    };
    for psn in 0..12 {
        script.send(at(100_000), 0, &of_class(psn, 10 << 2));
    }
    assert!(script.leaving(at(100_000), 0).is_empty());
    script.send(at(100_000), 0, &of_class(12, 26 << 2 | 2));
    let told = script.leaving(at(100_000), 0);
    let Header::DirectResponse { bth, feedback } = parse(&told[0]).unwrap().header else { panic!() };
    assert_eq!((told.len(), bth.destination, bth.psn), (1, Qpn::new(7), Psn::new(12)));
    let mut content = [0; MAX_FEEDBACK];
    let length = Feedback { seal: None, ..feedback }.write(&mut content);
    assert_eq!(feedback.seal, Some(key.seal_direct(&bth, &content[..length], 100_001_000)));
}

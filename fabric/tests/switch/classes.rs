//! Two classes share a link by deficit-weighted round robin, and telemetry can report the sojourn time of a packet.

use crate::script::{Script, at, byte_a_microsecond, frame, station};
use ferroce_fabric::{ConfigError, PortConfig, Probability, Red, SecondClass, Switch, SwitchConfig};
use roce::wire::format::{Format, Reading, Request};
use roce::wire::{Bth, Header, Mac, Numbers, Operation, Path, Service, emit, parse};
use roce::{Psn, Qpn};
use std::net::IpAddr;
use std::num::NonZeroU8;

const DSCP: u8 = 26;

fn weights(ordinary: u8, second: u8) -> [NonZeroU8; 2] {
    [ordinary, second].map(|weight| NonZeroU8::new(weight).unwrap())
}

fn shared(ordinary: u8, second: u8) -> PortConfig {
    let second_class = Some(SecondClass { dscp: DSCP, weights: weights(ordinary, second) });
    PortConfig { second_class, ..byte_a_microsecond() }
}

/// Returns an IPv4 packet of `len` bytes from station 0 to station 1.
fn packet(dscp: u8, len: usize) -> Vec<u8> {
    let mut packet = frame(station(1), station(0), len, u32::from_be_bytes([0x45, dscp << 2, 0, 0]));
    packet[12..14].copy_from_slice(&[8, 0]);
    packet
}

fn dscp(packet: &[u8]) -> u8 {
    packet[15] >> 2
}

/// Returns the second class's share of the bytes that left by `micros`.
fn second_share(script: &mut Script, micros: u64) -> f64 {
    let left = script.leaving(at(micros), 1);
    let bytes = |second: bool| -> usize {
        left.iter().filter(|packet| (dscp(packet) == DSCP) == second).map(Vec::len).sum()
    };
    bytes(true) as f64 / (bytes(true) + bytes(false)) as f64
}

#[test]
fn classes_share_by_their_weights_whatever_their_frames_lengths() {
    for (ordinary, second, lengths) in [(1, 3, [1000, 1000]), (1, 1, [1500, 100]), (3, 1, [64, 1500])] {
        let mut script = Script::new(&[PortConfig::default(), shared(ordinary, second)]);
        for _ in 0..400 {
            script.send(at(0), 0, &packet(0, lengths[0]));
            script.send(at(0), 0, &packet(DSCP, lengths[1]));
        }
        let share = second_share(&mut script, 20_000);
        let fair = f64::from(second) / f64::from(ordinary + second);
        assert!((share - fair).abs() < 0.05, "{ordinary}:{second} with {lengths:?}: {share}");
    }
}

#[test]
fn a_class_alone_gets_the_whole_link_and_no_credit_for_later() {
    let mut script = Script::new(&[PortConfig::default(), shared(1, 1)]);
    for _ in 0..100 {
        script.send(at(0), 0, &packet(0, 1000));
    }
    assert_eq!(script.leaving(at(49_999), 1).len(), 50, "a frame a millisecond");
    for _ in 0..20 {
        script.send(at(50_000), 0, &packet(DSCP, 1000));
    }
    let share = second_share(&mut script, 60_000);
    assert!((0.4..=0.6).contains(&share), "{share}: not all that it missed before");
}

#[test]
fn a_full_class_does_not_drop_packets_of_the_other() {
    let port = PortConfig { queue_bytes: 10_000, ..shared(1, 1) };
    let mut script = Script::new(&[PortConfig::default(), port]);
    for _ in 0..50 {
        script.send(at(0), 0, &packet(0, 1000));
    }
    for _ in 0..5 {
        script.send(at(0), 0, &packet(DSCP, 1000));
    }
    let left = script.leaving(at(100_000), 1);
    assert_eq!(left.iter().filter(|packet| dscp(packet) == DSCP).count(), 5);
    assert!(script.switch.report(at(100_000)).ports[1].counters.drops.queue_full >= 39);
}

/// Returns a WRITE packet with room for INT-MD.
fn asking(dscp: u8) -> Vec<u8> {
    let path = Path {
        traffic_class: dscp << 2,
        ..Path::new(
            (Mac(station(0)), IpAddr::from([10, 0, 0, 1])),
            (Mac(station(1)), IpAddr::from([10, 0, 0, 2])),
        )
    };
    let bth = Bth::new(Qpn::new(7), Psn::new(1));
    let header = Header::Connected { service: Service::Rc, bth, operation: Operation::WriteMiddle };
    let mut bytes = vec![0; 300];
    let length = emit(&path, 0, &header, 0, &mut bytes[Format::IntMd.inserted()..]).unwrap().seal();
    let length = Format::IntMd.insert(&mut bytes, length, Numbers::DEFAULT).unwrap();
    bytes.truncate(length);
    assert!(Request::find(&bytes, Numbers::DEFAULT).is_some());
    bytes
}

#[test]
fn telemetry_reports_the_queue_of_the_class_or_its_sojourn_time() {
    for (tell_sojourn, expected) in [(false, 0), (true, 8_000)] {
        let port = PortConfig { tell_sojourn, ..shared(1, 1) };
        let mut script = Script::new(&[PortConfig::default(), port]);
        for _ in 0..8 {
            script.send(at(0), 0, &packet(0, 1000));
        }
        for _ in 0..4 {
            script.send(at(0), 0, &packet(DSCP, 1000));
        }
        script.send(at(0), 0, &asking(DSCP));
        let left = script.leaving(at(100_000), 1);
        let asked = left.iter().find(|frame| frame.len() < 200).unwrap();
        let Reading::Hops(hops) = parse(asked).unwrap().network.telemetry().unwrap().read().unwrap() else {
            panic!()
        };
        let told = hops.iter().next().unwrap().queue;
        // No frame of its class is queued behind it. Four frames of its class and four of the other left before it, which takes 8 ms.
        assert!(told.abs_diff(expected) <= 1_000, "{tell_sojourn}: {told}");
    }
}

#[test]
fn red_marks_a_share_of_the_packets() {
    let red = Some(Red { from: 2_000, to: 1_000_000, most: Probability::ALWAYS });
    let port = PortConfig { red, ..byte_a_microsecond() };
    let mut script = Script::new(&[PortConfig::default(), port]);
    let mut capable = packet(0, 1000);
    capable[15] = 2;
    for _ in 0..800 {
        script.send(at(0), 0, &capable);
    }
    let marked = script.switch.report(at(1)).ports[1].counters.ce_marked;
    assert!((250..390).contains(&marked), "{marked} of 800, from 0 % to 80 %");
}

#[test]
fn invalid_thresholds_and_dscps_are_refused() {
    let refused = |port: PortConfig| {
        let config = SwitchConfig { ports: vec![PortConfig::default(), port], ..SwitchConfig::default() };
        Switch::<crate::script::Buf>::new(&config).err()
    };
    let red = Some(Red { from: 2, to: 1, most: Probability::ALWAYS });
    assert_eq!(refused(PortConfig { red, ..PortConfig::default() }), Some(ConfigError::Red(1, 2, 1)));
    let second_class = Some(SecondClass { dscp: 64, weights: weights(1, 1) });
    assert_eq!(refused(PortConfig { second_class, ..PortConfig::default() }), Some(ConfigError::Dscp(1, 64)));
}

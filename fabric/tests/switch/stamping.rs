//! Telemetry and ECN marks in frames.

use crate::script::{Script, at, byte_a_microsecond, station};
use cc::{Instant, Rate};
use ferroce_fabric::{PortConfig, SwitchConfig};

/// Returns a RoCEv2 packet over IPv4 from station 0 to station 1, with a valid checksum and `after` as UDP payload.
fn roce(ecn: u8, after: &[u8]) -> Vec<u8> {
    let total = 28 + after.len() as u16;
    let mut ip = [0x45, ecn, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let udp = [0xc0, 0x01, 0x12, 0xb7, 0, after.len() as u8 + 8, 0, 0];
    [&station(1)[..], &station(0), &[8, 0], &ip, &udp, after].concat()
}

fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns a telemetry request with room for `room` records, of which `hops` are used, on path `path`.
fn probe(hops: u16, path: u16, room: u16) -> Vec<u8> {
    let mut after = vec![0xC0, 0x40, 0xff, 0xff, 0, 0, 0, 0x12, 0, 0, 0, 1];
    after.extend((hops << 12 | path).to_be_bytes());
    after.extend(room.to_be_bytes());
    after.resize(after.len() + usize::from(room) * 8, 0);
    after.extend([0xaa; 4]);
    roce(2, &after)
}

const WORD: usize = 14 + 20 + 8 + 12;

fn word(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[WORD..WORD + 4].try_into().unwrap())
}

/// Returns the fields {B, ts, txBytes, qlen} of the record at `index`.
fn record(frame: &[u8], index: usize) -> (u64, u64, u64, u64) {
    let from = WORD + 4 + index * 8;
    let bits = u64::from_be_bytes(frame[from..from + 8].try_into().unwrap());
    (bits >> 60, bits >> 36 & 0xff_ffff, bits >> 16 & 0xf_ffff, bits & 0xffff)
}

fn shaped(mbps: u64) -> Script {
    let config = PortConfig { rate: Some(Rate::from_mbps(mbps)), ..PortConfig::default() };
    Script::new(&[PortConfig::default(), config])
}

#[test]
fn a_probe_carries_the_port_as_it_was_when_it_began_to_leave() {
    let mut script = shaped(200);
    let t0 = Instant::from_nanos(0x100_0000 + 5000);
    script.send_tagged(t0, 1280, 0);
    script.send_tagged(t0, 1280, 1);
    script.send(t0, 0, &probe(0, 0, 8));
    script.send_tagged(t0, 800, 3);
    script.send_tagged(t0, 800, 4);
    // A later poll uses the link's time: 2560 bytes at 200 Mb/s take 102.4 µs.
    let left = script.leaving(t0 + std::time::Duration::from_millis(5), 1);
    assert_eq!(left.len(), 5);
    let sent = probe(0, 0, 8);
    assert_eq!(word(&left[2]), 1 << 28 | 1 << 16 | 8, "one hop, on the path of switch 1");
    assert_eq!(record(&left[2], 0), (7, 5000 + 102_400, 2560 / 128, 1600 / 80));
    assert_eq!(left[2][..WORD], sent[..WORD], "nothing before the header changes");
    assert_eq!(left[2][WORD + 12..], sent[WORD + 12..], "nothing behind the record changes");
    assert_eq!(script.switch.report(at(100_000)).ports[1].counters.stamped, 1);
}

#[test]
fn each_switch_writes_behind_the_last_and_xors_its_id() {
    let mut script = shaped(1000);
    script.send(at(1), 0, &probe(3, 0xabc, 8));
    let left = script.next(at(1), 1).unwrap();
    assert_eq!(word(&left), 4 << 28 | (0xabc ^ 1) << 16 | 8);
    assert_eq!(record(&left, 2), (0, 0, 0, 0));
    assert_eq!(record(&left, 3), (9, 1000, 0, 0));
}

#[test]
fn full_foreign_and_malformed_headers_are_not_stamped() {
    let mut short = probe(0, 0, 8);
    short.truncate(WORD + 8);
    let mut vxlan = probe(0, 0, 8);
    vxlan[36..38].copy_from_slice(&4789_u16.to_be_bytes());
    let mut data = probe(0, 0, 8);
    data[42] = 0x04;
    let refused = [probe(8, 1, 8), probe(15, 1, 20), probe(0, 0, 0)];
    let foreign = [vxlan, data, probe(0, 0, 8)[..WORD].to_vec()];
    let mut script = shaped(200);
    for frame in refused.iter().chain(&foreign) {
        script.send(at(1), 0, frame);
    }
    assert_eq!(script.leaving(at(100_000), 1), [refused, foreign].concat());
    let counters = script.switch.report(at(100_000)).ports[1].counters;
    assert_eq!(counters.stamped, 0);

    script.send(at(200_000), 0, &short);
    assert_eq!(script.next(at(200_000), 1), Some(short), "no room is left in the frame for what it says");
}

#[test]
fn a_rate_without_a_code_stamps_nothing() {
    let mut script = shaped(201);
    script.send(at(1), 0, &probe(0, 0, 8));
    assert_eq!(script.next(at(1), 1), Some(probe(0, 0, 8)));
    assert_eq!(script.switch.report(at(1)).ports[1].counters.stamped, 0);
}

#[test]
fn ecn_marks_capable_packets_above_the_threshold() {
    let port = PortConfig { ecn_threshold: Some(2000), ..byte_a_microsecond() };
    let mut script = Script::new(&[PortConfig::default(), port]);
    let ect0 = roce(0b10, &[0x04; 20]);
    let not_ect = roce(0b00, &[0x04; 20]);
    script.send_tagged(at(0), 1000, 0);
    script.send_tagged(at(0), 1000, 1);
    script.send_tagged(at(0), 1000, 2);
    script.send(at(0), 0, &ect0);
    script.send(at(0), 0, &ect0);
    script.send(at(0), 0, &not_ect);
    let left = script.leaving(at(100_000), 1);
    assert_eq!(left[3], ect0, "2000 bytes wait: not above the threshold");
    assert_eq!(left[4][15], 0b11, "2062 bytes wait");
    assert_eq!(checksum(&left[4][14..34]), 0, "the header's checksum still holds");
    assert_eq!(left[4][16..24], ect0[16..24]);
    assert_eq!(left[5], not_ect);
    assert_eq!(script.switch.report(at(100_000)).ports[1].counters.ce_marked, 1);
}

#[test]
fn the_switch_id_is_the_configured_one() {
    let port = PortConfig { rate: Some(Rate::from_mbps(200)), ..PortConfig::default() };
    let config = SwitchConfig { id: 0xf0f, ports: vec![port; 2], ..SwitchConfig::default() };
    let mut script = Script { switch: ferroce_fabric::Switch::new(&config).unwrap() };
    script.send(at(1), 0, &probe(0, 0, 1));
    assert_eq!(word(&script.next(at(1), 1).unwrap()) >> 16 & 0xfff, 0xf0f);
}

//! What a switch writes into the frames that pass: HPCC INT records and ECN marks.

use crate::egress::Snapshot;
use cc::Rate;

/// What became of a frame at the stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamp {
    NotAsked,
    Done,
    /// It asks, but there is no room left, or the port's rate has no code.
    Refused,
}

const ROCE: [u8; 2] = roce::wire::ROCE_PORT.to_be_bytes();
const PROBE: u8 = 0xC0;
const BTH: usize = 12;
const RECORD: usize = 8;

/// Writes the port's record where the frame is a telemetry request with room (rtgwg-00 Figure 4).
pub(crate) fn stamp(frame: &mut [u8], at: Snapshot, rate: Option<Rate>, switch: u16) -> Stamp {
    let Some(word) = int_word(frame) else { return Stamp::NotAsked };
    let [a, b, room_high, room_low] = [frame[word], frame[word + 1], frame[word + 2], frame[word + 3]];
    let hops = usize::from(a >> 4);
    let room = usize::from(u16::from_be_bytes([room_high, room_low]));
    let place = word + 4 + hops * RECORD;
    let (Some(code), true) = (rate.and_then(code), hops < room.min(15)) else { return Stamp::Refused };
    let Some(record) = frame.get_mut(place..place + RECORD) else { return Stamp::Refused };
    let speed_time = u64::from(code) << 24 | (at.time.as_nanos() & 0xff_ffff);
    let tx = (at.tx_bytes / 128) & 0xf_ffff;
    let queue = (at.queue / 80).min(0xffff);
    record.copy_from_slice(&(speed_time << 36 | tx << 16 | queue).to_be_bytes());
    let path = (u16::from_be_bytes([a, b]) ^ switch) & 0xfff;
    let head = (hops as u16 + 1) << 12 | path;
    frame[word..word + 2].copy_from_slice(&head.to_be_bytes());
    Stamp::Done
}

/// Where the INT word of a telemetry request stands.
fn int_word(frame: &[u8]) -> Option<usize> {
    let (ip, version) = network(frame)?;
    let (udp, protocol) = match version {
        4 => (ip + usize::from(frame.get(ip)? & 15) * 4, *frame.get(ip + 9)?),
        _ => (ip + 40, *frame.get(ip + 6)?),
    };
    let opcode = *frame.get(udp + 8)?;
    let asks = protocol == 17 && frame.get(udp + 2..udp + 4)? == ROCE && opcode == PROBE;
    let word = udp + 8 + BTH;
    (asks && frame.len() >= word + 4).then_some(word)
}

/// Where the IP header stands behind at most one VLAN tag, and its version.
fn network(frame: &[u8]) -> Option<(usize, u8)> {
    let ether = |at: usize| frame.get(at..at + 2).map(|two| [two[0], two[1]]);
    let (kind, ip) = match ether(12)? {
        [0x81, 0x00] => (ether(16)?, 18),
        kind => (kind, 14),
    };
    match (kind, frame.get(ip)? >> 4) {
        ([0x08, 0x00], 4) if frame.len() >= ip + 20 => Some((ip, 4)),
        ([0x86, 0xdd], 6) if frame.len() >= ip + 40 => Some((ip, 6)),
        _ => None,
    }
}

/// Marks an ECN-capable packet Congestion Experienced (RFC 3168); `false` where it isn't capable.
pub(crate) fn mark_ce(frame: &mut [u8]) -> bool {
    let Some((ip, version)) = network(frame) else { return false };
    if version == 6 {
        let capable = frame[ip + 1] & 0x30 != 0;
        if capable {
            frame[ip + 1] |= 0x30;
        }
        return capable;
    }
    let old = u16::from_be_bytes([frame[ip], frame[ip + 1]]);
    if old & 3 == 0 {
        return false;
    }
    let new = old | 3;
    frame[ip + 1] = new as u8;
    // RFC 1624: HC' = ~(~HC + ~m + m').
    let sum =
        u32::from(!u16::from_be_bytes([frame[ip + 10], frame[ip + 11]])) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[ip + 10..ip + 12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    true
}

/// The speed's code in a record.
fn code(rate: Rate) -> Option<u8> {
    const MBPS: [u64; 15] = [
        25_000, 50_000, 100_000, 200_000, 400_000, 10, 100, 200, 500, 1_000, 2_500, 5_000, 10_000, 40_000,
        800_000,
    ];
    MBPS.iter().position(|&mbps| Rate::from_mbps(mbps) == rate).map(|at| at as u8)
}

//! Telemetry for Linux's own TCP (rtgwg-00 7.2): probes with a flow's addresses and ports, and their answers.
//!
//! A probe is an IPv4 TCP packet whose payload is a telemetry request. It contains the probe's identity, and an INT header of
//! rtgwg-00 Figure 4 with room for records. DSCP, a checksum of 0 and the first four bytes distinguish it from a segment. No TCP stack
//! accepts it as data: its checksum is wrong, and its sequence number is old.

mod admission;

pub use admission::{AnswerLimit, OwnProbe, TcpTelemetry};

use super::Numbers;
use super::constants::{ETHERNET_LENGTH, ETHERTYPE_IPV4, ETHERTYPE_VLAN, VLAN_LENGTH};
use super::layers::{chunk, fold, sum};
use super::telemetry::{HOPS, IntHeader, RECORD_LENGTH, WORD_LENGTH};
use cc::PathTelemetry;
use core::net::{Ipv4Addr, SocketAddrV4};

/// Length of a probe and of its answer, from the IP header on, bytes.
pub const TCP_PROBE_LENGTH: usize = RECORDS + HOPS as usize * RECORD_LENGTH;

/// First four bytes of the payload of a probe, and of an answer.
pub const TCP_PROBE_MARK: [u32; 2] = [u32::from_be_bytes(*b"HPC?"), u32::from_be_bytes(*b"HPC!")];

const TCP: u8 = 6;
const PAYLOAD: usize = 40;
const NUMBER: usize = PAYLOAD + 4;
const SENT: usize = NUMBER + 4;
const WORD: usize = SENT + 8;
const RECORDS: usize = WORD + WORD_LENGTH;
/// Data offset 5, ACK.
const FLAGS: [u8; 2] = [0x50, 0x10];

/// Probe, or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpProbe {
    /// Sender of this packet.
    pub source: SocketAddrV4,
    /// Receiver of this packet.
    pub destination: SocketAddrV4,
    /// TCP sequence number that the peer has acknowledged, so that a TCP stack that receives the packet by mistake drops it.
    pub sequence: u32,
    /// Number of the probe in its flow.
    pub number: u32,
    /// When the probe was sent, by its sender's clock, ns.
    pub sent: u64,
}

/// Received probe or answer. Only its format was checked: [`TcpArrival::admit`] checks whether it is for this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpArrival {
    packet: [u8; TCP_PROBE_LENGTH],
    /// Destination of the link layer (`sll_pkttype` of packet(7)).
    packet_type: u8,
    probe: TcpProbe,
    /// Telemetry of an answer; `None` in a probe.
    path: Option<PathTelemetry>,
}

impl TcpProbe {
    /// Returns the packet that requests telemetry, from the IP header on.
    #[must_use]
    pub fn packet(&self, numbers: Numbers) -> [u8; TCP_PROBE_LENGTH] {
        let mut packet = [0; TCP_PROBE_LENGTH];
        packet[0] = 0x45;
        packet[1] = numbers.tcp_dscp() << 2;
        packet[2..4].copy_from_slice(&(TCP_PROBE_LENGTH as u16).to_be_bytes());
        packet[8..10].copy_from_slice(&[64, TCP]);
        packet[12..16].copy_from_slice(&self.source.ip().octets());
        packet[16..20].copy_from_slice(&self.destination.ip().octets());
        packet[20..22].copy_from_slice(&self.source.port().to_be_bytes());
        packet[22..24].copy_from_slice(&self.destination.port().to_be_bytes());
        packet[24..28].copy_from_slice(&self.sequence.to_be_bytes());
        packet[32..34].copy_from_slice(&FLAGS);
        packet[PAYLOAD..NUMBER].copy_from_slice(&TCP_PROBE_MARK[0].to_be_bytes());
        packet[NUMBER..SENT].copy_from_slice(&self.number.to_be_bytes());
        packet[SENT..WORD].copy_from_slice(&self.sent.to_be_bytes());
        packet[WORD..RECORDS].copy_from_slice(&IntHeader::with_room(HOPS).pack());
        seal(&mut packet);
        packet
    }
}

impl TcpArrival {
    /// Reads a packet, from the IP header on, that a packet socket received with this `sll_pkttype`. Returns `None` if it is neither a
    /// probe nor an answer, or damaged.
    #[must_use]
    pub fn read(packet: &[u8], packet_type: u8, numbers: Numbers) -> Option<Self> {
        let mark = mark(packet, numbers)?;
        let int = int(packet)?;
        if fold(sum(packet.get(..20)?)) != 0xffff {
            return None;
        }
        let number = |at| chunk(packet, at).ok().map(|bytes| u32::from_be_bytes(*bytes));
        let port = |at| chunk(packet, at).ok().map(|bytes| u16::from_be_bytes(*bytes));
        let address = |at| number(at).map(Ipv4Addr::from_bits);
        let probe = TcpProbe {
            source: SocketAddrV4::new(address(12)?, port(20)?),
            destination: SocketAddrV4::new(address(16)?, port(22)?),
            sequence: number(24)?,
            number: number(NUMBER)?,
            sent: u64::from_be_bytes(*chunk(packet, SENT).ok()?),
        };
        let path = if mark == TCP_PROBE_MARK[0] { None } else { Some(path(packet, int)?) };
        Some(Self { packet: *packet.first_chunk()?, packet_type, probe, path })
    }
}

fn path(packet: &[u8], int: IntHeader) -> Option<PathTelemetry> {
    let records = packet.get(RECORDS..TCP_PROBE_LENGTH)?;
    int.check(records).ok()?;
    let mut path = PathTelemetry::new(int.path_id());
    for (index, record) in (0..).zip(int.records(records)) {
        path.set(index, record.into());
    }
    Some(path)
}

/// Returns the offset of the INT word of a probe in an Ethernet frame, and the INT header, for a switch.
#[expect(clippy::arithmetic_side_effects, reason = "a few constants")]
pub(super) fn find(frame: &[u8], numbers: Numbers) -> Option<(usize, IntHeader)> {
    let ethertype = |at: usize| chunk(frame, at - 2).ok().map(|bytes| u16::from_be_bytes(*bytes));
    let vlan = if ethertype(ETHERNET_LENGTH)? == ETHERTYPE_VLAN { VLAN_LENGTH } else { 0 };
    let ip = ETHERNET_LENGTH + vlan;
    if ethertype(ip)? != ETHERTYPE_IPV4 {
        return None;
    }
    let packet = frame.get(ip..)?;
    (mark(packet, numbers)? == TCP_PROBE_MARK[0]).then_some((ip + WORD, int(packet)?))
}

/// Returns the mark of a probe or an answer; `None` for other packets.
fn mark(packet: &[u8], numbers: Numbers) -> Option<u32> {
    let head: &[u8; TCP_PROBE_LENGTH] = packet.first_chunk()?;
    let is_ours = head[0] == 0x45
        && head[1] >> 2 == numbers.tcp_dscp()
        && head[2..4] == (TCP_PROBE_LENGTH as u16).to_be_bytes()
        && head[6] & 0x3f == 0
        && head[7] == 0
        && head[9] == TCP
        && head[32..34] == FLAGS
        && head[36..38] == [0, 0];
    let mark = u32::from_be_bytes(*chunk(head, PAYLOAD).ok()?);
    (is_ours && TCP_PROBE_MARK.contains(&mark)).then_some(mark)
}

/// Returns the INT header, which must have the room of a probe.
fn int(packet: &[u8]) -> Option<IntHeader> {
    let int = IntHeader::unpack(*chunk(packet, WORD).ok()?)?;
    (int.room() == HOPS && !int.is_subscription()).then_some(int)
}

fn seal(packet: &mut [u8; TCP_PROBE_LENGTH]) {
    packet[10..12].fill(0);
    let checksum = !fold(sum(&packet[..20]));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::format::{PortState, Request};
    use cc::{Counter, Hop, Rate};
    use std::vec::Vec;

    const NUMBERS: Numbers = Numbers::DEFAULT;

    fn probe() -> TcpProbe {
        TcpProbe {
            source: "10.0.0.1:40000".parse().unwrap(),
            destination: "10.0.0.2:5201".parse().unwrap(),
            sequence: 0xffff_fff0,
            number: 7,
            sent: 123_456_789,
        }
    }

    fn framed(packet: &[u8], tag: &[u8]) -> Vec<u8> {
        [&[2; 12][..], tag, &[8, 0], packet].concat()
    }

    fn stamp(frame: &mut [u8], switch: u16) -> bool {
        let state = PortState {
            switch,
            port: 0,
            rate: Rate::from_mbps(200),
            time: 5000,
            tx_bytes: 1280,
            queue: 800,
            sojourn: 0,
            load: super::super::format::aecn::Load::default(),
        };
        let length = frame.len();
        let request = Request::find(frame, NUMBERS);
        request.is_some_and(|request| request.growth() == 0 && request.stamp(frame, length, &state).is_some())
    }

    /// rtgwg-00 7.2: switches insert their telemetry, the receiver returns it to the sender.
    #[test]
    fn a_probe_returns_the_telemetry_of_switches() {
        for tag in [&[][..], &[0x81, 0, 0, 5]] {
            let mut frame = framed(&probe().packet(NUMBERS), tag);
            for switch in [1, 6] {
                assert!(stamp(&mut frame, switch));
            }
            let packet = &frame[14 + tag.len()..];
            let admitted = |packet: &[u8], ours: Ipv4Addr| {
                let arrival = TcpArrival::read(packet, 0, NUMBERS).unwrap();
                arrival.admit(&[(ours, 24)], |local, remote| Some((local, remote))).unwrap()
            };
            let TcpProbe { source, destination, .. } = probe();
            let TcpTelemetry::Probe(arrived, ends) = admitted(packet, *destination.ip()) else {
                panic!("no probe")
            };
            assert_eq!(ends, (destination, source));
            let answer = arrived.answer(&mut AnswerLimit::default(), 0).unwrap();
            let TcpTelemetry::Answer(back, path, ends) = admitted(&answer, *source.ip()) else {
                panic!("no answer")
            };
            assert_eq!(ends, (source, destination));
            assert_eq!(back, TcpProbe { source: destination, destination: source, ..probe() });
            let hop = Hop {
                bandwidth: Rate::from_mbps(200),
                time: Counter::of::<24, 1>(5000),
                tx_bytes: Counter::of::<20, 128>(10),
                queue: 800,
            };
            assert_eq!(path.path_id(), 7);
            assert!(path.hops().map(|(_, hop)| *hop).eq([hop, hop]), "{path:?}");
            // Switches on the return path write nothing.
            let mut frame = framed(&answer, tag);
            assert!(!stamp(&mut frame, 3));
            assert_eq!(frame[14 + tag.len()..], answer);
        }
    }

    /// A switch does not change an ordinary segment, whatever its payload.
    #[test]
    fn a_packet_that_differs_from_a_probe_is_not_touched() {
        let good = probe().packet(NUMBERS);
        // Version, DSCP, length, fragment, protocol, TCP's header, checksum, mark, room.
        for at in [0, 1, 2, 3, 6, 7, 9, 32, 33, 36, 37, 40, 43, WORD + 2, WORD + 3] {
            let mut packet = good;
            packet[at] ^= 0x0c;
            assert!(!stamp(&mut framed(&packet, &[]), 1), "byte {at}");
            assert_eq!(TcpArrival::read(&packet, 0, NUMBERS), None, "byte {at}");
        }
        for length in 0..good.len() {
            assert!(!stamp(&mut framed(&good[..length], &[]), 1), "{length} bytes");
            assert_eq!(TcpArrival::read(&good[..length], 0, NUMBERS), None, "{length} bytes");
        }
    }

    #[test]
    fn a_probe_without_room_left_passes() {
        let mut frame = framed(&probe().packet(NUMBERS), &[]);
        let stamped = (0..HOPS + 2).filter(|_| stamp(&mut frame, 1)).count();
        assert_eq!(stamped, usize::from(HOPS));
    }
}

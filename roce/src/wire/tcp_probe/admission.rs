//! The admission of probes and answers: a host accepts only those of its own flows. `ferroce tcp` calls it for each one that arrives.
//!
//! An answer is sent to the source address in its probe, which may be forged. Without these checks a host would send packets to a victim
//! that an attacker chooses. A host must silently discard a datagram that is not destined for it, or whose source is not a unicast address
//! (RFC 1122 3.2.1.3), and one for a single host that arrived in a link-layer broadcast (RFC 1122 3.3.6).

use super::{NUMBER, PAYLOAD, TCP_PROBE_LENGTH, TCP_PROBE_MARK, TcpArrival, TcpProbe, seal};
use cc::PathTelemetry;
use core::net::{Ipv4Addr, SocketAddrV4};

/// `PACKET_HOST` of linux/if_packet.h: the frame's destination is this host. The other types are broadcast, multicast, another host,
/// outgoing.
const PACKET_HOST: u8 = 0;

/// Least time between two probes of a flow (`ferroce tcp`), ns.
const INTERVAL: u64 = 1_000_000;
/// Probes that may arrive at once: as many as a sender stores.
const MAX_BURST: u64 = 16;

/// Probe or answer of a flow `F` of this host. Only [`TcpArrival::admit`] creates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "taken apart where it is read")]
pub enum TcpTelemetry<F> {
    /// Probe, to be answered.
    Probe(OwnProbe, F),
    /// Answer, with the telemetry of the probe's path.
    Answer(TcpProbe, PathTelemetry, F),
}

/// Probe for this host, of one of its flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnProbe {
    packet: [u8; TCP_PROBE_LENGTH],
}

/// Limit of the answers of one flow: one per millisecond, and 16 at once. A sender probes at most as often.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerLimit {
    /// End of the last answer's millisecond, if one answer were sent per millisecond.
    until: u64,
}

impl TcpArrival {
    /// Returns the probe or answer if it passes all checks. Its frame was for this host, and its destination is one of the `interface`'s
    /// addresses (with prefix lengths). Its source is a unicast address of another host. `flow`, which is called last, finds the
    /// established connection by its local and its remote end.
    pub fn admit<F>(
        &self,
        interface: &[(Ipv4Addr, u8)],
        flow: impl FnOnce(SocketAddrV4, SocketAddrV4) -> Option<F>,
    ) -> Option<TcpTelemetry<F>> {
        let TcpProbe { source, destination, .. } = self.probe;
        let is_ours = self.packet_type == PACKET_HOST
            && interface.iter().any(|(ours, _)| ours == destination.ip())
            && is_peer(*source.ip(), interface);
        let flow = if is_ours { flow(destination, source) } else { None }?;
        Some(match self.path {
            None => TcpTelemetry::Probe(OwnProbe { packet: self.packet }, flow),
            Some(path) => TcpTelemetry::Answer(self.probe, path, flow),
        })
    }
}

impl OwnProbe {
    /// Returns the answer to the sender, with the telemetry of the probe; `None` if the flow's `limit` is reached at the time `now`, in ns.
    #[must_use]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "constants below the packet's length"
    )]
    pub fn answer(&self, limit: &mut AnswerLimit, now: u64) -> Option<[u8; TCP_PROBE_LENGTH]> {
        limit.take(now)?;
        let mut answer = self.packet;
        for (source, destination, length) in [(12, 16, 4), (20, 22, 2)] {
            answer.copy_within(destination..destination + length, source);
            answer[destination..destination + length].copy_from_slice(&self.packet[source..source + length]);
        }
        answer[8] = 64;
        answer[PAYLOAD..NUMBER].copy_from_slice(&TCP_PROBE_MARK[1].to_be_bytes());
        seal(&mut answer);
        Some(answer)
    }
}

impl AnswerLimit {
    fn take(&mut self, now: u64) -> Option<()> {
        let from = self.until.max(now);
        let is_within = from.saturating_sub(now) <= INTERVAL.saturating_mul(MAX_BURST.saturating_sub(1));
        is_within.then(|| self.until = from.saturating_add(INTERVAL))
    }
}

/// Returns whether another host can have this address: not 0/8, 127/8, 224/4 or 240/4, and neither an address of the interface nor a
/// broadcast address of its networks (RFC 1122 3.2.1.3). Networks of prefix 31 and 32 have no broadcast address (RFC 3021 2.1).
fn is_peer(address: Ipv4Addr, interface: &[(Ipv4Addr, u8)]) -> bool {
    let [first, ..] = address.octets();
    let is_unicast = !matches!(first, 0 | 127 | 224..);
    is_unicast
        && interface.iter().all(|&(ours, prefix)| {
            let host = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
            let is_here = (address.to_bits() ^ ours.to_bits()) & !host == 0;
            let is_broadcast = prefix < 31 && is_here && [0, host].contains(&(address.to_bits() & host));
            address != ours && !is_broadcast
        })
}

#[cfg(test)]
mod tests {
    use super::super::Numbers;
    use super::*;

    const NUMBERS: Numbers = Numbers::DEFAULT;
    const MS: u64 = 1_000_000;
    const INTERFACE: [(Ipv4Addr, u8); 2] =
        [(Ipv4Addr::new(10, 0, 0, 2), 24), (Ipv4Addr::new(192, 0, 2, 9), 31)];
    /// Established flow, by its local and its remote end.
    const FLOW: (&str, &str) = ("10.0.0.2:5201", "10.0.0.1:40000");

    fn probe(source: &str, destination: &str) -> TcpProbe {
        TcpProbe {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            sequence: 0xffff_fff0,
            number: 7,
            sent: 123_456_789,
        }
    }

    fn is_admitted(
        packet: &[u8],
        packet_type: u8,
        established: impl Fn(SocketAddrV4, SocketAddrV4) -> bool,
    ) -> bool {
        let arrival = TcpArrival::read(packet, packet_type, NUMBERS);
        arrival
            .and_then(|it| it.admit(&INTERFACE, |local, remote| established(local, remote).then_some(())))
            .is_some()
    }

    fn is_flow(local: SocketAddrV4, remote: SocketAddrV4) -> bool {
        (local, remote) == (FLOW.0.parse().unwrap(), FLOW.1.parse().unwrap())
    }

    /// RFC 1122 3.2.1.3, 3.3.6: a host must discard a datagram that is not for it, or has an invalid source. Each row differs in one point
    /// from a probe that is answered; the same rows apply to answers.
    #[test]
    fn only_a_probe_of_an_established_flow_to_this_host_is_admitted() {
        let (ours, peer) = FLOW;
        let any = |_, _| true;
        let packets = |source, destination| {
            let probe = probe(source, destination).packet(NUMBERS);
            let mut answer = probe;
            answer[PAYLOAD..NUMBER].copy_from_slice(&TCP_PROBE_MARK[1].to_be_bytes());
            [probe, answer]
        };
        for mut packet in packets(peer, ours) {
            assert!(is_admitted(&packet, PACKET_HOST, is_flow));
            for (packet_type, what) in
                [(1, "broadcast"), (2, "multicast"), (3, "another host"), (4, "outgoing")]
            {
                assert!(!is_admitted(&packet, packet_type, any), "a frame for {what}");
            }
            assert!(!is_admitted(&packet, PACKET_HOST, |_, _| false), "a closed flow");
            packet[10] ^= 1;
            assert!(!is_admitted(&packet, PACKET_HOST, any), "a damaged header");
        }
        for (source, destination, what) in [
            (peer, "10.0.0.3:5201", "an address that is not ours"),
            (peer, "10.0.0.255:5201", "the directed broadcast"),
            (peer, "255.255.255.255:5201", "the limited broadcast"),
            (peer, "224.0.0.1:5201", "a group"),
            ("224.0.0.1:40000", ours, "from a group"),
            ("239.255.255.255:40000", ours, "from a group"),
            ("240.0.0.1:40000", ours, "from a reserved address"),
            ("255.255.255.255:40000", ours, "from the limited broadcast"),
            ("10.0.0.255:40000", ours, "from the directed broadcast"),
            ("10.0.0.0:40000", ours, "from the network's own address"),
            ("127.0.0.1:40000", ours, "from loopback"),
            ("0.0.0.0:40000", ours, "from no address"),
            ("0.1.2.3:40000", ours, "from this network"),
            ("10.0.0.2:40000", ours, "from the same address"),
            ("192.0.2.9:40000", ours, "from another address of ours"),
        ] {
            for packet in packets(source, destination) {
                assert!(!is_admitted(&packet, PACKET_HOST, any), "{what}: {source} to {destination}");
            }
        }
        for (source, destination, what) in [
            ("10.0.0.1:40001", ours, "another remote port"),
            (peer, "10.0.0.2:5202", "another local port"),
            ("10.0.0.9:40000", ours, "another remote address"),
            (peer, "192.0.2.9:5201", "another local address"),
        ] {
            for packet in packets(source, destination) {
                assert!(is_admitted(&packet, PACKET_HOST, any), "valid but for the flow: {what}");
                assert!(!is_admitted(&packet, PACKET_HOST, is_flow), "{what}");
            }
        }
    }

    /// RFC 3021 2.1: both addresses of a network of prefix 31 are hosts.
    #[test]
    fn a_network_of_prefix_31_has_no_broadcast_address() {
        let packet = probe("192.0.2.8:40000", "192.0.2.9:5201").packet(NUMBERS);
        assert!(is_admitted(&packet, PACKET_HOST, |_, _| true));
    }

    /// A flow makes a host send no more than its peer would request.
    #[test]
    fn answers_of_a_flow_are_limited_to_16_at_once_and_one_per_millisecond() {
        let packet = probe(FLOW.1, FLOW.0).packet(NUMBERS);
        let arrival = TcpArrival::read(&packet, PACKET_HOST, NUMBERS).unwrap();
        let Some(TcpTelemetry::Probe(probe, ())) = arrival.admit(&INTERFACE, |_, _| Some(())) else {
            panic!("not admitted")
        };
        let mut limit = AnswerLimit::default();
        let mut answers =
            |now: u64, probes: u64| (0..probes).filter(|_| probe.answer(&mut limit, now).is_some()).count();
        assert_eq!(answers(500 * MS, 1000), 16);
        assert_eq!(answers(501 * MS - 1, 1000), 0);
        assert_eq!(answers(501 * MS, 1000), 1);
        assert_eq!((502..602).map(|ms| answers(ms * MS, 10)).sum::<usize>(), 100);
        assert_eq!((602..702).map(|ms| answers(ms * MS, 1)).sum::<usize>(), 100, "a sender's own rate");
        assert_eq!(answers(1000 * MS, 1000), 16);
    }
}

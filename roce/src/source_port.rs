//! UDP source ports, by which the network selects the path of a flow, and a NIC selects the core of a queue pair.
//!
//! Ferroce copies the bits of the peer's QPN that encode its core into the source port ([`CORE_BITS`]). The peer's NIC hashes only these,
//! so that a packet arrives at the queue of its core. This needs no negotiation, and for other peers it is an ordinary source port.

use crate::Qpn;
use core::net::IpAddr;

const FLOW_LABEL: u32 = 0xf_ffff;

/// Bits of a source port that contain bits 17 to 14 of the peer's QPN. They encode the core: all of them for a peer with 5 to 16 cores, the
/// upper two with 2 to 4. Over IPv6 they are XORed with bits 66 to 69 of the sender's address, counted from 0, to cancel their effect on
/// the peer's hash.
pub const CORE_BITS: u16 = 0x3c00;

/// Returns the UDP source port of a connected queue pair's packets from `source`: 0xC000 and above. It depends on both queue pair numbers,
/// so that flows use different paths. Except for [`CORE_BITS`], which encode the peer's core, it is Linux's (`rdma_calc_flow_label`,
/// `rdma_flow_label_to_udp_sport`).
#[must_use]
pub const fn udp_source_port(source: IpAddr, local: Qpn, remote: Qpn) -> u16 {
    to_core((remote.get() >> 14 & 0xf) as u8, source, fold(local.get() as u64 * remote.get() as u64))
}

/// Returns [`udp_source_port`], or the port of the flow label that the program chose, as on hardware (`rdma_get_udp_sport`). A label of 0
/// means none.
#[must_use]
pub const fn udp_source_port_of_flow(flow_label: u32, source: IpAddr, local: Qpn, remote: Qpn) -> u16 {
    match flow_label & FLOW_LABEL {
        0 => udp_source_port(source, local, remote),
        label => of_flow_label(label),
    }
}

/// Returns the UDP source port of datagrams with one address handle: that of the flow label if the program chose one. Otherwise it depends
/// on both addresses, so that datagrams to different hosts use different paths. It encodes core 0, which has the datagram queue pairs.
#[must_use]
pub fn udp_source_port_of_datagrams(flow_label: u32, from: IpAddr, to: IpAddr) -> u16 {
    match flow_label & FLOW_LABEL {
        0 => to_core(0, from, fold(hash(from, to))),
        label => of_flow_label(label),
    }
}

/// Folds a number to 20 bits.
const fn fold(mut v: u64) -> u32 {
    v ^= v >> 20;
    v ^= v >> 40;
    v as u32 & FLOW_LABEL
}

/// Returns the port of flow `label` from `source`, to the core with these four bits.
const fn to_core(core: u8, source: IpAddr, label: u32) -> u16 {
    let address = match source {
        IpAddr::V4(_) => 0,
        IpAddr::V6(ip) => ip.octets()[8] >> 2 & 0xf,
    };
    of_flow_label(label) & !CORE_BITS | ((core ^ address) as u16) << CORE_BITS.trailing_zeros()
}

/// Implements Linux's `rdma_flow_label_to_udp_sport`; `flow_label` has 20 bits.
const fn of_flow_label(flow_label: u32) -> u16 {
    0xc000 | ((flow_label & 0x3fff) ^ (flow_label >> 14)) as u16
}

/// Returns FNV-1a of both GIDs.
fn hash(from: IpAddr, to: IpAddr) -> u64 {
    let gid = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    [gid(from), gid(to)].into_iter().flatten().fold(0xcbf2_9ce4_8422_2325, step)
}

//! Lengths and numbers of the layers of a RoCEv2 frame.

/// UDP destination port of RoCEv2 (IBA annex A17).
pub const ROCE_PORT: u16 = 4791;

/// Longest payload, bytes: the largest path MTU (IBA 9.7.4).
pub const MAX_PAYLOAD: usize = 4096;

/// Length of the longest headers with pad and ICRC, bytes: Ethernet with a VLAN tag, IPv6, UDP, BTH, the longest extension headers (XRCETH,
/// AtomicETH). In-band telemetry adds up to [`MAX_IN_BAND`](super::MAX_IN_BAND) bytes.
pub const MAX_OVERHEAD: usize = 18 + 40 + 8 + 12 + 4 + 28 + 3 + 4;

/// Bytes of a BTH (IBA 9.2).
pub(super) const BTH_LENGTH: usize = 12;
pub(super) const ICRC_LENGTH: usize = 4;

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(super) const ETHERTYPE_VLAN: u16 = 0x8100;
pub(super) const UDP: u8 = 17;
pub(crate) const ETHERNET_LENGTH: usize = 14;
pub(super) const VLAN_LENGTH: usize = 4;
pub(super) const UDP_LENGTH: usize = 8;

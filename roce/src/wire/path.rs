//! A path: the addresses and other fields below the BTH.

use core::fmt;
use core::net::IpAddr;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Control information of an 802.1Q tag: priority (3 bits), drop eligible (1 bit), identifier (12 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vlan(pub u16);

impl Vlan {
    /// Returns the identifier; 0 in a tag that contains only a priority (802.1Q 9.6).
    #[must_use]
    pub const fn id(self) -> u16 {
        self.0 & 0xfff
    }

    /// Returns a tag with the same identifier and another priority, 0 to 7.
    #[must_use]
    pub const fn with_priority(self, priority: u8) -> Self {
        Self((priority as u16 & 7) << 13 | self.id())
    }
}

/// Path of a packet from port to port: all fields of the headers below the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Ethernet address of the sending port.
    pub source_mac: Mac,
    /// Ethernet address of the peer, or of the router.
    pub destination_mac: Mac,
    /// VLAN tag, if any.
    pub vlan: Option<Vlan>,
    /// IP address of the sender (the source GID). Both addresses are of one family.
    pub source: IpAddr,
    /// IP address of the peer (the destination GID).
    pub destination: IpAddr,
    /// UDP source port. Each flow has its own, so that the network distributes flows over its paths.
    pub udp_source: u16,
    /// DSCP (6 bits) and ECN (2 bits): IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; unused with IPv4.
    pub flow_label: u32,
}

impl Path {
    /// Returns the path of an answer to a packet that arrived along this path. The answer is not ECN-capable.
    #[must_use]
    pub const fn back(&self) -> Self {
        Self {
            source_mac: self.destination_mac,
            destination_mac: self.source_mac,
            source: self.destination,
            destination: self.source,
            traffic_class: self.traffic_class & !3,
            hop_limit: 64,
            ..*self
        }
    }

    /// Creates a path between two ports, each with its Ethernet and IP address: no VLAN, best effort, UDP source port 0xC000, 64 hops, no
    /// flow label.
    #[must_use]
    pub const fn new(from: (Mac, IpAddr), to: (Mac, IpAddr)) -> Self {
        Self {
            source_mac: from.0,
            destination_mac: to.0,
            vlan: None,
            source: from.1,
            destination: to.1,
            udp_source: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }
}

/// Path MTU: payload bytes of a full packet (IBA 9.7.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Mtu {
    M256,
    M512,
    M1024,
    M2048,
    M4096,
}

impl Mtu {
    /// All path MTUs, smallest first.
    pub const ALL: [Self; 5] = [Self::M256, Self::M512, Self::M1024, Self::M2048, Self::M4096];

    /// Returns the code in messages of connection managers and in C, from 1 for 256 bytes to 5 for 4,096 bytes.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "the sum is one more than an index below five")]
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the path MTU of a [`code`](Self::code); `None` if the code is not 1 to 5.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// Returns the payload bytes of a full packet.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::M256 => 256,
            Self::M512 => 512,
            Self::M1024 => 1024,
            Self::M2048 => 2048,
            Self::M4096 => 4096,
        }
    }
}

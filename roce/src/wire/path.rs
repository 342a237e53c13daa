//! A path: the addresses below the BTH.

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

/// An 802.1Q tag's control information: priority (3 bits), drop eligible (1 bit), identifier (12 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vlan(pub u16);

impl Vlan {
    /// The network's identifier; 0 in a tag that contains only a priority (802.1Q 9.6).
    #[must_use]
    pub const fn id(self) -> u16 {
        self.0 & 0xfff
    }

    /// The same network with another priority, 0 to 7.
    #[must_use]
    pub const fn with_priority(self, priority: u8) -> Self {
        Self((priority as u16 & 7) << 13 | self.id())
    }
}

/// The way of a packet from one port to the other, as all headers below the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Our port's Ethernet address.
    pub source_mac: Mac,
    /// The peer's, or the router's.
    pub destination_mac: Mac,
    /// A VLAN tag, if any.
    pub vlan: Option<Vlan>,
    /// Our address (the source GID). Both addresses are of one family.
    pub source: IpAddr,
    /// The peer's address (the destination GID).
    pub destination: IpAddr,
    /// UDP source port; a flow keeps its own, so that the network spreads flows over its paths.
    pub udp_source: u16,
    /// DSCP (6 bits) and ECN (2 bits): IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; unused with IPv4.
    pub flow_label: u32,
}

impl Path {
    /// The way back, as a packet that came along this path is answered. Switches may not mark the answer.
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

    /// The plain way from one port to another, each with its Ethernet and its IP address: no VLAN, best effort, the first of the
    /// UDP source ports, 64 hops, no flow label.
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
    /// All, smallest first.
    pub const ALL: [Self; 5] = [Self::M256, Self::M512, Self::M1024, Self::M2048, Self::M4096];

    /// Returns its code in messages of connection managers and in C: 1 for 256 to 5 for 4,096 bytes.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "the sum is one more than an index below five")]
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the path MTU of a [`code`](Self::code), or `None` if the code is not 1 to 5.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// Payload bytes.
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

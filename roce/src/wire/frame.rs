//! A valid packet: its transport headers as values, and accessors for the headers below.

use super::format::Telemetry;
use super::header::Header;
use super::inband::InBand;
use super::layers::{Family, Layers};
use super::path::{Mac, Path, Vlan};
use core::net::IpAddr;

/// Valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Headers below the BTH.
    pub network: Network<'a>,
    /// BTH and extension headers.
    pub header: Header,
    /// Telemetry after the BTH of a data packet.
    pub in_band: Option<InBand<'a>>,
    /// Payload, without pad.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// Returns whether there is telemetry below or after the BTH.
    #[inline]
    #[must_use]
    pub const fn carries_telemetry(&self) -> bool {
        self.in_band.is_some() || self.network.layers.carried.is_some()
    }
}

/// Headers below the BTH. Each is read on demand, because few fields are needed of packets from a known peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network<'a> {
    /// Whole frame; `layers` are offsets in it.
    pub(super) bytes: &'a [u8],
    pub(super) layers: Layers,
}

impl<'a> Network<'a> {
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the field is in a header that was located"
    )]
    fn at<const N: usize>(&self, at: usize) -> [u8; N] {
        core::array::from_fn(|n| self.bytes[at + n])
    }

    /// Returns the sender's IP address.
    #[inline]
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "`Layers` lie within a frame")]
    pub fn source(&self) -> IpAddr {
        match self.layers.family {
            Family::V4 => IpAddr::from(self.at::<4>(self.layers.ip + 12)),
            Family::V6 => IpAddr::from(self.at::<16>(self.layers.ip + 8)),
        }
    }

    /// Returns the destination's IP address.
    #[inline]
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "`Layers` lie within a frame")]
    pub fn destination(&self) -> IpAddr {
        match self.layers.family {
            Family::V4 => IpAddr::from(self.at::<4>(self.layers.ip + 16)),
            Family::V6 => IpAddr::from(self.at::<16>(self.layers.ip + 24)),
        }
    }

    /// Returns the UDP source port.
    #[inline]
    #[must_use]
    pub fn udp_source(&self) -> u16 {
        u16::from_be_bytes(self.at(self.layers.udp))
    }

    /// Returns DSCP (6 bits) and ECN (2 bits).
    #[inline]
    #[must_use]
    pub fn traffic_class(&self) -> u8 {
        let [first, second] = self.at(self.layers.ip);
        match self.layers.family {
            Family::V4 => second,
            Family::V6 => first << 4 | second >> 4,
        }
    }

    /// Returns the IPv4 identification; 0 with IPv6.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "`Layers` lie within a frame")]
    pub fn identification(&self) -> u16 {
        match self.layers.family {
            Family::V4 => u16::from_be_bytes(self.at(self.layers.ip + 4)),
            Family::V6 => 0,
        }
    }

    /// Returns the headers below the BTH as a path from the sender to the receiver.
    #[must_use]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the field is in a header that was located"
    )]
    pub fn path(&self) -> Path {
        let ip = self.layers.ip;
        let (hop_limit, flow_label) = match self.layers.family {
            Family::V4 => (self.bytes[ip + 8], 0),
            Family::V6 => (self.bytes[ip + 7], u32::from_be_bytes(self.at(ip)) & 0xf_ffff),
        };
        Path {
            source_mac: Mac(self.at(6)),
            destination_mac: Mac(self.at(0)),
            vlan: self.layers.vlan().map(|at| Vlan(u16::from_be_bytes(self.at(at)))),
            source: self.source(),
            destination: self.destination(),
            udp_source: self.udp_source(),
            traffic_class: self.traffic_class(),
            hop_limit,
            flow_label,
        }
    }

    /// Returns the IP header: 20 or 40 bytes.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "the header was located")]
    pub fn ip_header(&self) -> &'a [u8] {
        &self.bytes[self.layers.ip..][..self.layers.family.header_length()]
    }

    /// Returns the telemetry below the BTH.
    #[must_use]
    pub fn telemetry(&self) -> Option<Telemetry<'a>> {
        Telemetry::of(self.bytes, &self.layers)
    }
}

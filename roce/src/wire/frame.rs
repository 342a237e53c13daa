//! A good packet: its headers as values, and what lies below them read only on request.

use super::format::Telemetry;
use super::header::Header;
use super::inband::InBand;
use super::layers::{Family, Layers};
use super::path::{Mac, Path, Vlan};
use core::net::IpAddr;

/// A good packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The headers below the BTH.
    pub network: Network<'a>,
    /// BTH and extension headers.
    pub header: Header,
    /// Telemetry behind the BTH that a data packet brings.
    pub in_band: Option<InBand<'a>>,
    /// The bytes that follow the headers, without pad.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// Returns whether there is telemetry below the BTH, or behind it.
    #[inline]
    #[must_use]
    pub const fn brings_telemetry(&self) -> bool {
        self.in_band.is_some() || self.network.layers.carried.is_some()
    }
}

/// The headers below the BTH of a frame, each read on demand: most packets are of a known peer, and few of these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network<'a> {
    /// The whole frame. It is as long as `layers` says.
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

    /// The sender's IP address.
    #[inline]
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "`Layers` lie within a frame")]
    pub fn source(&self) -> IpAddr {
        match self.layers.family {
            Family::V4 => IpAddr::from(self.at::<4>(self.layers.ip + 12)),
            Family::V6 => IpAddr::from(self.at::<16>(self.layers.ip + 8)),
        }
    }

    /// The IP address that it was sent to.
    #[inline]
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "`Layers` lie within a frame")]
    pub fn destination(&self) -> IpAddr {
        match self.layers.family {
            Family::V4 => IpAddr::from(self.at::<4>(self.layers.ip + 16)),
            Family::V6 => IpAddr::from(self.at::<16>(self.layers.ip + 24)),
        }
    }

    /// UDP's source port.
    #[inline]
    #[must_use]
    pub fn udp_source(&self) -> u16 {
        u16::from_be_bytes(self.at(self.layers.udp))
    }

    /// DSCP (6 bits) and ECN (2 bits).
    #[inline]
    #[must_use]
    pub fn traffic_class(&self) -> u8 {
        let [first, second] = self.at(self.layers.ip);
        match self.layers.family {
            Family::V4 => second,
            Family::V6 => first << 4 | second >> 4,
        }
    }

    /// IPv4 identification; 0 with IPv6.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "`Layers` lie within a frame")]
    pub fn identification(&self) -> u16 {
        match self.layers.family {
            Family::V4 => u16::from_be_bytes(self.at(self.layers.ip + 4)),
            Family::V6 => 0,
        }
    }

    /// The headers below the BTH, as the packet carries them: the path's source is its sender.
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

    /// The IP header: 20 or 40 bytes.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "the header was located")]
    pub fn ip_header(&self) -> &'a [u8] {
        &self.bytes[self.layers.ip..][..self.layers.family.header_length()]
    }

    /// Telemetry below the BTH, in one of the other formats.
    #[must_use]
    pub fn carried(&self) -> Option<Telemetry<'a>> {
        Telemetry::of(self.bytes, &self.layers)
    }
}

//! Telemetry in formats other than the HPCC INT header of rtgwg-00: INT-MD, IOAM, IFA, AECN and CSIG.
//!
//! Each file implements one format for sender, switch and receiver. All formats are below the BTH, where the ICRC omits them, and identify
//! themselves, so a receiver needs no setting. `roce/src/wire/format/README.md` lists how each yields `txBytes`, `qlen`, `ts` and `B`, and
//! which precision it loses.

pub mod aecn;
pub(super) mod below_bth;
pub mod csig;
mod hop_by_hop;
mod ifa;
mod int_md;
mod ioam;
mod numbers;
mod port_state;
mod reading;
#[cfg(test)]
mod tests;
pub(super) mod words;

pub use numbers::{Numbers, NumbersError};
pub use port_state::PortState;
pub use reading::{HopReading, Hops, Reading, Signal};

pub use super::telemetry::HOPS;

use super::layers::{Family, InsertedTelemetry, Layers, chunk};
use super::tcp_probe;
use super::telemetry::{self, HopRecord, IntHeader, Speed};
use crate::Discard;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

/// Format of telemetry in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// HPCC INT: rtgwg-00 Figure 4, after the BTH.
    #[default]
    Hpcc,
    /// P4 INT-MD v2.1, between UDP and BTH.
    IntMd,
    /// IOAM's pre-allocated trace (RFC 9197) in an IPv6 hop-by-hop option (RFC 9486).
    Ioam,
    /// IFA 2.0: a header after IP, metadata after UDP.
    Ifa,
    /// Advanced ECN, in an IPv6 hop-by-hop option.
    Aecn,
    /// Compact tag of CSIG, 4 bytes before IP.
    Csig,
    /// Wide tag of CSIG, 8 bytes before IP.
    CsigWide,
}

impl Format {
    /// All formats by name.
    pub const ALL: [(&'static str, Self); 7] = [
        ("hpcc", Self::Hpcc),
        ("int-md", Self::IntMd),
        ("ioam", Self::Ioam),
        ("ifa", Self::Ifa),
        ("aecn", Self::Aecn),
        ("csig", Self::Csig),
        ("csig-wide", Self::CsigWide),
    ];

    /// Returns whether packets to `address` can carry the format: hop-by-hop options need IPv6.
    #[must_use]
    pub const fn fits(self, address: IpAddr) -> bool {
        match self {
            Self::Hpcc | Self::IntMd | Self::Ifa | Self::Csig | Self::CsigWide => true,
            Self::Ioam | Self::Aecn => address.is_ipv6(),
        }
    }

    /// Returns whether switches write their load, in a measure of their own, instead of counters.
    #[must_use]
    pub const fn reports_load(self) -> bool {
        matches!(self, Self::Aecn | Self::Csig | Self::CsigWide)
    }

    /// Returns the bytes that a sender inserts below the BTH.
    #[must_use]
    pub const fn inserted(self) -> usize {
        match self {
            Self::Hpcc => 0,
            Self::IntMd => int_md::INSERTED,
            Self::Ioam => ioam::INSERTED,
            Self::Ifa => ifa::INSERTED,
            Self::Aecn => aecn::INSERTED,
            Self::Csig => csig::COMPACT,
            Self::CsigWide => csig::WIDE,
        }
    }

    /// Returns the bytes below the BTH after as many switches as there is room for. The MTU of the path must include them.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "the operands are constants")]
    pub const fn longest(self) -> usize {
        match self {
            Self::IntMd => int_md::INSERTED + HOPS as usize * int_md::HOP_LENGTH,
            Self::Ifa => ifa::INSERTED + HOPS as usize * ifa::HOP_LENGTH,
            Self::Hpcc | Self::Ioam | Self::Aecn | Self::Csig | Self::CsigWide => self.inserted(),
        }
    }

    /// Inserts the telemetry into a sealed packet of `length` bytes that begins [`inserted`](Self::inserted) bytes into `frame`. The result
    /// begins at the start of `frame`. Returns its length.
    ///
    /// # Errors
    /// Returns a [`Discard`] if the frame is not a RoCEv2 packet, carries telemetry already, or is IPv4 and the format needs IPv6.
    #[expect(clippy::arithmetic_side_effects, reason = "the lengths are within a frame")]
    pub fn insert(self, frame: &mut [u8], length: usize, numbers: Numbers) -> Result<usize, Discard> {
        let gap = self.inserted();
        let packet = frame.get(gap..gap + length).ok_or(Discard::Truncated)?;
        let layers = Layers::locate(packet, numbers)?;
        if layers.carried.is_some() {
            return Err(Discard::Telemetry);
        }
        match self {
            Self::Hpcc => {}
            Self::IntMd => int_md::insert(frame, &layers, numbers),
            Self::Ifa => ifa::insert(frame, &layers),
            Self::Ioam | Self::Aecn if layers.family == Family::V4 => return Err(Discard::IpHeader),
            Self::Ioam => ioam::insert(frame, &layers),
            Self::Aecn => aecn::insert(frame, &layers, numbers),
            Self::Csig => csig::insert(frame, &layers, numbers, false),
            Self::CsigWide => csig::insert(frame, &layers, numbers, true),
        }
        Ok(gap + length)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.into_iter().find(|(_, format)| format == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

impl FromStr for Format {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == text);
        found
            .map(|(_, format)| format)
            .ok_or("a format is one of hpcc, int-md, ioam, ifa, aecn, csig, csig-wide")
    }
}

/// Telemetry below a packet's BTH, not yet parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Telemetry<'a> {
    format: Format,
    bytes: &'a [u8],
}

impl<'a> Telemetry<'a> {
    pub(super) fn of(frame: &'a [u8], layers: &Layers) -> Option<Self> {
        let carried = layers.carried?;
        let format = match carried {
            InsertedTelemetry::IntMd => Format::IntMd,
            InsertedTelemetry::Ifa => Format::Ifa,
            InsertedTelemetry::Ioam(..) => Format::Ioam,
            InsertedTelemetry::Aecn(..) => Format::Aecn,
            InsertedTelemetry::Csig(length) if usize::from(length) == csig::COMPACT => Format::Csig,
            InsertedTelemetry::Csig(_) => Format::CsigWide,
        };
        Some(Self { format, bytes: frame.get(carried.span(layers))? })
    }

    /// Returns the format.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Reads the values that switches wrote. Returns `None` if they are damaged, or differ from the request of a Ferroce sender.
    #[must_use]
    pub fn read(&self) -> Option<Reading> {
        match self.format {
            Format::Hpcc => None,
            Format::IntMd => int_md::read(self.bytes).map(Reading::Hops),
            Format::Ioam => ioam::read(self.bytes).map(Reading::Hops),
            Format::Ifa => ifa::read(self.bytes).map(Reading::Hops),
            Format::Aecn => aecn::read(self.bytes).map(Reading::Inflight),
            Format::Csig | Format::CsigWide => csig::read(self.bytes).map(Reading::Signal),
        }
    }
}

/// Place in a packet to which switches write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    layers: Layers,
    int: Option<(usize, IntHeader)>,
}

impl Request {
    /// Finds the place in a frame; `None` if the packet requests no telemetry, or the request is damaged.
    #[must_use]
    pub fn find(frame: &[u8], numbers: Numbers) -> Option<Self> {
        let Ok(layers) = Layers::locate(frame, numbers) else {
            // Only the INT header of a TCP probe is used.
            let int = tcp_probe::find(frame, numbers)?;
            return Some(Self { layers: Layers::NONE, int: Some(int) });
        };
        let int = match layers.carried {
            Some(_) => None,
            None => Some(telemetry::find(frame, &layers).ok()?),
        };
        Some(Self { layers, int })
    }

    /// Returns the bytes by which the packet grows, in formats that reserve no room.
    #[must_use]
    pub const fn growth(&self) -> usize {
        match self.layers.carried {
            Some(InsertedTelemetry::IntMd) => int_md::HOP_LENGTH,
            Some(InsertedTelemetry::Ifa) => ifa::HOP_LENGTH,
            Some(InsertedTelemetry::Ioam(..) | InsertedTelemetry::Aecn(..) | InsertedTelemetry::Csig(_))
            | None => 0,
        }
    }

    /// Writes the state of `port` into the frame in which the request was found. The packet is the first `length` bytes of `frame`; the
    /// rest is room to grow. Returns the new length; `None` if no state was written, apart from a flag that there was no room.
    pub fn stamp(&self, frame: &mut [u8], length: usize, port: &PortState) -> Option<usize> {
        // The probes of TCP have no such layers, and no checksum.
        if self.layers.end == 0 {
            return self.write(frame, length, port);
        }
        let write = |frame: &mut [u8]| self.write(frame, length, port)?.checked_sub(length);
        length.checked_add(self.layers.keep_udp_checksum(frame, write)?)
    }

    #[expect(clippy::arithmetic_side_effects, reason = "`Layers` lie within a frame")]
    fn write(&self, frame: &mut [u8], length: usize, port: &PortState) -> Option<usize> {
        let layers = &self.layers;
        if let Some(place) = self.int {
            let record = HopRecord::new(Speed::from_rate(port.rate)?, port.time, port.tx_bytes, port.queue);
            return telemetry::write(frame, place, port.switch, record).then_some(length);
        }
        let carried = layers.carried?;
        let span = carried.span(layers);
        match carried {
            InsertedTelemetry::IntMd => int_md::stamp(frame, length, layers, port),
            InsertedTelemetry::Ifa => ifa::stamp(frame, length, layers, port),
            InsertedTelemetry::Ioam(..) => {
                let hop_limit = chunk::<1>(frame, layers.ip + 7).ok()?[0];
                ioam::stamp(frame.get_mut(span)?, hop_limit, port, ioam::Node::Ferroce).then_some(length)
            }
            InsertedTelemetry::Aecn(..) => aecn::stamp(frame.get_mut(span)?, port).then_some(length),
            InsertedTelemetry::Csig(_) => csig::stamp(frame.get_mut(span)?, port).then_some(length),
        }
    }

    /// Writes the state of `port` as stock Linux does: only into IOAM's trace, and without `txBytes`. Returns whether it was written.
    #[expect(clippy::arithmetic_side_effects, reason = "`Layers` lie within a frame")]
    pub fn stamp_as_linux(&self, frame: &mut [u8], port: &PortState) -> bool {
        let layers = &self.layers;
        let Some(carried @ InsertedTelemetry::Ioam(..)) = layers.carried else { return false };
        let Ok(&[hop_limit]) = chunk::<1>(frame, layers.ip + 7) else { return false };
        frame
            .get_mut(carried.span(layers))
            .is_some_and(|data| ioam::stamp(data, hop_limit, port, ioam::Node::Linux))
    }
}

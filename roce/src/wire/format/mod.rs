//! Telemetry in the layouts of others: INT-MD, IOAM, IFA, AECN and CSIG, beside the HPCC INT header of rtgwg-00.
//!
//! Each file here is one layout: what a sender inserts, what a switch writes, what a receiver reads. All are below the BTH, where the ICRC
//! counts them as absent, and identify themselves, so a receiver needs no setting. `roce/src/wire/format/README.md` says for each how
//! `txBytes`, `qlen`, `ts` and `B` come out of it, and what is lost.

pub mod aecn;
pub(super) mod below;
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

use super::layers::{Carried, Family, Layers, chunk};
use super::tcp_probe;
use super::telemetry::{self, HopRecord, IntHeader, Speed};
use crate::Discard;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

/// The layout of telemetry in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// HPCC INT: rtgwg-00 Figure 4, behind the BTH.
    #[default]
    Hpcc,
    /// P4 INT-MD v2.1, between UDP and BTH.
    IntMd,
    /// IOAM's pre-allocated trace (RFC 9197) in an IPv6 hop-by-hop option (RFC 9486).
    Ioam,
    /// IFA 2.0: a header behind IP, metadata behind UDP.
    Ifa,
    /// Advanced ECN, in an IPv6 hop-by-hop option.
    Aecn,
    /// CSIG's compact tag, 4 bytes before IP.
    Csig,
    /// CSIG's wide tag, 8 bytes.
    CsigWide,
}

impl Format {
    /// Every format by its name.
    pub const ALL: [(&'static str, Self); 7] = [
        ("hpcc", Self::Hpcc),
        ("int-md", Self::IntMd),
        ("ioam", Self::Ioam),
        ("ifa", Self::Ifa),
        ("aecn", Self::Aecn),
        ("csig", Self::Csig),
        ("csig-wide", Self::CsigWide),
    ];

    /// Returns true if packets to `address` can carry it: hop-by-hop options are IPv6's.
    #[must_use]
    pub const fn fits(self, address: IpAddr) -> bool {
        match self {
            Self::Hpcc | Self::IntMd | Self::Ifa | Self::Csig | Self::CsigWide => true,
            Self::Ioam | Self::Aecn => address.is_ipv6(),
        }
    }

    /// Returns true if switches write their load, by their own measure, instead of counters.
    #[must_use]
    pub const fn tells_load(self) -> bool {
        matches!(self, Self::Aecn | Self::Csig | Self::CsigWide)
    }

    /// Bytes that a sender inserts below the BTH.
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

    /// Bytes below the BTH after as many switches as it has room for: what a path's MTU must leave.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "the operands are constants")]
    pub const fn longest(self) -> usize {
        match self {
            Self::IntMd => int_md::INSERTED + HOPS as usize * int_md::HOP_LENGTH,
            Self::Ifa => ifa::INSERTED + HOPS as usize * ifa::HOP_LENGTH,
            Self::Hpcc | Self::Ioam | Self::Aecn | Self::Csig | Self::CsigWide => self.inserted(),
        }
    }

    /// Puts the telemetry into a sealed packet. The packet is [`inserted`](Self::inserted) bytes from the start of `frame` and takes
    /// `length` bytes; the whole begins at the start afterwards. Returns its length.
    ///
    /// # Errors
    /// Returns an error if it is no packet, or its family has no place for telemetry.
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

/// Telemetry below a packet's BTH, not yet read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Telemetry<'a> {
    format: Format,
    bytes: &'a [u8],
}

impl<'a> Telemetry<'a> {
    pub(super) fn of(frame: &'a [u8], layers: &Layers) -> Option<Self> {
        let carried = layers.carried?;
        let format = match carried {
            Carried::IntMd => Format::IntMd,
            Carried::Ifa => Format::Ifa,
            Carried::Ioam(..) => Format::Ioam,
            Carried::Aecn(..) => Format::Aecn,
            Carried::Csig(length) if usize::from(length) == csig::COMPACT => Format::Csig,
            Carried::Csig(_) => Format::CsigWide,
        };
        Some(Self { format, bytes: frame.get(carried.span(layers))? })
    }

    /// Its layout.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Reads what switches wrote. Returns `None` if it is damaged, or not what a Ferroce sender requests.
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

/// The place in a packet that switches are asked to write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    layers: Layers,
    int: Option<(usize, IntHeader)>,
}

impl Request {
    /// Finds it in a frame; `None` in one that asks for nothing, or is damaged as far as telemetry goes.
    #[must_use]
    pub fn find(frame: &[u8], numbers: Numbers) -> Option<Self> {
        let Ok(layers) = Layers::locate(frame, numbers) else {
            // A TCP probe's INT header is all that is used of it.
            let int = tcp_probe::find(frame, numbers)?;
            return Some(Self { layers: Layers::NONE, int: Some(int) });
        };
        let int = match layers.carried {
            Some(_) => None,
            None => Some(telemetry::find(frame, &layers).ok()?),
        };
        Some(Self { layers, int })
    }

    /// Bytes that the packet grows by: of formats without room of their own.
    #[must_use]
    pub const fn growth(&self) -> usize {
        match self.layers.carried {
            Some(Carried::IntMd) => int_md::HOP_LENGTH,
            Some(Carried::Ifa) => ifa::HOP_LENGTH,
            Some(Carried::Ioam(..) | Carried::Aecn(..) | Carried::Csig(_)) | None => 0,
        }
    }

    /// Writes the state of `port` into the frame in which this was found. The frame takes the first `length` bytes of `frame`; the rest is
    /// room to grow. Returns the new length; `None` if nothing was written: the frame then says at most that room lacked.
    #[expect(clippy::arithmetic_side_effects, reason = "`Layers` lie within a frame")]
    pub fn stamp(&self, frame: &mut [u8], length: usize, port: &PortState) -> Option<usize> {
        let layers = &self.layers;
        if let Some(place) = self.int {
            let record = HopRecord::new(Speed::from_rate(port.rate)?, port.time, port.tx_bytes, port.queue);
            return telemetry::write(frame, place, port.switch, record).then_some(length);
        }
        let carried = layers.carried?;
        let span = carried.span(layers);
        match carried {
            Carried::IntMd => int_md::stamp(frame, length, layers, port),
            Carried::Ifa => ifa::stamp(frame, length, layers, port),
            Carried::Ioam(..) => {
                let hop_limit = chunk::<1>(frame, layers.ip + 7).ok()?[0];
                ioam::stamp(frame.get_mut(span)?, hop_limit, port, ioam::Node::Ferroce).then_some(length)
            }
            Carried::Aecn(..) => aecn::stamp(frame.get_mut(span)?, port).then_some(length),
            Carried::Csig(_) => csig::stamp(frame.get_mut(span)?, port).then_some(length),
        }
    }

    /// The same as stock Linux does it: into IOAM's trace alone, without `txBytes`.
    #[expect(clippy::arithmetic_side_effects, reason = "`Layers` lie within a frame")]
    pub fn stamp_as_linux(&self, frame: &mut [u8], port: &PortState) -> bool {
        let layers = &self.layers;
        let Some(carried @ Carried::Ioam(..)) = layers.carried else { return false };
        let Ok(&[hop_limit]) = chunk::<1>(frame, layers.ip + 7) else { return false };
        frame
            .get_mut(carried.span(layers))
            .is_some_and(|data| ioam::stamp(data, hop_limit, port, ioam::Node::Linux))
    }
}

//! Subscription: a data packet asks switches on its way to tell its sender of congestion at once (pan-01 6.3), by a flag in
//! the INT header's word. In place of a record stands the sender's queue pair, which no other header tells.

use super::feedback::{Feedback, Report};
use super::header::{Bth, Header};
use super::layers::{Layers, chunk};
use super::telemetry::{IntHeader, RECORD_LENGTH, WORD_LENGTH};
use super::{BTH_LENGTH, EmitError, Path, emit, inband};
use crate::{Discard, Psn, Qpn};

/// Bytes that a subscription adds to a data packet.
pub const SUBSCRIPTION_LENGTH: usize = WORD_LENGTH + RECORD_LENGTH;

/// What a switch needs to answer a packet that subscribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The way that the packet came.
    path: Path,
    /// The queue pair that sent it.
    sender: Qpn,
    partition_key: u16,
    psn: Psn,
}

impl Subscription {
    /// Subscribes with a sealed data packet of queue pair `sender`. The packet stands [`SUBSCRIPTION_LENGTH`] bytes from the
    /// start of `frame` and takes `length` bytes; the whole begins at the start afterwards. Gives its length.
    ///
    /// # Errors
    /// The packet is none of a connected service, or brings telemetry already.
    pub fn insert(frame: &mut [u8], length: usize, sender: Qpn) -> Result<usize, Discard> {
        let gap = SUBSCRIPTION_LENGTH;
        let packet = frame.get(gap..gap + length).ok_or(Discard::Truncated)?;
        let layers = Layers::locate(packet)?;
        let [opcode, _, _, _, congestion] = *chunk(packet, layers.bth)?;
        if !inband::is_data(super::Opcode(opcode))
            || congestion & Bth::TELEMETRY != 0
            || layers.carried.is_some()
        {
            return Err(Discard::Telemetry);
        }
        let at = layers.bth + BTH_LENGTH;
        frame.copy_within(gap..gap + at, 0);
        super::format::lengthen(frame, &layers, gap);
        super::format::add(frame, layers.udp + 4, gap);
        frame[layers.bth + 4] |= Bth::TELEMETRY;
        frame[at..at + WORD_LENGTH].copy_from_slice(&IntHeader::SUBSCRIPTION.pack());
        let record = u64::from(sender.get()) << 40;
        frame[at + WORD_LENGTH..at + gap].copy_from_slice(&record.to_be_bytes());
        Ok(gap + length)
    }

    /// What a frame at a switch subscribes to; `None` where it doesn't.
    #[must_use]
    pub fn find(frame: &[u8]) -> Option<Self> {
        let layers = Layers::locate(frame).ok()?;
        let [opcode, _, key_high, key_low, congestion, _, _, _, _, psn @ ..] =
            *chunk::<BTH_LENGTH>(frame, layers.bth).ok()?;
        let at = layers.bth + BTH_LENGTH;
        if !inband::is_flagged(opcode, congestion) || layers.end < at + SUBSCRIPTION_LENGTH {
            return None;
        }
        let int = IntHeader::unpack(*chunk(frame, at).ok()?)?;
        let [high, middle, low] = *chunk(frame, at + WORD_LENGTH).ok()?;
        let (path, _) = layers.path(frame).ok()?;
        int.is_subscription().then_some(Self {
            path,
            sender: Qpn::new(u32::from_be_bytes([0, high, middle, low])),
            partition_key: u16::from_be_bytes([key_high, key_low]),
            psn: Psn::new(u32::from_be_bytes([0, psn[0], psn[1], psn[2]])),
        })
    }

    /// What tells senders apart.
    #[must_use]
    pub fn key(&self) -> u64 {
        let address = match self.path.source {
            core::net::IpAddr::V4(address) => u128::from(address.to_bits()),
            core::net::IpAddr::V6(address) => address.to_bits(),
        };
        (address >> 64) as u64 ^ address as u64 ^ u64::from(self.sender.get()) << 32
    }

    /// Writes the direct response to `frame`: a telemetry notification to the sender, as its peer would send it, about the
    /// packet that caused it. `utilisation` is the in-flight share in 2^-20, `interval` the time it was measured over, ns.
    ///
    /// # Errors
    /// `frame` is too short.
    pub fn respond(&self, utilisation: u32, interval: u32, frame: &mut [u8]) -> Result<usize, EmitError> {
        let path = Path {
            source_mac: self.path.destination_mac,
            destination_mac: self.path.source_mac,
            source: self.path.destination,
            destination: self.path.source,
            hop_limit: 64,
            ..self.path
        };
        let bth = Bth {
            solicited: false,
            migration: false,
            partition_key: self.partition_key,
            congestion: 0,
            destination: self.sender,
            ack_request: false,
            psn: self.psn,
        };
        let report = Report::Ratio { path_id: 0, utilisation, interval };
        let header = Header::TelemetryNotification { bth, feedback: Feedback { report, seal: None } };
        Ok(emit(&path, 0, &header, 0, frame)?.seal())
    }
}

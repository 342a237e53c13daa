//! Subscriptions: a data packet requests that the switches on its path report congestion to its sender directly (pan-01 6.3). It does so by
//! a flag in the INT header's word, or by its DSCP alone. The packet does not contain the sender's queue pair. So the report has the
//! packet's own destination, by which the sender finds the queue pair that sends there.

use super::constants::BTH_LENGTH;
use super::feedback::{Feedback, MAX_FEEDBACK, Report, Seal};
use super::format::words::{add, lengthen};
use super::header::{Bth, Header};
use super::layers::{Layers, chunk};
use super::telemetry::{IntHeader, RECORD_LENGTH, WORD_LENGTH};
use super::{EmitError, Numbers, Path, emit, inband};
use crate::{Discard, Psn, Qpn};

/// Bytes that a subscription adds to a data packet.
pub const SUBSCRIPTION_LENGTH: usize = WORD_LENGTH + RECORD_LENGTH;

/// Fields that a switch needs to answer a packet that subscribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription {
    path: Path,
    /// Destination queue pair of the packet.
    destination: Qpn,
    /// Number that distinguishes the sender from others.
    sender: Qpn,
    partition_key: u16,
    psn: Psn,
}

impl Subscription {
    /// Adds a subscription of queue pair `sender` to a sealed data packet of `length` bytes that begins [`SUBSCRIPTION_LENGTH`] bytes into
    /// `frame`. The result begins at the start of `frame`. Returns its length.
    ///
    /// # Errors
    /// Returns a [`Discard`] if the packet is not a data packet of a connected service, or carries telemetry already.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`locate` found BTH and ICRC within the packet, which ends `gap` bytes further back in the frame"
    )]
    pub fn insert(frame: &mut [u8], length: usize, sender: Qpn) -> Result<usize, Discard> {
        let gap = SUBSCRIPTION_LENGTH;
        let packet = frame.get(gap..).and_then(|rest| rest.get(..length)).ok_or(Discard::Truncated)?;
        let layers = Layers::locate(packet, Numbers::DEFAULT)?;
        let [opcode, _, _, _, congestion] = *chunk(packet, layers.bth)?;
        if !inband::is_data(super::Opcode(opcode))
            || congestion & Bth::TELEMETRY != 0
            || layers.carried.is_some()
        {
            return Err(Discard::Telemetry);
        }
        let at = layers.bth + BTH_LENGTH;
        frame.copy_within(gap..gap + at, 0);
        lengthen(frame, &layers, gap);
        add(frame, layers.udp + 4, gap);
        frame[layers.bth + 4] |= Bth::TELEMETRY;
        frame[at..at + WORD_LENGTH].copy_from_slice(&IntHeader::SUBSCRIPTION.pack());
        let record = u64::from(sender.get()) << 40;
        frame[at + WORD_LENGTH..at + gap].copy_from_slice(&record.to_be_bytes());
        Ok(gap + length)
    }

    /// Finds the subscription of a frame at a switch: by its flag, or because it is a data packet with DSCP `class`. Returns `None` if the
    /// packet does not subscribe.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "`locate` found the BTH within the frame")]
    pub fn find(frame: &[u8], class: Option<u8>, numbers: Numbers) -> Option<Self> {
        let layers = Layers::locate(frame, numbers).ok()?;
        let [opcode, _, key_high, key_low, congestion, to_high, to_middle, to_low, _, psn @ ..] =
            *chunk::<BTH_LENGTH>(frame, layers.bth).ok()?;
        let path = super::Network { bytes: frame, layers }.path();
        let destination = Qpn::new(u32::from_be_bytes([0, to_high, to_middle, to_low]));
        let by_class = class == Some(path.traffic_class >> 2) && inband::is_data(super::Opcode(opcode));
        let by_flag = || {
            let at = layers.bth + BTH_LENGTH;
            if !inband::is_flagged(opcode, congestion) || layers.end < at + SUBSCRIPTION_LENGTH {
                return None;
            }
            let int = IntHeader::unpack(*chunk(frame, at).ok()?)?;
            let [high, middle, low] = *chunk(frame, at + WORD_LENGTH).ok()?;
            int.is_subscription().then_some(Qpn::new(u32::from_be_bytes([0, high, middle, low])))
        };
        let sender = if by_class { destination } else { by_flag()? };
        Some(Self {
            path,
            destination,
            sender,
            partition_key: u16::from_be_bytes([key_high, key_low]),
            psn: Psn::new(u32::from_be_bytes([0, psn[0], psn[1], psn[2]])),
        })
    }

    /// Returns a key that differs between senders.
    #[must_use]
    pub fn key(&self) -> u64 {
        let address = match self.path.source {
            core::net::IpAddr::V4(address) => u128::from(address.to_bits()),
            core::net::IpAddr::V6(address) => address.to_bits(),
        };
        (address >> 64) as u64 ^ address as u64 ^ u64::from(self.sender.get()) << 32
    }

    /// Writes the direct response to `frame`: to the sender, as if from its peer, about the packet that encountered congestion.
    /// `utilisation` is the in-flight share in 2^-20, `interval` the time of its measurement in ns. `seal` creates the seal, if one is
    /// required, from BTH and content. Returns the length.
    ///
    /// # Errors
    /// Returns [`EmitError::Room`] if `frame` is too short.
    #[expect(clippy::indexing_slicing, reason = "`length` bytes were written to these")]
    pub fn respond(
        &self,
        (utilisation, interval): (u32, u32),
        seal: impl FnOnce(&Bth, &[u8]) -> Option<Seal>,
        frame: &mut [u8],
    ) -> Result<usize, EmitError> {
        let path = Path {
            source_mac: self.path.destination_mac,
            destination_mac: self.path.source_mac,
            source: self.path.destination,
            destination: self.path.source,
            hop_limit: 64,
            ..self.path
        };
        let bth = Bth { partition_key: self.partition_key, ..Bth::new(self.destination, self.psn) };
        let report = Report::Ratio { path_id: 0, utilisation, interval };
        let mut content = [0; MAX_FEEDBACK];
        let length = Feedback { report, seal: None }.write(&mut content);
        let seal = seal(&bth, &content[..length]);
        let header = Header::DirectResponse { bth, feedback: Feedback { report, seal } };
        Ok(emit(&path, 0, &header, 0, frame)?.seal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_without_room_for_the_subscription_is_refused() {
        for length in [0, 64 - SUBSCRIPTION_LENGTH, 64, usize::MAX] {
            let inserted = Subscription::insert(&mut [0; 64], length, Qpn::new(1));
            assert!(inserted.is_err(), "a packet of {length} bytes");
        }
    }
}

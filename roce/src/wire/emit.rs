//! Writes headers, pad and ICRC of a packet.

use super::constants::{BTH_LENGTH, ICRC_LENGTH, MAX_PAYLOAD};
use super::feedback::MAX_FEEDBACK;
use super::header::{Bth, Header, Operation, Service};
use super::icrc;
use super::inband;
use super::layers::Layers;
use super::opcode::{Opcode, Writer};
use super::path::Path;
use super::telemetry::WORD_LENGTH;
use super::template::Template;
use core::net::IpAddr;
use thiserror::Error;

/// Reason why a packet cannot be written. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EmitError {
    /// The frame is too short.
    #[error("frame of {room} bytes: the packet needs {needed}; pass a longer frame")]
    Room {
        /// Bytes of the packet.
        needed: usize,
        /// Bytes of the frame.
        room: usize,
    },
    /// The service does not have this operation.
    #[error("opcode {0:#04x}: the service has no such operation")]
    Opcode(u8),
    /// The payload is longer than the operation allows.
    #[error("payload of {length} bytes: opcode {opcode:#04x} carries at most {limit}")]
    Payload {
        /// The first byte of the BTH.
        opcode: u8,
        /// Bytes of the payload.
        length: usize,
        /// Limit in bytes: 0, the largest path MTU, or exactly a probe's room.
        limit: usize,
    },
    /// One address is IPv4 and the other IPv6.
    #[error("source {from}, destination {to}: the address families differ; use two addresses of one family")]
    Families {
        /// Source address.
        from: IpAddr,
        /// Destination address.
        to: IpAddr,
    },
    /// A telemetry response whose busiest hop is not one of its hops.
    #[error("a telemetry response of {hops} hops must name one of them, and at most 15")]
    Hops {
        /// Hops of the path.
        hops: u8,
    },
}

/// Packet whose headers are written: fill [`payload`](Self::payload), then [`seal`](Self::seal).
#[derive(Debug)]
#[must_use = "a packet has no ICRC before it is sealed"]
pub struct Draft<'f> {
    frame: &'f mut [u8],
    layers: Layers,
    payload: usize,
    payload_length: usize,
    excluded: usize,
}

impl Draft<'_> {
    /// Returns the payload, to be filled. It contains the former bytes of the frame, or zeros in a probe.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`emit` found room for the payload"
    )]
    pub fn payload(&mut self) -> &mut [u8] {
        &mut self.frame[self.payload..self.payload + self.payload_length]
    }

    /// Returns the length from the Ethernet header to the ICRC, bytes.
    #[must_use]
    pub fn frame_length(&self) -> usize {
        self.layers.end
    }

    /// Writes pad and ICRC. Returns the length of the frame, bytes.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`emit` found room for payload, pad and ICRC, in this order"
    )]
    pub fn seal(self) -> usize {
        let Layers { end, .. } = self.layers;
        if !self.payload_length.is_multiple_of(4) {
            self.frame[self.payload + self.payload_length..end - ICRC_LENGTH].fill(0);
        }
        let crc = icrc::compute(self.frame, &self.layers, self.excluded);
        self.frame[end - ICRC_LENGTH..end].copy_from_slice(&crc.to_le_bytes());
        end
    }
}

/// Writes all headers to the start of `frame`, with room for `payload_length` bytes after them. `identification` is that of an IPv4
/// header. A caller that sends many packets along one path should keep a [`Template`].
///
/// # Errors
/// Returns an [`EmitError`] if the service does not have the operation, or the packet does not fit the operation or the frame; `frame` is
/// then unchanged.
pub fn emit<'f>(
    path: &Path,
    identification: u16,
    header: &Header,
    payload_length: usize,
    frame: &'f mut [u8],
) -> Result<Draft<'f>, EmitError> {
    Template::new(path)?.emit(identification, header, payload_length, frame)
}

impl Template {
    /// Writes headers as [`emit()`] does, for the template's path.
    ///
    /// # Errors
    /// Returns the errors of [`emit()`].
    pub fn emit<'f>(
        &self,
        identification: u16,
        header: &Header,
        payload_length: usize,
        frame: &'f mut [u8],
    ) -> Result<Draft<'f>, EmitError> {
        self.emit_here(identification, header, payload_length, frame)
    }

    /// Inlined [`Self::emit`], so that the branches for other headers are removed for a caller with a constant kind of header.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "a payload is at most MAX_PAYLOAD, and headers are shorter; `frame` is as long as `end`"
    )]
    pub(crate) fn emit_here<'f>(
        &self,
        identification: u16,
        header: &Header,
        payload_length: usize,
        frame: &'f mut [u8],
    ) -> Result<Draft<'f>, EmitError> {
        let bth = header.bth();
        let (opcode, extensions) = match header {
            // All operations exist on reliable connections, and may have an empty payload.
            Header::Connected { service: Service::Rc, operation, .. } => {
                let (code, shape) = operation.shape();
                if payload_length > 0 && !(shape.payload && payload_length <= MAX_PAYLOAD) {
                    check(header, Opcode(code), payload_length)?;
                }
                (Opcode(code), shape.extensions())
            }
            _ => {
                check(header, header.opcode(), payload_length)?;
                (header.opcode(), header.extension_length())
            }
        };
        let is_in_band = inband::is_flagged(opcode.0, bth.congestion);
        let in_band = if is_in_band { WORD_LENGTH + inband::empty(opcode).room_bytes() } else { 0 };
        let extensions = in_band + extensions;
        let layers = self.layers(extensions + payload_length.next_multiple_of(4) + ICRC_LENGTH);
        let (payload, end) = (layers.bth + BTH_LENGTH + extensions, layers.end);
        if frame.len() < end {
            return Err(EmitError::Room { needed: end, room: frame.len() });
        }
        self.write(&layers, identification, frame);
        let mut writer = Writer { frame: &mut *frame, at: layers.bth };
        writer.put(pack_bth(opcode, bth, payload_length));
        if in_band > 0 {
            writer.in_band(inband::empty(opcode));
        }
        writer.extensions(header);
        let excluded = match header {
            Header::TelemetryRequest { .. } => {
                frame[payload..payload + payload_length].fill(0);
                end - ICRC_LENGTH - layers.bth - BTH_LENGTH
            }
            _ => in_band,
        };
        Ok(Draft { frame, layers, payload, payload_length, excluded })
    }
}

fn check(header: &Header, opcode: Opcode, length: usize) -> Result<(), EmitError> {
    let shape = opcode.shape().ok_or(EmitError::Opcode(opcode.0))?;
    let (limit, legal) = match header {
        Header::Connected { service: Service::Ud, .. } => return Err(EmitError::Opcode(opcode.0)),
        // Requests of XRC have an XRCETH, answers have none.
        Header::Connected { service: Service::Xrc, operation, .. } if !operation.is_answer() => {
            return Err(EmitError::Opcode(opcode.0));
        }
        Header::Extended { operation, .. } if operation.is_answer() => {
            return Err(EmitError::Opcode(opcode.0));
        }
        Header::TelemetryRequest { int, .. } => (int.room_bytes(), length == int.room_bytes()),
        Header::TelemetryResponse { feedback, .. }
        | Header::TelemetryNotification { feedback, .. }
        | Header::DirectResponse { feedback, .. } => match feedback.report.hops() {
            Some(hops) if !feedback.report.is_legal() => return Err(EmitError::Hops { hops }),
            _ => (0, length == 0),
        },
        Header::Connected { bth, operation: Operation::Acknowledge(_), .. }
            if bth.congestion & Bth::TELEMETRY != 0 =>
        {
            (MAX_FEEDBACK, length <= MAX_FEEDBACK)
        }
        _ if shape.payload => (MAX_PAYLOAD, length <= MAX_PAYLOAD),
        _ => (0, length == 0),
    };
    if legal { Ok(()) } else { Err(EmitError::Payload { opcode: opcode.0, length, limit }) }
}

#[inline]
fn pack_bth(opcode: Opcode, bth: &Bth, payload_length: usize) -> [u8; BTH_LENGTH] {
    let pad = (payload_length.wrapping_neg() & 3) as u8;
    let flags = u8::from(bth.solicited) << 7 | u8::from(bth.migration) << 6 | pad << 4;
    let [key_high, key_low] = bth.partition_key.to_be_bytes();
    let [_, dest @ ..] = bth.destination.get().to_be_bytes();
    let [_, psn @ ..] = bth.psn.get().to_be_bytes();
    let mut packed = [opcode.0, flags, key_high, key_low, bth.congestion, 0, 0, 0, 0, 0, 0, 0];
    packed[5..8].copy_from_slice(&dest);
    packed[8] = u8::from(bth.ack_request) << 7;
    packed[9..].copy_from_slice(&psn);
    packed
}

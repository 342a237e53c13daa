//! Opcodes, and the headers of each (IBA table 38).

use super::feedback::{Feedback, MAX_FEEDBACK, SEAL_LENGTH, Seal};
use super::header::{
    Aeth, AtomicEth, Bth, CompareSwap, FetchAdd, Feth, Header, Immediate, Operation, Reth, SendTail, Service,
    Syndrome,
};
use super::setup::{SETUP_LENGTH, Setup};
use super::telemetry::IntHeader;
use crate::{Discard, Psn, Qpn, Rkey, SrqNumber};

/// First byte of a BTH: service in the top three bits, operation below (IBA table 38).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// Properties of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Name of the operation in the specification.
    pub name: &'static str,
    /// Whether a payload may follow. If not, there is no pad either.
    pub payload: bool,
    /// Bit set, by the top three bits of an opcode.
    services: u8,
    /// Bytes of the extension headers, without an XRCETH; 0 if they differ.
    extensions: u8,
}

#[inline]
const fn shape(name: &'static str, payload: bool, services: u8, extensions: u8) -> Shape {
    Shape { name, payload, services, extensions }
}

const NONE: u8 = 0;
const RC: u8 = Service::Rc.bit() | Service::Xrc.bit();
const RC_UC: u8 = RC | Service::Uc.bit();
const ALL: u8 = RC_UC | Service::Ud.bit();

/// Operations by the low five bits (IBA table 38, annexes A14 and A19). 21 and 24 to 27 are reserved.
static OPERATIONS: [Shape; 30] = [
    shape("SEND First", true, RC_UC, 0),
    shape("SEND Middle", true, RC_UC, 0),
    shape("SEND Last", true, RC_UC, 0),
    shape("SEND Last with Immediate", true, RC_UC, 4),
    shape("SEND Only", true, ALL, 0),
    shape("SEND Only with Immediate", true, ALL, 4),
    shape("RDMA WRITE First", true, RC_UC, 16),
    shape("RDMA WRITE Middle", true, RC_UC, 0),
    shape("RDMA WRITE Last", true, RC_UC, 0),
    shape("RDMA WRITE Last with Immediate", true, RC_UC, 4),
    shape("RDMA WRITE Only", true, RC_UC, 16),
    shape("RDMA WRITE Only with Immediate", true, RC_UC, 20),
    shape("RDMA READ Request", false, RC, 16),
    shape("RDMA READ response First", true, RC, 4),
    shape("RDMA READ response Middle", true, RC, 0),
    shape("RDMA READ response Last", true, RC, 4),
    shape("RDMA READ response Only", true, RC, 4),
    shape("Acknowledge", false, RC, 4),
    shape("ATOMIC Acknowledge", false, RC, 12),
    shape("CmpSwap", false, RC, 28),
    shape("FetchAdd", false, RC, 28),
    shape("reserved", false, NONE, 0),
    shape("SEND Last with Invalidate", true, RC, 4),
    shape("SEND Only with Invalidate", true, RC, 4),
    shape("reserved", false, NONE, 0),
    shape("reserved", false, NONE, 0),
    shape("reserved", false, NONE, 0),
    shape("reserved", false, NONE, 0),
    shape("FLUSH", false, RC, 20),
    shape("ATOMIC WRITE", true, RC, 16),
];

static NOTIFICATION: Shape = shape("CNP", false, NONE, 0);
static REQUEST: Shape = shape("Telemetry Request", true, NONE, 0);
static RESPONSE: Shape = shape("Telemetry Response", false, NONE, 0);
static FEEDBACK: Shape = shape("Telemetry Notification", false, NONE, 0);
static SETUP: Shape = shape("Telemetry Setup", false, NONE, 0);
static DATAGRAM_REQUEST: Shape = shape("Datagram Telemetry Request", false, NONE, 0);
static DIRECT: Shape = shape("Direct Response", false, NONE, 0);
static SELECTIVE: Shape = shape("Selective Acknowledge", false, NONE, 0);
static OFFER: Shape = shape("Selective Offer", false, NONE, 0);

/// 8 reserved bits, and the 24-bit number of the shared receive queue (IBA annex A14).
const XRCETH_LENGTH: usize = 4;

/// Reserved bytes after a CNP's BTH (IBA A17.9.3).
const NOTIFICATION_RESERVED: usize = 16;

/// Bit of an offer's first word that marks an acceptance.
const OFFER_ACCEPTS: u32 = 1 << 24;

impl Opcode {
    /// Congestion notification packet.
    pub const NOTIFICATION: Self = Self(0x81);
    /// Telemetry request: a probe.
    pub const TELEMETRY_REQUEST: Self = Self(0xc0);
    /// Answer to a probe.
    pub const TELEMETRY_RESPONSE: Self = Self(0xc1);
    /// Feedback in a separate packet.
    pub const TELEMETRY_NOTIFICATION: Self = Self(0xc2);
    /// Setup of the receiver's answers to telemetry.
    pub const TELEMETRY_SETUP: Self = Self(0xc3);
    /// Report of a switch to the sender of a packet that encountered congestion.
    pub const DIRECT_RESPONSE: Self = Self(0xc4);
    /// Telemetry request to a datagram queue pair.
    pub const DATAGRAM_TELEMETRY_REQUEST: Self = Self(0xc5);
    /// Low five bits of an Acknowledge.
    const ACKNOWLEDGE: u8 = 17;
    /// Low five bits of the packets that a responder sends.
    const ANSWERS: core::ops::RangeInclusive<u8> = 13..=18;
    /// Acknowledgement that lists the packets held, between peers that agreed on selective repeat.
    pub const SELECTIVE_ACKNOWLEDGE: Self = Self(0xc8);
    /// Offer of selective repeat, or its acceptance.
    pub const SELECTIVE_OFFER: Self = Self(0xc9);

    /// Returns the service in the top three bits; `None` if it is not supported.
    #[must_use]
    #[inline]
    pub const fn service(self) -> Option<Service> {
        match self.0 >> 5 {
            0 => Some(Service::Rc),
            1 => Some(Service::Uc),
            3 => Some(Service::Ud),
            5 => Some(Service::Xrc),
            _ => None,
        }
    }

    /// Returns whether this is an Acknowledge: an ACK or a NAK.
    #[must_use]
    #[inline]
    pub const fn is_acknowledge(self) -> bool {
        matches!(self.service(), Some(Service::Rc | Service::Xrc)) && self.0 & 31 == Self::ACKNOWLEDGE
    }

    /// Returns whether this is a request of a connected queue pair.
    #[must_use]
    pub fn is_request(self) -> bool {
        matches!(self.service(), Some(Service::Rc | Service::Uc | Service::Xrc))
            && !Self::ANSWERS.contains(&(self.0 & 31))
    }

    /// Returns the properties of the opcode; `None` if the service has no such operation.
    #[must_use]
    #[inline(always)]
    pub fn shape(self) -> Option<&'static Shape> {
        let service = 1 << (self.0 >> 5);
        match OPERATIONS.get(usize::from(self.0 & 31)) {
            Some(shape) if shape.services & service != 0 => Some(shape),
            _ => self.special(),
        }
    }

    /// Returns the properties of opcodes that belong to no service.
    fn special(self) -> Option<&'static Shape> {
        Some(match self {
            Self::NOTIFICATION => &NOTIFICATION,
            Self::TELEMETRY_REQUEST => &REQUEST,
            Self::TELEMETRY_RESPONSE => &RESPONSE,
            Self::TELEMETRY_NOTIFICATION => &FEEDBACK,
            Self::TELEMETRY_SETUP => &SETUP,
            Self::DIRECT_RESPONSE => &DIRECT,
            Self::DATAGRAM_TELEMETRY_REQUEST => &DATAGRAM_REQUEST,
            Self::SELECTIVE_ACKNOWLEDGE => &SELECTIVE,
            Self::SELECTIVE_OFFER => &OFFER,
            _ => return None,
        })
    }
}

impl Header {
    /// Returns the opcode: the first byte of the BTH.
    #[must_use]
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Connected { service, operation, .. } => Opcode(service.bits() | operation.code()),
            Self::Extended { operation, .. } => Opcode(Service::Xrc.bits() | operation.code()),
            Self::Datagram { immediate: None, .. } => Opcode(0x64),
            Self::Datagram { immediate: Some(_), .. } => Opcode(0x65),
            Self::CongestionNotification { .. } => Opcode::NOTIFICATION,
            Self::TelemetryRequest { .. } => Opcode::TELEMETRY_REQUEST,
            Self::TelemetryResponse { .. } => Opcode::TELEMETRY_RESPONSE,
            Self::TelemetryNotification { .. } => Opcode::TELEMETRY_NOTIFICATION,
            Self::TelemetrySetup { .. } => Opcode::TELEMETRY_SETUP,
            Self::DirectResponse { .. } => Opcode::DIRECT_RESPONSE,
            Self::DatagramTelemetryRequest { .. } => Opcode::DATAGRAM_TELEMETRY_REQUEST,
            Self::SelectiveAcknowledge { .. } => Opcode::SELECTIVE_ACKNOWLEDGE,
            Self::SelectiveOffer { .. } => Opcode::SELECTIVE_OFFER,
        }
    }
}

impl Service {
    const fn bits(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Xrc => 0xa0,
            // No operation has this service.
            Self::Raw => 0xe0,
        }
    }

    const fn bit(self) -> u8 {
        1 << (self.bits() >> 5)
    }
}

impl Shape {
    #[inline]
    pub(super) const fn extensions(&self) -> usize {
        self.extensions as usize
    }
}

impl Operation {
    /// Returns the low five bits of the operation's opcode, and their properties.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "the code is at most 29, and there are 30 operations")]
    pub(super) fn shape(&self) -> (u8, &'static Shape) {
        let code = self.code();
        (code, &OPERATIONS[usize::from(code)])
    }

    #[inline]
    const fn code(&self) -> u8 {
        match self {
            Self::SendFirst => 0,
            Self::SendMiddle => 1,
            Self::SendLast(SendTail::Plain) => 2,
            Self::SendLast(SendTail::Immediate(_)) => 3,
            Self::SendOnly(SendTail::Plain) => 4,
            Self::SendOnly(SendTail::Immediate(_)) => 5,
            Self::WriteFirst(_) => 6,
            Self::WriteMiddle => 7,
            Self::WriteLast(None) => 8,
            Self::WriteLast(Some(_)) => 9,
            Self::WriteOnly(_, None) => 10,
            Self::WriteOnly(_, Some(_)) => 11,
            Self::ReadRequest(_) => 12,
            Self::ReadResponseFirst(_) => 13,
            Self::ReadResponseMiddle => 14,
            Self::ReadResponseLast(_) => 15,
            Self::ReadResponseOnly(_) => 16,
            Self::Acknowledge(_) => 17,
            Self::AtomicAcknowledge { .. } => 18,
            Self::CompareSwap(_) => 19,
            Self::FetchAdd(_) => 20,
            Self::SendLast(SendTail::Invalidate(_)) => 22,
            Self::SendOnly(SendTail::Invalidate(_)) => 23,
            Self::Flush(..) => 28,
            Self::AtomicWrite(_) => 29,
        }
    }
}

/// Reads extension headers, front to back.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Discard> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Discard::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, Discard> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Discard> {
        self.take().map(u64::from_be_bytes)
    }

    #[inline]
    fn reth(&mut self) -> Result<Reth, Discard> {
        // Read in one piece, so that the length is checked once.
        let packed = u128::from_be_bytes(self.take()?);
        Ok(Reth {
            address: (packed >> 64) as u64,
            rkey: Rkey::new((packed >> 32) as u32),
            length: packed as u32,
        })
    }

    fn aeth(&mut self) -> Result<Aeth, Discard> {
        let [syndrome, msn @ ..] = self.take::<4>()?;
        let syndrome = Syndrome::from_code(syndrome).ok_or(Discard::Syndrome)?;
        Ok(Aeth { syndrome, msn: u32::from_be_bytes([0, msn[0], msn[1], msn[2]]) })
    }

    #[inline(always)]
    pub(super) fn operation(&mut self, code: u8) -> Result<Operation, Discard> {
        Ok(match code {
            0 => Operation::SendFirst,
            1 => Operation::SendMiddle,
            2 => Operation::SendLast(SendTail::Plain),
            3 => Operation::SendLast(SendTail::Immediate(self.take()?)),
            4 => Operation::SendOnly(SendTail::Plain),
            5 => Operation::SendOnly(SendTail::Immediate(self.take()?)),
            6 => Operation::WriteFirst(self.reth()?),
            7 => Operation::WriteMiddle,
            8 => Operation::WriteLast(None),
            9 => Operation::WriteLast(Some(self.take()?)),
            10 => Operation::WriteOnly(self.reth()?, None),
            11 => Operation::WriteOnly(self.reth()?, Some(self.take()?)),
            12 => Operation::ReadRequest(self.reth()?),
            13 => Operation::ReadResponseFirst(self.aeth()?),
            14 => Operation::ReadResponseMiddle,
            15 => Operation::ReadResponseLast(self.aeth()?),
            16 => Operation::ReadResponseOnly(self.aeth()?),
            17 => Operation::Acknowledge(self.aeth()?),
            18 => Operation::AtomicAcknowledge { aeth: self.aeth()?, original: self.u64()? },
            19 => {
                let (address, rkey) = (self.u64()?, Rkey::new(self.u32()?));
                let operands = CompareSwap { swap: self.u64()?, compare: self.u64()? };
                Operation::CompareSwap(AtomicEth { address, rkey, operands })
            }
            20 => {
                let (address, rkey) = (self.u64()?, Rkey::new(self.u32()?));
                let (operands, _compare) = (FetchAdd { add: self.u64()? }, self.u64()?);
                Operation::FetchAdd(AtomicEth { address, rkey, operands })
            }
            22 => Operation::SendLast(SendTail::Invalidate(Rkey::new(self.u32()?))),
            23 => Operation::SendOnly(SendTail::Invalidate(Rkey::new(self.u32()?))),
            28 => Operation::Flush(Feth::unpack(self.u32()?), self.reth()?),
            29 => Operation::AtomicWrite(self.reth()?),
            _ => return Err(Discard::Opcode),
        })
    }

    fn feedback(&mut self) -> Result<Feedback, Discard> {
        Feedback::read(core::mem::take(&mut self.0))
    }

    fn setup(&mut self, bth: Bth) -> Result<Header, Discard> {
        let setup = Setup::unpack(&self.take::<SETUP_LENGTH>()?).ok_or(Discard::Telemetry)?;
        let seal = Seal::read(core::mem::take(&mut self.0))?;
        Ok(Header::TelemetrySetup { bth, setup, seal })
    }
}

/// Reads the extension headers of `opcode`. Returns the header and the bytes after it.
#[inline(always)]
pub(super) fn read(opcode: Opcode, bth: Bth, rest: &[u8]) -> Result<(Header, &[u8]), Discard> {
    let mut reader = Reader(rest);
    let header = match opcode {
        Opcode::NOTIFICATION => {
            reader.take::<NOTIFICATION_RESERVED>()?;
            Header::CongestionNotification { bth }
        }
        Opcode::TELEMETRY_REQUEST => {
            let int = IntHeader::unpack(reader.take()?).ok_or(Discard::Telemetry)?;
            Header::TelemetryRequest { bth, int }
        }
        Opcode::TELEMETRY_RESPONSE => Header::TelemetryResponse { bth, feedback: reader.feedback()? },
        Opcode::TELEMETRY_NOTIFICATION => Header::TelemetryNotification { bth, feedback: reader.feedback()? },
        Opcode::TELEMETRY_SETUP => reader.setup(bth)?,
        Opcode::DIRECT_RESPONSE => Header::DirectResponse { bth, feedback: reader.feedback()? },
        Opcode::DATAGRAM_TELEMETRY_REQUEST => {
            let (queue_key, source) = (reader.u32()?, Qpn::new(reader.u32()?));
            Header::DatagramTelemetryRequest { bth, queue_key, source }
        }
        Opcode::SELECTIVE_ACKNOWLEDGE => {
            let [ahead, msn @ ..] = reader.take::<4>()?;
            let msn = u32::from_be_bytes([0, msn[0], msn[1], msn[2]]);
            Header::SelectiveAcknowledge { bth, msn, ahead, held: u128::from_be_bytes(reader.take()?) }
        }
        Opcode::SELECTIVE_OFFER => {
            let (sent, received) = (reader.u32()?, reader.u32()?);
            let accepts = sent & OFFER_ACCEPTS != 0;
            let (first_sent, first_received) = (Psn::new(sent), Psn::new(received));
            Header::SelectiveOffer { bth, accepts, first_sent, first_received }
        }
        _ => match opcode.service().ok_or(Discard::Opcode)? {
            Service::Ud => {
                let (queue_key, source) = (reader.u32()?, Qpn::new(reader.u32()?));
                let immediate: Option<Immediate> = if opcode.0 == 0x65 { Some(reader.take()?) } else { None };
                Header::Datagram { bth, queue_key, source, immediate }
            }
            Service::Raw => return Err(Discard::Opcode),
            service @ (Service::Rc | Service::Uc | Service::Xrc) => {
                let code = opcode.0 & 31;
                let is_named = service == Service::Xrc && !Opcode::ANSWERS.contains(&code);
                let srq = if is_named { Some(SrqNumber::new(reader.u32()?)) } else { None };
                let operation = reader.operation(code)?;
                match srq {
                    Some(srq) => Header::Extended { bth, srq, operation },
                    None => Header::Connected { service, bth, operation },
                }
            }
        },
    };
    Ok((header, reader.0))
}

/// Writes bytes front to back. The caller must have checked that there is room for them.
pub(super) struct Writer<'a> {
    pub frame: &'a mut [u8],
    pub at: usize,
}

impl Writer<'_> {
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`emit` found room for all headers"
    )]
    pub fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.frame[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
    }

    #[inline(always)]
    fn reth(&mut self, reth: &Reth) {
        // Written in one piece, so that the length is checked once.
        let mut packed = [0; 16];
        packed[..8].copy_from_slice(&reth.address.to_be_bytes());
        packed[8..12].copy_from_slice(&reth.rkey.get().to_be_bytes());
        packed[12..].copy_from_slice(&reth.length.to_be_bytes());
        self.put(packed);
    }

    fn aeth(&mut self, aeth: &Aeth) {
        let [_, a, b, c] = aeth.msn.to_be_bytes();
        self.put([aeth.syndrome.code(), a, b, c]);
    }

    fn atomic(&mut self, address: u64, rkey: Rkey, swap_or_add: u64, compare: u64) {
        self.put(address.to_be_bytes());
        self.put(rkey.get().to_be_bytes());
        self.put(swap_or_add.to_be_bytes());
        self.put(compare.to_be_bytes());
    }

    #[inline(always)]
    fn operation(&mut self, operation: &Operation) {
        match operation {
            Operation::SendFirst
            | Operation::SendMiddle
            | Operation::SendLast(SendTail::Plain)
            | Operation::SendOnly(SendTail::Plain)
            | Operation::WriteMiddle
            | Operation::WriteLast(None)
            | Operation::ReadResponseMiddle => {}
            Operation::SendLast(SendTail::Immediate(data))
            | Operation::SendOnly(SendTail::Immediate(data))
            | Operation::WriteLast(Some(data)) => self.put(*data),
            Operation::SendLast(SendTail::Invalidate(key))
            | Operation::SendOnly(SendTail::Invalidate(key)) => {
                self.put(key.get().to_be_bytes());
            }
            Operation::WriteFirst(reth)
            | Operation::WriteOnly(reth, None)
            | Operation::ReadRequest(reth)
            | Operation::AtomicWrite(reth) => self.reth(reth),
            Operation::Flush(feth, reth) => {
                self.put(feth.pack().to_be_bytes());
                self.reth(reth);
            }
            Operation::WriteOnly(reth, Some(data)) => {
                self.reth(reth);
                self.put(*data);
            }
            Operation::ReadResponseFirst(aeth)
            | Operation::ReadResponseLast(aeth)
            | Operation::ReadResponseOnly(aeth)
            | Operation::Acknowledge(aeth) => self.aeth(aeth),
            Operation::AtomicAcknowledge { aeth, original } => {
                self.aeth(aeth);
                self.put(original.to_be_bytes());
            }
            Operation::CompareSwap(eth) => {
                self.atomic(eth.address, eth.rkey, eth.operands.swap, eth.operands.compare);
            }
            Operation::FetchAdd(eth) => self.atomic(eth.address, eth.rkey, eth.operands.add, 0),
        }
    }

    #[inline(always)]
    #[expect(clippy::indexing_slicing, reason = "`length` bytes were written to these")]
    pub fn extensions(&mut self, header: &Header) {
        match header {
            Header::Connected { operation, .. } => self.operation(operation),
            Header::Extended { srq, operation, .. } => {
                self.put(srq.get().to_be_bytes());
                self.operation(operation);
            }
            Header::Datagram { queue_key, source, immediate, .. } => {
                self.put(queue_key.to_be_bytes());
                self.put(source.get().to_be_bytes());
                if let Some(data) = immediate {
                    self.put(*data);
                }
            }
            Header::DatagramTelemetryRequest { queue_key, source, .. } => {
                self.put(queue_key.to_be_bytes());
                self.put(source.get().to_be_bytes());
            }
            Header::CongestionNotification { .. } => self.put([0; NOTIFICATION_RESERVED]),
            Header::SelectiveAcknowledge { msn, ahead, held, .. } => {
                self.put((u32::from(*ahead) << 24 | msn & 0xff_ffff).to_be_bytes());
                self.put(held.to_be_bytes());
            }
            Header::SelectiveOffer { accepts, first_sent, first_received, .. } => {
                let flags = if *accepts { OFFER_ACCEPTS } else { 0 };
                self.put((flags | first_sent.get()).to_be_bytes());
                self.put(first_received.get().to_be_bytes());
            }
            Header::TelemetryRequest { int, .. } => self.put(int.pack()),
            Header::TelemetryResponse { feedback, .. }
            | Header::TelemetryNotification { feedback, .. }
            | Header::DirectResponse { feedback, .. } => {
                let mut bytes = [0; MAX_FEEDBACK];
                let length = feedback.write(&mut bytes);
                self.slice(&bytes[..length]);
            }
            Header::TelemetrySetup { setup, seal, .. } => {
                self.put(setup.pack());
                if let Some(seal) = seal {
                    let mut bytes = [0; SEAL_LENGTH];
                    seal.write(&mut bytes);
                    self.put(bytes);
                }
            }
        }
    }

    /// Writes an INT header and its empty room.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`emit` found room for all headers"
    )]
    pub fn in_band(&mut self, int: IntHeader) {
        self.put(int.pack());
        self.frame[self.at..self.at + int.room_bytes()].fill(0);
        self.at += int.room_bytes();
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`emit` found room for all headers"
    )]
    fn slice(&mut self, bytes: &[u8]) {
        self.frame[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

impl Header {
    #[expect(clippy::arithmetic_side_effects, reason = "two lengths are at most 56 bytes")]
    pub(super) fn extension_length(&self) -> usize {
        match self {
            Self::Connected { operation, .. } => operation.shape().1.extensions(),
            Self::Extended { operation, .. } => XRCETH_LENGTH + operation.shape().1.extensions(),
            Self::Datagram { immediate: None, .. } | Self::DatagramTelemetryRequest { .. } => 8,
            Self::Datagram { immediate: Some(_), .. } => 12,
            Self::CongestionNotification { .. } => NOTIFICATION_RESERVED,
            Self::TelemetryRequest { .. } => 4,
            Self::TelemetryResponse { feedback, .. }
            | Self::TelemetryNotification { feedback, .. }
            | Self::DirectResponse { feedback, .. } => feedback.length(),
            Self::TelemetrySetup { seal: None, .. } => SETUP_LENGTH,
            Self::TelemetrySetup { seal: Some(_), .. } => SETUP_LENGTH + SEAL_LENGTH,
            Self::SelectiveAcknowledge { .. } => 20,
            Self::SelectiveOffer { .. } => 8,
        }
    }
}

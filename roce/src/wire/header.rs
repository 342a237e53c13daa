//! The headers of all packets, as values.

use super::feedback::{Feedback, Seal};
use super::setup::Setup;
use super::telemetry::IntHeader;
use crate::{Psn, Qpn, Rkey, SrqNumber};
use core::time::Duration;
use thiserror::Error;

/// Fields of the base transport header (IBA 9.2), except the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// SE: the receiver's completion must raise an event.
    pub solicited: bool,
    /// MigReq, as automatic path migration set it.
    pub migration: bool,
    /// P_Key; the top bit means full membership.
    pub partition_key: u16,
    /// FECN, BECN and six reserved bits, unchanged. They are outside the ICRC, so a switch may change them.
    pub congestion: u8,
    /// Destination queue pair.
    pub destination: Qpn,
    /// AckReq: the responder must acknowledge now.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// FECN: the packet encountered congestion. Over IP the ECN field has this information, and the bit stays 0.
    pub const FECN: u8 = 0x80;
    /// BECN: packets in the opposite direction encountered congestion; in an Acknowledge those that it acknowledges, in a CNP recent ones.
    pub const BECN: u8 = 0x40;
    /// Reserved bit, used by Ferroce: an INT header follows the BTH; in an Acknowledge, feedback follows.
    pub const TELEMETRY: u8 = 0x20;
    /// Reserved bit, used by Ferroce: the sender requests that marks are echoed exactly in acknowledgements (DCTCP), and no CNPs.
    pub const EXACT_ECHO: u8 = 0x10;

    /// Creates the fields of a packet of the default partition, with full membership and no flags.
    #[inline]
    #[must_use]
    pub const fn new(destination: Qpn, psn: Psn) -> Self {
        Self {
            solicited: false,
            migration: false,
            partition_key: 0xffff,
            congestion: 0,
            destination,
            ack_request: false,
            psn,
        }
    }
}

/// Transport service; its opcodes have the same top three bits (IBA table 38).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection: requests name a shared receive queue (IBA annex A14).
    Xrc,
    /// Raw packets of verbs: unchanged Ethernet frames of the program, without opcodes.
    Raw,
}

/// Immediate data: four bytes that the receiver's completion carries unchanged.
pub type Immediate = [u8; 4];

/// RDMA extended transport header (IBA 9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Remote virtual address.
    pub address: u64,
    /// Key of the region.
    pub rkey: Rkey,
    /// Bytes of the whole message.
    pub length: u32,
}

/// Atomic extended transport header (IBA 9.3.5): target of 8 bytes, aligned to 8, and the operands of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth<T> {
    /// Remote virtual address.
    pub address: u64,
    /// Key of the region.
    pub rkey: Rkey,
    /// Operands of the operation.
    pub operands: T,
}

/// Operands of CMP_SWAP: stores `swap` if the value is `compare`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CompareSwap {
    pub compare: u64,
    pub swap: u64,
}

/// Operand of FETCH_ADD: added with wrap-around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FetchAdd {
    pub add: u64,
}

/// FLUSH extended transport header (IBA annex A19): the six defined bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth(u8);

impl Feth {
    const GLOBAL: u8 = 1;
    const PERSISTENT: u8 = 2;
    const PLACEMENT: u8 = 0x0f;
    const WHOLE: u8 = 0x10;
    const SELECTIVITY: u8 = 0x30;

    /// Creates the placement and range of a FLUSH. Written bytes become visible to every process of the peer (`global`), or survive a power
    /// failure (`persistent`). The range is that of the RETH, or the whole region of its key.
    #[must_use]
    pub const fn new(global: bool, persistent: bool, whole_region: bool) -> Self {
        let placement = if global { Self::GLOBAL } else { 0 } | if persistent { Self::PERSISTENT } else { 0 };
        Self(placement | if whole_region { Self::WHOLE } else { 0 })
    }

    /// Returns the word on the wire.
    #[must_use]
    pub const fn pack(self) -> u32 {
        self.0 as u32
    }

    /// Parses the word; reserved bits are ignored.
    pub(super) const fn unpack(word: u32) -> Self {
        Self(word as u8 & (Self::PLACEMENT | Self::SELECTIVITY))
    }

    /// Returns whether it requests a placement, and sets no undefined bit.
    #[must_use]
    pub const fn is_legal(self) -> bool {
        let placement = self.0 & Self::PLACEMENT;
        placement != 0
            && placement & !(Self::GLOBAL | Self::PERSISTENT) == 0
            && self.0 & Self::SELECTIVITY <= Self::WHOLE
    }

    /// Returns whether the bytes must survive a power failure.
    #[must_use]
    pub const fn is_persistent(self) -> bool {
        self.0 & Self::PERSISTENT != 0
    }

    /// Returns whether the range is the whole region.
    #[must_use]
    pub const fn is_of_whole_region(self) -> bool {
        self.0 & Self::SELECTIVITY == Self::WHOLE
    }
}

/// RNR timer code, 0 to 31 (IBA table 45): the time after which the requester retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Creates a timer from the low 5 bits of `code`.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 31)
    }

    /// Returns the code on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the time until the retry: 10 µs to 655.36 ms.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "the code is below 32")]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(RNR_MICROS[self.0 as usize] as u64)
    }

    /// Returns the timer with the shortest duration that is not below `wait`; the longest one if none is long enough.
    #[must_use]
    pub fn at_least(wait: Duration) -> Self {
        (1..32).map(Self).find(|timer| timer.duration() >= wait).unwrap_or(Self(0))
    }
}

/// Durations of IBA table 45, µs. Code 0 is the longest.
const RNR_MICROS: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840, 5_120,
    7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680,
    491_520,
];

/// Reason for which a responder refuses a request (IBA table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[allow(missing_docs)]
pub enum NakCode {
    #[error("PSN sequence error")]
    PsnSequenceError,
    #[error("invalid request")]
    InvalidRequest,
    #[error("remote access error")]
    RemoteAccessError,
    #[error("remote operational error")]
    RemoteOperationalError,
    #[error("invalid RD request")]
    InvalidRdRequest,
}

/// Syndrome of an acknowledgement (IBA 9.7.5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Acknowledges all packets up to this PSN.
    Ack {
        /// Credit count code, 5 bits; 31 means that credits are not counted.
        credits: u8,
    },
    /// No receive request was posted.
    RnrNak(RnrTimer),
    /// The request was refused.
    Nak(NakCode),
}

impl Syndrome {
    /// Credit count code of a responder that does not count credits (IBA 9.7.7.2).
    pub const NO_CREDITS: u8 = 31;

    /// Returns the byte on the wire (IBA table 43).
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 31,
            Self::RnrNak(timer) => 0x20 | timer.code(),
            Self::Nak(NakCode::PsnSequenceError) => 0x60,
            Self::Nak(NakCode::InvalidRequest) => 0x61,
            Self::Nak(NakCode::RemoteAccessError) => 0x62,
            Self::Nak(NakCode::RemoteOperationalError) => 0x63,
            Self::Nak(NakCode::InvalidRdRequest) => 0x64,
        }
    }

    /// Parses the byte on the wire; `None` for reserved values.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00..=0x1f => Self::Ack { credits: code },
            0x20..=0x3f => Self::RnrNak(RnrTimer::new(code)),
            0x60 => Self::Nak(NakCode::PsnSequenceError),
            0x61 => Self::Nak(NakCode::InvalidRequest),
            0x62 => Self::Nak(NakCode::RemoteAccessError),
            0x63 => Self::Nak(NakCode::RemoteOperationalError),
            0x64 => Self::Nak(NakCode::InvalidRdRequest),
            _ => return None,
        })
    }
}

/// ACK extended transport header (IBA 9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Syndrome.
    pub syndrome: Syndrome,
    /// Messages completed by the responder, 24 bits.
    pub msn: u32,
}

/// Header at the end of a SEND message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTail {
    /// No header.
    Plain,
    /// Immediate data.
    Immediate(Immediate),
    /// Key that the receiver must invalidate.
    Invalidate(Rkey),
}

/// Operation of a packet, with the extension headers of its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    SendFirst,
    SendMiddle,
    SendLast(SendTail),
    SendOnly(SendTail),
    WriteFirst(Reth),
    WriteMiddle,
    WriteLast(Option<Immediate>),
    WriteOnly(Reth, Option<Immediate>),
    ReadRequest(Reth),
    ReadResponseFirst(Aeth),
    ReadResponseMiddle,
    ReadResponseLast(Aeth),
    ReadResponseOnly(Aeth),
    Acknowledge(Aeth),
    AtomicAcknowledge {
        aeth: Aeth,
        original: u64,
    },
    CompareSwap(AtomicEth<CompareSwap>),
    FetchAdd(AtomicEth<FetchAdd>),
    /// RETH of the range. Its data must reach the requested placement before the answer is sent.
    Flush(Feth, Reth),
    /// RETH of the 8 bytes in the payload.
    AtomicWrite(Reth),
}

impl Operation {
    /// Returns whether a responder sends the packet. All others are requests.
    #[must_use]
    #[inline]
    pub const fn is_answer(&self) -> bool {
        match self {
            Self::ReadResponseFirst(_)
            | Self::ReadResponseMiddle
            | Self::ReadResponseLast(_)
            | Self::ReadResponseOnly(_)
            | Self::Acknowledge(_)
            | Self::AtomicAcknowledge { .. } => true,
            Self::SendFirst
            | Self::SendMiddle
            | Self::SendLast(_)
            | Self::SendOnly(_)
            | Self::WriteFirst(_)
            | Self::WriteMiddle
            | Self::WriteLast(_)
            | Self::WriteOnly(..)
            | Self::ReadRequest(_)
            | Self::CompareSwap(_)
            | Self::FetchAdd(_)
            | Self::Flush(..)
            | Self::AtomicWrite(_) => false,
        }
    }
}

/// Headers of a packet from the BTH to the payload.
///
/// Parsing and emitting a packet check that the service has the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// RC or UC packet, or an answer of XRC.
    Connected {
        /// Service: RC, UC or XRC.
        service: Service,
        /// Common fields.
        bth: Bth,
        /// Opcode and extension headers.
        operation: Operation,
    },
    /// Request of XRC, with its XRCETH (IBA annex A14).
    Extended {
        /// Common fields.
        bth: Bth,
        /// Shared receive queue that the request names.
        srq: SrqNumber,
        /// Opcode and the other extension headers.
        operation: Operation,
    },
    /// UD SEND, with its DETH (IBA 9.3.2).
    Datagram {
        /// Common fields.
        bth: Bth,
        /// Q_Key.
        queue_key: u32,
        /// Queue pair of the sender.
        source: Qpn,
        /// Immediate data, if any.
        immediate: Option<Immediate>,
    },
    /// Congestion notification packet, opcode 0x81 (IBA annex A17.9.3).
    CongestionNotification {
        /// Common fields.
        bth: Bth,
    },
    /// Probe, opcode 0xC0. Its payload is the room for hop records of 8 bytes; switches fill it from the front. [`emit`](super::emit) fills
    /// it with zeros.
    TelemetryRequest {
        /// Common fields; the PSN is the number of the probe.
        bth: Bth,
        /// Hops, path and room.
        int: IntHeader,
    },
    /// Answer to a probe, opcode 0xC1.
    TelemetryResponse {
        /// Common fields; the PSN is the number of the probe.
        bth: Bth,
        /// State of the path.
        feedback: Feedback,
    },
    /// Feedback that no probe requested, opcode 0xC2.
    TelemetryNotification {
        /// Common fields; the PSN is that of the packet that carried the telemetry.
        bth: Bth,
        /// State of the path.
        feedback: Feedback,
    },
    /// Report of a switch to the sender of a packet that encountered congestion (pan-01 6.3), opcode 0xC4.
    DirectResponse {
        /// Common fields. Destination and PSN are those of the packet that encountered congestion, because a switch has no number of
        /// another queue pair.
        bth: Bth,
        /// Load of the switch port.
        feedback: Feedback,
    },
    /// Probe to a datagram queue pair, opcode 0xC5, after an INT header as in data packets. It contains the sender's queue pair, as a UD
    /// SEND does. [`Opcode::TELEMETRY_RESPONSE`](super::Opcode::TELEMETRY_RESPONSE) answers it.
    DatagramTelemetryRequest {
        /// Common fields with [`Bth::TELEMETRY`]; the PSN is the number of the probe.
        bth: Bth,
        /// Q_Key.
        queue_key: u32,
        /// Queue pair of the sender.
        source: Qpn,
    },
    /// Setup of the receiver's answers to the sender's telemetry, opcode 0xC3. [`Report::Ready`](super::Report::Ready) confirms it.
    TelemetrySetup {
        /// Common fields; the PSN is 0.
        bth: Bth,
        /// Kind of answer, and the parameters of the flow.
        setup: Setup,
        /// Authentication, if the queue pairs share a key.
        seal: Option<Seal>,
    },
    /// Selective acknowledgement, opcode 0xC8: acknowledges all packets before its PSN, which is missing, and lists packets that the
    /// receiver holds.
    SelectiveAcknowledge {
        /// Common fields; the PSN is the oldest missing one.
        bth: Bth,
        /// Messages completed by the responder, 24 bits.
        msn: u32,
        /// Distance from `bth.psn` to the first packet of `held`, in units of 64 PSNs.
        ahead: u8,
        /// Bitmap: bit `i` is the packet `64 * ahead + i` PSNs after `bth.psn`. The missing packet's bit is 0.
        held: u128,
    },
    /// Offer of selective repeat, or its acceptance, opcode 0xC9.
    SelectiveOffer {
        /// Common fields. The PSN is the oldest unacknowledged one or, in an acceptance, the next one that the receiver expects.
        bth: Bth,
        /// The packet accepts the peer's offer.
        accepts: bool,
        /// First PSN that the packet's sender sends on the connection.
        first_sent: Psn,
        /// First PSN that the packet's sender receives on the connection.
        first_received: Psn,
    },
}

impl Header {
    /// Returns the fields of the BTH.
    #[must_use]
    pub const fn bth(&self) -> &Bth {
        match self {
            Self::Connected { bth, .. }
            | Self::Extended { bth, .. }
            | Self::Datagram { bth, .. }
            | Self::CongestionNotification { bth }
            | Self::TelemetryRequest { bth, .. }
            | Self::TelemetryResponse { bth, .. }
            | Self::TelemetryNotification { bth, .. }
            | Self::DirectResponse { bth, .. }
            | Self::DatagramTelemetryRequest { bth, .. }
            | Self::TelemetrySetup { bth, .. }
            | Self::SelectiveAcknowledge { bth, .. }
            | Self::SelectiveOffer { bth, .. } => bth,
        }
    }
}

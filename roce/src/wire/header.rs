//! The headers of all packets, as values.

use super::feedback::{Feedback, Seal};
use super::setup::Setup;
use super::telemetry::IntHeader;
use crate::{Psn, Qpn, Rkey, SrqNumber};
use core::time::Duration;
use thiserror::Error;

/// The fields of the base transport header that every packet has beside its opcode (IBA 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// SE: the receiver's completion must raise an event.
    pub solicited: bool,
    /// MigReq, as the automatic path migration machine left it.
    pub migration: bool,
    /// P_Key; its top bit is full membership.
    pub partition_key: u16,
    /// FECN, BECN and six reserved bits unchanged: outside the ICRC, so a switch may change them.
    pub congestion: u8,
    /// The receiving queue pair.
    pub destination: Qpn,
    /// AckReq: the responder must acknowledge now.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// FECN: the packet met congestion. Over IP the header's ECN field says so, and this stays 0.
    pub const FECN: u8 = 0x80;
    /// BECN: packets that went the other way met congestion; in an Acknowledge those that it acknowledges, in a CNP those
    /// of some time past.
    pub const BECN: u8 = 0x40;
    /// A reserved bit, ours: an INT header follows the BTH; behind an Acknowledge, feedback.
    pub const TELEMETRY: u8 = 0x20;
    /// A reserved bit, ours: the sender wants marks echoed byte by byte in acknowledgements (DCTCP), and no CNPs.
    pub const EXACT_ECHO: u8 = 0x10;

    /// A packet of the default partition, with full membership, that asks for nothing.
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

/// A transport service; if it has packets of its own, with its opcodes' top three bits (IBA table 38).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection: its requests go to a shared receive queue (IBA annex A14).
    Xrc,
    /// Whole Ethernet frames, as the program wrote them: the raw packets of verbs. It has no opcodes.
    Raw,
}

/// Immediate data, four bytes that the receiver's completion carries unchanged.
pub type Immediate = [u8; 4];

/// RDMA extended transport header (IBA 9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Remote virtual address.
    pub address: u64,
    /// The region's key.
    pub rkey: Rkey,
    /// Bytes of the whole message.
    pub length: u32,
}

/// The target of an atomic: 8 bytes, aligned to 8 (IBA 9.3.5). Operands differ by operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth<T> {
    /// Remote virtual address.
    pub address: u64,
    /// The region's key.
    pub rkey: Rkey,
    /// The operands.
    pub operands: T,
}

/// Store `swap` if the value there is `compare`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CompareSwap {
    pub compare: u64,
    pub swap: u64,
}

/// Add, wrapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FetchAdd {
    pub add: u64,
}

/// FLUSH extended transport header (IBA annex A19): the six bits of a word that mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth(u8);

impl Feth {
    const GLOBAL: u8 = 1;
    const PERSISTENT: u8 = 2;
    const PLACEMENT: u8 = 0x0f;
    const WHOLE: u8 = 0x10;
    const SELECTIVITY: u8 = 0x30;

    /// Creates a FLUSH's placement and range. Written bytes become visible to everyone at the peer (`global`), or survive a power failure
    /// (`persistent`). The range is the RETH's, or the whole region that its key names.
    #[must_use]
    pub const fn new(global: bool, persistent: bool, whole_region: bool) -> Self {
        let placement = if global { Self::GLOBAL } else { 0 } | if persistent { Self::PERSISTENT } else { 0 };
        Self(placement | if whole_region { Self::WHOLE } else { 0 })
    }

    /// The word on the wire.
    #[must_use]
    pub const fn pack(self) -> u32 {
        self.0 as u32
    }

    /// Reserved bits are ignored.
    pub(super) const fn unpack(word: u32) -> Self {
        Self(word as u8 & (Self::PLACEMENT | Self::SELECTIVITY))
    }

    /// Returns true if it requests some placement, and sets no undefined bits.
    #[must_use]
    pub const fn is_legal(self) -> bool {
        let placement = self.0 & Self::PLACEMENT;
        placement != 0
            && placement & !(Self::GLOBAL | Self::PERSISTENT) == 0
            && self.0 & Self::SELECTIVITY <= Self::WHOLE
    }

    /// It asks for what keeps its content when the power fails.
    #[must_use]
    pub const fn is_persistent(self) -> bool {
        self.0 & Self::PERSISTENT != 0
    }

    /// It is about all of the region.
    #[must_use]
    pub const fn is_of_whole_region(self) -> bool {
        self.0 & Self::SELECTIVITY == Self::WHOLE
    }
}

/// RNR timer code, 0 to 31 (IBA table 45): how long the requester waits before it tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Takes the low 5 bits.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 31)
    }

    /// The code as on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the time to wait: 10 µs to 655.36 ms.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "the code is below 32")]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(RNR_MICROS[self.0 as usize] as u64)
    }

    /// The code of the shortest wait that is not below `wait`; the longest if none is long enough.
    #[must_use]
    pub fn at_least(wait: Duration) -> Self {
        (1..32).map(Self).find(|timer| timer.duration() >= wait).unwrap_or(Self(0))
    }
}

/// IBA table 45, in µs. Code 0 is the longest.
const RNR_MICROS: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840, 5_120,
    7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680,
    491_520,
];

/// Why a responder refuses (IBA table 46).
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

/// The responder's answer (IBA 9.7.5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// All up to this PSN arrived. 5 bits of end-to-end credits; 31: none are counted.
    Ack {
        /// Credit count code.
        credits: u8,
    },
    /// No receive request was posted.
    RnrNak(RnrTimer),
    /// Refused.
    Nak(NakCode),
}

impl Syndrome {
    /// Credits are not counted (IBA 9.7.7.2).
    pub const NO_CREDITS: u8 = 31;

    /// The byte on the wire (IBA table 43).
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

    /// Returns the meaning of a byte from the wire; `None` if the tables reserve it.
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
    /// The answer.
    pub syndrome: Syndrome,
    /// Messages completed by the responder, 24 bits.
    pub msn: u32,
}

/// The header that ends a SEND message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTail {
    /// Nothing more.
    Plain,
    /// With immediate data.
    Immediate(Immediate),
    /// With a key that the receiver must invalidate.
    Invalidate(Rkey),
}

/// A packet's opcode with the extension headers that this opcode has: nothing else can be said.
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
    /// RETH of the range, whose data must reach the requested place before the answer.
    Flush(Feth, Reth),
    /// RETH of 8 bytes, that the payload brings.
    AtomicWrite(Reth),
}

impl Operation {
    /// Returns true if a responder sends it. All others are requests.
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

/// A packet from the BTH to the payload.
///
/// Which services have which operations is checked when a packet is parsed and when one is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// RC or UC, or an answer of XRC.
    Connected {
        /// Rc, Uc or Xrc.
        service: Service,
        /// Common fields.
        bth: Bth,
        /// Opcode and extension headers.
        operation: Operation,
    },
    /// A request of XRC, with its XRCETH (IBA annex A14).
    Extended {
        /// Common fields.
        bth: Bth,
        /// The shared receive queue that it is for.
        srq: SrqNumber,
        /// Opcode and the other extension headers.
        operation: Operation,
    },
    /// A UD SEND, with its DETH (IBA 9.3.2).
    Datagram {
        /// Common fields.
        bth: Bth,
        /// Queue key.
        queue_key: u32,
        /// The sender's queue pair.
        source: Qpn,
        /// With or without immediate data.
        immediate: Option<Immediate>,
    },
    /// A congestion notification packet, opcode 0x81 (IBA annex A17.9.3).
    CongestionNotification {
        /// Common fields.
        bth: Bth,
    },
    /// A probe, opcode 0xC0. Its payload is the room for hop records, 8 bytes each; those that switches wrote come
    /// first. [`emit`](super::emit) fills the room with zeros.
    TelemetryRequest {
        /// Common fields; the PSN is the probe's number.
        bth: Bth,
        /// Hops, path and room.
        int: IntHeader,
    },
    /// The answer to a probe, opcode 0xC1.
    TelemetryResponse {
        /// Common fields; the PSN is the probe's number.
        bth: Bth,
        /// The state of the path.
        feedback: Feedback,
    },
    /// Feedback that no probe requested, opcode 0xC2.
    TelemetryNotification {
        /// Common fields; the PSN is that of the packet that brought the telemetry.
        bth: Bth,
        /// The state of the path.
        feedback: Feedback,
    },
    /// A switch's word to the sender of a packet that met congestion (pan-01 6.3), opcode 0xC4.
    DirectResponse {
        /// The destination and the PSN are those of the packet that caused it: a switch knows no other queue pair.
        bth: Bth,
        /// The load of the switch's port.
        feedback: Feedback,
    },
    /// A probe to a datagram queue pair, opcode 0xC5, behind an INT header as data has it. It names the sender, as a UD SEND does.
    /// [`Opcode::TELEMETRY_RESPONSE`](super::Opcode::TELEMETRY_RESPONSE) answers it.
    DatagramTelemetryRequest {
        /// Common fields with [`Bth::TELEMETRY`]; the PSN is the probe's number.
        bth: Bth,
        /// Queue key.
        queue_key: u32,
        /// The sender's queue pair.
        source: Qpn,
    },
    /// The sender's choice of how the receiver answers telemetry, opcode 0xC3. [`Report::Ready`](super::Report::Ready) answers it.
    TelemetrySetup {
        /// Common fields; the PSN is 0.
        bth: Bth,
        /// How, and the flow's parameters.
        setup: Setup,
        /// The proof of its origin, if it is sealed.
        seal: Option<Seal>,
    },
    /// The packets that a receiver holds out of order, opcode 0xC8: an acknowledgement of all before its PSN, which is missing.
    SelectiveAcknowledge {
        /// Common fields; the PSN is the oldest that is missing.
        bth: Bth,
        /// Messages completed by the responder, 24 bits.
        msn: u32,
        /// The multiple of 64 PSNs behind `bth.psn` at which the packets of `held` begin.
        ahead: u8,
        /// Bit `i`: the packet `64 * ahead + i` PSNs further on is there. The one that is missing is not.
        held: u128,
    },
    /// An offer of selective repeat, or its acceptance, opcode 0xC9.
    SelectiveOffer {
        /// Common fields; the PSN is the oldest that the sender has not acknowledged, or in an acceptance the next that the receiver
        /// expects.
        bth: Bth,
        /// It accepts what the peer offered.
        accepts: bool,
        /// The first PSN of the connection that the packet's sender sends.
        first_sent: Psn,
        /// The first PSN of the connection that it receives.
        first_received: Psn,
    },
}

impl Header {
    /// The fields every packet has.
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

use crate::{Psn, Qpn, Rkey};

/// The fields of the base transport header that every packet has beside its opcode (IBA 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// SE: the receiver's completion shall raise an event.
    pub solicited: bool,
    /// MigReq, as the automatic path migration machine left it.
    pub migration: bool,
    /// P_Key; its top bit is full membership.
    pub partition_key: u16,
    /// FECN, BECN and six reserved bits as they stand: outside the ICRC, so a switch may change them.
    pub congestion: u8,
    /// The receiving queue pair.
    pub destination: Qpn,
    /// AckReq: the responder shall acknowledge now.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

/// A transport service with its opcodes' top three bits (IBA table 38).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
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

/// Where an atomic works: 8 bytes, aligned to 8 (IBA 9.3.5). Operands differ by operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth<T> {
    /// Remote virtual address.
    pub address: u64,
    /// The region's key.
    pub rkey: Rkey,
    /// What to do there.
    pub operands: T,
}

/// Store `swap` where `compare` stands.
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

/// RNR timer code, 0 to 31 (IBA table 45): how long the requester waits before it tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Takes the low 5 bits.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 31)
    }

    /// The code as it stands on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// Why a responder refuses (IBA table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum NakCode {
    PsnSequenceError,
    InvalidRequest,
    RemoteAccessError,
    RemoteOperationalError,
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

/// ACK extended transport header (IBA 9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// The answer.
    pub syndrome: Syndrome,
    /// Messages completed by the responder, 24 bits.
    pub msn: u32,
}

/// What ends a SEND message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTail {
    /// Nothing more.
    Plain,
    /// With immediate data.
    Immediate(Immediate),
    /// With a key that the receiver shall invalidate.
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
    AtomicAcknowledge { aeth: Aeth, original: u64 },
    CompareSwap(AtomicEth<CompareSwap>),
    FetchAdd(AtomicEth<FetchAdd>),
}

/// A packet from the BTH to the payload.
///
/// Which services have which operations is checked when a packet is parsed and when one is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// RC or UC.
    Connected {
        /// Rc or Uc.
        service: Service,
        /// Common fields.
        bth: Bth,
        /// Opcode and extension headers.
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
}

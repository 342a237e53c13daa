//! Work requests and completions, as programs use them.

use super::{AddressId, Binding, SrqId};
use crate::wire::{Feth, Immediate};
use crate::{Lkey, Qpn, Rkey, SrqNumber};
use smallvec::SmallVec;
use thiserror::Error;

/// Scatter/gather element: one local buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// First address, in the owner's address space.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Key of its region.
    pub lkey: Lkey,
}

/// Remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Remote virtual address.
    pub address: u64,
    /// Key of the region.
    pub rkey: Rkey,
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Address handle of the destination.
    pub address: AddressId,
    /// Queue pair of the destination.
    pub qpn: Qpn,
    /// Q_Key of the destination. If its top bit is set, the sender's own Q_Key is used instead (IBA 10.2.5).
    pub queue_key: u32,
}

/// Operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOperation {
    /// Sends a message to the peer's next receive request. On a raw packet queue pair: sends an Ethernet frame unchanged, without FCS.
    Send {
        /// Immediate data for the peer's completion; raw packets have none.
        immediate: Option<Immediate>,
    },
    /// Sends a message to the next receive request of a datagram queue pair. It is the only operation of datagram queue pairs.
    SendTo {
        /// Destination.
        to: Datagram,
        /// Immediate data for the receiver's completion.
        immediate: Option<Immediate>,
    },
    /// Sends a message to the peer's next receive request, and invalidates the peer's memory window with the key `rkey`. The window must be
    /// of type 2 and bound by the peer's queue pair. A wrong key fails the peer's queue pair, and no NAK reports it.
    SendInvalidate {
        /// Key of the peer's window.
        rkey: Rkey,
    },
    /// Writes to the peer's memory. With immediate data it consumes a receive request of the peer.
    Write {
        /// Destination.
        remote: Remote,
        /// Immediate data for the peer's completion.
        immediate: Option<Immediate>,
    },
    /// Reads the peer's memory into the local buffers.
    Read {
        /// Source.
        remote: Remote,
    },
    /// Adds to the peer's 8-byte integer. The original value is written to the local buffer, in host byte order.
    FetchAdd {
        /// Target, aligned to 8.
        remote: Remote,
        /// Number to add.
        add: u64,
    },
    /// Stores `swap` in the peer's memory if the value there is `compare`. The original value is written to the local buffer.
    CompareSwap {
        /// Target, aligned to 8.
        remote: Remote,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Writes 8 bytes to the peer's memory atomically, after all earlier writes. The peer answers when they are written.
    AtomicWrite {
        /// Target, aligned to 8.
        remote: Remote,
    },
    /// Requests an answer when all data written before to a range has reached the requested placement.
    Flush {
        /// First address of the range, and its key.
        remote: Remote,
        /// Length of the range, bytes.
        length: u32,
        /// Placement, and whether the range is the whole region.
        to: Feth,
    },
    /// Binds a memory window of this side to a part of a region, after all requests before it were sent. Sends no packet.
    Bind(Binding),
    /// Invalidates a memory window of type 2 that this queue pair bound. Sends no packet.
    LocalInvalidate {
        /// Key of the window.
        rkey: Rkey,
    },
}

impl SendOperation {
    /// Returns the opcode of the operation's completion.
    #[must_use]
    pub const fn opcode(&self) -> CompletionOpcode {
        match self {
            Self::Send { .. } | Self::SendInvalidate { .. } | Self::SendTo { .. } => CompletionOpcode::Send,
            Self::AtomicWrite { .. } => CompletionOpcode::AtomicWrite,
            Self::Flush { .. } => CompletionOpcode::Flush,
            Self::Bind(_) => CompletionOpcode::Bind,
            Self::LocalInvalidate { .. } => CompletionOpcode::LocalInvalidate,
            Self::Write { .. } => CompletionOpcode::Write,
            Self::Read { .. } => CompletionOpcode::Read,
            Self::FetchAdd { .. } => CompletionOpcode::FetchAdd,
            Self::CompareSwap { .. } => CompletionOpcode::CompareSwap,
        }
    }

    /// Returns whether the peer's response completes the operation, rather than an acknowledgement.
    pub(crate) const fn is_answered(&self) -> bool {
        match self {
            Self::Send { .. }
            | Self::SendInvalidate { .. }
            | Self::SendTo { .. }
            | Self::Write { .. }
            | Self::Bind(_)
            | Self::LocalInvalidate { .. } => false,
            Self::Read { .. }
            | Self::FetchAdd { .. }
            | Self::CompareSwap { .. }
            | Self::AtomicWrite { .. }
            | Self::Flush { .. } => true,
        }
    }

    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, Self::Bind(_) | Self::LocalInvalidate { .. })
    }
}

/// Local data of a send request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Registered buffers, in order. More than four are allocated on the heap.
    Buffers(SmallVec<[Sge; 4]>),
    /// The bytes themselves, copied when the request is created, so that the source buffer can be reused at once. More than 64 bytes are
    /// allocated on the heap.
    Inline(SmallVec<[u8; 64]>),
}

/// Send work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// Id that the completion returns.
    pub id: u64,
    /// Operation.
    pub operation: SendOperation,
    /// Local data.
    pub data: Data,
    /// Whether success creates a completion. Failure always does.
    pub signalled: bool,
    /// Whether the peer's completion raises an event.
    pub solicited: bool,
    /// Whether the request waits until all earlier READs and atomics have completed.
    pub fence: bool,
    /// Shared receive queue of the peer, whose domain also applies to its memory. Set by XRC initiators only.
    pub srq: Option<SrqNumber>,
}

/// Receive work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvRequest {
    /// Id that the completion returns.
    pub id: u64,
    /// Buffers for the message, filled in order.
    pub buffers: SmallVec<[Sge; 4]>,
}

/// Reason to refuse a work request. Nothing of the request was executed.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum PostError {
    #[error(
        "queue full: {limit} requests are outstanding; poll completions, or create the queue pair with a deeper queue"
    )]
    QueueFull { limit: u32 },
    #[error("{given} buffers: the queue pair accepts at most {limit}; create it with more, or post fewer")]
    TooManyBuffers { given: usize, limit: u32 },
    #[error(
        "{given} bytes inline: the queue pair accepts at most {limit}; create it with more, or use a registered buffer"
    )]
    InlineTooLong { given: usize, limit: u32 },
    #[error("message of {given} bytes: the limit is 2^31; split it")]
    MessageTooLong { given: u64 },
    #[error("QP {qpn}: it does not accept this request in {state:?}; connect it first")]
    State { qpn: Qpn, state: super::State },
    #[error("{operation}: it cannot carry inline data; use a registered buffer")]
    InlineNotAllowed { operation: &'static str },
    #[error("QP {qpn}: it does not exist")]
    NoQp { qpn: Qpn },
    #[error("QP {qpn}: it uses a shared receive queue; post receives there")]
    SharedReceives { qpn: Qpn },
    #[error("shared receive queue {}: it does not exist", .srq.0)]
    NoSrq { srq: SrqId },
    #[error("QP {qpn}: its service has no such operation")]
    Service { qpn: Qpn },
    #[error(
        "QP {qpn}: only requests of an XRC initiator name the peer's shared receive queue, and each of them does"
    )]
    RemoteSrq { qpn: Qpn },
    #[error("datagram of {given} bytes: the path MTU is {limit}; send shorter ones")]
    DatagramTooLong { given: u32, limit: u32 },
    #[error(
        "frame of {given} bytes: it must have 14 to {limit}, an Ethernet header at least; send another one"
    )]
    FrameLength { given: u64, limit: u32 },
    #[error("atomic: it needs a local buffer of 8 bytes and a remote address aligned to 8")]
    BadAtomic,
    /// A fault on demand, for tests of programs. `errno` is the error number that a C program receives.
    #[error("a fault was injected, error number {errno}; post the request again")]
    Injected { errno: i32 },
}

/// Status of a completion (IBA 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[allow(missing_docs)]
pub enum CompletionStatus {
    #[error("success")]
    Success,
    #[error("local length error: the message does not fit the receive buffers")]
    LocalLength,
    #[error("local protection error: a buffer is not in its region, or the region does not allow the access")]
    LocalProtection,
    #[error("local QP operation error")]
    LocalQpOperation,
    #[error("memory window bind error: window, key, region, range or access right")]
    Bind,
    #[error("flushed: the queue pair went to the error state")]
    Flushed,
    #[error("bad response from the peer")]
    BadResponse,
    #[error("remote invalid request")]
    RemoteInvalidRequest,
    #[error("remote access error: rkey, range or access right")]
    RemoteAccess,
    #[error("remote operation error")]
    RemoteOperation,
    #[error("transport retry counter exceeded: the peer does not answer")]
    RetryExceeded,
    #[error("RNR retry counter exceeded: the peer posts no receives")]
    RnrRetryExceeded,
}

/// Operation of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum CompletionOpcode {
    Send,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
    AtomicWrite,
    Flush,
    Bind,
    LocalInvalidate,
    /// A message arrived by SEND.
    Recv,
    /// A WRITE with immediate data arrived.
    RecvWithWrite,
}

/// Completion queue element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Id of the request.
    pub id: u64,
    /// Status. If it is not success, only `id` and `qpn` are valid apart from it.
    pub status: CompletionStatus,
    /// Operation.
    pub opcode: CompletionOpcode,
    /// Queue pair.
    pub qpn: Qpn,
    /// Length of the message, bytes, for receives, READs and atomics.
    pub length: u32,
    /// Immediate data of the message, if any.
    pub immediate: Option<Immediate>,
    /// Key of the memory window that the message invalidated.
    pub invalidated: Option<Rkey>,
    /// Whether the sender requested an event.
    pub solicited: bool,
    /// Sender of a datagram. The first 40 bytes of the buffer are the IPv6 header, or 20 undefined bytes and the IPv4 header.
    pub source: Option<Qpn>,
    /// Shared receive queue from which the request was taken.
    pub srq: Option<SrqId>,
}

impl Completion {
    /// Creates a completion with all other fields empty.
    #[must_use]
    pub const fn new(id: u64, status: CompletionStatus, opcode: CompletionOpcode, qpn: Qpn) -> Self {
        Self {
            id,
            status,
            opcode,
            qpn,
            length: 0,
            immediate: None,
            invalidated: None,
            solicited: false,
            source: None,
            srq: None,
        }
    }
}

//! Work requests and completions, as programs see them.

use super::{AddressId, Binding, SrqId};
use crate::wire::{Feth, Immediate};
use crate::{Lkey, Qpn, Rkey, SrqNumber};
use smallvec::SmallVec;
use thiserror::Error;

/// One stretch of a local buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// The first address, in the owner's address space.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The region it lies in.
    pub lkey: Lkey,
}

/// Remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Remote virtual address.
    pub address: u64,
    /// The region's key.
    pub rkey: Rkey,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The way to the port.
    pub address: AddressId,
    /// The queue pair there.
    pub qpn: Qpn,
    /// The Q_Key that the destination requires. If its top bit is set, the sender's own Q_Key is sent instead (IBA 10.2.5).
    pub queue_key: u32,
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOperation {
    /// Fill the peer's next receive buffer. Of a raw packet queue pair: send an Ethernet frame as it is, without its FCS.
    Send {
        /// Data for the peer's completion; raw packets have none.
        immediate: Option<Immediate>,
    },
    /// Fill the next receive buffer of a datagram queue pair. Only datagram queue pairs have it, and only this.
    SendTo {
        /// The destination.
        to: Datagram,
        /// Data for the receiver's completion.
        immediate: Option<Immediate>,
    },
    /// Fill the peer's next receive buffer, and invalidate the memory window whose key is `rkey` there: it must be one of type 2 that the
    /// peer's queue pair bound. A wrong key fails the peer's queue pair, and this one does not learn of it.
    SendInvalidate {
        /// The peer's key.
        rkey: Rkey,
    },
    /// Write to the peer's memory. With immediate data it consumes a receive request there.
    Write {
        /// The destination.
        remote: Remote,
        /// Data for the peer's completion.
        immediate: Option<Immediate>,
    },
    /// Read the peer's memory into the local buffers.
    Read {
        /// The source.
        remote: Remote,
    },
    /// Add to the peer's 8-byte integer; what was there comes into the local buffer, in host byte order.
    FetchAdd {
        /// The target, aligned to 8.
        remote: Remote,
        /// The number to add.
        add: u64,
    },
    /// Store `swap` if the value there is `compare`; the value before comes into the local buffer.
    CompareSwap {
        /// The target, aligned to 8.
        remote: Remote,
        /// The value that must be there.
        compare: u64,
        /// The value that replaces it.
        swap: u64,
    },
    /// Write 8 bytes to the peer's memory at once, after all that was written before. The peer answers when they are there.
    AtomicWrite {
        /// The target, aligned to 8.
        remote: Remote,
    },
    /// Have the peer answer when all that was written before to a range has reached the requested place.
    Flush {
        /// The first address of the range, and its key.
        remote: Remote,
        /// Bytes of it.
        length: u32,
        /// The placement, and whether the range is all of the region.
        to: Feth,
    },
    /// Give a memory window of this side a part of a region, once all requests before it have been sent. Nothing goes to the
    /// peer.
    Bind(Binding),
    /// Take back a memory window of type 2 that this queue pair bound. Nothing goes to the peer.
    LocalInvalidate {
        /// The window's key.
        rkey: Rkey,
    },
}

impl SendOperation {
    /// Returns the opcode of its completion.
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

    /// Returns true if the peer answers it with data, or with a special answer.
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

    /// Returns true if no packet carries it.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, Self::Bind(_) | Self::LocalInvalidate { .. })
    }
}

/// The local side of a send request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Registered buffers, in order. More than four cost an allocation when posted.
    Buffers(SmallVec<[Sge; 4]>),
    /// The bytes themselves, taken when posted: the buffer is free again at once. More than 64 cost an allocation.
    Inline(SmallVec<[u8; 64]>),
}

/// A send work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// The operation.
    pub operation: SendOperation,
    /// The local side.
    pub data: Data,
    /// True if success creates a completion. Failure always does.
    pub signalled: bool,
    /// True if the peer's completion raises an event.
    pub solicited: bool,
    /// Wait until all earlier READs and atomics are done.
    pub fence: bool,
    /// Of an XRC initiator, and only there: the peer's shared receive queue, whose domain also applies to its memory.
    pub srq: Option<SrqNumber>,
}

/// A receive work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// The buffers that the message is written to.
    pub buffers: SmallVec<[Sge; 4]>,
}

/// Why a request was not accepted. No part of it was done.
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
}

/// The way that a request ended (IBA 11.6.2).
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

/// The operation that a completion is for.
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

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's id.
    pub id: u64,
    /// The way that it ended. With any status but success, only `id` and `qpn` mean anything.
    pub status: CompletionStatus,
    /// The operation.
    pub opcode: CompletionOpcode,
    /// The queue pair.
    pub qpn: Qpn,
    /// Bytes of the message, for receives, READs and atomics.
    pub length: u32,
    /// Immediate data, if the message brought any.
    pub immediate: Option<Immediate>,
    /// The key of a memory window that the message took back.
    pub invalidated: Option<Rkey>,
    /// True if the sender requested an event.
    pub solicited: bool,
    /// The sender of a datagram. The buffer's first 40 bytes are the IPv6 header, or 20 bytes that mean nothing and the IPv4 header.
    pub source: Option<Qpn>,
    /// The shared receive queue that the request was taken from.
    pub srq: Option<SrqId>,
}

impl Completion {
    /// One that says no more than whose it is and how it ended.
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

//! A packet to send, not yet sent.

use crate::qp::Data;
use crate::wire::Operation;
use crate::{Psn, SrqNumber};

/// The next packet to send, and the path that it takes.
#[derive(Debug)]
pub(in crate::qp) struct Plan<'a> {
    pub(in crate::qp) operation: Operation,
    pub(in crate::qp) psn: Psn,
    /// Of an XRC initiator: the peer's shared receive queue.
    pub(in crate::qp) srq: Option<SrqNumber>,
    pub(in crate::qp) solicited: bool,
    /// The message and the stretch of it that is this packet's payload.
    pub(in crate::qp) data: &'a Data,
    pub(in crate::qp) offset: u32,
    /// Nothing older is outstanding: if this packet cannot be built, its request is the one to fail.
    pub(in crate::qp) is_oldest: bool,
    pub(in crate::qp) token: Token,
}

/// What [`Requester::sent`](super::Requester::sent) needs to know of the packet once it was sent. A token that is dropped means that the
/// packet was not sent; the same is planned again.
#[derive(Debug)]
pub(in crate::qp) struct Token {
    pub(super) number: u64,
    /// The number behind what the packet sends or asks for.
    pub(super) until: u64,
    pub(super) kind: Kind,
    /// Payload bytes.
    pub(in crate::qp) length: u32,
    pub(in crate::qp) ack_request: bool,
    /// With spraying.
    pub(in crate::qp) path: Option<u8>,
}

/// Why a packet is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is the next, for the first time or because go-back-N went back.
    Next {
        /// It is the last of its request.
        ends: bool,
        /// The peer answers with data.
        is_answered: bool,
    },
    /// Selective repeat sends it again.
    Repeated,
}

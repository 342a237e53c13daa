//! The next packet to send, planned and not yet sent.

use crate::qp::Data;
use crate::wire::Operation;
use crate::{Psn, SrqNumber};

#[derive(Debug)]
pub(in crate::qp) struct Plan<'a> {
    pub(in crate::qp) operation: Operation,
    pub(in crate::qp) psn: Psn,
    /// Peer's shared receive queue, for an XRC initiator.
    pub(in crate::qp) srq: Option<SrqNumber>,
    pub(in crate::qp) solicited: bool,
    /// Message, and the offset of this packet's payload.
    pub(in crate::qp) data: &'a Data,
    pub(in crate::qp) offset: u32,
    /// No older packet is outstanding: if this packet cannot be built, its request fails.
    pub(in crate::qp) is_oldest: bool,
    pub(in crate::qp) token: Token,
}

/// Parameters of the packet for [`Requester::sent`](super::Requester::sent). If the token is dropped, the packet was not sent, and is
/// planned again.
#[derive(Debug)]
pub(in crate::qp) struct Token {
    pub(super) number: u64,
    /// Number after the packets that the packet sends or requests.
    pub(super) until: u64,
    pub(super) kind: Kind,
    /// Payload bytes.
    pub(in crate::qp) length: u32,
    pub(in crate::qp) ack_request: bool,
    pub(in crate::qp) path: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The next packet, sent for the first time, or after go-back-N went back.
    Next {
        /// The packet is the last of its request.
        ends: bool,
        /// The peer's response completes the request.
        is_answered: bool,
    },
    /// Selective repeat retransmits the packet.
    Repeated,
}

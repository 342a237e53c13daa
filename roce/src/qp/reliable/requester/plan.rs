//! A packet to send, not yet sent.

use crate::qp::Data;
use crate::wire::Operation;
use crate::{Psn, SrqNumber};

/// The next packet to send, not yet sent.
#[derive(Debug)]
pub(in crate::qp) struct Plan<'a> {
    pub(in crate::qp) operation: Operation,
    pub(in crate::qp) psn: Psn,
    /// Of an XRC initiator: the peer's shared receive queue.
    pub(in crate::qp) srq: Option<SrqNumber>,
    pub(in crate::qp) ack_request: bool,
    pub(in crate::qp) solicited: bool,
    /// The message and the stretch of it that is this packet's payload.
    pub(in crate::qp) data: &'a Data,
    pub(in crate::qp) offset: u32,
    pub(in crate::qp) length: u32,
    /// Nothing older is outstanding: if this packet cannot be built, its request is the one to fail.
    pub(in crate::qp) is_oldest: bool,
}

//! Why the requester does not go on: a packet that is dropped, or a request that fails.

use crate::Discard;
use crate::qp::CompletionStatus;

/// The way that an incoming packet, or time, ends a queue pair or itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::qp::reliable) enum Trouble {
    /// The packet is dropped.
    Discard(Discard),
    /// The oldest request fails so, and the queue pair with it.
    Fail(CompletionStatus),
}

/// An answer that is about no packet in flight.
pub(super) const STALE: Trouble = Trouble::Discard(Discard::StaleAcknowledge);
pub(super) const BAD_RESPONSE: Trouble = Trouble::Fail(CompletionStatus::BadResponse);

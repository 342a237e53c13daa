//! Failures to handle an answer or a timeout: the packet is dropped, or a request fails.

use crate::Discard;
use crate::qp::CompletionStatus;

/// Outcome of an answer or a timeout that makes no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::qp::reliable) enum RequesterError {
    Discard(Discard),
    /// The oldest request fails with this status, and the queue pair with it.
    Fail(CompletionStatus),
}

/// The answer matches no packet in flight.
pub(super) const STALE: RequesterError = RequesterError::Discard(Discard::StaleAcknowledge);
pub(super) const BAD_RESPONSE: RequesterError = RequesterError::Fail(CompletionStatus::BadResponse);

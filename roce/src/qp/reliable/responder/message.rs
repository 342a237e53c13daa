//! The message that a responder is in the middle of (IBA 9.7.4.1.2).

use crate::qp::RecvRequest;
use crate::wire::Reth;

/// A message of several packets that has begun.
#[derive(Debug)]
pub(super) enum Message {
    Send { request: RecvRequest, received: u32 },
    Write { reth: Reth, received: u32 },
}

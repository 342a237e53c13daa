//! The message that a responder has begun (IBA 9.7.4.1.2).

use crate::qp::RecvRequest;
use crate::wire::Reth;

#[derive(Debug)]
pub(super) enum Message {
    Send { request: RecvRequest, received: u32 },
    Write { reth: Reth, received: u32 },
}

//! What is checked of a request when it is posted.

use super::wqe::MAX_MESSAGE;
use super::{Data, Identity, PostError, Receives, SendOperation, SendRequest};

#[inline]
pub(super) fn check_buffers(given: usize, limit: u32) -> Result<(), PostError> {
    if given <= limit as usize { Ok(()) } else { Err(PostError::TooManyBuffers { given, limit }) }
}

/// What can be said of a request without the regions; gives its length.
#[inline]
pub(super) fn check_send(request: &SendRequest, identity: &Identity) -> Result<u32, PostError> {
    let capabilities = &identity.capabilities;
    if (identity.receives == Receives::Never) != request.srq.is_some() && !request.operation.is_local() {
        return Err(PostError::RemoteSrq { qpn: identity.qpn });
    }
    match &request.data {
        Data::Buffers(buffers) => check_buffers(buffers.len(), capabilities.max_send_sge)?,
        // A word to be written at once lies in the request, whatever else may.
        Data::Inline(_) if matches!(request.operation, SendOperation::AtomicWrite { .. }) => {}
        Data::Inline(bytes) if bytes.len() > capabilities.max_inline as usize => {
            return Err(PostError::InlineTooLong { given: bytes.len(), limit: capabilities.max_inline });
        }
        Data::Inline(_) => {}
    }
    let inline = matches!(request.data, Data::Inline(_));
    let length = request.data.length();
    match request.operation {
        SendOperation::Bind(_) | SendOperation::LocalInvalidate { .. } => return Ok(0),
        SendOperation::Send { .. }
        | SendOperation::SendInvalidate { .. }
        | SendOperation::SendTo { .. }
        | SendOperation::Write { .. } => {}
        SendOperation::Read { .. } if inline => {
            return Err(PostError::InlineNotAllowed { operation: "READ" });
        }
        SendOperation::Read { .. } => {}
        SendOperation::Flush { .. } => return Ok(0),
        SendOperation::AtomicWrite { remote } => {
            if length != 8 || !remote.address.is_multiple_of(8) {
                return Err(PostError::BadAtomic);
            }
        }
        SendOperation::FetchAdd { .. } | SendOperation::CompareSwap { .. } if inline => {
            return Err(PostError::InlineNotAllowed { operation: "atomic" });
        }
        SendOperation::FetchAdd { remote, .. } | SendOperation::CompareSwap { remote, .. } => {
            if length != 8 || !remote.address.is_multiple_of(8) {
                return Err(PostError::BadAtomic);
            }
        }
    }
    if length > u64::from(MAX_MESSAGE) {
        return Err(PostError::MessageTooLong { given: length });
    }
    Ok(length as u32)
}

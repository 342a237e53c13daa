//! What can be refused before a request travels to the core.

use roce::Qpn;
use roce::qp::{Capabilities, Data, PostError, RecvRequest, Remote, SendOperation, SendRequest};
use roce::wire::Service;

/// The longest message: 2³¹ bytes (IBA 9.4.3).
const LONGEST: u64 = 1 << 31;

/// Whether the service has this operation (IBA table 38), and the request says what the service wants to know.
pub(crate) fn check_service(request: &SendRequest, service: Service, qpn: Qpn) -> Result<(), PostError> {
    let mut is_local = false;
    let has = match request.operation {
        SendOperation::SendTo { .. } => service == Service::Ud,
        SendOperation::Send { .. } | SendOperation::Write { .. } => service != Service::Ud,
        SendOperation::Bind(_) | SendOperation::LocalInvalidate { .. } => {
            is_local = true;
            service != Service::Ud
        }
        SendOperation::SendInvalidate { .. }
        | SendOperation::Read { .. }
        | SendOperation::FetchAdd { .. }
        | SendOperation::CompareSwap { .. }
        | SendOperation::AtomicWrite { .. }
        | SendOperation::Flush { .. } => matches!(service, Service::Rc | Service::Xrc),
    };
    if !has {
        return Err(PostError::Service { qpn });
    }
    let names = request.srq.is_some();
    if is_local || names == (service == Service::Xrc) { Ok(()) } else { Err(PostError::RemoteSrq { qpn }) }
}

pub(crate) fn check_send(request: &SendRequest, limits: &Capabilities) -> Result<(), PostError> {
    let given = request.data.length();
    match &request.data {
        Data::Buffers(buffers) if buffers.len() > limits.max_send_sge as usize => {
            return Err(PostError::TooManyBuffers { given: buffers.len(), limit: limits.max_send_sge });
        }
        // A word to be written at once lies in the request, whatever else may.
        Data::Inline(_) if matches!(request.operation, SendOperation::AtomicWrite { .. }) => {}
        Data::Inline(bytes) if bytes.len() > limits.max_inline as usize => {
            return Err(PostError::InlineTooLong { given: bytes.len(), limit: limits.max_inline });
        }
        Data::Buffers(_) | Data::Inline(_) => {}
    }
    if given > LONGEST {
        return Err(PostError::MessageTooLong { given });
    }
    match &request.operation {
        SendOperation::Send { .. }
        | SendOperation::SendInvalidate { .. }
        | SendOperation::SendTo { .. }
        | SendOperation::Write { .. }
        | SendOperation::Flush { .. }
        | SendOperation::Bind(_)
        | SendOperation::LocalInvalidate { .. } => Ok(()),
        SendOperation::AtomicWrite { remote } if given == 8 && remote.address.is_multiple_of(8) => Ok(()),
        SendOperation::AtomicWrite { .. } => Err(PostError::BadAtomic),
        SendOperation::Read { .. } => outgoing_only(&request.data, "READ"),
        SendOperation::FetchAdd { remote, .. } => atomic(&request.data, *remote, "FETCH_ADD"),
        SendOperation::CompareSwap { remote, .. } => atomic(&request.data, *remote, "CMP_SWAP"),
    }
}

/// What comes back needs a buffer to come to.
fn outgoing_only(data: &Data, operation: &'static str) -> Result<(), PostError> {
    match data {
        Data::Buffers(_) => Ok(()),
        Data::Inline(_) => Err(PostError::InlineNotAllowed { operation }),
    }
}

fn atomic(data: &Data, remote: Remote, operation: &'static str) -> Result<(), PostError> {
    outgoing_only(data, operation)?;
    let one_buffer = matches!(data, Data::Buffers(buffers) if buffers.len() == 1 && buffers[0].length == 8);
    if one_buffer && remote.address.is_multiple_of(8) { Ok(()) } else { Err(PostError::BadAtomic) }
}

pub(crate) fn check_recv(request: &RecvRequest, limits: &Capabilities) -> Result<(), PostError> {
    let given = request.buffers.len();
    if given > limits.max_recv_sge as usize {
        return Err(PostError::TooManyBuffers { given, limit: limits.max_recv_sge });
    }
    let given = request.buffers.iter().map(|sge| u64::from(sge.length)).sum();
    if given > LONGEST { Err(PostError::MessageTooLong { given }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::qp::Sge;
    use roce::{Lkey, Rkey, SrqNumber};

    const REMOTE: Remote = Remote { address: 64, rkey: Rkey::new(1) };

    fn sge(length: u32) -> Sge {
        Sge { address: 0, length, lkey: Lkey::new(1) }
    }

    fn refused(request: &SendRequest) -> PostError {
        check_send(request, &Capabilities::default()).unwrap_err()
    }

    #[test]
    fn what_passes_a_limit_is_refused() {
        let buffers = [sge(1); 5];
        assert_eq!(
            refused(&SendRequest::send(0, &buffers[..])),
            PostError::TooManyBuffers { given: 5, limit: 4 }
        );
        assert_eq!(
            refused(&SendRequest::send(0, Data::inline(&[0; 237]))),
            PostError::InlineTooLong { given: 237, limit: 236 }
        );
        let long = [sge(1 << 31), sge(1)];
        assert_eq!(
            refused(&SendRequest::write(0, &long[..], REMOTE)),
            PostError::MessageTooLong { given: (1 << 31) + 1 }
        );
        let read = SendRequest::read(0, Data::inline(b"x"), REMOTE);
        assert_eq!(refused(&read), PostError::InlineNotAllowed { operation: "READ" });
        assert_eq!(refused(&SendRequest::fetch_add(0, sge(4), REMOTE, 1)), PostError::BadAtomic);
        let odd = Remote { address: 65, ..REMOTE };
        assert_eq!(refused(&SendRequest::compare_swap(0, sge(8), odd, 1, 2)), PostError::BadAtomic);
        assert!(check_recv(&RecvRequest::scatter(0, &buffers), &Capabilities::default()).is_err());
    }

    #[test]
    fn a_service_has_its_own_operations() {
        let services = [Service::Rc, Service::Uc, Service::Ud, Service::Xrc];
        let had = |request: SendRequest| {
            services.map(|service| check_service(&request, service, Qpn::new(7)).is_ok())
        };
        let srq = SrqNumber::new(5);
        let [connected, reliable, xrc] =
            [[true, true, false, false], [true, false, false, false], [false, false, false, true]];
        assert_eq!(had(SendRequest::send(0, Data::empty())), connected);
        assert_eq!(had(SendRequest::local_invalidate(0, Rkey::new(1))), [true, true, false, true]);
        assert_eq!(had(SendRequest::send_invalidate(0, Data::empty(), Rkey::new(1))), reliable);
        assert_eq!(had(SendRequest::atomic_write(0, Data::inline(&[0; 8]), REMOTE)), reliable);
        assert_eq!(had(SendRequest::read(0, sge(1), REMOTE)), reliable);
        assert_eq!(had(SendRequest::read(0, sge(1), REMOTE).to_srq(srq)), xrc);
        assert_eq!(had(SendRequest::send(0, Data::empty()).to_srq(srq)), xrc);
    }

    #[test]
    fn what_is_within_the_limits_passes() {
        let limits = Capabilities::default();
        for request in [
            SendRequest::send(0, Data::empty()),
            SendRequest::send(0, Data::inline(&[0; 236])),
            SendRequest::write(0, sge(1 << 31), REMOTE),
            SendRequest::read(0, sge(0), REMOTE),
            SendRequest::fetch_add(0, sge(8), REMOTE, 1),
        ] {
            assert_eq!(check_send(&request, &limits), Ok(()), "{request:?}");
        }
    }
}

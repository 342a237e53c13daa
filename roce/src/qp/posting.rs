//! The rules that a work request must satisfy. The application's thread checks them before it posts, so that a core never refuses an
//! accepted request.

use super::wqe::MAX_MESSAGE;
use super::{Data, Identity, PostError, Receives, RecvRequest, SendOperation, SendRequest};
use crate::Qpn;
use crate::wire::{ETHERNET_LENGTH, Service};
use core::mem;

/// Send request that passed the [`SendRules`] of its queue pair. Only these rules create one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedSend {
    pub(super) request: SendRequest,
    /// Bytes of the message.
    pub(super) length: u32,
}

/// Receive request that passed the [`RecvRules`] of its queue. Only these rules create one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedRecv(pub(super) RecvRequest);

impl CheckedRecv {
    pub(crate) fn into_request(self) -> RecvRequest {
        self.0
    }

    /// Moves the request out, and leaves one without buffers.
    #[inline]
    pub fn take(&mut self) -> Self {
        Self(RecvRequest { id: self.0.id, buffers: mem::take(&mut self.0.buffers) })
    }
}

/// Rules for the work requests of one queue pair. A change of its state may change them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostRules {
    /// Rules for send requests.
    pub send: SendRules,
    /// Rules for receive requests.
    pub recv: RecvRules,
}

impl PostRules {
    /// Creates the rules of a queue pair. `longest` is the longest message in bytes, if the service limits it.
    pub(crate) const fn new(identity: &Identity, service: Service, longest: Option<u32>) -> Self {
        let Identity { qpn, receives, capabilities, .. } = *identity;
        let refusal = match receives {
            Receives::Own => None,
            Receives::Shared(_) | Receives::XrcTarget(_) => Some(PostError::SharedReceives { qpn }),
            Receives::Never => Some(PostError::Service { qpn }),
        };
        Self {
            send: SendRules {
                qpn,
                service,
                services: if matches!(receives, Receives::XrcTarget(_)) { 0 } else { bit(service) },
                max_sge: capabilities.max_send_sge,
                max_inline: capabilities.max_inline,
                shortest: match service {
                    Service::Raw => ETHERNET_LENGTH as u32,
                    Service::Rc | Service::Uc | Service::Ud | Service::Xrc => 0,
                },
                longest: match longest {
                    Some(longest) => longest,
                    None => MAX_MESSAGE,
                },
            },
            recv: RecvRules { max_sge: capabilities.max_recv_sge, refusal },
        }
    }
}

/// Rules for the send requests of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRules {
    qpn: Qpn,
    service: Service,
    /// Bit of the service; 0 for an XRC target, which sends nothing.
    services: u8,
    max_sge: u32,
    max_inline: u32,
    /// Least and greatest length of a message, bytes.
    shortest: u32,
    longest: u32,
}

/// Direction in which a request moves its local data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moves {
    Nothing,
    Out,
    In,
    /// Eight bytes: the result of an atomic, or the operand of an ATOMIC WRITE.
    Word,
}

const fn bit(service: Service) -> u8 {
    match service {
        Service::Rc => 1,
        Service::Uc => 2,
        Service::Ud => 4,
        Service::Xrc => 8,
        Service::Raw => 16,
    }
}

const RELIABLE: u8 = bit(Service::Rc) | bit(Service::Xrc);
const CONNECTED: u8 = RELIABLE | bit(Service::Uc);
const DATAGRAMS: u8 = bit(Service::Ud);
/// Services that send bytes without immediate data.
const PLAIN: u8 = CONNECTED | bit(Service::Raw);

impl SendOperation {
    /// Returns the services that have the operation (IBA table 38), and how it uses its local data.
    #[inline]
    const fn demands(&self) -> (u8, Moves) {
        match self {
            Self::Send { immediate: None } => (PLAIN, Moves::Out),
            Self::Send { .. } | Self::Write { .. } => (CONNECTED, Moves::Out),
            Self::SendTo { .. } => (DATAGRAMS, Moves::Out),
            Self::SendInvalidate { .. } => (RELIABLE, Moves::Out),
            Self::Read { .. } => (RELIABLE, Moves::In),
            Self::FetchAdd { .. } | Self::CompareSwap { .. } | Self::AtomicWrite { .. } => {
                (RELIABLE, Moves::Word)
            }
            Self::Flush { .. } => (RELIABLE, Moves::Nothing),
            Self::Bind(_) | Self::LocalInvalidate { .. } => (CONNECTED, Moves::Nothing),
        }
    }
}

impl SendRules {
    /// Checks a request against the service and the queue pair's limits.
    ///
    /// # Errors
    /// Returns the [`PostError`] of the first rule that the request breaks.
    pub fn check(&self, mut request: SendRequest) -> Result<CheckedSend, PostError> {
        let length = self.length(&request)?;
        if length.is_none() {
            // rdma-core ignores the data of such a request, too.
            request.data = Data::empty();
        }
        Ok(CheckedSend { request, length: length.unwrap_or(0) })
    }

    /// Checks a request with one buffer, as nearly all have, and copies it without the room for other buffers. Returns `None` if it has
    /// another number of buffers, or breaks a rule.
    #[inline(always)]
    #[must_use]
    pub fn check_single(&self, request: &SendRequest) -> Option<CheckedSend> {
        let Data::Buffers(buffers) = &request.data else { return None };
        let [only] = **buffers else { return None };
        let length = self.length(request).ok()??;
        Some(CheckedSend { request: SendRequest { data: Data::from(only), ..*request }, length })
    }

    /// Checks a request that will be posted later.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn verify(&self, request: &SendRequest) -> Result<(), PostError> {
        self.length(request).map(drop)
    }

    /// Checks a request. Returns the bytes of its message; `None` for an operation without data.
    #[inline(always)]
    fn length(&self, request: &SendRequest) -> Result<Option<u32>, PostError> {
        let (services, moves) = request.operation.demands();
        if services & self.services == 0 {
            return Err(PostError::Service { qpn: self.qpn });
        }
        // Requests of an XRC initiator, and no others, name a shared receive queue of the peer. Local requests are exempt.
        let names = request.srq.is_some();
        if names != (self.service == Service::Xrc) && !request.operation.is_local() {
            return Err(PostError::RemoteSrq { qpn: self.qpn });
        }
        if moves == Moves::Nothing {
            return Ok(None);
        }
        match &request.data {
            Data::Buffers(buffers) => check_buffers(buffers.len(), self.max_sge)?,
            Data::Inline(bytes) => self.check_inline(&request.operation, bytes.len())?,
        }
        let given = request.data.length();
        if given > u64::from(self.longest) || given < u64::from(self.shortest) {
            return Err(self.bad_length(given));
        }
        if moves == Moves::Word {
            check_word(&request.operation, given)?;
        }
        Ok(Some(given as u32))
    }

    #[inline(never)]
    fn check_inline(&self, operation: &SendOperation, given: usize) -> Result<(), PostError> {
        let operation = match operation {
            SendOperation::Read { .. } => "READ",
            SendOperation::FetchAdd { .. } => "FETCH_ADD",
            SendOperation::CompareSwap { .. } => "CMP_SWAP",
            // Its eight bytes are part of the request, whatever `max_inline` is.
            SendOperation::AtomicWrite { .. } => return Ok(()),
            _ if given <= self.max_inline as usize => return Ok(()),
            _ => return Err(PostError::InlineTooLong { given, limit: self.max_inline }),
        };
        // The data that the peer returns needs a buffer.
        Err(PostError::InlineNotAllowed { operation })
    }

    #[cold]
    fn bad_length(&self, given: u64) -> PostError {
        match (self.service, u32::try_from(given)) {
            (Service::Raw, _) => PostError::FrameLength { given, limit: self.longest },
            (Service::Ud, Ok(given)) => PostError::DatagramTooLong { given, limit: self.longest },
            _ => PostError::MessageTooLong { given },
        }
    }
}

/// Rules for the receive requests of one queue, a queue pair's own or a shared one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvRules {
    max_sge: u32,
    /// Why the queue pair accepts no receive requests.
    refusal: Option<PostError>,
}

impl RecvRules {
    pub(crate) const fn shared(max_sge: u32) -> Self {
        Self { max_sge, refusal: None }
    }

    /// Checks a request. Its buffers may be longer than the longest message, as rdma-core allows.
    ///
    /// # Errors
    /// Returns the [`PostError`] of the first rule that the request breaks.
    #[inline]
    pub fn check(&self, request: RecvRequest) -> Result<CheckedRecv, PostError> {
        if let Some(error) = self.refusal {
            return Err(error);
        }
        check_buffers(request.buffers.len(), self.max_sge)?;
        Ok(CheckedRecv(request))
    }
}

#[inline]
fn check_buffers(given: usize, limit: u32) -> Result<(), PostError> {
    if given <= limit as usize { Ok(()) } else { Err(PostError::TooManyBuffers { given, limit }) }
}

/// Checks an atomic: 8 bytes of local data, in any number of buffers, and an aligned remote address (IBA 9.4.5).
#[inline(never)]
fn check_word(operation: &SendOperation, given: u64) -> Result<(), PostError> {
    let is_aligned = match operation {
        SendOperation::FetchAdd { remote, .. }
        | SendOperation::CompareSwap { remote, .. }
        | SendOperation::AtomicWrite { remote } => remote.address.is_multiple_of(8),
        _ => true,
    };
    if given == 8 && is_aligned { Ok(()) } else { Err(PostError::BadAtomic) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::{Capabilities, QpInit, Remote, Sge};
    use crate::wire::Feth;
    use crate::{CqId, Lkey, PdId, Rkey, SrqId, SrqNumber, XrcdId};

    const QPN: Qpn = Qpn::new(7);
    const REMOTE: Remote = Remote { address: 64, rkey: Rkey::new(1) };
    const ODD: Remote = Remote { address: 65, ..REMOTE };

    fn rules_of(service: Service, receives: Receives) -> PostRules {
        let init = QpInit {
            service,
            pd: PdId(1),
            send_cq: CqId(0),
            recv_cq: CqId(0),
            capabilities: Capabilities::default(),
            signal_all: false,
            srq: None,
        };
        let longest = (service == Service::Ud).then_some(1024);
        PostRules::new(&Identity::new(QPN, &init, receives), service, longest)
    }

    fn sge(length: u32) -> Sge {
        Sge { address: 0, length, lkey: Lkey::new(1) }
    }

    fn check(request: SendRequest) -> Result<u32, PostError> {
        rules_of(Service::Rc, Receives::Own).send.check(request).map(|checked| checked.length)
    }

    #[test]
    fn requests_beyond_a_limit_are_refused() {
        let too_many = PostError::TooManyBuffers { given: 5, limit: 4 };
        assert_eq!(check(SendRequest::send(0, &[sge(1); 5][..])), Err(too_many));
        let inline = SendRequest::send(0, Data::inline(&[0; 237]));
        assert_eq!(check(inline), Err(PostError::InlineTooLong { given: 237, limit: 236 }));
        let long = SendRequest::write(0, &[sge(1 << 31), sge(1)][..], REMOTE);
        assert_eq!(check(long), Err(PostError::MessageTooLong { given: (1 << 31) + 1 }));
        for (request, operation) in [
            (SendRequest::read(0, sge(8), REMOTE), "READ"),
            (SendRequest::fetch_add(0, sge(8), REMOTE, 1), "FETCH_ADD"),
            (SendRequest::compare_swap(0, sge(8), REMOTE, 1, 2), "CMP_SWAP"),
        ] {
            let request = SendRequest { data: Data::inline(&[0; 8]), ..request };
            assert_eq!(check(request), Err(PostError::InlineNotAllowed { operation }));
        }
        for request in [
            SendRequest::fetch_add(0, sge(4), REMOTE, 1),
            SendRequest::compare_swap(0, sge(8), ODD, 1, 2),
            SendRequest::atomic_write(0, Data::inline(&[0; 8]), ODD),
            SendRequest::atomic_write(0, sge(9), REMOTE),
        ] {
            assert_eq!(check(request), Err(PostError::BadAtomic));
        }
    }

    #[test]
    fn requests_within_the_limits_pass() {
        let word = [sge(3), sge(0), sge(5)];
        for (request, length) in [
            (SendRequest::send(0, Data::empty()), 0),
            (SendRequest::send(0, Data::inline(&[0; 236])), 236),
            (SendRequest::write(0, sge(1 << 31), REMOTE), 1 << 31),
            (SendRequest::read(0, sge(0), REMOTE), 0),
            (SendRequest::fetch_add(0, sge(8), REMOTE, 1), 8),
            (SendRequest { data: (&word[..]).into(), ..SendRequest::fetch_add(0, sge(8), REMOTE, 1) }, 8),
            (SendRequest::atomic_write(0, &word[..], REMOTE), 8),
        ] {
            assert_eq!(check(request), Ok(length));
        }
    }

    /// IBA 10.7: a request without data needs no buffer.
    #[test]
    fn operations_without_data_ignore_their_buffers() {
        let flush = SendRequest::flush(0, REMOTE, u32::MAX, Feth::new(true, false, false));
        let many = [sge(u32::MAX); 9];
        for request in [flush, SendRequest::local_invalidate(0, Rkey::new(1))] {
            for data in [Data::from(&many[..]), Data::inline(&[0; 5000])] {
                let request = SendRequest { data, ..request.clone() };
                let checked = rules_of(Service::Rc, Receives::Own).send.check(request).unwrap();
                assert_eq!((checked.length, checked.request.data), (0, Data::empty()));
            }
        }
    }

    #[test]
    fn a_service_has_its_own_operations() {
        let services = [Service::Rc, Service::Uc, Service::Ud, Service::Xrc];
        let had = |request: SendRequest| {
            services.map(|service| rules_of(service, Receives::Own).send.check(request.clone()).is_ok())
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
        let target = rules_of(Service::Xrc, Receives::XrcTarget(XrcdId(0))).send;
        let request = SendRequest::send(0, Data::empty()).to_srq(srq);
        assert_eq!(target.check(request), Err(PostError::Service { qpn: QPN }));
    }

    #[test]
    fn a_receive_may_hold_more_than_a_message_but_has_its_queue() {
        let large = RecvRequest::scatter(0, &[sge(u32::MAX), sge(u32::MAX)]);
        let many = RecvRequest::scatter(0, &[sge(1); 5]);
        for rules in [rules_of(Service::Rc, Receives::Own).recv, RecvRules::shared(4)] {
            assert!(rules.check(large.clone()).is_ok());
            let too_many = PostError::TooManyBuffers { given: 5, limit: 4 };
            assert_eq!(rules.check(many.clone()), Err(too_many));
        }
        let shared = rules_of(Service::Rc, Receives::Shared(SrqId(0))).recv;
        assert_eq!(shared.check(large.clone()), Err(PostError::SharedReceives { qpn: QPN }));
        let initiator = rules_of(Service::Xrc, Receives::Never).recv;
        assert_eq!(initiator.check(large), Err(PostError::Service { qpn: QPN }));
    }
}

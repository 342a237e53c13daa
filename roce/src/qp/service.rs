//! A queue pair of any service.

use super::unreliable::Unreliable;
use super::{
    Books, CompletionStatus, Identity, Modify, PostError, QpReport, QueuePair, RecvRequest, SendRequest,
};
use crate::wire::{Frame, Service};
use crate::{ControlError, CqId, Discard, FailureCause, Memory};
use cc::Instant;

/// A queue pair of any service.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "each stands in a box of its own; most are reliable")]
pub(crate) enum AnyQueuePair {
    Reliable(QueuePair),
    Unreliable(Unreliable),
}

macro_rules! either {
    ($any:expr, $qp:ident => $call:expr) => {
        match $any {
            AnyQueuePair::Reliable($qp) => $call,
            AnyQueuePair::Unreliable($qp) => $call,
        }
    };
}

impl AnyQueuePair {
    pub(crate) fn new(service: Service, identity: Identity) -> Self {
        match service {
            Service::Rc | Service::Xrc => Self::Reliable(QueuePair::new(identity)),
            Service::Uc => Self::Unreliable(Unreliable::connected(identity)),
            Service::Ud => Self::Unreliable(Unreliable::datagram(identity)),
        }
    }

    pub(crate) const fn identity(&self) -> &Identity {
        either!(self, qp => qp.identity())
    }

    pub(crate) fn report(&self) -> QpReport {
        either!(self, qp => qp.report())
    }

    pub(crate) fn modify(&mut self, modify: Modify, books: &mut Books<'_>) -> Result<(), ControlError> {
        either!(self, qp => qp.modify(modify, books))
    }

    pub(crate) fn fail(
        &mut self,
        cause: Option<FailureCause>,
        receive: CompletionStatus,
        books: &mut Books<'_>,
    ) {
        either!(self, qp => qp.fail(cause, receive, books));
    }

    /// Whether its completions go, or lately went, to `cq`.
    pub(crate) fn completes_to(&self, cq: CqId) -> bool {
        let Identity { send_cq, recv_cq, .. } = *self.identity();
        let lately = match self {
            Self::Reliable(qp) => qp.responder.lately_completed_to(),
            Self::Unreliable(_) => None,
        };
        send_cq == cq || recv_cq == cq || lately == Some(cq)
    }

    /// Whether it hears what switches say of packets to queue pair `destination` at `address`.
    pub(crate) fn talks_to(&self, address: core::net::IpAddr, destination: crate::Qpn) -> bool {
        match self {
            Self::Reliable(qp) => qp.talks_to(address, destination),
            Self::Unreliable(_) => false,
        }
    }

    /// Whether a peer waits for an answer.
    #[inline]
    pub(crate) fn owes_answer(&self) -> bool {
        match self {
            Self::Reliable(qp) => qp.responder.has_answer(),
            Self::Unreliable(_) => false,
        }
    }

    pub(crate) fn send_room(&self) -> u32 {
        either!(self, qp => qp.send_room())
    }

    pub(crate) fn recv_room(&self) -> u32 {
        either!(self, qp => qp.recv_room())
    }

    #[inline]
    pub(crate) fn post_send(&mut self, request: SendRequest, books: &mut Books<'_>) -> Result<(), PostError> {
        either!(self, qp => qp.post_send(request, books))
    }

    pub(crate) fn post_recv(&mut self, request: RecvRequest, books: &mut Books<'_>) -> Result<(), PostError> {
        either!(self, qp => qp.post_recv(request, books))
    }

    pub(crate) fn on_packet<M: Memory>(
        &mut self,
        frame: &Frame<'_>,
        memory: &mut M,
        books: &mut Books<'_>,
    ) -> Result<(), Discard> {
        either!(self, qp => qp.on_packet(frame, memory, books))
    }

    pub(crate) fn poll_transmit<M: Memory>(
        &mut self,
        memory: &M,
        books: &mut Books<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        either!(self, qp => qp.poll_transmit(memory, books, frame))
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        either!(self, qp => qp.poll_timeout())
    }

    pub(crate) fn on_timeout(&mut self, books: &mut Books<'_>) {
        either!(self, qp => qp.on_timeout(books));
    }
}

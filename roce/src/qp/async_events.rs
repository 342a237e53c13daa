//! Affiliated events of a queue pair, and when it raises them (IBA 11.6.3).

use super::{Context, Identity, Receives, State};
use crate::{Event, QpFailure};

/// State that decides which events are still due.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AsyncEvents {
    /// Communication established was raised.
    established: bool,
    /// The program requested an event for the end of draining.
    draining: bool,
}

impl AsyncEvents {
    /// Raises communication established at the peer's first packet in RTR.
    #[inline]
    pub(super) fn on_request(&mut self, state: State, identity: &Identity, context: &mut Context<'_>) {
        if state == State::ReadyToReceive && !self.established {
            self.established = true;
            context.events.push(Event::CommunicationEstablished(identity.qpn));
        }
    }

    pub(super) const fn on_drain(&mut self, notify: bool) {
        self.draining = notify;
    }

    /// Raises send queue drained, if the program requested it (IBA 10.3.1.5).
    #[cold]
    pub(super) fn on_drained(&mut self, identity: &Identity, context: &mut Context<'_>) {
        if core::mem::take(&mut self.draining) {
            context.events.push(Event::SendQueueDrained(identity.qpn));
        }
    }
}

/// Raises the failure, and last receive if the queue pair has a shared receive queue.
pub(super) fn on_error(failure: Option<QpFailure>, identity: &Identity, context: &mut Context<'_>) {
    if let Some(failure) = failure {
        context.events.push(Event::QpFailed(failure));
    }
    if let Receives::Shared(_) = identity.receives {
        context.events.push(Event::LastReceive(identity.qpn));
    }
}

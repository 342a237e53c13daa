//! When a queue pair raises which event (IBA 11.6.3).

use super::{Context, Identity, Receives, State};
use crate::{Event, QpFailure};

/// The events that were reported already, and those that are still to be reported.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alarms {
    /// The peer's first packet was reported.
    established: bool,
    /// The program waits until the send queue is drained.
    draining: bool,
}

impl Alarms {
    /// A packet of the peer was taken in.
    #[inline]
    pub(super) fn on_request(&mut self, state: State, identity: &Identity, context: &mut Context<'_>) {
        if state == State::ReadyToReceive && !self.established {
            self.established = true;
            context.events.push(Event::CommunicationEstablished(identity.qpn));
        }
    }

    /// To SQD, and whether an event is requested.
    pub(super) const fn on_drain(&mut self, notify: bool) {
        self.draining = notify;
    }

    /// In SQD, what had begun is done (IBA 10.3.1.5).
    #[cold]
    pub(super) fn on_drained(&mut self, identity: &Identity, context: &mut Context<'_>) {
        if core::mem::take(&mut self.draining) {
            context.events.push(Event::SendQueueDrained(identity.qpn));
        }
    }
}

/// A queue pair with a shared receive queue goes to ERR: it takes no more from it.
pub(super) fn on_error(failure: Option<QpFailure>, identity: &Identity, context: &mut Context<'_>) {
    if let Some(failure) = failure {
        context.events.push(Event::QpFailed(failure));
    }
    if let Receives::Shared(_) = identity.receives {
        context.events.push(Event::LastReceive(identity.qpn));
    }
}

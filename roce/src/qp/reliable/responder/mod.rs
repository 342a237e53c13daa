//! The receiving side of a reliable connection: checks, placement, answers (IBA 9.7.4, 9.7.5).

mod arrival;
mod check;
mod execute;
mod message;
mod negotiation;
mod refusal;
mod reorder;
mod resources;
mod response;
mod xrc;

pub(super) use arrival::{Arrival, Rights};
pub(super) use refusal::Refusal;
pub(super) use response::PlannedResponse;

use super::super::receive_queue::ReceiveQueue;
use super::super::{
    Changes, Completion, CompletionOpcode, CompletionStatus, Context, Identity, LossRecovery, RecvRequest,
    RtrSettings,
};
use crate::congestion::Echo;
use crate::wire::{Aeth, NakCode, RnrTimer, Syndrome};
use crate::{CqId, Psn};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use message::Message;
use reorder::Reorder;
use resources::Resources;

/// End-to-end credits are not counted (IBA 9.7.7.2).
const NO_CREDITS: u8 = 31;

/// Pending answer after all READ responses and atomics. One is sufficient: an acknowledgement covers all packets before it, and nothing is
/// executed after a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingAcknowledge {
    /// Acknowledges everything executed so far.
    Acknowledge,
    /// Acknowledges from this duplicate up to the next READ or atomic.
    AcknowledgeDuplicate(Psn),
    /// The same for a duplicate without payload: a keep-alive, which tests whether small packets arrive where READ responses do not.
    ReplyToKeepAlive(Psn),
    Nak(Psn, Syndrome),
}

#[derive(Debug)]
pub(super) struct Responder {
    queue: ReceiveQueue,
    expected: Psn,
    /// Last SEND or WRITE packet executed. Only such a PSN may be in an ACK. An ACK with the PSN of a READ or an atomic completes it
    /// without data at Linux's requester.
    acknowledgeable: Psn,
    first: Psn,
    /// Messages completed, modulo 2^24.
    msn: u32,
    /// The gap, or the missing receive, at `expected` was reported. One report is sufficient (IBA 9.7.5.2.8).
    nak_sent: bool,
    message: Option<Message>,
    resources: Resources,
    pending_acknowledge: Option<PendingAcknowledge>,
    /// Newest duplicate whose ACK was withheld; before `first` if there is none.
    withheld: Psn,
    echo: Echo,
    min_rnr_timer: RnrTimer,
    recovery: LossRecovery,
    /// Early packets, with selective repeat: from the start if it was agreed at connect, or since the peer offered it.
    reorder: Option<Box<Reorder>>,
}

impl Responder {
    pub(super) fn new(identity: &Identity) -> Self {
        Self::with(ReceiveQueue::new(identity))
    }

    fn with(queue: ReceiveQueue) -> Self {
        Self {
            queue,
            expected: Psn::new(0),
            acknowledgeable: Psn::new(0),
            first: Psn::new(0),
            msn: 0,
            nak_sent: false,
            message: None,
            resources: Resources::new(0, false),
            pending_acknowledge: None,
            withheld: Psn::new(0),
            echo: Echo::default(),
            min_rnr_timer: RnrTimer::new(0),
            recovery: LossRecovery::GoBackN,
            reorder: None,
        }
    }

    pub(super) fn connect(&mut self, settings: &RtrSettings) {
        self.expected = settings.receive_psn;
        self.acknowledgeable = settings.receive_psn.plus(Psn::CIRCLE - 1);
        self.first = settings.receive_psn;
        self.withheld = self.acknowledgeable;
        self.min_rnr_timer = settings.min_rnr_timer;
        self.recovery = settings.loss_recovery;
        let is_agreed = settings.loss_recovery == LossRecovery::SelectiveRepeat;
        self.resources = Resources::new(settings.max_dest_rd_atomic, is_agreed);
        self.reorder = is_agreed.then(|| Box::new(Reorder::new(settings.receive_psn)));
    }

    pub(super) fn change(&mut self, changes: &Changes) {
        self.min_rnr_timer = changes.min_rnr_timer.unwrap_or(self.min_rnr_timer);
        if let Some(limit) = changes.max_dest_rd_atomic {
            self.resources.resize(limit);
        }
    }

    /// Resets everything except the capacity of the queue.
    pub(super) fn reset(&mut self) {
        let mut queue = core::mem::replace(&mut self.queue, ReceiveQueue::Own(VecDeque::new()));
        queue.clear();
        *self = Self::with(queue);
    }

    pub(super) fn post(&mut self, request: RecvRequest) {
        self.queue.push(request);
    }

    #[expect(clippy::arithmetic_side_effects, reason = "the held requests are few")]
    pub(super) fn len(&self) -> usize {
        let begun = !self.queue.is_shared() && matches!(self.message, Some(Message::Send { .. }));
        self.queue.len() + usize::from(begun)
    }

    pub(super) const fn first(&self) -> Psn {
        self.first
    }

    pub(super) const fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Returns the completion queue of the receive queue that an XRC target's last message named.
    pub(super) fn lately_completed_to(&self) -> Option<CqId> {
        self.queue.resolved().map(|resolved| resolved.cq)
    }

    /// Completes the receive in progress with `status`, all others as flushed. Answers that are due are still sent.
    pub(super) fn flush(&mut self, status: CompletionStatus, context: &mut Context<'_>, identity: &Identity) {
        if let Some(Message::Send { request, .. }) = self.message.take()
            && let Some(cq) = self.queue.completes_to(identity, context.srqs)
        {
            let srq = self.queue.shared();
            context.cqs.push(cq, Completion { srq, ..failed(&request, status, identity) });
        }
        while let Some(request) = self.queue.pop_own() {
            context.cqs.push(identity.recv_cq, failed(&request, CompletionStatus::Flushed, identity));
        }
    }

    pub(super) fn drop_responses(&mut self) {
        self.pending_acknowledge = None;
        if let Some(reorder) = &mut self.reorder {
            reorder.acceptance = None;
        }
        self.echo = Echo::default();
        self.resources.drop_responses();
    }

    /// Makes a NAK due, after the answers that are already due, because the queue pair fails.
    pub(super) fn refuse(&mut self, code: NakCode) {
        self.pending_acknowledge = Some(PendingAcknowledge::Nak(self.expected, Syndrome::Nak(code)));
    }

    /// Makes a NAK due, because the READ response `psn` can no longer be built.
    pub(super) fn refuse_response(&mut self, psn: Psn) {
        self.resources.drop_responses();
        self.pending_acknowledge =
            Some(PendingAcknowledge::Nak(psn, Syndrome::Nak(NakCode::RemoteAccessError)));
    }

    /// Returns the PSN of an ACK of everything executed so far. A peer with selective repeat is Ferroce, whose READs and atomics only the
    /// responses complete. At such a peer, an ACK with the PSN of one means that the response before it was lost.
    const fn newest(&self) -> Psn {
        if self.reorder.is_some() { self.expected.plus(Psn::CIRCLE - 1) } else { self.acknowledgeable }
    }

    const fn aeth(&self, syndrome: Syndrome) -> Aeth {
        Aeth { syndrome, msn: self.msn }
    }
}

fn failed(request: &RecvRequest, status: CompletionStatus, identity: &Identity) -> Completion {
    Completion::new(request.id, status, CompletionOpcode::Recv, identity.qpn)
}

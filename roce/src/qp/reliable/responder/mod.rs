//! The receiving side of a reliable connection: checks, placement, answers (IBA 9.7.4, 9.7.5).

mod answer;
mod arrival;
mod check;
mod execute;
mod message;
mod named;
mod offer;
mod refusal;
mod reorder;
mod resources;

pub(super) use answer::Answered;
pub(super) use arrival::{Arrival, Rights};
pub(super) use refusal::Refusal;

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

/// No end-to-end credits are counted (IBA 9.7.7.2).
const NO_CREDITS: u8 = 31;

/// The answer that waits to be sent, behind all READ responses and atomics: one is enough, since an acknowledgement
/// covers all before it and nothing is executed after a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Everything executed so far.
    Acknowledge,
    /// What was executed from this duplicate on up to the next READ or atomic.
    AcknowledgeAgain(Psn),
    /// The same for a duplicate without payload, by which a peer asks whether small packets pass where READ responses do not.
    ReplyToQuestion(Psn),
    /// A NAK for this packet.
    Refuse(Psn, Syndrome),
}

/// Receive queue and connection state of the responder.
#[derive(Debug)]
pub(super) struct Responder {
    queue: ReceiveQueue,
    expected: Psn,
    /// The last SEND or WRITE packet executed. Only such a packet's PSN may be in an ACK: Linux's requester completes a READ or an atomic,
    /// without data, when an ACK has its PSN.
    acknowledgeable: Psn,
    /// The first PSN of the connection.
    first: Psn,
    /// Messages completed, 24 bits.
    msn: u32,
    /// The gap, or the missing receive, at `expected` was reported: once is enough (IBA 9.7.5.2.8).
    nak_sent: bool,
    message: Option<Message>,
    resources: Resources,
    answer: Option<Answer>,
    /// The newest duplicate whose ACK was withheld; before `first` if none was.
    withheld: Psn,
    echo: Echo,
    min_rnr_timer: RnrTimer,
    recovery: LossRecovery,
    /// Packets that came early, with selective repeat: from the first on if it was agreed at connect, or since the peer offered it.
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
            answer: None,
            withheld: Psn::new(0),
            echo: Echo::default(),
            min_rnr_timer: RnrTimer::new(0),
            recovery: LossRecovery::GoBackN,
            reorder: None,
        }
    }

    /// INIT to RTR.
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

    /// Forgets everything; the queue keeps its room.
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

    /// The first PSN of the connection.
    pub(super) const fn first(&self) -> Psn {
        self.first
    }

    pub(super) const fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Of an XRC target: the completion queue of the receive queue that was named last.
    pub(super) fn lately_completed_to(&self) -> Option<CqId> {
        self.queue.reached().map(|reached| reached.cq)
    }

    /// Ends the receive in progress with `status` and all others as flushed. The answers due still leave.
    pub(super) fn flush(&mut self, status: CompletionStatus, context: &mut Context<'_>, identity: &Identity) {
        if let Some(Message::Send { request, .. }) = self.message.take()
            && let Some(cq) = self.queue.completes_to(identity, context.shared)
        {
            let srq = self.queue.shared();
            context.cqs.push(cq, Completion { srq, ..failed(&request, status, identity) });
        }
        while let Some(request) = self.queue.pop_own() {
            context.cqs.push(identity.recv_cq, failed(&request, CompletionStatus::Flushed, identity));
        }
    }

    /// Drops all answers that are due.
    pub(super) fn silence(&mut self) {
        self.answer = None;
        if let Some(reorder) = &mut self.reorder {
            reorder.acceptance = None;
        }
        self.echo = Echo::default();
        self.resources.silence();
    }

    /// The queue pair fails; a NAK informs the peer, after the answers that are due before.
    pub(super) fn refuse(&mut self, code: NakCode) {
        self.answer = Some(Answer::Refuse(self.expected, Syndrome::Nak(code)));
    }

    /// The queue pair fails because the READ response `psn` cannot be built any more.
    pub(super) fn refuse_response(&mut self, psn: Psn) {
        self.resources.silence();
        self.answer = Some(Answer::Refuse(psn, Syndrome::Nak(NakCode::RemoteAccessError)));
    }

    /// Returns the PSN that an ACK of everything executed so far has. A peer that repeats selectively is Ferroce: its READs and atomics end
    /// by their responses alone, and an ACK with the PSN of one says that the response before it was lost.
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

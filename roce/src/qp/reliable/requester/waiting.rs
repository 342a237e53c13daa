//! Determines the state in which a requester waits when it has nothing to send now.

use super::Requester;
use super::limits::MAX_OUTSTANDING;
use crate::qp::Waiting;

impl Requester {
    /// Returns the cause that delays the next packet, apart from the pacer; `window` is the congestion window, bytes.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "a request at the cursor does not end before `una`")]
    pub(in crate::qp) fn waits_for(&self, window: u64) -> Waiting {
        if self.queue.len() == 0 {
            return Waiting::Idle;
        }
        if self.timers.is_receiver_not_ready() {
            return Waiting::ReceiverNotReady;
        }
        if self.is_unanswered() {
            return Waiting::Silence;
        }
        if self.sequence.is_in_recovery() {
            return Waiting::Recovery;
        }
        match self.queue.next() {
            None => Waiting::Answer,
            Some(wqe) if wqe.is_local() => Waiting::Fence,
            Some(_) if self.in_flight() >= self.recovery_limit(window).max(1) => Waiting::Window,
            Some(wqe) if wqe.request.fence && self.sequence.next == wqe.first && !self.reads.is_empty() => {
                Waiting::Fence
            }
            Some(wqe) if !wqe.is_answered() => Waiting::Window,
            Some(wqe) if wqe.end() - self.sequence.una > MAX_OUTSTANDING => Waiting::Window,
            Some(_) if self.reads.is_full() => Waiting::Reads,
            // The bytes that the READs return do not fit into the window.
            Some(_) => Waiting::Window,
        }
    }
}

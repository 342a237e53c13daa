//! What a requester does when answers stay away: probes, timeouts, retries (IBA 9.7.6.1.3; RFC 8985 7).

use super::recovery::Recovery;
use super::{Requester, Trouble};
use crate::congestion::Progress;
use crate::qp::{CompletionStatus, Context};
use cc::Instant;
use core::time::Duration;

impl Requester {
    /// Time has come to `now`; `window` is the congestion controller's.
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    pub(in crate::qp) fn on_timeout(
        &mut self,
        window: u64,
        context: &mut Context<'_>,
    ) -> Result<Progress, Trouble> {
        let now = context.now;
        if self.timers.poll_receiver(now) {
            return Ok(Progress::default());
        }
        if !self.timers.retransmission.is_expired(now) {
            if self.timers.probe.is_due(now) {
                self.on_probe_timeout(window, now);
            }
            return Ok(Progress { lost: self.detect(now), ..Progress::default() });
        }
        context.counters.timeouts += 1;
        self.timers.retransmission.on_expiry();
        self.retry(now)?;
        self.timers.retransmission.back_off();
        if let Recovery::GoBackN(go_back_n) = &mut self.recovery {
            go_back_n.restrict(self.queue.mtu());
        }
        Ok(Progress { lost: true, ..Progress::default() })
    }

    /// Goes back to the oldest packet, if a retry is left: the retry counter counts rounds without progress.
    pub(super) fn retry(&mut self, now: Instant) -> Result<(), Trouble> {
        if !self.recovery.is_selective() {
            self.reads.on_loss();
        }
        if !self.retries.spend() {
            return Err(Trouble::Fail(CompletionStatus::RetryExceeded));
        }
        self.recover(now);
        Ok(())
    }

    /// Sends again what may be lost: all from the oldest packet on, or all that is missing.
    pub(super) fn recover(&mut self, now: Instant) {
        self.sequence.enter_recovery();
        match &mut self.recovery {
            Recovery::Selective(_) => {
                self.lose_all(now);
                self.timers.retransmission.stop();
            }
            Recovery::GoBackN(go_back_n) => {
                go_back_n.on_loss(self.queue.mtu());
                self.control.offer_at_loss();
                self.rewind();
            }
        }
    }

    /// Go-back-N: the oldest packet is the next.
    pub(super) fn rewind(&mut self) {
        self.sequence.rewind();
        self.queue.rewind();
        self.reads.rewind();
        self.ack_requests.rewind(self.sequence.una);
        self.timers.stop();
        self.rtt.cancel();
    }

    /// Nothing that is in flight asks for an acknowledgement, and the window, which has shrunk since it was sent, lets no other packet
    /// ask: neither side would ever send again, not even by a timer.
    #[inline]
    pub(in crate::qp) fn is_mute(&self, window: u64) -> bool {
        self.ack_requests.end() <= self.sequence.una
            && self.sequence.una < self.sequence.next
            && self.in_flight() >= window.max(1)
            && !self.recovery.has_lost()
    }

    /// Sends again from the oldest packet on, without a loss: a window's last packet asks.
    #[cold]
    pub(in crate::qp) fn ask_again(&mut self, now: Instant) {
        if self.recovery.is_selective() {
            self.lose_blameless(now);
        } else {
            self.rewind();
        }
    }

    /// Nothing was answered for as long as [`Self::probe_wait`] says: asks again, by one packet. This costs no retry, the timer of the
    /// retries goes on, and nothing counts as lost: the peer may only be slow.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    fn on_probe_timeout(&mut self, window: u64, now: Instant) {
        self.timers.probe.stop();
        if self.sequence.is_answered() {
            self.rtt.on_probe();
            return;
        }
        if self.recovery.is_selective() {
            self.probe(window, now);
            self.timers.probe.set(self.probe_wait().map(|wait| now + wait));
            return;
        }
        self.rtt.on_probe();
        let deadline = self.timers.retransmission.deadline();
        self.sequence.enter_recovery();
        self.control.offer_at_loss();
        self.rewind();
        if let Recovery::GoBackN(go_back_n) = &mut self.recovery {
            go_back_n.restrict(self.queue.mtu());
        }
        self.timers.retransmission.resume(deadline);
    }

    /// Returns the time without an answer after which something is requested again: never longer than the timeout.
    pub(super) fn probe_wait(&self) -> Option<Duration> {
        // With go-back-N asking means sending all again: only what is surely lost is worth that.
        let more = u8::from(!self.recovery.is_selective());
        let wait = self.rtt.probe_wait(self.slowest_answer(), more)?;
        Some(self.timers.retransmission.wait().map_or(wait, |timeout| timeout.min(wait)))
    }

    /// When something is requested again if nothing more is answered. With selective repeat that is when nothing was requested for as long
    /// as [`Self::probe_wait`] says, and nothing was answered for half as long (RFC 9002 6.2.1 has it since the last packet). An answer to
    /// packets before a lost tail postpones nothing. The answers of a READ may come slowly.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "adding to an `Instant` saturates; the divisor is a constant"
    )]
    pub(super) fn probe_due(&self, now: Instant) -> Option<Instant> {
        let wait = self.probe_wait()?;
        if !self.recovery.is_selective() || !self.reads.is_empty() {
            return Some(now + wait);
        }
        Some((self.ack_requests.sent_at() + wait).max(now + wait / 2))
    }

    /// The packet that measures the round trip may be acknowledged. Returns the round trip if it is.
    pub(super) fn take_sample(&mut self, now: Instant) -> Option<Duration> {
        let number = self.rtt.sampled()?;
        let has_arrived = number < self.sequence.una
            || self.recovery.selective().is_some_and(|selective| selective.scoreboard.has(number));
        if !has_arrived {
            return None;
        }
        self.rtt.on_arrival(now)
    }

    /// The peer streams an answer that was requested in an earlier round: Soft-RoCE does so to the end before it looks at the request that
    /// was sent again, or is new. Another request meanwhile would only lengthen the stream, until nothing but the past is answered.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn on_stale_answer(&mut self, now: Instant) {
        self.timers.retransmission.on_stale_answer(now);
        if self.timers.probe.is_set() {
            self.timers.probe.set(self.probe_wait().map(|wait| now + wait));
        }
    }
}

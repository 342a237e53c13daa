//! Reaction to missing answers: probes, timeouts, retries (IBA 9.7.6.1.3; RFC 8985 7).

use super::recovery::Recovery;
use super::{Requester, RequesterError};
use crate::congestion::Progress;
use crate::qp::{CompletionStatus, Context};
use cc::Instant;
use core::time::Duration;

impl Requester {
    /// Runs the timers that are due. `window` is the congestion window in bytes, and `interval` returns the time between two packets of a
    /// length at the pacing rate.
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    pub(in crate::qp) fn on_timeout(
        &mut self,
        window: u64,
        interval: impl FnOnce(u32) -> Duration,
        context: &mut Context<'_>,
    ) -> Result<Progress, RequesterError> {
        let now = context.now;
        if self.timers.poll_receiver(now) {
            return Ok(Progress::default());
        }
        if !self.timers.retransmission.is_expired(now) {
            if self.timers.probe.is_due(now) {
                self.on_probe_timeout(window, interval(self.queue.mtu()), now);
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

    /// Goes back to the oldest packet if a retry is left. The retry counter counts rounds without progress.
    pub(super) fn retry(&mut self, now: Instant) -> Result<(), RequesterError> {
        if !self.recovery.is_selective() {
            self.reads.on_loss();
        }
        if !self.retries.spend() {
            return Err(RequesterError::Fail(CompletionStatus::RetryExceeded));
        }
        self.recover(now);
        Ok(())
    }

    /// Retransmits the packets that may be lost: all from the oldest on, or all missing ones with selective repeat.
    pub(super) fn recover(&mut self, now: Instant) {
        self.sequence.enter_recovery();
        match &mut self.recovery {
            Recovery::Selective(_) => {
                self.mark_all_lost(now);
                self.timers.retransmission.stop();
            }
            Recovery::GoBackN(go_back_n) => {
                go_back_n.on_loss(self.queue.mtu());
                self.control.offer_at_loss();
                self.rewind();
            }
        }
    }

    /// Makes the oldest packet the next one, for go-back-N.
    pub(super) fn rewind(&mut self) {
        self.sequence.rewind();
        self.queue.rewind();
        self.reads.rewind();
        self.ack_requests.rewind(self.sequence.una);
        self.timers.stop();
        self.rtt.cancel();
    }

    /// Returns whether both sides would wait permanently if the full window blocked the next packet: no packet in flight has AckReq. This
    /// occurs after the window shrank within a message.
    #[inline]
    pub(super) fn needs_ack_request(&self) -> bool {
        self.ack_requests.end() <= self.sequence.una
            && self.sequence.una < self.sequence.next
            && !self.recovery.has_lost()
    }

    /// Sends a probe after [`Self::paced_probe_wait`] without an answer. This uses no retry, leaves the retransmission timer running, and
    /// reports no loss, because the peer may only be slow.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    fn on_probe_timeout(&mut self, window: u64, interval: Duration, now: Instant) {
        if self.sequence.is_answered() {
            self.timers.probe.stop();
            self.rtt.on_probe();
            return;
        }
        let due = self.ack_requests.sent_at() + self.paced_probe_wait(interval);
        if now < due && self.timers.probe.extend(due) {
            return;
        }
        self.timers.probe.stop();
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

    /// Returns the time without an answer after which a probe is sent, at most the retransmission timeout.
    pub(super) fn probe_wait(&self) -> Option<Duration> {
        self.probe_wait_beyond(self.slowest_answer())
    }

    /// Returns [`Self::probe_wait`] if an answer may take `slowest`.
    fn probe_wait_beyond(&self, slowest: Duration) -> Option<Duration> {
        // A probe of go-back-N retransmits everything, so its timeout is twice as long.
        let more = u8::from(!self.recovery.is_selective());
        let wait = self.rtt.probe_wait(slowest, more)?;
        Some(self.timers.retransmission.wait().map_or(wait, |timeout| timeout.min(wait)))
    }

    /// Returns [`Self::probe_wait`] plus twice `interval`, the time between two packets at the pacing rate; at most the retransmission
    /// timeout. Each of the flows that share a link may have a packet in the link's queue. Together, these packets take one interval to
    /// send if the rates add up to the link's, and two if all rates have just risen. No measured round trip predicts this delay.
    fn paced_probe_wait(&self, interval: Duration) -> Duration {
        let wait = self.probe_wait().unwrap_or_default().saturating_add(interval.saturating_mul(2));
        self.timers.retransmission.wait().map_or(wait, |timeout| timeout.min(wait))
    }

    /// Returns when the next probe is due if no answer arrives after the one at `now`. With selective repeat: [`Self::probe_wait`] after
    /// the last AckReq (RFC 9002 6.2.1 measures from the last packet), and at least half of that from now. So answers to packets before a
    /// lost tail postpone it little. The answers of a READ may arrive slowly, so each restarts the whole time.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "adding to an `Instant` saturates; the divisor is a constant"
    )]
    pub(super) fn probe_due(&self, now: Instant) -> Option<Instant> {
        // The queue may have grown since the last measurement: the age of the packet that is still being measured shows by how much. The
        // age of a READ shows only its length.
        let since = self.rtt.sampled_at().unwrap_or(self.ack_requests.sent_at());
        let age = if self.reads.is_empty() { now.saturating_since(since) } else { Duration::ZERO };
        let wait = self.probe_wait_beyond(self.slowest_answer().max(age * 2))?;
        if !self.recovery.is_selective() || !self.reads.is_empty() {
            return Some(now + wait);
        }
        Some((self.ack_requests.sent_at() + wait).max(now + wait / 2))
    }

    /// Returns the round trip if the measured packet has arrived.
    pub(super) fn take_sample(&mut self, now: Instant) -> Option<Duration> {
        let number = self.rtt.sampled()?;
        let has_arrived = number < self.sequence.una
            || self.recovery.selective().is_some_and(|selective| selective.scoreboard.has(number));
        if !has_arrived {
            return None;
        }
        self.rtt.on_arrival(now)
    }

    /// Postpones the timers after an answer to a request of an earlier round. Soft-RoCE sends such an answer to its end before it processes
    /// a retransmitted or new request. Another request now would only extend the answer.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn on_stale_answer(&mut self, now: Instant) {
        self.timers.retransmission.on_stale_answer(now);
        if self.timers.probe.is_set() {
            self.timers.probe.set(self.probe_wait().map(|wait| now + wait));
        }
    }
}

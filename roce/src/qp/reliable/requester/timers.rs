//! The timers of a requester: retransmission timeout, tail loss probe, RNR NAK (IBA 9.7.6.1.3, 9.7.5.2.8; RFC 8985 7).

use super::limits::{MAX_BACKOFF, MAX_STALE_RESTARTS};
use crate::wheel::earliest_of;
use cc::Instant;
use core::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timers {
    pub(super) retransmission: RetransmissionTimer,
    pub(super) probe: TailLossProbe,
    /// End of the wait after an RNR NAK. Nothing is sent until then.
    rnr_until: Option<Instant>,
}

/// Retransmission timer of the oldest packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RetransmissionTimer {
    /// ACK timeout of the queue pair; with `None` the timer never expires.
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    /// Timeouts in a row, at most [`MAX_BACKOFF`].
    backoff: u8,
    /// Restarts by stale answers since the last progress or expiry.
    stale_restarts: u8,
}

/// Tail loss probe: a packet is retransmitted if no answer has arrived for two round trips.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum TailLossProbe {
    #[default]
    Stopped,
    Due(Instant),
    /// The timer was due before.
    Extended(Instant),
}

impl Timers {
    /// Stops the timers that wait for answers.
    pub(super) const fn stop(&mut self) {
        self.retransmission.stop();
        self.probe.stop();
    }

    /// Returns whether an RNR timer is running.
    #[inline]
    pub(super) const fn is_receiver_not_ready(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// Delays all requests until `until`, after an RNR NAK.
    pub(super) const fn wait_for_receive(&mut self, until: Instant) {
        self.rnr_until = Some(until);
    }

    pub(super) const fn on_receiver_ready(&mut self) {
        self.rnr_until = None;
    }

    /// Clears an expired RNR timer. Returns whether it is still running at `now`.
    pub(super) fn poll_receiver(&mut self, now: Instant) -> bool {
        self.rnr_until = self.rnr_until.filter(|&until| until > now);
        self.rnr_until.is_some()
    }

    /// Returns when the next timer expires; `loss` is when the next missing packet becomes lost.
    pub(super) fn due(&self, loss: Option<Instant>) -> Option<Instant> {
        self.rnr_until
            .or_else(|| earliest_of(earliest_of(self.retransmission.deadline, self.probe.due_at()), loss))
    }
}

impl RetransmissionTimer {
    pub(super) const fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Returns the time within which an answer must arrive. It doubles after each timeout, up to the 4 `T` within which a requester must
    /// detect one (IBA 9.7.6.1.3). So a slow peer can answer before all retries are used.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the back-off is at most MAX_BACKOFF, and a timeout at most 3 hours"
    )]
    pub(super) fn wait(&self) -> Option<Duration> {
        // Without a multiplication, which takes long, as long as answers arrive.
        self.timeout.map(|timeout| if self.backoff == 0 { timeout } else { timeout * (1 << self.backoff) })
    }

    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn start(&mut self, now: Instant) {
        self.deadline = self.deadline.or_else(|| self.wait().map(|wait| now + wait));
    }

    /// Restarts the timer if an answer is outstanding (`is_awaiting`), and stops it otherwise.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn restart(&mut self, is_awaiting: bool, now: Instant) {
        self.deadline = if is_awaiting { self.wait().map(|wait| now + wait) } else { None };
    }

    pub(super) const fn stop(&mut self) {
        self.deadline = None;
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Restores a deadline that was read before the timer was stopped.
    pub(super) const fn resume(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Allows stale answers to restart the timer again.
    pub(super) const fn on_expiry(&mut self) {
        self.stale_restarts = 0;
    }

    /// Doubles the time within which an answer must arrive, at most [`MAX_BACKOFF`] times.
    #[expect(clippy::arithmetic_side_effects, reason = "the sum is at most MAX_BACKOFF + 1")]
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    pub(super) const fn on_progress(&mut self) {
        (self.backoff, self.stale_restarts) = (0, 0);
    }

    /// Returns whether a timeout has expired since the last progress.
    #[inline]
    pub(super) const fn has_backed_off(&self) -> bool {
        self.backoff > 0
    }

    /// Restarts the timer after a stale answer, which shows that the peer responds, once a quarter of its time has passed. Restarts are
    /// limited: a peer that sends only stale answers makes no progress, or another host forges them.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the count is below its limit; the wait is at most hours; adding to an `Instant` saturates"
    )]
    pub(super) fn on_stale_answer(&mut self, now: Instant) {
        if let (Some(wait), Some(deadline)) = (self.wait(), self.deadline)
            && self.stale_restarts < MAX_STALE_RESTARTS
            && deadline <= now + wait * 3 / 4
        {
            self.stale_restarts += 1;
            self.deadline = Some(now + wait);
        }
    }
}

impl TailLossProbe {
    pub(super) fn set(&mut self, due: Option<Instant>) {
        *self = due.map_or(Self::Stopped, Self::Due);
    }

    /// Extends the timer, which is due, until `due`. Returns false if it was extended before: otherwise, a sender whose packets are a little
    /// apart would never probe, because it extends the wait from the newest one.
    pub(super) const fn extend(&mut self, due: Instant) -> bool {
        let extends = matches!(self, Self::Due(_));
        if extends {
            *self = Self::Extended(due);
        }
        extends
    }

    #[inline]
    pub(super) const fn is_set(&self) -> bool {
        !matches!(self, Self::Stopped)
    }

    pub(super) const fn stop(&mut self) {
        *self = Self::Stopped;
    }

    #[inline]
    pub(super) const fn due_at(&self) -> Option<Instant> {
        match *self {
            Self::Stopped => None,
            Self::Due(at) | Self::Extended(at) => Some(at),
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due_at().is_some_and(|due| due <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_micros(100);

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn running() -> RetransmissionTimer {
        let mut timer = RetransmissionTimer { timeout: Some(T), ..RetransmissionTimer::default() };
        timer.start(at(0));
        timer
    }

    #[test]
    fn the_timeout_doubles_up_to_four_times() {
        let mut timer = running();
        let waits = [0; 4].map(|_| {
            let wait = timer.wait().unwrap();
            timer.back_off();
            wait
        });
        assert_eq!(waits, [T, T * 2, T * 4, T * 4]);
        timer.on_progress();
        assert_eq!((timer.wait(), timer.has_backed_off()), (Some(T), false));
    }

    #[test]
    fn a_timer_that_runs_is_not_started_again() {
        let mut timer = running();
        timer.start(at(50));
        assert!(timer.is_expired(at(100)));
        timer.restart(true, at(50));
        assert!(!timer.is_expired(at(149)) && timer.is_expired(at(150)));
        timer.restart(false, at(50));
        assert_eq!(timer.deadline(), None);
    }

    #[test]
    fn stale_answers_start_the_timer_again_64_times() {
        let mut timer = running();
        timer.on_stale_answer(at(24));
        assert_eq!(timer.deadline(), Some(at(100)), "less than a quarter has passed");
        for round in 1..=64 {
            timer.on_stale_answer(at(25 * round));
            assert_eq!(timer.deadline(), Some(at(25 * round + 100)));
        }
        timer.on_stale_answer(at(25 * 65));
        assert_eq!(timer.deadline(), Some(at(25 * 64 + 100)));
        timer.on_expiry();
        timer.on_stale_answer(at(25 * 66));
        assert_eq!(timer.deadline(), Some(at(25 * 66 + 100)));
    }

    #[test]
    fn a_queue_pair_without_a_timeout_never_expires() {
        let mut timer = RetransmissionTimer::default();
        timer.start(at(0));
        assert!(!timer.is_expired(Instant::from_nanos(u64::MAX)));
    }

    #[test]
    fn while_the_receiver_is_not_ready_no_other_timer_counts() {
        let mut timers = Timers { retransmission: running(), ..Timers::default() };
        timers.probe.set(Some(at(60)));
        assert_eq!((timers.due(None), timers.due(Some(at(30)))), (Some(at(60)), Some(at(30))));
        timers.wait_for_receive(at(200));
        assert_eq!(timers.due(Some(at(30))), Some(at(200)));
        assert!(timers.poll_receiver(at(199)) && !timers.poll_receiver(at(200)));
        timers.stop();
        assert_eq!(timers.due(None), None);
    }
}

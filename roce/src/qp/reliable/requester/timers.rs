//! The timers of a requester: retransmission timeout, tail loss probe, RNR NAK (IBA 9.7.6.1.3, 9.7.5.2.8; RFC 8985 7).

use super::limits::{MAX_BACKOFF, MAX_STALE_RESTARTS};
use crate::wheel::sooner;
use cc::Instant;
use core::time::Duration;

/// All timers of a requester.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timers {
    pub(super) retransmission: RetransmissionTimer,
    pub(super) probe: TailLossProbe,
    /// The peer has no receive posted: until then nothing is sent, and nothing is outstanding.
    rnr_until: Option<Instant>,
}

/// When the oldest packet counts as lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RetransmissionTimer {
    /// The `timeout` of the queue pair; `None` never expires.
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    /// Timeouts in a row, [`MAX_BACKOFF`] at most.
    backoff: u8,
    /// The number of times that stale answers have started the timer again, since something was acknowledged or the timer fired.
    stale_restarts: u8,
}

/// When a packet is sent again because nothing was answered for as long as two round trips take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TailLossProbe {
    due: Option<Instant>,
}

impl Timers {
    /// Stops what waits for answers.
    pub(super) const fn stop(&mut self) {
        self.retransmission.stop();
        self.probe.stop();
    }

    /// Returns whether the peer had no receive posted, and is given time.
    #[inline]
    pub(super) const fn is_receiver_not_ready(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// The peer has no receive posted before `until`.
    pub(super) const fn wait_for_receive(&mut self, until: Instant) {
        self.rnr_until = Some(until);
    }

    /// The peer has a receive posted.
    pub(super) const fn on_receiver_ready(&mut self) {
        self.rnr_until = None;
    }

    /// Returns whether the peer is still given time at `now`.
    pub(super) fn poll_receiver(&mut self, now: Instant) -> bool {
        self.rnr_until = self.rnr_until.filter(|&until| until > now);
        self.rnr_until.is_some()
    }

    /// Returns when the next timer expires; `loss` is when the next missing packet becomes lost.
    pub(super) fn due(&self, loss: Option<Instant>) -> Option<Instant> {
        self.rnr_until.or_else(|| sooner(sooner(self.retransmission.deadline, self.probe.due), loss))
    }
}

impl RetransmissionTimer {
    pub(super) const fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Returns the time that an answer may take from now on. It doubles after each timeout, up to the 4 `T` that a requester may take to
    /// see one (IBA 9.7.6.1.3): a slow peer gets time before all retries are spent.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the back-off is at most MAX_BACKOFF, and a timeout at most 3 hours"
    )]
    pub(super) fn wait(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout * (1 << self.backoff))
    }

    /// Starts, unless it runs.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn start(&mut self, now: Instant) {
        self.deadline = self.deadline.or_else(|| self.wait().map(|wait| now + wait));
    }

    /// Starts anew if `is_awaiting` an answer, and stops otherwise.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn restart(&mut self, is_awaiting: bool, now: Instant) {
        self.deadline = self.wait().filter(|_| is_awaiting).map(|wait| now + wait);
    }

    pub(super) const fn stop(&mut self) {
        self.deadline = None;
    }

    /// Returns when it expires.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Sets when it expires: `deadline` was read before what stops it.
    pub(super) const fn resume(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// It expired: stale answers may start it again.
    pub(super) const fn on_expiry(&mut self) {
        self.stale_restarts = 0;
    }

    /// Doubles the time that an answer may take.
    #[expect(clippy::arithmetic_side_effects, reason = "the sum is at most MAX_BACKOFF + 1")]
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// Something was acknowledged.
    pub(super) const fn on_progress(&mut self) {
        (self.backoff, self.stale_restarts) = (0, 0);
    }

    /// Returns whether a whole timeout has passed since something was acknowledged.
    #[inline]
    pub(super) const fn has_backed_off(&self) -> bool {
        self.backoff > 0
    }

    /// A stale answer came: the peer is alive, so the timer starts again, once a quarter of its time has passed. A peer that answers
    /// nothing else for too long is as good as silent, or another host sends in its name: then the timer fires.
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
    /// Sends a probe at `due`.
    pub(super) const fn set(&mut self, due: Option<Instant>) {
        self.due = due;
    }

    #[inline]
    pub(super) const fn is_set(&self) -> bool {
        self.due.is_some()
    }

    pub(super) const fn stop(&mut self) {
        self.due = None;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
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

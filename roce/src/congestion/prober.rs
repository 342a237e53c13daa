//! Telemetry requests (probes) and their answers (rtgwg-00 6.2.1, 7.1).

use crate::{Discard, Psn};
use cc::{Ack, Instant};
use core::time::Duration;

/// Hops that the first probes have room for.
pub(super) const PROBE_ROOM: u8 = 8;

/// Least time between two probes: more probes would displace the data that they measure.
const MIN_INTERVAL: Duration = Duration::from_micros(1);

/// Unanswered probes after which the peer most likely answers none: more than are in flight on the longest path. Further probes are at
/// least 100 ms apart.
const SLOW_AFTER_UNANSWERED: u64 = 256;
const SLOW_INTERVAL: Duration = Duration::from_millis(100);

/// Limit of probes to a peer that has never answered one, and of probes that search for telemetry.
const MAX_UNANSWERED: u64 = 20;

/// Probes whose round trips are measured at the same time.
const TIMED: usize = 16;

/// Intervals until the first probe while the pacer delays the next packet. Each further probe follows when the delay has doubled. With
/// regular probes, those of a thousand slow flows used 3 % of their link.
const WHILE_HELD: u32 = 48;

/// Probes among the data of a flow's first window: data carries no telemetry before the peer has confirmed the setup, and regular probes
/// are a base round trip apart.
const FIRST_WINDOW_PROBES: u64 = 16;

/// Returns the time until the next probe after `unanswered` unanswered ones. It doubles from the eighth on, so that an outage at the start
/// of a connection does not use up all attempts.
pub(super) fn backoff(interval: Duration, unanswered: u64) -> Duration {
    interval.saturating_mul(1 << unanswered.saturating_sub(8).min(12))
}

#[derive(Debug, Default)]
pub(super) struct Prober {
    interval: Option<Duration>,
    /// Interval for unacknowledged data, if data packets carry telemetry for the rest.
    unacknowledged_interval: Option<Duration>,
    /// Unacknowledged data was sent since the last probe: a READ response, or packets of an unreliable connection.
    has_unacknowledged: bool,
    /// Data was sent since the last probe.
    has_data: bool,
    /// Number of the next probe. Numbers never wrap; their low 24 bits are sent as a PSN.
    next: u64,
    /// Answers to probes before this number are stale.
    awaited: u64,
    /// Probes before this number were sent before the receiver's last window, which is its only answer.
    before_window: u64,
    last_sent: Option<Instant>,
    /// When the newest probes were sent, and the number of the data packet after each, by probe number modulo [`TIMED`].
    sent_at: [(Instant, u64); TIMED],
    /// Probes before this number are sent among the data of the first window.
    first_window: u64,
    /// Payload bytes between two probes of the first window.
    spacing: u64,
    /// Payload bytes until the next probe of the first window.
    left: u64,
    /// Time until the first probe while the pacer delays the next packet.
    while_held: Option<Duration>,
    /// When the pacer began to delay a data packet, and until when it does.
    held: (Instant, Instant),
    has_peer_answered: bool,
    /// Probes only determine whether the path has telemetry.
    is_discovery: bool,
}

impl Prober {
    /// Creates a prober that sends a probe once an `interval` while data is in flight. Without `interval`, `unacknowledged_interval`
    /// applies to unacknowledged data.
    pub(super) fn new(interval: Option<Duration>, unacknowledged_interval: Option<Duration>) -> Self {
        let [interval, unacknowledged_interval] = [interval, unacknowledged_interval]
            .map(|interval| interval.map(|interval| interval.max(MIN_INTERVAL)));
        let mut prober = Self { interval, unacknowledged_interval, ..Self::default() };
        prober.set_while_held();
        prober
    }

    /// Restricts probes to discovery if `is_discovery`: a limited number, which determine whether the path has telemetry.
    pub(super) const fn discovering(self, is_discovery: bool) -> Self {
        Self { is_discovery, ..self }
    }

    /// Spreads the first probes over the data of a first window of `window` bytes.
    pub(super) const fn first_window(self, window: u64) -> Self {
        Self { first_window: FIRST_WINDOW_PROBES, spacing: window / FIRST_WINDOW_PROBES, ..self }
    }

    /// Ends the probes of the first window, because data carries telemetry from now on.
    pub(super) const fn end_first_window(&mut self) {
        self.first_window = 0;
    }

    #[inline]
    pub(super) const fn on_data(&mut self, payload: u32) {
        self.has_data = true;
        self.left = self.left.saturating_sub(payload as u64);
    }

    /// Ends the discovery, because the path has telemetry.
    pub(super) const fn end_discovery(&mut self) {
        self.is_discovery = false;
    }

    /// Returns whether the discovery has failed: the path most likely has no telemetry.
    #[inline]
    pub(super) const fn has_discovery_failed(&self) -> bool {
        self.is_discovery && self.next >= MAX_UNANSWERED
    }

    pub(super) const fn is_answered(&self) -> bool {
        self.awaited == self.next
    }

    #[inline]
    pub(super) fn unanswered(&self) -> u64 {
        self.next - self.awaited.max(self.before_window)
    }

    /// Records a window of the receiver.
    #[inline]
    pub(super) const fn on_window(&mut self) {
        self.before_window = self.next;
    }

    /// Returns whether any probe is ever sent.
    pub(super) const fn is_used(&self) -> bool {
        self.interval.is_some() || self.unacknowledged_interval.is_some()
    }

    /// Returns whether probes also measure acknowledged data.
    pub(super) const fn is_regular(&self) -> bool {
        self.interval.is_some()
    }

    /// Returns whether the next probe is a regular one: one for acknowledged data, after the first window.
    pub(super) const fn is_regular_now(&self) -> bool {
        self.has_data && !self.has_unacknowledged && self.next >= self.first_window
    }

    /// Returns whether unacknowledged data needs a probe.
    #[inline]
    pub(super) const fn has_unacknowledged(&self) -> bool {
        self.has_unacknowledged
    }

    /// Records unacknowledged data, which has probes of its own instead of those of the first window.
    #[inline]
    pub(super) const fn on_unacknowledged_data(&mut self) {
        self.has_unacknowledged = self.is_used();
        self.first_window = 0;
    }

    /// Sets the interval for unacknowledged data, because the algorithm changed.
    pub(super) fn on_algorithm(&mut self, unacknowledged_interval: Option<Duration>) {
        self.unacknowledged_interval = unacknowledged_interval.map(|interval| interval.max(MIN_INTERVAL));
        self.set_while_held();
    }

    /// Adapts intervals of one base round trip to the new one.
    pub(super) fn on_base_rtt(&mut self, before: Duration, base_rtt: Duration) {
        for interval in [&mut self.interval, &mut self.unacknowledged_interval].into_iter().flatten() {
            if *interval == before.max(MIN_INTERVAL) {
                *interval = base_rtt.max(MIN_INTERVAL);
            }
        }
        self.set_while_held();
    }

    /// Restricts probes to unacknowledged data, because other data carries telemetry from now on.
    pub(super) fn only_unacknowledged(&mut self) {
        self.interval = None;
        self.set_while_held();
    }

    /// Returns whether probing has ended because the peer never answered.
    #[inline]
    pub(super) const fn is_given_up(&self) -> bool {
        self.unanswered_so_far() >= MAX_UNANSWERED
    }

    #[inline]
    pub(super) const fn on_peer_answered(&mut self) {
        self.has_peer_answered = true;
    }

    /// Returns the number of probes, without those of the first window, to a peer that has never answered one; 0 once the peer has
    /// answered.
    pub(super) const fn unanswered_so_far(&self) -> u64 {
        if self.has_peer_answered { 0 } else { self.next.saturating_sub(self.first_window) }
    }

    /// Returns when the next probe may be sent while data is in flight, or when a failed discovery ends without its last answer.
    ///
    /// Except in a discovery, a probe is sent only if data has been sent since the previous probe: flows whose packets are several round
    /// trips apart would otherwise send more probes than data. A lost probe does not delay the next. For unacknowledged data, a peer that
    /// answers no probes is rarely probed.
    #[inline]
    pub(super) fn due_at(&self) -> Option<Instant> {
        if self.has_discovery_failed() {
            return Some(self.last_sent? + backoff(self.interval?, self.next));
        }
        if self.next < self.first_window && self.left == 0 {
            return Some(Instant::ZERO);
        }
        if self.is_given_up() || !(self.has_data || self.has_unacknowledged || self.is_discovery) {
            return None;
        }
        let interval = match self.interval {
            Some(interval) if !self.has_unacknowledged => backoff(interval, self.unanswered_so_far()),
            interval => {
                let interval =
                    interval.or(self.unacknowledged_interval.filter(|_| self.has_unacknowledged))?;
                let is_answered = self.unanswered() < SLOW_AFTER_UNANSWERED;
                if is_answered { interval } else { interval.max(SLOW_INTERVAL) }
            }
        };
        Some(self.last_sent.map_or(Instant::ZERO, |last| last + interval))
    }

    /// Returns when the next probe may be sent while the pacer delays the next packet, perhaps for many round trips. Without these probes a
    /// slow flow would use free bandwidth only after that time. They are sent only to a peer that has answered a probe or sent a window.
    #[inline]
    pub(super) fn due_while_held_at(&self) -> Option<Instant> {
        if self.awaited.max(self.before_window) == 0 || self.is_discovery {
            return None;
        }
        let interval =
            if self.unanswered() < SLOW_AFTER_UNANSWERED { self.while_held? } else { SLOW_INTERVAL };
        let since = self.held.0;
        let held_for = self.last_sent.map_or(Duration::ZERO, |sent| sent.saturating_since(since));
        Some(since + interval.max(held_for * 2))
    }

    /// Records that the pacer delays a data packet until `until`.
    #[inline]
    pub(super) fn on_held(&mut self, now: Instant, until: Instant) {
        if self.held.1 != until {
            self.held = (now, until);
        }
    }

    /// Returns whether a probe is due while the pacer delays a data packet.
    #[inline]
    pub(super) fn is_due_while_held(&self, now: Instant) -> bool {
        self.held.1 > now && self.due_while_held_at().is_some_and(|at| at <= now)
    }

    fn set_while_held(&mut self) {
        self.while_held = self
            .interval
            .or(self.unacknowledged_interval)
            .map(|interval| interval.saturating_mul(WHILE_HELD));
    }

    /// Probes all data once an `interval`, because data packets have no room for the telemetry of the path.
    pub(super) fn probe_all(&mut self, interval: Duration) {
        self.interval = Some(interval.max(MIN_INTERVAL));
        self.set_while_held();
    }

    /// Sends a probe now, unless the last one was sent less than `interval` ago.
    pub(super) fn probe_once(&mut self, now: Instant, interval: Duration) {
        if self.last_sent.is_none_or(|last| now.saturating_since(last) >= interval) {
            (self.first_window, self.left) = (self.next + 1, 0);
        }
    }

    pub(super) const fn psn(&self) -> Psn {
        Psn::new((self.next & (Psn::CIRCLE as u64 - 1)) as u32)
    }

    pub(super) const fn sent(&self) -> u64 {
        self.next
    }

    /// Assigns a number to a probe of another path, sent before data packet `data`.
    pub(super) const fn skip(&mut self, now: Instant, data: u64) {
        self.sent_at[self.next as usize % TIMED] = (now, data);
        self.next += 1;
    }

    /// Records that a probe was sent before data packet `data`.
    pub(super) fn on_sent(&mut self, now: Instant, data: u64) {
        self.skip(now, data);
        self.left = self.spacing;
        (self.has_unacknowledged, self.has_data) = (false, false);
        self.last_sent = Some(now);
    }

    pub(super) fn is_awaited(&self, psn: Psn) -> bool {
        self.number(psn).is_some()
    }

    fn number(&self, psn: Psn) -> Option<u64> {
        self.next
            .checked_add_signed(i64::from(psn.distance(self.psn())))
            .filter(|number| (self.awaited..self.next).contains(number))
    }

    /// Accepts an answer, once and in order. Returns it as an acknowledgement that counts probes. For one of the newest 16 probes, also
    /// returns the number of the data packet after the probe.
    pub(super) fn on_response(&mut self, now: Instant, psn: Psn) -> Result<(Ack, Option<u64>), Discard> {
        let number = self.number(psn).ok_or(Discard::Telemetry)?;
        self.awaited = number + 1;
        let is_new = self.next - number <= TIMED as u64;
        let sent = is_new.then(|| self.sent_at[number as usize % TIMED]);
        let rtt = sent.map(|(at, _)| now.saturating_since(at));
        let ack = Ack { now, seq: number + 1, next: self.next, acked_bytes: 0, ce_bytes: 0, rtt };
        Ok((ack, sent.map(|(_, data)| data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_flow_probes_between_its_packets() {
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        let mut prober = Prober::new(None, Some(Duration::from_micros(10)));
        prober.on_held(at(800), at(9000));
        assert_eq!(prober.due_while_held_at(), None, "the peer has answered no probe");
        prober.on_sent(at(900), 0);
        prober.on_response(at(910), Psn::new(0)).unwrap();
        prober.on_held(at(1000), at(10_000));
        prober.on_held(at(1100), at(10_000));
        assert_eq!(prober.due_while_held_at(), Some(at(1480)), "since the pacer held it back first");
        prober.on_sent(at(1480), 1);
        assert_eq!(prober.due_while_held_at(), Some(at(1960)), "after twice the time");
        assert!(!prober.is_due_while_held(at(1959)) && prober.is_due_while_held(at(1960)));
        prober.on_sent(at(1960), 2);
        assert_eq!(prober.due_while_held_at(), Some(at(2920)), "and twice again");
        assert!(!prober.is_due_while_held(at(10_000)), "the packet may leave");
        prober.on_held(at(10_500), at(20_000));
        assert_eq!(prober.due_while_held_at(), Some(at(10_980)), "anew for each packet");
    }

    /// A receiver that computes windows answers no probe.
    #[test]
    fn windows_answer_probes() {
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        let mut prober = Prober::new(None, Some(Duration::from_micros(10)));
        for number in 0..2 * SLOW_AFTER_UNANSWERED {
            prober.on_unacknowledged_data();
            prober.on_sent(at(number * 10), number);
            prober.on_peer_answered();
            prober.on_window();
        }
        prober.on_unacknowledged_data();
        assert_eq!((prober.unanswered(), prober.due_at()), (0, Some(at(5120))));
        prober.on_held(at(6000), at(9000));
        assert_eq!(prober.due_while_held_at(), Some(at(6480)));
    }

    #[test]
    fn the_longest_interval_does_not_overflow() {
        let mut prober = Prober::new(Some(Duration::MAX), None);
        for number in 0..32 {
            prober.on_sent(Instant::from_nanos(number), number);
        }
        prober.on_held(Instant::from_nanos(40), Instant::from_nanos(50));
        assert!(!prober.is_due_while_held(Instant::from_nanos(45)));
    }

    #[test]
    fn a_regular_probe_needs_data_sent_since_the_one_before() {
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        let mut prober = Prober::new(Some(Duration::from_micros(10)), None);
        assert_eq!(prober.due_at(), None, "before any data");
        prober.on_data(1024);
        assert_eq!(prober.due_at(), Some(Instant::ZERO));
        assert!(prober.is_regular_now());
        prober.on_sent(at(100), 1);
        assert_eq!(prober.due_at(), None, "its data may be in flight for many round trips");
        prober.on_data(1024);
        assert_eq!(prober.due_at(), Some(at(110)));
    }
}

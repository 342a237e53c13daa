//! The states in which a queue pair waits, and the nanoseconds spent in each. The states exclude each other, and their times add up to the
//! queue pair's age.
//!
//! The endpoint records the state when it schedules the queue pair, and adds the time when the state changes.

use cc::Instant;

macro_rules! states {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// State in which a queue pair waits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Waiting {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Waiting {
            /// All states, in the order of [`WaitingTimes`].
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Returns the state's name in reports and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

states! {
    /// Nothing is posted or in flight.
    Idle = "idle",
    /// The pacer delays the next packet.
    Pacing = "pacing",
    /// The congestion window is full.
    Window = "window",
    /// The peer had no receive posted, and the RNR timer runs.
    ReceiverNotReady = "receiver-not-ready",
    /// Loss recovery is in progress.
    Recovery = "loss-recovery",
    /// The peer has acknowledged nothing since the last timeout.
    Silence = "silence",
    /// As many READs and atomics are outstanding as allowed.
    Reads = "read-limit",
    /// A fenced or local request waits for those before it.
    Fence = "fence",
    /// It could send, but other queue pairs, or other work of the core, are first.
    Turn = "turn",
    /// The port accepts no more frames now.
    Port = "port-full",
    /// The port's pool has no buffer.
    Pool = "pool-dry",
    /// Nothing is posted, and completions wait to be polled.
    Unpolled = "completions-unpolled",
    /// Everything posted was sent, and the peer's answer is outstanding.
    Answer = "answer",
}

/// Nanoseconds spent in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingTimes([u64; Waiting::ALL.len()]);

impl WaitingTimes {
    /// Returns the nanoseconds spent in `state`.
    #[must_use]
    pub const fn nanos(&self, state: Waiting) -> u64 {
        self.0[state as usize]
    }

    /// Returns the nanoseconds spent in all states.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds the times of another queue pair, saturating.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, nanos)| *sum = sum.saturating_add(nanos));
    }
}

/// Time account of a queue pair.
#[derive(Debug)]
pub(crate) struct Account {
    /// Time up to which `spent` counts.
    since: Instant,
    /// When the queue pair became able to send, which ended `state`; [`NEVER`] if it is not.
    ready_since: Instant,
    state: Waiting,
    spent: WaitingTimes,
}

const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl Account {
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, ready_since: NEVER, state: Waiting::Idle, spent: WaitingTimes::default() }
    }

    /// Records that the queue pair may have something to send.
    #[inline]
    pub(crate) const fn on_ready(&mut self, now: Instant) {
        self.ready_since = now;
    }

    /// Records that the queue pair had its turn, and waits for `next`.
    #[inline]
    pub(crate) fn enter(&mut self, now: Instant, next: Waiting) {
        if now > self.since {
            let times = self.at(now);
            (self.spent, self.since) = (times, now);
        }
        (self.state, self.ready_since) = (next, NEVER);
    }

    /// Switches between idle and waiting for completions to be polled.
    pub(crate) fn record_unpolled(&mut self, now: Instant, unpolled: bool) {
        match (self.state, unpolled) {
            (Waiting::Idle, true) => self.enter(now, Waiting::Unpolled),
            (Waiting::Unpolled, false) => self.enter(now, Waiting::Idle),
            _ => {}
        }
    }

    pub(crate) fn state(&self) -> Waiting {
        if self.ready_since == NEVER { self.state } else { Waiting::Turn }
    }

    #[inline]
    pub(crate) fn at(&self, now: Instant) -> WaitingTimes {
        let mut times = self.spent;
        let (since, now) = (self.since.as_nanos(), now.as_nanos());
        let now = now.max(since);
        let ready_since = self.ready_since.as_nanos().clamp(since, now);
        times.0[self.state as usize] += ready_since - since;
        times.0[Waiting::Turn as usize] += now - ready_since;
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn time_from_ready_to_its_turn_counts_as_turn() {
        let mut account = Account::new(at(100));
        account.on_ready(at(130));
        account.enter(at(150), Waiting::Window);
        let times = account.at(at(157));
        let of = |state| times.nanos(state);
        assert_eq!((of(Waiting::Idle), of(Waiting::Turn), of(Waiting::Window)), (30, 20, 7));
        assert_eq!(times.total(), 57);
    }

    #[test]
    fn unpolled_completions_count_only_while_nothing_is_posted() {
        let mut account = Account::new(at(0));
        account.record_unpolled(at(10), true);
        account.record_unpolled(at(30), false);
        account.enter(at(30), Waiting::Answer);
        account.record_unpolled(at(40), true);
        assert_eq!(account.state(), Waiting::Answer);
        assert_eq!(account.at(at(50)).nanos(Waiting::Unpolled), 20);
    }
}

//! The states that a queue pair waits in, with the nanoseconds spent in each. The states exclude each other, and sum to the queue pair's
//! age.
//!
//! The endpoint notes the state when it decides which queue pair sends, and adds time when the state changes.

use cc::Instant;

macro_rules! states {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// The one thing that delays a queue pair.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Waiting {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Waiting {
            /// Every state, in the order of [`WaitingTimes`].
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
    /// Nothing is posted and nothing in flight.
    Idle = "idle",
    /// The pacer delays the next packet.
    Pacing = "pacing",
    /// As many bytes are in flight as the congestion window allows.
    Window = "window",
    /// The peer has no receive posted, and said how long to wait.
    ReceiverNotReady = "receiver-not-ready",
    /// Something was lost, and is sent again.
    Recovery = "loss-recovery",
    /// The peer has answered nothing since the last acknowledgement timeout.
    Silence = "silence",
    /// As many READs and atomics are outstanding as the peer allows.
    Reads = "read-limit",
    /// A fenced request, or one that no packet carries, waits for those before it.
    Fence = "fence",
    /// It could send, and other queue pairs, or other work of the core, come first.
    Turn = "turn",
    /// The port takes no more frames now.
    Port = "port-full",
    /// The port's pool has no buffer.
    Pool = "pool-dry",
    /// Nothing is posted, and its completions wait to be polled.
    Unpolled = "completions-unpolled",
    /// All that is posted has left, and the peer's answer is on its way.
    Answer = "answer",
}

/// Nanoseconds spent in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingTimes([u64; Waiting::ALL.len()]);

impl WaitingTimes {
    /// Returns the ns spent in `state`.
    #[must_use]
    pub const fn nanos(&self, state: Waiting) -> u64 {
        self.0[state as usize]
    }

    /// Returns the ns spent in all states.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds the times of another queue pair.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, nanos)| *sum = sum.saturating_add(nanos));
    }
}

/// A queue pair's account of its time.
#[derive(Debug)]
pub(crate) struct Account {
    /// All time before it is in `spent`.
    since: Instant,
    /// When it came to be able to send, which ended `state`; [`NEVER`] before that.
    asked: Instant,
    state: Waiting,
    spent: WaitingTimes,
}

const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl Account {
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, asked: NEVER, state: Waiting::Idle, spent: WaitingTimes::default() }
    }

    /// It may have something to send from now on.
    #[inline]
    pub(crate) const fn ask(&mut self, now: Instant) {
        self.asked = now;
    }

    /// It had its turn, and waits for `next` from now on.
    #[inline]
    pub(crate) fn enter(&mut self, now: Instant, next: Waiting) {
        if now > self.since {
            let times = self.at(now);
            (self.spent, self.since) = (times, now);
        }
        (self.state, self.asked) = (next, NEVER);
    }

    /// Notes if its completions wait to be polled, as long as it has nothing else to wait for.
    pub(crate) fn note_unpolled(&mut self, now: Instant, unpolled: bool) {
        match (self.state, unpolled) {
            (Waiting::Idle, true) => self.enter(now, Waiting::Unpolled),
            (Waiting::Unpolled, false) => self.enter(now, Waiting::Idle),
            _ => {}
        }
    }

    /// Returns what it waits for.
    pub(crate) fn state(&self) -> Waiting {
        if self.asked == NEVER { self.state } else { Waiting::Turn }
    }

    /// Returns the times up to `now`.
    #[inline]
    pub(crate) fn at(&self, now: Instant) -> WaitingTimes {
        let mut times = self.spent;
        let (since, now) = (self.since.as_nanos(), now.as_nanos());
        let now = now.max(since);
        let asked = self.asked.as_nanos().clamp(since, now);
        times.0[self.state as usize] += asked - since;
        times.0[Waiting::Turn as usize] += now - asked;
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
    fn time_between_asking_and_its_turn_is_a_turns() {
        let mut account = Account::new(at(100));
        account.ask(at(130));
        account.enter(at(150), Waiting::Window);
        let times = account.at(at(157));
        let of = |state| times.nanos(state);
        assert_eq!((of(Waiting::Idle), of(Waiting::Turn), of(Waiting::Window)), (30, 20, 7));
        assert_eq!(times.total(), 57);
    }

    #[test]
    fn unpolled_completions_count_only_while_nothing_is_posted() {
        let mut account = Account::new(at(0));
        account.note_unpolled(at(10), true);
        account.note_unpolled(at(30), false);
        account.enter(at(30), Waiting::Answer);
        account.note_unpolled(at(40), true);
        assert_eq!(account.state(), Waiting::Answer);
        assert_eq!(account.at(at(50)).nanos(Waiting::Unpolled), 20);
    }
}

//! A link that loses, duplicates, reorders, delays and corrupts frames, with random numbers from a seed.

use crate::FaultCounters;
use crate::forgery::{forge, has_vendor_opcode};
use crate::random::Random;
use crate::script::{Fate, FaultRule, Script};
use cc::Instant;
use datapath::io::PacketBuf;
use roce::wire::{body, parse_unverified, reseal};
use std::collections::VecDeque;
use std::time::Duration;

/// A probability, in steps of 2⁻⁶³.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probability(u64);

impl Probability {
    /// Probability 0.
    pub const NEVER: Self = Self(0);
    /// Probability 1.
    pub const ALWAYS: Self = Self(Self::ONE);
    const ONE: u64 = 1 << 63;

    /// Creates a probability from `value`; `None` if it is not from 0 to 1.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self((value * Self::ONE as f64) as u64))
    }

    /// Returns `part / whole` of the probability; `whole` is at least 1.
    pub(crate) fn share(self, part: u64, whole: u64) -> Self {
        Self((u128::from(self.0) * u128::from(part) / u128::from(whole)) as u64)
    }

    /// Returns the probability that at least one of two independent events happens.
    pub(crate) const fn or(self, other: Self) -> Self {
        let both = self.0 as u128 * other.0 as u128 / Self::ONE as u128;
        Self((self.0 as u128 + other.0 as u128 - both) as u64)
    }

    pub(crate) fn happens(self, random: &mut Random) -> bool {
        // Draws no number for an impossible event, so that a disabled fault does not change the random numbers of the others.
        self.0 != 0 && random.next() >> 1 < self.0
    }
}

/// The faults of a link. The default has none. Probabilities are per frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultConfig {
    /// Loss.
    pub loss: Probability,
    /// Duplication; the copy follows the frame.
    pub duplicate: Probability,
    /// Reordering: the link holds the frame while others overtake it. It holds at most one frame.
    pub reorder: Probability,
    /// Limit on the frames that overtake a held frame; at least 1.
    pub reorder_span: u32,
    /// Time after which a held frame continues, even if no frame overtook it.
    pub reorder_hold: Duration,
    /// Flip of one bit.
    pub flip: Probability,
    /// Forgery of a report of a path to its sender, with a valid ICRC, as a malicious receiver would write it.
    pub forgery: Probability,
    /// Whether the link drops frames with opcodes of Ferroce's own, such as probes, as another RoCEv2 peer does.
    pub drop_vendor_opcodes: bool,
    /// Delay of every frame.
    pub delay: Duration,
    /// Limit on the frames on the link; at least 2.
    pub capacity: usize,
    /// Seed; equal seeds cause equal faults.
    pub seed: u64,
}

impl Default for FaultConfig {
    fn default() -> Self {
        Self {
            loss: Probability::NEVER,
            duplicate: Probability::NEVER,
            reorder: Probability::NEVER,
            reorder_span: 3,
            reorder_hold: Duration::from_millis(1),
            flip: Probability::NEVER,
            forgery: Probability::NEVER,
            drop_vendor_opcodes: false,
            delay: Duration::ZERO,
            capacity: 4096,
            seed: 1,
        }
    }
}

impl FaultConfig {
    /// Returns whether any fault is enabled.
    #[must_use]
    pub fn any(&self) -> bool {
        let Self { loss, duplicate, reorder, flip, forgery, drop_vendor_opcodes, delay, .. } = self;
        [loss, duplicate, reorder, flip, forgery].into_iter().any(|p| *p != Probability::NEVER)
            || *drop_vendor_opcodes
            || !delay.is_zero()
    }
}

struct Held<B> {
    buf: B,
    /// The frame continues when this number of frames has overtaken it, or at `until`.
    span: u32,
    overtaken: u32,
    until: Instant,
}

/// A link with faults, applied in this order: script, loss, forgery, bit flip, duplication, reordering, delay.
pub struct FaultLine<B> {
    config: FaultConfig,
    random: Random,
    script: Script,
    /// Sorted by departure; frames of equal departure are in the order of arrival.
    line: VecDeque<(Instant, B)>,
    held: Option<Held<B>>,
    counters: FaultCounters,
}

impl<B: PacketBuf> FaultLine<B> {
    /// Creates an empty link. A span below 1 becomes 1, and a capacity below 2 becomes 2.
    #[must_use]
    pub fn new(config: FaultConfig) -> Self {
        let config = FaultConfig {
            reorder_span: config.reorder_span.max(1),
            capacity: config.capacity.max(2),
            ..config
        };
        Self {
            config,
            random: Random::new(config.seed),
            script: Script::default(),
            line: VecDeque::with_capacity(config.capacity),
            held: None,
            counters: FaultCounters::default(),
        }
    }

    /// Adds the rules of a script. Their ports are ignored.
    #[must_use]
    pub fn with_rules(self, rules: impl Iterator<Item = FaultRule>) -> Self {
        Self { script: Script::new(rules), ..self }
    }

    /// Replaces the script's rules. An unchanged rule keeps its counts, and frames on the link are unaffected.
    pub fn change_rules(&mut self, rules: impl Iterator<Item = FaultRule>) {
        self.script.change(rules);
    }

    /// Returns each rule's name, the number of frames that matched it, and the number of frames that it affected.
    pub fn rule_counts(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.script.counts()
    }

    /// Returns how many calls of [`push`](Self::push) are possible now. Each call may add a frame and its copy.
    #[must_use]
    pub fn room(&self) -> usize {
        self.config.capacity.saturating_sub(self.len()) / 2
    }

    /// Returns the number of frames on the link.
    #[must_use]
    pub fn len(&self) -> usize {
        self.line.len() + usize::from(self.held.is_some())
    }

    /// Returns whether no frame is on the link.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the counters since the last reset.
    #[must_use]
    pub const fn counters(&self) -> FaultCounters {
        self.counters
    }

    /// Resets the counters; the sequence of random numbers continues.
    pub fn reset_counters(&mut self) {
        self.counters = FaultCounters::default();
    }

    /// Adds a frame to the link. `alloc` returns a buffer for a duplicate; without a buffer there is no duplicate.
    ///
    /// # Panics
    /// Panics if [`room`](Self::room) is 0.
    pub fn push(&mut self, now: Instant, mut buf: B, alloc: impl FnOnce() -> Option<B>) {
        assert!(self.room() > 0, "the caller asks for room first");
        let due = now + self.config.delay;
        let fate = self.script.judge((now, due), buf.len(), || parse_unverified(&buf).ok(), &mut self.random);
        if !self.survives(fate, &mut buf) {
            return;
        }
        let twice = fate == Some(Fate::Twice) || self.config.duplicate.happens(&mut self.random);
        let copy = if twice { copy_of(&buf, alloc) } else { None };
        let by_chance = self.config.reorder.happens(&mut self.random) && self.held.is_none();
        let span = match fate {
            _ if by_chance => Some(1 + self.random.below(u64::from(self.config.reorder_span)) as u32),
            Some(Fate::Held(span)) => Some(span).filter(|_| self.held.is_none()),
            _ => None,
        };
        match (span, fate) {
            (Some(span), _) => {
                self.held = Some(Held { buf, span, overtaken: 0, until: now + self.config.reorder_hold });
            }
            // The frame is inserted without `append`, because it does not overtake the held frame.
            (None, Some(Fate::At(later))) if later > due => {
                self.counters.delayed += 1;
                self.insert(later, buf);
            }
            (None, _) => self.append(due, buf),
        }
        if let Some(copy) = copy {
            self.counters.duplicated += 1;
            self.append(due, copy);
        }
    }

    /// Applies loss and changes of a frame's bytes. Returns whether the frame continues.
    fn survives(&mut self, fate: Option<Fate>, buf: &mut B) -> bool {
        if fate == Some(Fate::Lost) || self.config.loss.happens(&mut self.random) {
            self.counters.lost += 1;
            return false;
        }
        if self.config.drop_vendor_opcodes && has_vendor_opcode(buf) {
            self.counters.vendor_opcodes += 1;
            return false;
        }
        if self.config.forgery.happens(&mut self.random) && forge(buf, &mut self.random) {
            self.counters.forged += 1;
        }
        if let Some(Fate::Corrupt { good_icrc }) = fate
            && let Some(sealed) = corrupt(buf, good_icrc, &mut self.random)
        {
            self.counters.flipped += 1;
            self.counters.resealed += u64::from(sealed);
        }
        if self.config.flip.happens(&mut self.random) && !buf.is_empty() {
            flip(buf, &mut self.random);
            self.counters.flipped += 1;
        }
        true
    }

    /// Returns the next frame whose departure is at or before `now`.
    pub fn poll(&mut self, now: Instant) -> Option<B> {
        if self.held.as_ref().is_some_and(|held| held.until <= now) {
            self.release(now + self.config.delay);
        }
        if self.line.front()?.0 > now {
            return None;
        }
        self.line.pop_front().map(|(_, buf)| buf)
    }

    /// Returns when [`poll`](Self::poll) next has a frame.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.line.front().map(|(due, _)| *due);
        let until = self.held.as_ref().map(|held| held.until);
        due.into_iter().chain(until).min()
    }

    fn append(&mut self, due: Instant, buf: B) {
        self.insert(due, buf);
        if let Some(held) = &mut self.held {
            held.overtaken += 1;
            if held.overtaken == held.span {
                self.release(due);
            }
        }
    }

    fn release(&mut self, due: Instant) {
        if let Some(held) = self.held.take() {
            self.counters.reordered += u64::from(held.overtaken > 0);
            self.insert(due, held.buf);
        }
    }

    /// Inserts a frame by its departure, so that later frames overtake a frame that a script delays.
    fn insert(&mut self, due: Instant, buf: B) {
        let place = self.line.iter().rposition(|(at, _)| *at <= due).map_or(0, |last| last + 1);
        self.line.insert(place, (due, buf));
    }
}

/// Flips a bit behind the BTH of a frame, and recomputes the ICRC if `good_icrc`. Returns whether the ICRC is valid, or `None` without such a
/// bit.
pub(crate) fn corrupt(frame: &mut [u8], good_icrc: bool, random: &mut Random) -> Option<bool> {
    let body = body(frame).filter(|body| !body.is_empty())?;
    flip(&mut frame[body], random);
    Some(good_icrc && reseal(frame).is_ok())
}

fn flip(bytes: &mut [u8], random: &mut Random) {
    let bit = random.below(bytes.len() as u64 * 8);
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
}

/// Returns a copy of `frame` in a buffer from `alloc`; `None` if there is no buffer or the frame does not fit.
pub(crate) fn copy_of<B: PacketBuf>(frame: &[u8], alloc: impl FnOnce() -> Option<B>) -> Option<B> {
    let mut copy = alloc().filter(|buf| buf.capacity() >= frame.len())?;
    copy.set_len(frame.len());
    copy.copy_from_slice(frame);
    Some(copy)
}

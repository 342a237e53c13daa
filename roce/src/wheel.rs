//! The timing wheel: one timer per queue pair.

use alloc::boxed::Box;
use alloc::vec;
use cc::Instant;
use core::time::Duration;

/// Bits of a tick per level, and the slots that they address.
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
/// Enough levels for 64-bit ticks, so that every timer fits.
const LEVELS: usize = 64usize.div_ceil(LEVEL_BITS as usize);

/// No node, or no bucket.
const NONE: u32 = u32::MAX;

/// Returns the earlier of two times, if there are any.
#[inline]
pub(crate) fn earliest_of(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Node of a timer in its bucket's circular list.
#[derive(Clone, Copy, Debug)]
struct Node {
    tick: u64,
    previous: u32,
    next: u32,
    /// `level * SLOTS + slot`, or `NONE` if the timer is not set.
    bucket: u32,
}

/// Hierarchical timing wheel: one timer per token, tokens 0 to `capacity` - 1.
///
/// A timer fires at or after its time, less than one granularity late. Setting, moving and cancelling take constant time, and nothing is
/// allocated after [`TimingWheel::new`]. A user with several kinds of timers per queue pair uses a token for each kind.
///
/// The level of a timer is the highest group of 6 bits in which its tick differs from the current tick. When the current tick reaches the
/// value of that group, the timer moves to a lower level. So on every level all slots in use are ahead of the current tick. The earliest is
/// the first slot of the lowest level in use.
#[derive(Debug)]
pub struct TimingWheel {
    nodes: Box<[Node]>,
    /// First node of each bucket.
    heads: Box<[u32; LEVELS * SLOTS]>,
    /// Slots in use, a bit each, per level.
    occupied: [u64; LEVELS],
    /// Levels in use, a bit each.
    levels: u16,
    /// A tick is 2^`shift` ns.
    shift: u32,
    /// Timers of all earlier ticks have fired.
    current: u64,
}

impl TimingWheel {
    /// Creates a wheel for tokens below `capacity`, with a `granularity` rounded down to a power of two of ns, at least 1.
    #[must_use]
    pub fn new(capacity: u32, granularity: Duration) -> Self {
        let nanos = u64::try_from(granularity.as_nanos()).unwrap_or(u64::MAX);
        let unset = Node { tick: 0, previous: NONE, next: NONE, bucket: NONE };
        Self {
            nodes: vec![unset; capacity as usize].into_boxed_slice(),
            heads: Box::new([NONE; LEVELS * SLOTS]),
            occupied: [0; LEVELS],
            levels: 0,
            shift: nanos.max(1).ilog2(),
            current: 0,
        }
    }

    /// Sets the timer, or moves it if it is set. A time in the past fires at the next [`Self::pop`].
    ///
    /// # Panics
    /// Panics if `token` is not below the capacity.
    pub fn set(&mut self, token: u32, at: Instant) {
        self.cancel(token);
        // Rounded up: a timer never fires before its time.
        let nanos = at.as_nanos();
        let tick = (nanos >> self.shift) + u64::from(nanos & ((1 << self.shift) - 1) != 0);
        self.insert(token, tick.max(self.current));
    }

    /// Clears the timer. Returns whether it was set.
    ///
    /// # Panics
    /// Panics if `token` is not below the capacity.
    pub fn cancel(&mut self, token: u32) -> bool {
        let node = self.nodes[token as usize];
        if node.bucket == NONE {
            return false;
        }
        if node.next == token {
            self.heads[node.bucket as usize] = NONE;
            self.mark_empty(node.bucket as usize);
        } else {
            self.nodes[node.previous as usize].next = node.next;
            self.nodes[node.next as usize].previous = node.previous;
            if self.heads[node.bucket as usize] == token {
                self.heads[node.bucket as usize] = node.next;
            }
        }
        self.nodes[token as usize].bucket = NONE;
        true
    }

    /// Returns whether the timer is set.
    ///
    /// # Panics
    /// Panics if `token` is not below the capacity.
    #[must_use]
    pub fn is_set(&self, token: u32) -> bool {
        self.nodes[token as usize].bucket != NONE
    }

    /// Returns when to call [`Self::pop`]: at most one granularity after the earliest timer, but perhaps long before it, to move it to a
    /// lower level; `None` if no timer is set.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        let (_, tick) = self.earliest()?;
        Some(Instant::from_nanos(tick.saturating_mul(1 << self.shift)))
    }

    /// Returns one timer that is due, earliest first, and clears it. If `now` is earlier than in a previous call, the previous time
    /// applies.
    ///
    /// Timers may be set between two calls. A timer set to a time in the past is returned at once, so a caller that sets timers in a loop
    /// must set them ahead of `now`.
    pub fn pop(&mut self, now: Instant) -> Option<u32> {
        let now = (now.as_nanos() >> self.shift).max(self.current);
        while let Some((bucket, tick)) = self.earliest()
            && tick <= now
        {
            self.current = tick;
            let first = self.heads[bucket];
            if bucket < SLOTS {
                self.cancel(first);
                return Some(first);
            }
            self.cascade(bucket);
        }
        self.current = now;
        None
    }

    /// Clears all timers that are due, earliest first, and passes them to `fire`.
    pub fn expire(&mut self, now: Instant, fire: &mut impl FnMut(u32)) {
        while let Some(token) = self.pop(now) {
            fire(token);
        }
    }

    /// Returns the earliest bucket in use, and the tick at which it begins.
    fn earliest(&self) -> Option<(usize, u64)> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros();
        let slot = self.occupied[level as usize].trailing_zeros();
        let low = LEVEL_BITS * level;
        let above = self.current.checked_shr(low + LEVEL_BITS).unwrap_or(0);
        let begins = (above.checked_shl(low + LEVEL_BITS).unwrap_or(0)) | (u64::from(slot) << low);
        // On the lowest level the earliest slot may be that of the current tick itself.
        debug_assert!(begins >= self.current);
        Some((level as usize * SLOTS + slot as usize, begins))
    }

    /// Moves all timers of a bucket that has begun to lower levels.
    fn cascade(&mut self, bucket: usize) {
        let first = core::mem::replace(&mut self.heads[bucket], NONE);
        self.mark_empty(bucket);
        let mut token = first;
        loop {
            let Node { tick, next, .. } = self.nodes[token as usize];
            self.insert(token, tick);
            if next == first {
                break;
            }
            token = next;
        }
    }

    fn insert(&mut self, token: u32, tick: u64) {
        let differs = (tick ^ self.current) | 1;
        let level = differs.ilog2() / LEVEL_BITS;
        let slot = (tick >> (level * LEVEL_BITS)) as usize & (SLOTS - 1);
        let bucket = level as usize * SLOTS + slot;
        let head = self.heads[bucket];
        let (previous, next) = if head == NONE {
            self.heads[bucket] = token;
            self.occupied[level as usize] |= 1 << slot;
            self.levels |= 1 << level;
            (token, token)
        } else {
            // Appended, so that timers of one tick fire in the order in which they were set.
            let last = core::mem::replace(&mut self.nodes[head as usize].previous, token);
            self.nodes[last as usize].next = token;
            (last, head)
        };
        self.nodes[token as usize] = Node { tick, previous, next, bucket: bucket as u32 };
    }

    fn mark_empty(&mut self, bucket: usize) {
        let level = bucket / SLOTS;
        self.occupied[level] &= !(1 << (bucket % SLOTS));
        if self.occupied[level] == 0 {
            self.levels &= !(1 << level);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn fired(wheel: &mut TimingWheel, now: u64) -> Vec<u32> {
        let mut tokens = Vec::new();
        wheel.expire(at(now), &mut |token| tokens.push(token));
        tokens
    }

    #[test]
    fn timers_fire_in_order_and_once() {
        let mut wheel = TimingWheel::new(4, Duration::from_nanos(1));
        wheel.set(0, at(5_000_000));
        wheel.set(1, at(70));
        wheel.set(2, at(70));
        wheel.set(3, at(60));
        assert!(wheel.cancel(3));
        assert!(!wheel.cancel(3));
        assert_eq!(fired(&mut wheel, 69), []);
        assert_eq!(fired(&mut wheel, 70), [1, 2]);
        assert_eq!(fired(&mut wheel, 4_999_999), []);
        assert!(wheel.is_set(0));
        assert_eq!(fired(&mut wheel, u64::MAX), [0]);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn a_timer_in_the_past_fires_at_once_and_one_at_the_end_of_time_stays() {
        let mut wheel = TimingWheel::new(2, Duration::from_micros(1));
        assert_eq!(fired(&mut wheel, 1 << 40), []);
        wheel.set(0, at(3));
        wheel.set(1, at(u64::MAX));
        assert!(wheel.next() <= Some(at(1 << 40)));
        assert_eq!(fired(&mut wheel, 1 << 40), [0]);
        assert_eq!(fired(&mut wheel, u64::MAX), []);
        assert_eq!(wheel.next(), Some(at(u64::MAX)));
    }

    #[test]
    fn timers_may_be_set_between_pops() {
        let mut wheel = TimingWheel::new(2, Duration::from_nanos(1));
        wheel.set(0, at(10));
        wheel.set(1, at(20));
        assert_eq!(wheel.pop(at(30)), Some(0));
        wheel.set(0, at(15));
        assert_eq!(wheel.pop(at(30)), Some(0));
        assert_eq!(wheel.pop(at(30)), Some(1));
        assert_eq!(wheel.pop(at(30)), None);
    }

    #[derive(Clone, Copy, Debug)]
    enum Operation {
        Set { token: u32, after: u64 },
        Cancel { token: u32 },
        Advance { by: u64 },
        AdvanceToNext,
    }

    /// Spans of all sizes, so that every level is used.
    fn span() -> impl Strategy<Value = u64> {
        (0u32..50, any::<u64>()).prop_map(|(bits, any)| any & ((1 << bits) - 1))
    }

    const TOKENS: u32 = 24;

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            4 => (0..TOKENS, span()).prop_map(|(token, after)| Operation::Set { token, after }),
            1 => (0..TOKENS).prop_map(|token| Operation::Cancel { token }),
            2 => span().prop_map(|by| Operation::Advance { by }),
            2 => Just(Operation::AdvanceToNext),
        ]
    }

    /// Compares the timers that fired by `now` with the model: all that were due a granularity ago, and none that is not due.
    fn check(wheel: &mut TimingWheel, model: &mut BTreeMap<u32, u64>, now: u64, granularity: u64) {
        let mut last = 0;
        for token in fired(wheel, now) {
            let due = model.remove(&token).expect("fired a timer that was not set");
            assert!(due <= now, "fired early");
            assert!(due / granularity + 1 >= last / granularity, "fired out of order");
            last = due;
        }
        for due in model.values() {
            assert!(*due > now || now - due < granularity, "fired late: due {due}, now {now}");
        }
        for token in 0..TOKENS {
            assert_eq!(wheel.is_set(token), model.contains_key(&token));
        }
        match (wheel.next(), model.values().min()) {
            (None, None) => {}
            (Some(next), Some(first)) => {
                assert!(next.as_nanos() < first.max(&now) + granularity, "next too late")
            }
            (next, first) => panic!("next {next:?}, but the earliest is {first:?}"),
        }
    }

    proptest! {
        #[test]
        fn the_wheel_fires_like_a_map_of_times(
            start in span(), shift in 0u32..12, operations in prop::collection::vec(operation(), 1..200)
        ) {
            let granularity = 1u64 << shift;
            let mut wheel = TimingWheel::new(TOKENS, Duration::from_nanos(granularity));
            let mut model = BTreeMap::new();
            let mut now = start;
            for operation in operations {
                match operation {
                    Operation::Set { token, after } => {
                        wheel.set(token, at(now + after));
                        model.insert(token, now + after);
                    }
                    Operation::Cancel { token } => {
                        assert_eq!(wheel.cancel(token), model.remove(&token).is_some());
                    }
                    Operation::Advance { by } => {
                        now += by;
                        check(&mut wheel, &mut model, now, granularity);
                    }
                    Operation::AdvanceToNext => {
                        now = wheel.next().map_or(now, |next| now.max(next.as_nanos()));
                        check(&mut wheel, &mut model, now, granularity);
                    }
                }
            }
        }
    }
}

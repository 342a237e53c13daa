//! Future events, for the simulator and the soak test, each with its own unit of time and its own order of
//! simultaneous events.
//!
//! Most events are due within some µs. A ring holds them by short stretches of time, and the queue sorts a stretch when its time starts. A
//! heap holds later events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event with a rank among those of equal times and orders.
pub(crate) trait Ranked {
    fn rank(&self) -> u64 {
        0
    }
}

struct Entry<E> {
    at: u64,
    order: u64,
    event: E,
}

impl<E: Ranked> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E: Ranked> Eq for Entry<E> {}

impl<E: Ranked> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E: Ranked> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order)
            .cmp(&(other.at, other.order))
            .then_with(|| self.event.rank().cmp(&other.event.rank()))
    }
}

/// Binary logarithm of a stretch's length in units of time.
const SHIFT: u32 = 10;
/// Number of stretches in the ring.
const RING: u64 = 1 << 13;
const WORD: u64 = u64::BITS as u64;

/// A queue of events: the earliest first, of equal times that of the lowest `order`, and of equal orders that of the lowest rank.
pub(crate) struct Events<E: Ranked> {
    /// The events of the current stretch, in descending order.
    due: Vec<Entry<E>>,
    reached: u64,
    ring: Vec<Vec<Entry<E>>>,
    /// One bit per stretch of the ring, set if it has events.
    occupied: Vec<u64>,
    later: BinaryHeap<Reverse<Entry<E>>>,
}

impl<E: Ranked> Default for Events<E> {
    fn default() -> Self {
        Self {
            due: Vec::new(),
            reached: 0,
            ring: (0..RING).map(|_| Vec::new()).collect(),
            occupied: vec![0; (RING / WORD) as usize],
            later: BinaryHeap::new(),
        }
    }
}

impl<E: Ranked> Events<E> {
    pub(crate) fn push(&mut self, at: u64, order: u64, event: E) {
        let entry = Entry { at, order, event };
        let stretch = at >> SHIFT;
        if stretch <= self.reached {
            let place = self.due.partition_point(|other| *other > entry);
            self.due.insert(place, entry);
        } else if stretch - self.reached < RING {
            let place = stretch % RING;
            self.ring[place as usize].push(entry);
            self.occupied[(place / WORD) as usize] |= 1 << (place % WORD);
        } else {
            self.later.push(Reverse(entry));
        }
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, E)> {
        self.next_at()?;
        self.due.pop().map(|entry| (entry.at, entry.event))
    }

    /// Removes the first event, if its time is before `end`. Returns its time, its order and the event.
    pub(crate) fn pop_before(&mut self, end: u64) -> Option<(u64, u64, E)> {
        self.next_at().filter(|at| *at < end)?;
        self.due.pop().map(|entry| (entry.at, entry.order, entry.event))
    }

    /// Returns the time of the first event.
    pub(crate) fn next_at(&mut self) -> Option<u64> {
        if self.due.is_empty() {
            self.advance()?;
        }
        self.due.last().map(|entry| entry.at)
    }

    /// Removes the events for which `keeps` returns false, in time proportional to all events.
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&E) -> bool) {
        self.due.retain(|entry| keeps(&entry.event));
        for (place, stretch) in self.ring.iter_mut().enumerate() {
            stretch.retain(|entry| keeps(&entry.event));
            if stretch.is_empty() {
                self.occupied[place / WORD as usize] &= !(1 << (place % WORD as usize));
            }
        }
        self.later.retain(|Reverse(entry)| keeps(&entry.event));
    }

    fn advance(&mut self) -> Option<()> {
        let later = self.later.peek().map(|Reverse(entry)| entry.at >> SHIFT);
        let next = self.next_in_ring().into_iter().chain(later).min()?;
        self.reached = next;
        let place = next % RING;
        // An event of a later round of the ring is in the heap, so this stretch has only events of its own time.
        std::mem::swap(&mut self.due, &mut self.ring[place as usize]);
        self.occupied[(place / WORD) as usize] &= !(1 << (place % WORD));
        while self.later.peek().is_some_and(|Reverse(entry)| entry.at >> SHIFT == next) {
            self.due.extend(self.later.pop().map(|Reverse(entry)| entry));
        }
        self.due.sort_unstable_by(|a, b| b.cmp(a));
        Some(())
    }

    fn next_in_ring(&self) -> Option<u64> {
        let from = (self.reached + 1) % RING;
        let words = RING / WORD;
        // The first word is searched twice: first its bits from `from` on, at the end those below `from`.
        (0..=words).find_map(|step| {
            let word = (from / WORD + step) % words;
            let mask = u64::MAX << (from % WORD);
            let bits = self.occupied[word as usize]
                & if step == 0 {
                    mask
                } else if step == words {
                    !mask
                } else {
                    u64::MAX
                };
            let place = word * WORD + u64::from(bits.trailing_zeros());
            (bits != 0).then(|| self.reached + 1 + (place + RING - from) % RING)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Ranked for (u32, u32) {
        fn rank(&self) -> u64 {
            self.0.into()
        }
    }

    /// Compares the queue with a heap, with events at distances from 0 to 50,000,000.
    #[test]
    fn the_ring_and_the_heap_keep_one_order() {
        let mut random = crate::random::Random::new(1);
        let (mut events, mut heap) = (Events::default(), BinaryHeap::new());
        let mut now = 0;
        for number in 0..20_000_u32 {
            let span = [1, 900, 100_000, 8_388_608, 50_000_000][random.below(5) as usize];
            let at = now + random.below(span);
            let (order, rank) = (u64::from(number % 3), number / 3);
            events.push(at, order, (rank, number));
            heap.push(Reverse((at, order, rank, number)));
            if number % 5000 == 4999 {
                events.retain(|(_, event)| event % 7 != 0);
                heap.retain(|Reverse((.., event))| event % 7 != 0);
            }
            if number % 3 != 0 {
                let expected = heap.pop().map(|Reverse((at, _, rank, number))| (at, (rank, number)));
                assert_eq!(events.pop(), expected);
                now = expected.map_or(now, |(at, _)| at);
            }
        }
        while let Some(Reverse((at, order, rank, number))) = heap.pop() {
            assert_eq!(events.next_at(), Some(at));
            assert_eq!(events.pop_before(at), None);
            assert_eq!(events.pop_before(at + 1), Some((at, order, (rank, number))));
        }
        assert_eq!(events.pop(), None);
    }
}

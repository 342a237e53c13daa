//! What is to come: small entries, ordered by the time and then by a number.
//!
//! Most of it comes within some µs, so it waits in a ring of short stretches of time, each put in order when it is reached; what comes
//! later waits in a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A flow begins.
    Start(u32),
    /// A packet's last bit reaches the node behind a port.
    Arrive { port: u32, packet: u32 },
    /// A port's link is free, or its host may send.
    Look { port: u32 },
    /// A pause (or its end) reaches a port.
    Pause { port: u32, on: bool },
    /// A sender's algorithm asked to be woken.
    Timer(u32),
    /// A packet of this flow was dropped a while ago.
    Expire(u32),
    /// The series takes a row.
    Sample,
}

/// An event in 64 bits: what, and two numbers.
const fn pack(event: Event) -> u64 {
    let (kind, a, b) = match event {
        Event::Start(flow) => (0, flow, 0),
        Event::Arrive { port, packet } => (1, port, packet),
        Event::Look { port } => (2, port, 0),
        Event::Pause { port, on } => (3, port, on as u32),
        Event::Timer(flow) => (4, flow, 0),
        Event::Expire(flow) => (5, flow, 0),
        Event::Sample => (6, 0, 0),
    };
    (kind as u64) << 60 | (a as u64) << 32 | b as u64
}

const fn unpack(packed: u64) -> Event {
    let (a, b) = ((packed >> 32) as u32 & 0x0fff_ffff, packed as u32);
    match packed >> 60 {
        0 => Event::Start(a),
        1 => Event::Arrive { port: a, packet: b },
        2 => Event::Look { port: a },
        3 => Event::Pause { port: a, on: b != 0 },
        4 => Event::Timer(a),
        5 => Event::Expire(a),
        _ => Event::Sample,
    }
}

/// Time (ps), number, packed event.
type Entry = (u64, u64, u64);

/// A stretch is 2^10 ps.
const SHIFT: u32 = 10;
/// Stretches in the ring: 8.4 µs.
const RING: u64 = 1 << 13;
const WORD: u64 = u64::BITS as u64;

/// Earliest first; of what comes at one time, what was said first.
pub(super) struct Events {
    /// What comes in the stretch that was reached, the next at the end.
    due: Vec<Entry>,
    reached: u64,
    ring: Vec<Vec<Entry>>,
    /// Bit by stretch of the ring: something is in it.
    occupied: Vec<u64>,
    later: BinaryHeap<Reverse<Entry>>,
    said: u64,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            due: Vec::new(),
            reached: 0,
            ring: vec![Vec::new(); RING as usize],
            occupied: vec![0; (RING / WORD) as usize],
            later: BinaryHeap::new(),
            said: 0,
        }
    }
}

impl Events {
    pub(super) fn push(&mut self, at: u64, event: Event) {
        let entry = (at, self.said, pack(event));
        self.said += 1;
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

    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        if self.due.is_empty() {
            self.advance()?;
        }
        self.due.pop().map(|(at, _, packed)| (at, unpack(packed)))
    }

    /// Goes to the next stretch that holds something.
    fn advance(&mut self) -> Option<()> {
        let later = self.later.peek().map(|Reverse((at, ..))| at >> SHIFT);
        let next = self.next_in_ring().into_iter().chain(later).min()?;
        self.reached = next;
        let place = next % RING;
        // A stretch that lies a ring's length ahead can't be here: it would be in the heap.
        std::mem::swap(&mut self.due, &mut self.ring[place as usize]);
        self.occupied[(place / WORD) as usize] &= !(1 << (place % WORD));
        while self.later.peek().is_some_and(|Reverse((at, ..))| at >> SHIFT == next) {
            self.due.extend(self.later.pop().map(|Reverse(entry)| entry));
        }
        self.due.sort_unstable_by(|a, b| b.cmp(a));
        Some(())
    }

    /// The next stretch of the ring that holds something.
    fn next_in_ring(&self) -> Option<u64> {
        let from = (self.reached + 1) % RING;
        let words = RING / WORD;
        // The first word is looked at twice: its bits from `from` on first, those before it last.
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

    #[test]
    fn what_goes_in_comes_out_in_its_order() {
        let said = [
            (5, Event::Arrive { port: 7, packet: u32::MAX }),
            (3, Event::Start(0x0fff_ffff)),
            (5, Event::Pause { port: 1, on: true }),
            (3, Event::Timer(2)),
            (9, Event::Expire(3)),
            (9, Event::Sample),
            (8, Event::Look { port: 4 }),
        ];
        let mut events = Events::default();
        said.iter().for_each(|&(at, event)| events.push(at, event));
        let came: Vec<_> = std::iter::from_fn(|| events.pop()).collect();
        assert_eq!(came, [1, 3, 0, 2, 6, 4, 5].map(|index| said[index]));
    }

    /// Beside a heap, with what comes now, soon, later, and much later.
    #[test]
    fn the_ring_and_the_heap_keep_one_order() {
        let mut random = crate::random::Random::new(1);
        let (mut events, mut heap) = (Events::default(), BinaryHeap::new());
        let mut now = 0;
        for number in 0..20_000_u32 {
            let span = [1, 900, 100_000, 8_388_608, 50_000_000][random.below(5) as usize];
            let at = now + random.below(span);
            events.push(at, Event::Start(number));
            heap.push(Reverse((at, number)));
            if number % 3 != 0 {
                let expected = heap.pop().map(|Reverse((at, number))| (at, Event::Start(number)));
                assert_eq!(events.pop(), expected);
                now = expected.map_or(now, |(at, _)| at);
            }
        }
        while let Some(Reverse((at, number))) = heap.pop() {
            assert_eq!(events.pop(), Some((at, Event::Start(number))));
        }
        assert_eq!(events.pop(), None);
    }
}

//! What is to come: a heap of small entries, the time and a number first.

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

/// Earliest first; of what comes at one time, what was said first.
#[derive(Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(u64, u64, u64)>>,
    said: u64,
}

impl Events {
    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.heap.push(Reverse((at, self.said, pack(event))));
        self.said += 1;
    }

    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse((at, _, packed))| (at, unpack(packed)))
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
}

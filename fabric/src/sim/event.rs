use super::frame::Frame;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Virtual time in picoseconds: 2⁶⁴ of them are 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Picos(pub(super) u64);

impl Picos {
    /// Whole nanoseconds, as the endpoints count them.
    pub(super) const fn instant(self) -> cc::Instant {
        cc::Instant::from_nanos(self.0 / 1000)
    }

    /// The first moment at which `instant` has come.
    pub(super) const fn of(instant: cc::Instant) -> Self {
        Self(instant.as_nanos().saturating_mul(1000))
    }

    pub(super) const fn plus(self, picos: u64) -> Self {
        Self(self.0 + picos)
    }
}

/// What happens.
#[derive(Debug)]
pub(super) enum Event {
    /// A frame's last bit reaches a host.
    AtHost { host: usize, frame: Frame },
    /// A frame's last bit reaches the switch, by the port of this host.
    AtSwitch { from: usize, frame: Frame },
    /// A host may send, or a timer of it is due.
    WakeHost(usize),
    /// A frame may leave the switch.
    WakeSwitch,
    /// A flow begins.
    Start(usize),
}

struct Entry {
    at: Picos,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Entry {
    const fn key(&self) -> (u64, u64) {
        (self.at.0, self.number)
    }
}

/// What is to come, earliest first; of what comes at one time, what was said first.
#[derive(Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<Entry>>,
    said: u64,
}

impl Events {
    pub(super) fn push(&mut self, at: Picos, event: Event) {
        self.heap.push(Reverse(Entry { at, number: self.said, event }));
        self.said += 1;
    }

    pub(super) fn pop(&mut self) -> Option<(Picos, Event)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_decides_and_then_the_order_of_saying() {
        let mut events = Events::default();
        for (at, host) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            events.push(Picos(at), Event::WakeHost(host));
        }
        let order: Vec<_> = std::iter::from_fn(|| match events.pop()? {
            (at, Event::WakeHost(host)) => Some((at.0, host)),
            _ => None,
        })
        .collect();
        assert_eq!(order, [(3, 1), (3, 3), (5, 0), (5, 2)]);
    }
}

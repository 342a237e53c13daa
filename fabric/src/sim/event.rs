//! The events of a simulation.

use crate::events::Ranked;

/// Of simultaneous events, the one that was scheduled earlier is first, by time. Of those that were scheduled at the same time, the one whose
/// scheduling event was itself scheduled earlier. The `order` of an event has both: how long before, in ps, it was scheduled (saturating in
/// 32 bits, inverted), and the same of the event that scheduled it. Of equal orders, the kind that is earlier in this list is first, then
/// the lower first number. This is nearly the order in which one thread would schedule the events, but it depends on no thread.
///
/// Between endpoints, the second half of `order` is instead a hash of the event and of the `order` of the event that scheduled it.
/// Otherwise, of flows that keep sending at the same times, the one at the lowest port would always be first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Links change. The number is an index in the setup's list.
    Change(u32),
    /// A flow starts.
    Start(u32),
    /// A packet's last bit arrives at the node of `port`.
    Arrive { port: u32, packet: u32 },
    /// A port's link is free, or a timer of its host is due.
    Look { port: u32 },
    /// A PFC pause (or its end) reaches a port. `number` counts the pauses and ends for this port, modulo 2^31: a switch can send both at
    /// once.
    Pause { port: u32, on: bool, number: u32 },
    /// A flow's algorithm has a timeout, or its receiver's application has consumed a message.
    Timer(u32),
    /// `EXPIRE` has passed since a packet of this flow was dropped.
    Expire(u32),
    /// A row of the series is due.
    Sample,
    /// The frame that a script holds at a port must continue.
    Release(u32),
    /// The destination of a flow learns that the flow has ended.
    Disconnect(u32),
}

const PAUSE: u64 = 4;

/// An event in 64 bits: 4 bits of kind, numbers of 28 and 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed(u64);

impl Ranked for Packed {
    /// Returns kind and first number, for a pause also the second.
    fn rank(&self) -> u64 {
        if self.0 >> 60 == PAUSE { self.0 } else { self.0 & !u64::from(u32::MAX) }
    }
}

impl Packed {
    pub(super) const fn new(event: Event) -> Self {
        let (kind, a, b): (u64, u32, u32) = match event {
            Event::Change(change) => (0, change, 0),
            Event::Start(flow) => (1, flow, 0),
            Event::Arrive { port, packet } => (2, port, packet),
            Event::Look { port } => (3, port, 0),
            Event::Pause { port, on, number } => (PAUSE, port, number << 1 | on as u32),
            Event::Timer(flow) => (5, flow, 0),
            Event::Expire(flow) => (6, flow, 0),
            Event::Sample => (7, 0, 0),
            Event::Release(port) => (8, port, 0),
            Event::Disconnect(flow) => (9, flow, 0),
        };
        Self(kind << 60 | (a as u64) << 32 | b as u64)
    }

    pub(super) const fn unpack(self) -> Event {
        let (a, b) = ((self.0 >> 32) as u32 & 0x0fff_ffff, self.0 as u32);
        match self.0 >> 60 {
            0 => Event::Change(a),
            1 => Event::Start(a),
            2 => Event::Arrive { port: a, packet: b },
            3 => Event::Look { port: a },
            4 => Event::Pause { port: a, on: b & 1 != 0, number: b >> 1 },
            5 => Event::Timer(a),
            6 => Event::Expire(a),
            7 => Event::Sample,
            8 => Event::Release(a),
            _ => Event::Disconnect(a),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_event_unpacks_to_the_same() {
        for event in [
            Event::Start(0x0fff_ffff),
            Event::Arrive { port: 7, packet: u32::MAX },
            Event::Look { port: 4 },
            Event::Pause { port: 1, on: true, number: 0 },
            Event::Pause { port: 2, on: false, number: u32::MAX >> 1 },
            Event::Timer(2),
            Event::Expire(3),
            Event::Sample,
            Event::Release(6),
            Event::Disconnect(8),
            Event::Change(5),
        ] {
            assert_eq!(Packed::new(event).unpack(), event);
        }
        let [arrive, pause] =
            [Event::Arrive { port: 7, packet: 9 }, Event::Pause { port: 1, on: true, number: 3 }];
        let ranks = [Event::Start(u32::MAX >> 4), arrive, pause].map(|event| Packed::new(event).rank());
        assert!(ranks.is_sorted());
        assert!(ranks[2] < Packed::new(Event::Pause { port: 1, on: false, number: 4 }).rank());
        assert_eq!(Packed::new(Event::Arrive { port: 7, packet: 1 }).rank(), ranks[1]);
    }
}

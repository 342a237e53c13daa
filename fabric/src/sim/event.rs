//! The events of a simulation.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A flow starts.
    Start(u32),
    /// A packet's last bit arrives at the node of `port`.
    Arrive { port: u32, packet: u32 },
    /// A port's link is free, or a timer of its host is due.
    Look { port: u32 },
    /// A PFC pause (or its end) reaches a port.
    Pause { port: u32, on: bool },
    /// A flow's algorithm has a timeout, or its receiver's application has consumed a message.
    Timer(u32),
    /// `EXPIRE` has passed since a packet of this flow was dropped.
    Expire(u32),
    /// A row of the series is due.
    Sample,
    /// Links change. The number is an index in the setup's list.
    Change(u32),
}

/// An event in 64 bits: 4 bits of kind, numbers of 28 and 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed(u64);

impl Packed {
    pub(super) const fn new(event: Event) -> Self {
        let (kind, a, b) = match event {
            Event::Start(flow) => (0, flow, 0),
            Event::Arrive { port, packet } => (1, port, packet),
            Event::Look { port } => (2, port, 0),
            Event::Pause { port, on } => (3, port, on as u32),
            Event::Timer(flow) => (4, flow, 0),
            Event::Expire(flow) => (5, flow, 0),
            Event::Sample => (6, 0, 0),
            Event::Change(change) => (7, change, 0),
        };
        Self((kind as u64) << 60 | (a as u64) << 32 | b as u64)
    }

    pub(super) const fn unpack(self) -> Event {
        let (a, b) = ((self.0 >> 32) as u32 & 0x0fff_ffff, self.0 as u32);
        match self.0 >> 60 {
            0 => Event::Start(a),
            1 => Event::Arrive { port: a, packet: b },
            2 => Event::Look { port: a },
            3 => Event::Pause { port: a, on: b != 0 },
            4 => Event::Timer(a),
            5 => Event::Expire(a),
            6 => Event::Sample,
            _ => Event::Change(a),
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
            Event::Pause { port: 1, on: true },
            Event::Pause { port: 2, on: false },
            Event::Timer(2),
            Event::Expire(3),
            Event::Sample,
            Event::Change(5),
        ] {
            assert_eq!(Packed::new(event).unpack(), event);
        }
    }
}

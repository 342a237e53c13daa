//! A port with a faulty link.

use crate::FaultCounters;
use crate::fault::{FaultConfig, FaultLine};
use cc::Instant;
use datapath::io::{Burst, Caps, PacketIo, PortCounters};

/// A port whose sent frames pass a faulty link. Received frames do not.
///
/// `transmit` accepts frames while the link has room. They leave in that call, or in a later call of `receive` or `transmit`.
pub struct Faulty<P: PacketIo, C> {
    port: P,
    clock: C,
    line: FaultLine<P::Buf>,
    leaving: Burst<P::Buf>,
}

impl<P: PacketIo, C: FnMut() -> Instant> Faulty<P, C> {
    /// Adds the link to `port`. `clock` must never go back.
    pub fn new(port: P, config: FaultConfig, clock: C) -> Self {
        Self { port, clock, line: FaultLine::new(config), leaving: Burst::new() }
    }

    /// Returns the counters of faults.
    #[must_use]
    pub const fn counters(&self) -> FaultCounters {
        self.line.counters()
    }

    /// Returns the number of accepted frames that have not left.
    #[must_use]
    pub fn on_link(&self) -> usize {
        self.line.len() + self.leaving.len()
    }

    fn pump(&mut self, now: Instant) {
        while !self.leaving.is_full()
            && let Some(buf) = self.line.poll(now)
        {
            self.leaving.push(buf);
        }
        if !self.leaving.is_empty() {
            self.port.transmit(&mut self.leaving);
        }
    }
}

impl<P: PacketIo, C: FnMut() -> Instant + Send> PacketIo for Faulty<P, C> {
    type Buf = P::Buf;

    fn receive(&mut self, into: &mut Burst<Self::Buf>) {
        let now = (self.clock)();
        self.pump(now);
        self.port.receive(into);
    }

    fn alloc(&mut self) -> Option<Self::Buf> {
        self.port.alloc()
    }

    fn transmit(&mut self, from: &mut Burst<Self::Buf>) {
        let now = (self.clock)();
        let taken = self.line.room().min(from.len());
        for buf in from.drain(..taken) {
            self.line.push(now, buf, || self.port.alloc());
        }
        self.pump(now);
    }

    fn caps(&self) -> Caps {
        self.port.caps()
    }

    fn counters(&mut self) -> PortCounters {
        self.port.counters()
    }
}

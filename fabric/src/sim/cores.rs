//! The cores of a simulated host: an endpoint each, behind one NIC.

use cc::Instant;
use roce::qp::QpInit;
use roce::{ControlError, CoreIndex, Discard, Endpoint, EndpointConfig, Memory, Qpn, wire};

pub(super) struct HostCores {
    all: Box<[Endpoint]>,
    /// Finds the core of a queue pair by its number.
    index: CoreIndex,
    /// Core of the next queue pair.
    next: usize,
    /// Core that sends first.
    first: usize,
}

impl HostCores {
    pub(super) fn new(config: EndpointConfig, cores: u8) -> Self {
        let core = |index| Endpoint::of_core(config, CoreIndex::new(index, cores));
        Self { all: (0..cores).map(core).collect(), index: CoreIndex::new(0, cores), next: 0, first: 0 }
    }

    /// Calls `create` on each core, which creates the same object with the same number. Returns the object.
    pub(super) fn on_all<T>(
        &mut self,
        create: impl Fn(&mut Endpoint) -> Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        let (first, others) = self.all.split_first_mut().expect("a host has a core");
        others.iter_mut().try_for_each(|core| create(core).map(drop))?;
        create(first)
    }

    pub(super) fn create_qp(&mut self, now: Instant, init: QpInit) -> Result<Qpn, ControlError> {
        let core = self.next;
        self.next = (core + 1) % self.all.len();
        self.all[core].create_qp(now, init)
    }

    fn place_of(&self, qpn: Qpn) -> usize {
        usize::from(self.index.named_by(qpn)) % self.all.len()
    }

    /// Returns the core of a queue pair.
    pub(super) fn of(&self, qpn: Qpn) -> &Endpoint {
        &self.all[self.place_of(qpn)]
    }

    /// As [`of`](Self::of).
    pub(super) fn of_mut(&mut self, qpn: Qpn) -> &mut Endpoint {
        &mut self.all[self.place_of(qpn)]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Endpoint> {
        self.all.iter_mut()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.iter().filter_map(Endpoint::poll_timeout).min()
    }

    pub(super) fn on_timeout(&mut self, now: Instant) {
        self.iter_mut().for_each(|core| core.on_timeout(now));
    }

    /// Writes the next frame of a core into `frame`, and returns its length. The cores take turns.
    pub(super) fn poll_transmit<M: Memory>(
        &mut self,
        now: Instant,
        memory: &M,
        frame: &mut [u8],
    ) -> Option<usize> {
        for _ in 0..self.all.len() {
            let core = self.first;
            self.first = (core + 1) % self.all.len();
            if let Some(length) = self.all[core].poll_transmit(now, memory, frame) {
                return Some(length);
            }
        }
        None
    }

    /// Passes a frame to its core.
    pub(super) fn on_frame<M: Memory>(
        &mut self,
        now: Instant,
        memory: &mut M,
        frame: &[u8],
    ) -> Result<(), Discard> {
        let [only] = &mut *self.all else {
            let core = wire::destination(frame).map_or(0, |qpn| self.place_of(qpn));
            self.count_flows(now, core);
            return self.all[core].on_frame(now, memory, frame);
        };
        only.on_frame(now, memory, frame)
    }

    /// Adds the flows of all other cores to the count of `core`.
    fn count_flows(&mut self, now: Instant, core: usize) {
        let others = self.iter().enumerate().filter(|(other, _)| *other != core);
        let others = others.map(|(_, other)| other.published_flows().at(now)).sum();
        self.all[core].set_other_flows(others);
    }
}

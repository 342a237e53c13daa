//! The event loop.

use super::event::Event;
use super::measure::{PortRow, Row, Series};
use super::network::{Network, picos};
use super::outcome::Outcome;
use super::parcel::Parcel;
use super::setup::{Setup, SetupError};
use std::collections::HashSet;
use std::time::Duration;

/// Events between two calls of `watch`.
const WATCH: u64 = 1 << 18;

#[derive(Clone, Copy, Default)]
pub(super) struct Progress {
    /// Pacing rate in bit/s; 0 before the start and after the end.
    pub(super) rate: u64,
    pub(super) acked: u64,
}

/// All hosts, as endpoints or as a model. A host's port has the host's number.
pub(super) trait Hosts<'a>: Sized {
    type Parcel: Parcel;
    fn new(setup: &'a Setup) -> Result<Self, SetupError>;
    /// Returns whether switches write telemetry into packets.
    fn is_stamped(setup: &Setup) -> bool;
    fn start(&mut self, network: &mut Network<'a, Self::Parcel>, flow: u32);
    /// Runs a host's timers, and sends the packets that may leave now.
    fn serve(&mut self, network: &mut Network<'a, Self::Parcel>, host: u32);
    fn receive(&mut self, network: &mut Network<'a, Self::Parcel>, host: u32, packet: u32);
    fn timer(&mut self, network: &mut Network<'a, Self::Parcel>, flow: u32);
    /// Handles a drop of a packet of the flow, `EXPIRE` after the drop.
    fn expire(&mut self, network: &mut Network<'a, Self::Parcel>, flow: u32);
    fn progress(&self, flow: u32) -> Progress;
    fn state(&self, flow: u32) -> String;
    fn retransmitted(&self) -> u64;
    /// Returns the number of packets that receivers received twice.
    fn doubled(&self) -> u64 {
        0
    }
    /// Returns the bytes of memory per running flow and per host.
    fn memory() -> [usize; 2];
}

pub(super) fn run<'a, H: Hosts<'a>>(
    setup: &'a Setup,
    watch: &mut dyn FnMut(usize, u64, u64),
) -> Result<Outcome, SetupError> {
    let network = Network::new(setup, H::is_stamped(setup))?;
    Engine { hosts: H::new(setup)?, network, series: Vec::new() }.run(watch)
}

struct Engine<'a, H: Hosts<'a>> {
    network: Network<'a, H::Parcel>,
    hosts: H,
    series: Series,
}

impl<'a, H: Hosts<'a>> Engine<'a, H> {
    fn run(mut self, watch: &mut dyn FnMut(usize, u64, u64)) -> Result<Outcome, SetupError> {
        let limit = picos(self.network.setup.limit);
        let flows = self.network.setup.flows.len();
        while self.network.finished.len() < flows {
            let Some((at, event)) = self.network.events.pop() else {
                // With a failed link, flows may remain for which no event is scheduled.
                if self.network.ports.iter().any(|port| port.is_down) {
                    break;
                }
                return Err(self.silence());
            };
            if at > limit {
                self.network.now = limit;
                break;
            }
            self.network.now = at;
            self.network.counts.events += 1;
            self.handle(event.unpack());
            if self.network.counts.events.is_multiple_of(WATCH) {
                watch(self.network.finished.len(), self.network.counts.events, self.network.now / 1000);
            }
            if let Some((flow, why)) = self.network.failed {
                return Err(SetupError::Failed { flow: flow as usize, why });
            }
        }
        Ok(self.outcome())
    }

    fn silence(&self) -> SetupError {
        let ended: HashSet<usize> = self.network.finished.iter().map(|flow| flow.flow).collect();
        let flow = (0..self.network.setup.flows.len()).find(|flow| !ended.contains(flow)).unwrap_or_default();
        SetupError::Silence { flow, state: self.hosts.state(flow as u32) }
    }

    fn outcome(mut self) -> Outcome {
        self.network.close();
        let Network { finished, counts, now, trace, parcels, queues, latencies, .. } = self.network;
        Outcome {
            finished,
            events: counts.events,
            packets: counts.packets,
            retransmitted: self.hosts.retransmitted(),
            time: Duration::from_nanos(now / 1000),
            trace,
            queue_max: counts.queue_max,
            latencies,
            doubled: self.hosts.doubled(),
            lost: counts.lost,
            dropped: counts.dropped,
            marked: counts.marked,
            told: counts.told,
            lied: counts.lied,
            unheard: counts.unheard,
            pauses: counts.pauses,
            paused: Duration::from_nanos(counts.paused / 1000),
            series: self.series,
            packets_most: parcels.most(),
            memory: H::memory(),
            queues,
        }
    }

    fn handle(&mut self, event: Event) {
        let Self { network, hosts, .. } = self;
        match event {
            Event::Arrive { port, packet } => match network.ports[port as usize].switch {
                Some(switch) => network.arrive(switch, port, packet),
                None => {
                    network.note(port, packet);
                    hosts.receive(network, port, packet);
                }
            },
            Event::Look { port } => {
                if network.ports[port as usize].look_at == Some(network.now) {
                    network.ports[port as usize].look_at = None;
                    self.serve(port);
                }
            }
            Event::Start(flow) => hosts.start(network, flow),
            Event::Pause { port, on } => {
                network.pause(port, on);
                self.serve(port);
            }
            Event::Timer(flow) => hosts.timer(network, flow),
            Event::Expire(flow) => hosts.expire(network, flow),
            Event::Sample => self.sample(),
            Event::Change(change) => self.change(change),
        }
    }

    #[cold]
    fn change(&mut self, change: u32) {
        for port in self.network.change(change) {
            self.serve(port);
        }
    }

    fn serve(&mut self, port: u32) {
        match self.network.ports[port as usize].switch {
            Some(switch) => self.network.serve(switch, port),
            None => self.hosts.serve(&mut self.network, port),
        }
    }

    fn sample(&mut self) {
        let network = &mut self.network;
        let Some(sampling) = network.setup.sampling else { return };
        let ports = network.sampled.iter().map(|&port| &network.ports[port as usize]);
        let mut ports = ports.map(|port| PortRow { queue: port.bytes, tx_bytes: port.tx_bytes });
        let Some(PortRow { queue, tx_bytes }) = ports.next() else { return };
        let others = ports.collect();
        let flows = 0..sampling.flows.min(network.setup.flows.len()) as u32;
        let progress: Vec<Progress> = flows.map(|flow| self.hosts.progress(flow)).collect();
        self.series.push(Row {
            time: network.now / 1000,
            queue,
            tx_bytes,
            others,
            rates: progress.iter().map(|flow| flow.rate).collect(),
            acked: progress.iter().map(|flow| flow.acked).collect(),
        });
        let at = network.now + picos(sampling.every).max(1000);
        network.push(at, Event::Sample);
    }
}

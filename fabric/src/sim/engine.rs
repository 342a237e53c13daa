//! The event loop, on one thread or several.

use super::event::Event;
use super::exchange::{Exchange, State};
use super::measure::{PortRow, Row, Series};
use super::network::{EXPIRE, Network, picos};
use super::observer::{Observer, RunState};
use super::outcome::Outcome;
use super::packet_pool::LinkPacket;
use super::partition::Partition;
use super::port::Port;
use super::setup::{Setup, SetupError};
use cc::Rate;
use std::collections::HashSet;
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

/// Events between two reports of the state.
const REPORT: u64 = 1 << 18;

#[derive(Clone, Copy, Default)]
pub(super) struct Progress {
    /// Pacing rate in bit/s; 0 before the start and after the end.
    pub(super) rate: u64,
    pub(super) acked: u64,
}

/// All hosts, as endpoints or as a model. A host's port has the host's number.
pub(super) trait Hosts<'a>: Sized {
    type Packet: LinkPacket;
    /// Returns whether hosts affect each other only over links.
    fn may_divide(setup: &Setup) -> bool;
    /// Creates the hosts for the thread that runs `network`.
    fn new(setup: &'a Setup, network: &Network<'a, Self::Packet>) -> Result<Self, SetupError>;
    /// Returns whether switches write telemetry into packets.
    fn is_stamped(setup: &Setup) -> bool;
    fn start(&mut self, network: &mut Network<'a, Self::Packet>, flow: u32);
    /// Runs a host's timers, and sends the packets that may leave now.
    fn serve(&mut self, network: &mut Network<'a, Self::Packet>, host: u32);
    fn receive(&mut self, network: &mut Network<'a, Self::Packet>, host: u32, packet: u32);
    fn timer(&mut self, network: &mut Network<'a, Self::Packet>, flow: u32);
    /// Handles a drop of a packet of the flow, `EXPIRE` after the drop.
    fn expire(&mut self, network: &mut Network<'a, Self::Packet>, flow: u32);
    /// Ends a flow at its destination.
    fn disconnect(&mut self, network: &mut Network<'a, Self::Packet>, flow: u32);
    /// Returns the progress of a flow; none if its source is a host of another thread.
    fn progress(&self, flow: u32) -> Progress;
    /// Describes a flow whose source is a host of this thread; `other` has the hosts of its destination's thread.
    fn state(&self, other: &Self, flow: u32) -> String;
    fn retransmitted(&self) -> u64;
    /// Adds the counts of another thread's hosts.
    fn add(&mut self, other: Self);
    /// Returns the number of packets that receivers received twice.
    fn doubled(&self) -> u64 {
        0
    }
    /// Returns the bytes of memory per running flow and per host.
    fn memory() -> [usize; 2];
}

/// Runs a setup on at most `threads` threads. The outcome does not depend on their number, except `packets_most`.
pub(super) fn run<'a, H: Hosts<'a> + Send>(
    setup: &'a Setup,
    threads: usize,
    observer: &mut dyn Observer,
) -> Result<Outcome, SetupError>
where
    H::Packet: Send,
{
    let partition = Partition::new(&setup.topology, if may_divide::<H>(setup) { threads } else { 1 });
    let exchange = Exchange::new(partition.count, super::port::sampled_ports(setup));
    let start = |me: u16, observer: &mut dyn Observer| {
        let network = Network::new(setup, H::is_stamped(setup), &partition, me);
        let engine = network
            .and_then(|network| Ok(Engine { hosts: H::new(setup, &network)?, network, series: Vec::new() }));
        let mut engine: Engine<'_, H> = engine.inspect_err(|_| exchange.leave(me.into()))?;
        let end = engine.run(&exchange, observer);
        Ok((engine, end))
    };
    let mut parts = thread::scope(|scope| {
        let start = &start;
        let others: Vec<_> =
            (1..partition.count as u16).map(|me| scope.spawn(move || start(me, &mut ()))).collect();
        let first = start(0, observer);
        let others =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        [first].into_iter().chain(others).collect::<Result<Vec<_>, _>>()
    })?;
    if let Some((_, flow, why)) =
        parts.iter_mut().filter_map(|(engine, _)| engine.network.failed.take()).min()
    {
        return Err(SetupError::Failed { flow: flow as usize, why });
    }
    match parts[0].1 {
        End::Ended => {}
        End::Silence => return Err(silence(setup, &partition, &parts)),
        End::Stopped => return Err(SetupError::Observer),
    }
    let end = end(setup, parts.iter().map(|(engine, _)| &engine.network));
    let (mut all, _) = parts.remove(0);
    all.close(end);
    for (mut other, _) in parts {
        other.close(end);
        all.add(other);
    }
    Ok(all.outcome(end))
}

/// Returns whether several threads may run the setup: hosts affect each other only over links, each with a delay.
fn may_divide<'a, H: Hosts<'a>>(setup: &Setup) -> bool {
    // In whole ns, packets on a fast link may take no time, and be simultaneous.
    let takes_time = |rate: Rate| {
        !setup.conventions.whole_nanos
            || rate.time_for(setup.acknowledgement().into()) >= Duration::from_nanos(1)
    };
    let links = &setup.topology;
    // The counts of a script are of all ports.
    let is_local = setup.dependencies.is_empty() && setup.faults.is_empty();
    is_local && H::may_divide(setup) && shortest_delay(setup) > 0 && links.rates().all(takes_time)
}

/// Returns the end of a run, ps: the end of the last flow, or of the last event if flows remain.
fn end<'a, P: 'a>(setup: &Setup, parts: impl Iterator<Item = &'a Network<'a, P>> + Clone) -> u64 {
    let finished: usize = parts.clone().map(|part| part.finished.len()).sum();
    let of = |part: &Network<'a, P>| if finished == setup.flows.len() { part.last_end } else { part.now };
    parts.map(of).max().unwrap_or_default()
}

/// Returns the shortest delay of a link, ps.
pub(super) fn shortest_delay(setup: &Setup) -> u64 {
    setup.topology.links().iter().map(|link| picos(link.delay)).min().unwrap_or_default()
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All flows ended, or the time of the setup.
    Ended,
    /// Flows remain, but no event is scheduled.
    Silence,
    /// The observer has ended the run, or a flow has failed.
    Stopped,
}

fn silence<'a, H: Hosts<'a>>(
    setup: &Setup,
    partition: &Partition,
    parts: &[(Engine<'a, H>, End)],
) -> SetupError {
    let finished = parts.iter().flat_map(|(engine, _)| &engine.network.finished);
    let ended: HashSet<usize> = finished.map(|flow| flow.flow).collect();
    let flow = (0..setup.flows.len()).find(|flow| !ended.contains(flow)).unwrap_or_default();
    let hosts = |host: u32| &parts[usize::from(partition.owners[host as usize])].0.hosts;
    let [source, destination] = [setup.flows[flow].source, setup.flows[flow].destination].map(hosts);
    SetupError::Silence { flow, state: source.state(destination, flow as u32) }
}

/// Part of a run: the nodes of one thread.
struct Engine<'a, H: Hosts<'a>> {
    network: Network<'a, H::Packet>,
    hosts: H,
    series: Series,
}

impl<'a, H: Hosts<'a>> Engine<'a, H> {
    /// Runs all events window by window, until all flows of all threads have ended.
    fn run(&mut self, exchange: &Exchange<H::Packet>, observer: &mut dyn Observer) -> End {
        let setup = self.network.setup;
        let limit = picos(setup.limit);
        let flows = setup.flows.len() as u64;
        let length = match shortest_delay(setup) {
            0 => EXPIRE,
            delay => delay.min(EXPIRE),
        };
        let (mut reported, mut is_due, mut is_ended) = (0, false, false);
        for round in 0.. {
            let next = self.network.events.next_at().unwrap_or(u64::MAX);
            let (finished, events) = (self.network.finished.len() as u64, self.network.counts.events);
            let own = State { next, finished, events, is_ended };
            let (messages, all) = self.network.meet(exchange, round, own);
            messages.into_iter().for_each(|message| self.network.accept(message));
            if all.is_ended {
                return End::Stopped;
            }
            if is_due {
                let (finished, queues) = (all.finished as usize, exchange.queues());
                let time = Duration::from_nanos(all.next.min(limit) / 1000);
                let state = RunState { finished, events: all.events, time, queues: &queues };
                is_ended = observer.state(&state).is_break();
            }
            // The report follows in the next round, when all threads have published their queues.
            is_due = all.events / REPORT > reported;
            if is_due {
                reported = all.events / REPORT;
                self.network.publish_queues(exchange);
            }
            if all.finished == flows {
                break;
            }
            if all.next == u64::MAX {
                // With a failed link, flows may remain for which no event is scheduled.
                let is_down = self.network.ports.iter().any(|port| port.is_down);
                return if is_down { End::Ended } else { End::Silence };
            }
            if all.next > limit {
                self.network.now = limit;
                break;
            }
            // A change finds all packets that are on the links: those that other threads sent before, too.
            let changes = setup.changes.iter().map(|change| picos(change.at));
            let end = changes.filter(|at| *at > all.next).fold(all.next.saturating_add(length), u64::min);
            self.window(end.min(limit.saturating_add(1)));
            is_ended |= self.network.captures.report(observer).is_break() | self.network.failed.is_some();
        }
        End::Ended
    }

    /// Runs the events before `end`.
    fn window(&mut self, end: u64) {
        while let Some((at, order, event)) = self.network.events.pop_before(end) {
            (self.network.now, self.network.order) = (at, order);
            self.network.counts.events += 1;
            self.handle(event.unpack());
        }
    }

    /// Ends this part of the run at `end`: the events of the last window may be later.
    fn close(&mut self, end: u64) {
        self.network.close(end);
        self.series.retain(|row| row.time * 1000 <= end);
    }

    /// Adds the part of another thread.
    fn add(&mut self, other: Self) {
        let Network { finished, counts, trace, packets, queues, latencies, .. } = other.network;
        self.network.finished.extend(finished);
        self.network.counts.add(&counts);
        self.network.trace = self.network.trace.wrapping_add(trace);
        self.network.queues.add(&queues);
        self.network.latencies.extend(latencies);
        self.network.packets.add(packets);
        self.series.iter_mut().zip(&other.series).for_each(|(row, more)| row.add(more));
        self.hosts.add(other.hosts);
    }

    fn outcome(self, end: u64) -> Outcome {
        let Network { mut finished, counts, trace, ports, packets, queues, mut latencies, .. } = self.network;
        latencies.sort_unstable();
        let mut faults = Vec::new();
        let scripts = ports.iter().filter_map(|port| port.script.as_ref());
        scripts.for_each(|script| script.count(&mut faults));
        finished.sort_by_key(|flow| (flow.start + flow.time, flow.flow));
        Outcome {
            finished,
            events: counts.events,
            packets: counts.packets,
            retransmitted: self.hosts.retransmitted(),
            time: Duration::from_nanos(end / 1000),
            trace,
            queue_max: counts.queue_max,
            latencies,
            doubled: self.hosts.doubled(),
            lost: counts.lost,
            dropped: counts.dropped,
            marked: counts.marked,
            direct_responses: counts.direct_responses,
            forged: counts.forged,
            vendor_opcodes: counts.vendor_opcodes,
            faults,
            pauses: counts.pauses,
            paused: Duration::from_nanos(counts.paused / 1000),
            series: self.series,
            packets_most: packets.most(),
            memory: H::memory(),
            queues,
        }
    }

    fn handle(&mut self, event: Event) {
        let Self { network, hosts, .. } = self;
        match event {
            Event::Arrive { port, packet } => {
                let Port { switch, captured, .. } = network.ports[port as usize];
                if let Some(captured) = captured {
                    network.capture((captured, false), packet);
                }
                match switch {
                    Some(switch) => network.arrive(switch, port, packet),
                    None => {
                        network.note(port, packet);
                        hosts.receive(network, port, packet);
                    }
                }
            }
            Event::Look { port } => {
                if network.ports[port as usize].look_at == Some(network.now) {
                    network.ports[port as usize].look_at = None;
                    self.serve(port);
                }
            }
            Event::Start(flow) => {
                network.count_for(network.owner_of(flow));
                hosts.start(network, flow);
            }
            Event::Pause { port, on, .. } => {
                network.pause(port, on);
                self.serve(port);
            }
            Event::Timer(flow) => hosts.timer(network, flow),
            Event::Expire(flow) => hosts.expire(network, flow),
            Event::Sample => {
                network.count_for(0);
                self.sample();
            }
            Event::Release(port) => network.release(port),
            Event::Disconnect(flow) => hosts.disconnect(network, flow),
            Event::Change(change) => {
                network.count_for(0);
                self.change(change);
            }
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

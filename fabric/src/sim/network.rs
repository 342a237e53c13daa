//! Links and switches, and the counts of a run.

use super::captures::Captures;
use super::counts::Counts;
use super::event::{Event, Packed};
use super::exchange::{Exchange, Message, State};
use super::measure::Queues;
use super::outcome::Finished;
use super::packet_pool::{LinkPacket, PacketPool};
use super::partition::Partition;
use super::port::{NO_PATH, Port, Routes, Waiting, add_scripts, mark_captured, mix, ports, sampled};
use super::setup::{Dependency, Setup, SetupError};
use super::shared_buffer::{SharedBuffer, Taken, buffers};
use crate::Probability;
use crate::classes::{ClassId, Queued};
use crate::egress::Snapshot;
use crate::events::{Events, Ranked};
use crate::random::Random;
use cc::{Instant, Rate};
use roce::wire::format::PortState;
use roce::wire::format::aecn::Load;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// Time from a drop to its flow's [`Event::Expire`], in ps: 500 µs.
pub(super) const EXPIRE: u64 = 500_000_000;
/// Flows that all start within this time (ps) count as simultaneous: 100 µs.
const AT_ONCE: u64 = 100_000_000;
const PAUSE_BYTES: u32 = 64;

pub(super) fn picos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4000).saturating_mul(1000)
}

/// Returns, per flow, the number of flows that must end before it and the flows that depend on it. Both are empty without dependencies.
fn dependencies(setup: &Setup) -> (Vec<u32>, Vec<Vec<u32>>) {
    if setup.dependencies.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let (mut waits, mut followers) = (vec![0; setup.flows.len()], vec![Vec::new(); setup.flows.len()]);
    for &Dependency { flow, after } in &setup.dependencies {
        waits[flow as usize] += 1;
        followers[after as usize].push(flow);
    }
    (waits, followers)
}

/// Links and switches between the hosts, of which each thread of a run has a copy, and changes only its own nodes. Times are ps.
pub(super) struct Network<'a, P> {
    pub(super) setup: &'a Setup,
    /// Number of this thread.
    me: u16,
    /// Thread of each host.
    owners: Arc<[u16]>,
    /// Events for other threads, per thread.
    outgoing: Vec<Vec<Message<P>>>,
    pub(super) now: u64,
    /// Order of the event that happens now.
    pub(super) order: u64,
    pub(super) events: Events<Packed>,
    pub(super) packets: PacketPool<P>,
    pub(super) ports: Vec<Port>,
    pub(super) first_ports: Vec<u32>,
    pub(super) routes: Routes,
    pub(super) buffers: Vec<SharedBuffer>,
    /// Per flow: its start with jitter, and the hash of its five-tuple.
    pub(super) starts: Vec<u64>,
    hashes: Vec<u64>,
    /// The ports of the time series.
    pub(super) sampled: Vec<u32>,
    /// Per flow: number of flows that must end before it, and the flows that depend on it. Empty without dependencies.
    waits: Vec<u32>,
    followers: Vec<Vec<u32>>,
    /// Per flow: base RTT (ps) and slowest link of its path before the first change. Empty if nothing changes.
    paths: Vec<(u64, Rate)>,
    pub(super) captures: Captures,
    pub(super) queues: Queues,
    pub(super) finished: Vec<Finished>,
    /// End of the last finished flow.
    pub(super) last_end: u64,
    /// Times from post to completion of a request.
    pub(super) latencies: Vec<Duration>,
    /// Time, flow and reason of the first failure.
    pub(super) failed: Option<(u64, u32, String)>,
    pub(super) counts: Counts,
    pub(super) trace: u64,
    /// Start of the last flow. Queue lengths count until then, because the network drains afterwards. `u64::MAX` if all flows start at
    /// once, or if some depend on others.
    last_start: u64,
    /// Whether switches write telemetry into packets.
    stamps: bool,
    /// Largest additional delay of a path, ps.
    spread: u64,
    /// Random numbers for loss, detours and forged reports.
    dice: Random,
}

impl<'a, P: LinkPacket> Network<'a, P> {
    /// Creates the network of thread `me`.
    pub(super) fn new(
        setup: &'a Setup,
        stamps: bool,
        partition: &Partition,
        me: u16,
    ) -> Result<Self, SetupError> {
        let owners = &partition.owners;
        let mut ports = ports(setup, owners);
        if !setup.faults.is_empty() {
            add_scripts(setup, &mut ports);
        }
        mark_captured(setup, &mut ports);
        let routes = Routes::new(&setup.topology, &ports);
        routes.check()?;
        let (first_ports, buffers) = buffers(setup, &ports);
        let mut random = Random::new(setup.seed);
        let jitter = picos(setup.jitter) / 1000 + 1;
        let begun = setup.flows.iter().map(|flow| {
            let start = picos(flow.start) + random.below(jitter) * 1000;
            // Every flow has its own UDP source port, which the random number represents.
            let hash = mix(u64::from(flow.source) << 32 | u64::from(flow.destination)) ^ random.next();
            (start, hash)
        });
        let (starts, hashes): (Vec<u64>, Vec<u64>) = begun.unzip();
        let (waits, followers) = dependencies(setup);
        let last_start = starts.iter().copied().max().filter(|&start| start >= AT_ONCE && waits.is_empty());
        let mut events = Events::default();
        for (flow, &start) in starts.iter().enumerate() {
            let is_own = owners[setup.flows[flow].source as usize] == me;
            if (is_own || P::HAS_CONNECTIONS) && waits.get(flow).is_none_or(|waits| *waits == 0) {
                events.push(start, 0, Packed::new(Event::Start(flow as u32)));
            }
        }
        if setup.sampling.is_some() {
            events.push(0, 0, Packed::new(Event::Sample));
        }
        for (number, change) in setup.changes.iter().enumerate() {
            events.push(picos(change.at), 0, Packed::new(Event::Change(number as u32)));
        }
        let mut network = Self {
            setup,
            me,
            owners: Arc::clone(owners),
            outgoing: (0..partition.count).map(|_| Vec::new()).collect(),
            sampled: sampled(setup, &ports),
            now: 0,
            order: 0,
            events,
            packets: PacketPool::default(),
            ports,
            first_ports,
            routes,
            buffers,
            starts,
            hashes,
            waits,
            followers,
            paths: Vec::new(),
            captures: Captures::default(),
            queues: Queues::default(),
            finished: Vec::new(),
            last_end: 0,
            latencies: Vec::new(),
            failed: None,
            counts: Counts::default(),
            trace: 0,
            last_start: last_start.unwrap_or(u64::MAX),
            stamps,
            spread: picos(setup.spread),
            dice: Random::new(!setup.seed),
        };
        if !setup.changes.is_empty() {
            network.paths = (0..setup.flows.len() as u32).map(|flow| network.path(flow)).collect();
        }
        Ok(network)
    }

    /// Adds the final queue lengths until the end of the run at `now`.
    pub(super) fn close(&mut self, now: u64) {
        let end = now.min(self.last_start);
        let is_own = |port: &&Port| self.ports[port.peer as usize].peer_owner == self.me;
        for port in self.ports.iter().filter(|port| port.switch.is_some()).filter(is_own) {
            self.queues.was(port.bytes, end.saturating_sub(port.changed));
        }
    }

    /// Publishes the queues of the sampled ports that belong to this thread.
    pub(super) fn publish_queues(&self, exchange: &Exchange<P>) {
        for (sampled, &port) in self.sampled.iter().enumerate() {
            let port = &self.ports[port as usize];
            if self.ports[port.peer as usize].peer_owner == self.me {
                exchange.publish_queue(sampled, port.bytes);
            }
        }
    }

    pub(super) fn push(&mut self, at: u64, event: Event) {
        let event = Packed::new(event);
        self.events.push(at, self.order_of(at, event), event);
    }

    /// Returns the order of an event that the current event schedules (see [`Event`]).
    #[inline]
    fn order_of(&self, at: u64, event: Packed) -> u64 {
        let ahead = u32::try_from(at - self.now).unwrap_or(u32::MAX);
        let before = if P::HAS_CONNECTIONS { mix(self.order ^ event.rank()) } else { self.order };
        u64::from(!ahead) << 32 | before >> 32
    }

    /// Schedules an event of a flow at the host of its destination, `ahead` ps from now.
    pub(super) fn push_to_destination(&mut self, flow: u32, ahead: u64, event: Event) {
        let host = self.setup.flows[flow as usize].destination;
        self.push_to(self.owners[host as usize], self.now + ahead, event);
    }

    /// Schedules an event at a node of thread `owner`.
    #[inline]
    fn push_to(&mut self, owner: u16, at: u64, event: Event) {
        if owner == self.me {
            return self.push(at, event);
        }
        let (packed, mut packet) = (Packed::new(event), None);
        let order = self.order_of(at, packed);
        if let Event::Arrive { packet: place, .. } = event {
            packet = Some(self.packets.send(place));
        }
        self.outgoing[usize::from(owner)].push(Message { at, order, event: packed, packet });
    }

    /// Schedules an event that another thread has sent.
    pub(super) fn accept(&mut self, Message { at, order, event, packet }: Message<P>) {
        let event = match (event.unpack(), packet) {
            (Event::Arrive { port, .. }, Some(content)) => {
                Packed::new(Event::Arrive { port, packet: self.packets.accept(content) })
            }
            _ => event,
        };
        self.events.push(at, order, event);
    }

    /// Exchanges events with the other threads after a round.
    pub(super) fn meet(
        &mut self,
        exchange: &Exchange<P>,
        round: usize,
        own: State,
    ) -> (Vec<Message<P>>, State) {
        exchange.meet((self.me.into(), round), own, &mut self.outgoing)
    }

    /// Counts the current event, which every thread handles, only on thread `owner`.
    pub(super) const fn count_for(&mut self, owner: u16) {
        self.counts.events -= (self.me != owner) as u64;
    }

    /// Returns the thread of a flow's source.
    pub(super) fn owner_of(&self, flow: u32) -> u16 {
        self.owners[self.setup.flows[flow as usize].source as usize]
    }

    /// Returns whether a host belongs to this thread.
    pub(super) fn owns(&self, host: u32) -> bool {
        self.owners[host as usize] == self.me
    }

    /// Records the failure of a flow, which ends the run. Of failures in the same ps, that of the flow with the lowest number counts.
    #[cold]
    pub(super) fn fail_flow(&mut self, flow: u32, why: String) {
        if self.failed.as_ref().is_none_or(|(at, first, _)| (self.now, flow) < (*at, *first)) {
            self.failed = Some((self.now, flow, why));
        }
    }

    pub(super) const fn instant(&self) -> Instant {
        Instant::from_nanos(self.now / 1000)
    }

    pub(super) fn line(&self, host: u32) -> Rate {
        self.ports[host as usize].rate
    }

    pub(super) fn look(&mut self, port: u32, at: u64) {
        let place = &mut self.ports[port as usize];
        if place.look_at.is_none_or(|look| at < look) {
            place.look_at = Some(at);
            self.push(at, Event::Look { port });
        }
    }

    /// Returns whether a port may send now. If its link is busy, schedules an [`Event::Look`] for the end of the transmission.
    pub(super) fn is_free(&mut self, port: u32) -> bool {
        let place = &self.ports[port as usize];
        if place.is_stopped() {
            return false;
        }
        let free_at = place.free_at;
        if free_at > self.now {
            self.look(port, free_at);
            return false;
        }
        true
    }

    /// Sends a packet; returns when the link is free again.
    pub(super) fn transmit(&mut self, port: u32, packet: u32) -> u64 {
        let size = self.packets.get(packet).size();
        let whole = self.setup.conventions.whole_nanos;
        let place = &mut self.ports[port as usize];
        place.free_at = self.now + place.serialisation(size, whole);
        place.tx_bytes += u64::from(size);
        let (free_at, delay, peer, owner) = (place.free_at, place.delay, place.peer, place.peer_owner);
        let (is_host, loss, captured) = (place.switch.is_none(), place.loss, place.captured);
        self.counts.packets += u64::from(is_host);
        if let Some(captured) = captured {
            self.capture((captured, true), packet);
        }
        if loss.happens(&mut self.dice) {
            self.counts.lost += 1;
            self.packets.give_back(packet);
            return free_at;
        }
        let at = free_at + delay + if is_host { self.detour() } else { 0 };
        if self.ports[port as usize].script.is_some() {
            self.transmit_by_script(port, packet, at);
        } else {
            self.push_to(owner, at, Event::Arrive { port: peer, packet });
        }
        free_at
    }

    /// Captures a frame. `port` is the index of the captured port, and whether that port sends the frame.
    #[cold]
    pub(super) fn capture(&mut self, port: (u16, bool), packet: u32) {
        if let Some(frame) = self.packets.get_mut(packet).frame() {
            self.captures.add(port, self.now, frame);
        }
    }

    /// Returns the additional delay of the next frame's path, in ps.
    fn detour(&mut self) -> u64 {
        const PATHS: u64 = 4;
        match self.spread {
            0 => 0,
            spread => self.dice.below(PATHS) * spread / (PATHS - 1),
        }
    }

    #[inline]
    pub(super) fn serve(&mut self, switch: u32, port: u32) {
        if !self.is_free(port) {
            return;
        }
        let instant = self.instant();
        let place = &mut self.ports[port as usize];
        let Some((class, Queued { buf: Waiting { packet, size }, ready })) = place.queue.take(instant) else {
            return;
        };
        let ingress = self.packets.ingress(packet);
        let resumes = self.leaves(switch, port, ingress, size);
        if self.packets.get(packet).is_looked_at() {
            self.mark_and_stamp(switch, port, packet, class, instant.saturating_since(ready));
        }
        if let Some(shares) = &mut self.ports[port as usize].shares {
            shares.left(instant, class, self.packets.get(packet).size().into());
        }
        let free_at = self.transmit(port, packet);
        if resumes {
            self.send_pause(ingress, false);
        }
        if self.ports[port as usize].queue.frames() > 0 {
            self.look(port, free_at);
        }
    }

    fn queue_is(&mut self, port: u32, bytes: u64) {
        let place = &mut self.ports[port as usize];
        let until = self.now.min(self.last_start);
        self.queues.was(place.bytes, until.saturating_sub(place.changed));
        (place.changed, place.bytes) = (self.now, bytes);
        self.counts.queue_max = self.counts.queue_max.max(bytes);
    }

    fn mark_and_stamp(&mut self, switch: u32, port: u32, packet: u32, class: ClassId, sojourn: Duration) {
        let time = self.instant();
        let place = &mut self.ports[port as usize];
        let queue = place.queue.bytes(class);
        let content = self.packets.get_mut(packet);
        if place.marker.marks(queue) && content.mark() {
            self.counts.marked += 1;
        }
        if !self.stamps || self.setup.linux_ioam {
            return;
        }
        let tx_bytes = place.tx_bytes;
        let reported =
            place.shares.as_mut().map_or((tx_bytes, queue), |shares| shares.reported(time, class, queue));
        let at = Snapshot { time, tx_bytes, queue, reported, sojourn };
        let size = u64::from(content.size());
        let load = place.load.as_mut().map_or_else(Load::default, |load| load.on_departure(&at, size));
        content.stamp(&PortState {
            switch: (switch % 4095 + 1) as u16,
            port: place.place,
            rate: place.rate,
            time: time.as_nanos(),
            tx_bytes: reported.0,
            queue: if self.setup.tell_sojourn { place.rate.bytes_in(sojourn) } else { reported.1 },
            sojourn: sojourn.as_nanos() as u64,
            load,
        });
    }

    /// Stamps a packet as an IOAM node of Linux does: with the queue length at enqueue.
    fn stamp_as_linux(&mut self, switch: u32, port: u32, packet: u32, class: ClassId) {
        let time = self.instant().as_nanos();
        let place = &self.ports[port as usize];
        self.packets.get_mut(packet).stamp_as_linux(&PortState {
            switch: (switch % 4095 + 1) as u16,
            port: place.place,
            rate: place.rate,
            time,
            tx_bytes: 0,
            queue: place.queue.bytes(class),
            sojourn: 0,
            load: Load::default(),
        });
    }

    /// Applies the setup's `forgery` and `drop_vendor_opcodes` to a packet from a host. Returns whether to forward it.
    fn comes_in(&mut self, ingress: u32, packet: u32) -> bool {
        let is_host = || self.ports[self.ports[ingress as usize].peer as usize].switch.is_none();
        let Setup { forgery, drop_vendor_opcodes, .. } = *self.setup;
        if (!drop_vendor_opcodes && forgery == Probability::NEVER) || !is_host() {
            return true;
        }
        if drop_vendor_opcodes && self.packets.get(packet).has_vendor_opcode() {
            self.counts.vendor_opcodes += 1;
            return false;
        }
        if forgery.happens(&mut self.dice) && self.packets.get_mut(packet).forge(&mut self.dice) {
            self.counts.forged += 1;
        }
        true
    }

    pub(super) fn arrive(&mut self, switch: u32, ingress: u32, packet: u32) {
        if self.comes_in(ingress, packet) {
            self.forward(switch, ingress, packet);
        } else {
            self.packets.give_back(packet);
        }
    }

    fn forward(&mut self, switch: u32, ingress: u32, packet: u32) {
        self.note(ingress, packet);
        let content = self.packets.get(packet);
        let size = content.size();
        let (host, hash) = content.way(self.setup, &self.hashes);
        let class = content.class(self.setup);
        let port = self.routes.port(switch, host, hash);
        if port == NO_PATH {
            return self.drop_packet(packet);
        }
        let inside = (ingress - self.first_ports[switch as usize]) as usize;
        if let Some(answer) = self.respond_directly(port, packet, class) {
            self.forward(switch, ingress, answer);
        }
        match self.buffers[switch as usize].take(inside, u64::from(size)) {
            Taken::No => return self.drop_packet(packet),
            Taken::Pause => self.send_pause(ingress, true),
            Taken::Yes => {}
        }
        self.packets.came_by(packet, ingress);
        let bytes = self.ports[port as usize].bytes + u64::from(size);
        self.queue_is(port, bytes);
        if self.setup.linux_ioam {
            self.stamp_as_linux(switch, port, packet, class);
        }
        let ready = self.instant();
        let waiting = Queued { buf: Waiting { packet, size }, ready };
        self.ports[port as usize].queue.push(class, waiting);
        self.serve(switch, port);
    }

    #[cold]
    pub(super) fn drop_packet(&mut self, packet: u32) {
        self.counts.dropped += 1;
        self.lose(packet);
    }

    /// Frees a lost packet, and schedules its flow's [`Event::Expire`].
    pub(super) fn lose(&mut self, packet: u32) {
        if let Some(flow) = self.packets.get(packet).expiring_flow() {
            self.push_to(self.owner_of(flow), self.now + EXPIRE, Event::Expire(flow));
        }
        self.packets.give_back(packet);
    }

    /// Frees the buffer space of a packet that arrived at `ingress` and leaves a switch's queue. Returns whether its sender may resume.
    #[inline(always)]
    pub(super) fn leaves(&mut self, switch: u32, port: u32, ingress: u32, size: u32) -> bool {
        let bytes = self.ports[port as usize].bytes - u64::from(size);
        self.queue_is(port, bytes);
        let inside = (ingress - self.first_ports[switch as usize]) as usize;
        self.buffers[switch as usize].give_back(inside, u64::from(size))
    }

    fn respond_directly(&mut self, port: u32, packet: u32, class: ClassId) -> Option<u32> {
        let now = self.instant();
        let place = &mut self.ports[port as usize];
        let (responder, load) = (place.responder.as_mut()?, place.load.as_ref()?);
        let waiting = place.queue.bytes(class);
        let subscription = self.packets.get(packet).subscription(responder, now, waiting)?;
        let answer = self.packets.take();
        if !self.packets.get_mut(answer).answer(responder, now, &subscription, (load, waiting)) {
            self.packets.give_back(answer);
            return None;
        }
        self.counts.direct_responses += 1;
        Some(answer)
    }

    /// Sends a PFC pause, or its end, to the peer of `ingress`. It overtakes queued frames.
    pub(super) fn send_pause(&mut self, ingress: u32, on: bool) {
        self.counts.pauses += u64::from(on);
        let place = &mut self.ports[ingress as usize];
        place.pauses_sent = place.pauses_sent.wrapping_add(1) & (u32::MAX >> 1);
        let at =
            self.now + place.serialisation(PAUSE_BYTES, self.setup.conventions.whole_nanos) + place.delay;
        let (port, owner, number) = (place.peer, place.peer_owner, place.pauses_sent);
        self.push_to(owner, at, Event::Pause { port, on, number });
    }

    pub(super) fn pause(&mut self, port: u32, on: bool) {
        let place = &mut self.ports[port as usize];
        if on && !place.is_paused {
            place.paused_since = self.now;
        } else if !on && place.is_paused {
            self.counts.paused += self.now - place.paused_since;
        }
        place.is_paused = on;
    }

    pub(super) fn finish(&mut self, flow: u32) {
        let start = self.starts[flow as usize];
        let nanos = |picos: u64| Duration::from_nanos(picos / 1000);
        let path = self.paths.get(flow as usize).copied();
        let (base_rtt, slowest) = path.unwrap_or_else(|| self.path(flow));
        let spec = &self.setup.flows[flow as usize];
        self.last_end = self.now;
        self.finished.push(Finished {
            flow: flow as usize,
            start: nanos(start),
            time: nanos(self.now - start),
            alone: nanos(self.setup.alone(spec, base_rtt, slowest)),
        });
        for follower in self.followers.get_mut(flow as usize).map(mem::take).unwrap_or_default() {
            let follows = follower as usize;
            self.waits[follows] -= 1;
            if self.waits[follows] == 0 {
                self.starts[follows] += self.now;
                self.push(self.starts[follows], Event::Start(follower));
            }
        }
    }

    /// Returns the base RTT in ps of a flow's path, and the rate of its slowest link. The RTT is that of HPCC's authors: twice each link's
    /// delay, and one full payload per link.
    fn path(&self, flow: u32) -> (u64, Rate) {
        let spec = &self.setup.flows[flow as usize];
        let (mut port, mut rtt, mut slowest) = (spec.source, 0, Rate::from_bps(u64::MAX));
        loop {
            let place = &self.ports[port as usize];
            rtt += 2 * place.delay + place.serialisation(self.setup.conventions.payload, false);
            slowest = slowest.min(place.rate);
            match self.ports[place.peer as usize].switch {
                Some(switch) => port = self.routes.port(switch, spec.destination, self.hashes[flow as usize]),
                None => return (rtt, slowest),
            }
        }
    }

    /// Adds an arrival to the trace, the sum of a hash of each (FNV-1a over words). The sum does not depend on the order of simultaneous
    /// arrivals at different nodes.
    pub(super) fn note(&mut self, port: u32, packet: u32) {
        let [first, second] = self.packets.get(packet).digest();
        let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        let words = [self.now, u64::from(port) << 32 | first, second];
        self.trace = self.trace.wrapping_add(words.into_iter().fold(0xcbf2_9ce4_8422_2325, step));
    }
}

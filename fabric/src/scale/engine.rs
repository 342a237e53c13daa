//! The loop, the hosts and the switches.

use super::events::{Event, Events};
use super::flow::{FlowState, Sender};
use super::measure::{Queues, Row, Series};
use super::outcome::{Finished, Outcome};
use super::packet::{Packet, Packets, Stamp};
use super::port::{Port, Routes, mix, ports};
use super::setup::{Red, Setup, SetupError};
use super::shared_buffer::{SharedBuffer, Taken};
use crate::random::Random;
use cc::{Ack, Algorithm, CongestionController, FairFloor, Instant, Rate};
use std::time::Duration;

/// Events between two looks at the progress.
const WATCH: u64 = 1 << 18;
/// How long after a drop its flow is asked whether it goes on (ps): 500 µs.
const EXPIRE: u64 = 500_000_000;
/// Flows that all begin within this time (ps) begin at once: 100 µs.
const AT_ONCE: u64 = 100_000_000;
/// Bytes of a pause frame.
const PAUSE_BYTES: u32 = 64;

fn picos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4000).saturating_mul(1000)
}

/// A host's flows that run, and whose turn it is.
#[derive(Default)]
struct Host {
    active: Vec<u32>,
    turn: usize,
    /// Flows that come here.
    incoming: u32,
}

/// Counts for the outcome.
#[derive(Default)]
struct Counts {
    events: u64,
    packets: u64,
    dropped: u64,
    marked: u64,
    pauses: u64,
    paused: u64,
    queue_max: u64,
}

/// Everything that a run holds.
pub(super) struct Engine<'a> {
    setup: &'a Setup,
    now: u64,
    events: Events,
    packets: Packets,
    ports: Vec<Port>,
    /// Switch ports in their switch, and the first port of each switch.
    first_ports: Vec<u32>,
    routes: Routes,
    hosts: Vec<Host>,
    buffers: Vec<SharedBuffer>,
    flows: Vec<FlowState>,
    fresh: Algorithm,
    random: Random,
    queues: Queues,
    finished: Vec<Finished>,
    series: Series,
    counts: Counts,
    trace: u64,
    limit: u64,
    /// Queues count until the last flow has begun: behind it the network only empties. To the end where all begin at once.
    last_start: u64,
}

impl<'a> Engine<'a> {
    pub(super) fn new(setup: &'a Setup) -> Result<Self, SetupError> {
        let ports = ports(&setup.topology);
        let routes = Routes::new(&setup.topology, &ports)?;
        let mut first_ports = vec![u32::MAX; setup.topology.switches()];
        let mut headrooms = vec![Vec::new(); setup.topology.switches()];
        for (id, port) in ports.iter().enumerate() {
            let Some(switch) = port.switch else { continue };
            let first = &mut first_ports[switch as usize];
            *first = (*first).min(id as u32);
            let round = 2.0 * port.delay as f64 * f64::from(port.gbps) / 8000.0;
            let rounds = setup.pfc.map_or(0.0, |pfc| pfc.headroom);
            headrooms[switch as usize].push((round * rounds) as u64);
        }
        let buffer = |rooms: Vec<u64>| SharedBuffer::new(setup.buffer, setup.pfc, rooms.into_iter());
        let mut random = Random::new(setup.seed);
        let jitter = picos(setup.jitter) / 1000 + 1;
        let flows = setup.flows.iter().map(|flow| {
            let start = picos(flow.start) + random.below(jitter) * 1000;
            // Source, destination and a source port of its own.
            let hash = mix(u64::from(flow.source) << 32 | u64::from(flow.destination)) ^ random.next();
            FlowState { start, hash, ..FlowState::default() }
        });
        let flows: Vec<FlowState> = flows.collect();
        let last_start = flows.iter().map(|flow| flow.start).max().filter(|&start| start >= AT_ONCE);
        let fresh = setup.algorithm.build().map_err(|error| SetupError::Algorithm(error.to_string()))?;
        Ok(Self {
            setup,
            now: 0,
            events: Events::default(),
            packets: Packets::default(),
            ports,
            first_ports,
            routes,
            hosts: (0..setup.topology.hosts()).map(|_| Host::default()).collect(),
            buffers: headrooms.into_iter().map(buffer).collect(),
            flows,
            fresh,
            random,
            queues: Queues::default(),
            finished: Vec::new(),
            series: Vec::new(),
            counts: Counts::default(),
            trace: 0xcbf2_9ce4_8422_2325,
            limit: picos(setup.limit),
            last_start: last_start.unwrap_or(u64::MAX),
        })
    }

    pub(super) fn run(mut self, watch: &mut dyn FnMut(usize, u64, u64)) -> Outcome {
        for (flow, state) in self.flows.iter().enumerate() {
            self.events.push(state.start, Event::Start(flow as u32));
        }
        if self.setup.sampling.is_some() {
            self.events.push(0, Event::Sample);
        }
        while self.finished.len() < self.flows.len() {
            let Some((at, event)) = self.events.pop() else { break };
            if at > self.limit {
                self.now = self.limit;
                break;
            }
            self.now = at;
            self.counts.events += 1;
            self.handle(event);
            if self.counts.events.is_multiple_of(WATCH) {
                watch(self.finished.len(), self.counts.events, self.now / 1000);
            }
        }
        self.outcome()
    }

    fn outcome(mut self) -> Outcome {
        let end = self.now.min(self.last_start);
        for port in self.ports.iter().filter(|port| port.switch.is_some()) {
            self.queues.was(port.bytes, end.saturating_sub(port.changed));
        }
        let host = size_of::<Host>() + size_of::<Port>();
        let flow = size_of::<FlowState>() + size_of::<Sender>();
        Outcome {
            finished: self.finished,
            events: self.counts.events,
            packets: self.counts.packets,
            time: Duration::from_nanos(self.now / 1000),
            trace: self.trace,
            queue_max: self.counts.queue_max,
            dropped: self.counts.dropped,
            marked: self.counts.marked,
            pauses: self.counts.pauses,
            paused: Duration::from_nanos(self.counts.paused / 1000),
            series: self.series,
            packets_most: self.packets.most(),
            memory: [flow, host],
            queues: self.queues,
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive { port, packet } => match self.ports[port as usize].switch {
                Some(switch) => self.forward(switch, port, packet),
                None => self.receive(port, packet),
            },
            Event::Look { port } => {
                if self.ports[port as usize].look_at == Some(self.now) {
                    self.ports[port as usize].look_at = None;
                    self.serve(port);
                }
            }
            Event::Start(flow) => self.start(flow),
            Event::Pause { port, on } => self.pause(port, on),
            Event::Timer(flow) => self.timer(flow),
            Event::Expire(flow) => self.expire(flow),
            Event::Sample => self.sample(),
        }
    }

    fn instant(&self) -> Instant {
        Instant::from_nanos(self.now / 1000)
    }

    fn line(&self, host: u32) -> Rate {
        Rate::from_gbps(u64::from(self.ports[host as usize].gbps))
    }

    fn start(&mut self, flow: u32) {
        let source = self.setup.flows[flow as usize].source;
        let sender = Sender::new(self.fresh, self.line(source), self.now);
        self.flows[flow as usize].sender = Some(Box::new(sender));
        self.hosts[source as usize].active.push(flow);
        self.serve(source);
    }

    fn look(&mut self, port: u32, at: u64) {
        let place = &mut self.ports[port as usize];
        if place.look_at.is_none_or(|look| at < look) {
            place.look_at = Some(at);
            self.events.push(at, Event::Look { port });
        }
    }

    /// Sends by a port what may leave now.
    fn serve(&mut self, port: u32) {
        let place = &self.ports[port as usize];
        if place.is_paused {
            return;
        }
        if place.free_at > self.now {
            let at = place.free_at;
            self.look(port, at);
            return;
        }
        match place.switch {
            Some(switch) => self.serve_switch(switch, port),
            None => self.serve_host(port),
        }
    }

    /// The link carries a packet.
    fn transmit(&mut self, port: u32, packet: u32) {
        let size = self.packets.get(packet).size;
        let whole = self.setup.conventions.whole_nanos;
        let place = &mut self.ports[port as usize];
        place.free_at = self.now + place.serialisation(size, whole);
        place.tx_bytes += u64::from(size);
        let (at, peer) = (place.free_at + place.delay, place.peer);
        self.events.push(at, Event::Arrive { port: peer, packet });
    }

    fn serve_switch(&mut self, switch: u32, port: u32) {
        let Some(packet) = self.ports[port as usize].queue.pop_front() else { return };
        let Packet { size, ingress, is_ack, .. } = *self.packets.get(packet);
        let bytes = self.ports[port as usize].bytes - u64::from(size);
        self.queue_is(port, bytes);
        let inside = (ingress - self.first_ports[switch as usize]) as usize;
        let goes_on = self.buffers[switch as usize].give_back(inside, u64::from(size));
        if !is_ack {
            self.mark_and_stamp(port, packet, bytes);
        }
        self.transmit(port, packet);
        if goes_on {
            self.tell_pause(ingress, false);
        }
        if !self.ports[port as usize].queue.is_empty() {
            let at = self.ports[port as usize].free_at;
            self.look(port, at);
        }
    }

    fn queue_is(&mut self, port: u32, bytes: u64) {
        let place = &mut self.ports[port as usize];
        let until = self.now.min(self.last_start);
        self.queues.was(place.bytes, until.saturating_sub(place.changed));
        (place.changed, place.bytes) = (self.now, bytes);
        place.most = place.most.max(bytes);
        self.counts.queue_max = self.counts.queue_max.max(bytes);
    }

    /// `bytes` wait behind the packet.
    fn mark_and_stamp(&mut self, port: u32, packet: u32, bytes: u64) {
        let place = &self.ports[port as usize];
        if let Some(Red { min, max, probability }) = self.setup.red {
            let scale = |limit: u64| limit * u64::from(place.gbps) / 100;
            let (min, max) = (scale(min), scale(max));
            let marks = bytes > max
                || bytes > min && {
                    let share = probability * (bytes - min) as f64 / (max - min) as f64;
                    ((self.random.next() >> 11) as f64) < share * (1_u64 << 53) as f64
                };
            if marks {
                self.counts.marked += 1;
                self.packets.get_mut(packet).is_marked = true;
            }
        }
        if self.setup.stamps() {
            let stamp = Stamp::new(place.gbps, self.now / 1000, place.tx_bytes, bytes);
            self.packets.get_mut(packet).stamp(stamp);
        }
    }

    /// A packet has come into a switch.
    fn forward(&mut self, switch: u32, ingress: u32, packet: u32) {
        let Packet { flow, size, is_ack, .. } = *self.packets.get(packet);
        self.note(ingress, packet);
        let spec = &self.setup.flows[flow as usize];
        let host = if is_ack { spec.source } else { spec.destination };
        let port = self.routes.port(switch, host, self.flows[flow as usize].hash ^ u64::from(is_ack));
        let inside = (ingress - self.first_ports[switch as usize]) as usize;
        match self.buffers[switch as usize].take(inside, u64::from(size)) {
            Taken::No => {
                self.counts.dropped += 1;
                self.packets.remove(packet);
                self.events.push(self.now + EXPIRE, Event::Expire(flow));
                return;
            }
            Taken::Pause => self.tell_pause(ingress, true),
            Taken::Yes => {}
        }
        self.packets.get_mut(packet).ingress = ingress;
        let bytes = self.ports[port as usize].bytes + u64::from(size);
        self.queue_is(port, bytes);
        self.ports[port as usize].queue.push_back(packet);
        self.serve(port);
    }

    /// A switch tells the other end of `ingress` to pause, or to go on. The frame waits for nobody.
    fn tell_pause(&mut self, ingress: u32, on: bool) {
        self.counts.pauses += u64::from(on);
        let place = &self.ports[ingress as usize];
        let at =
            self.now + place.serialisation(PAUSE_BYTES, self.setup.conventions.whole_nanos) + place.delay;
        self.events.push(at, Event::Pause { port: place.peer, on });
    }

    fn pause(&mut self, port: u32, on: bool) {
        let place = &mut self.ports[port as usize];
        if on && !place.is_paused {
            place.paused_since = self.now;
        } else if !on && place.is_paused {
            self.counts.paused += self.now - place.paused_since;
        }
        place.is_paused = on;
        self.serve(port);
    }

    /// Acknowledgements first, then the flows in turn.
    fn serve_host(&mut self, port: u32) {
        if let Some(packet) = self.ports[port as usize].queue.pop_front() {
            self.transmit(port, packet);
            let at = self.ports[port as usize].free_at;
            return self.look(port, at);
        }
        let host = &self.hosts[port as usize];
        let (count, turn) = (host.active.len(), host.turn);
        let mut next = u64::MAX;
        for step in 1..=count {
            let place = (turn + step) % count;
            let flow = self.hosts[port as usize].active[place];
            let bytes = self.setup.flows[flow as usize].bytes;
            let Some(sender) = &mut self.flows[flow as usize].sender else { continue };
            let Some(payload) = sender.may_send(bytes, self.setup.conventions.payload) else { continue };
            if sender.paced_until > self.now {
                next = next.min(sender.paced_until);
                continue;
            }
            let size = payload + self.setup.header();
            let packet = Packet { flow, size, payload, seq: sender.next, ..Packet::default() };
            sender.sent(self.now, payload, size, self.setup);
            self.hosts[port as usize].turn = place;
            self.counts.packets += 1;
            let packet = self.packets.insert(packet);
            self.transmit(port, packet);
            let at = self.ports[port as usize].free_at;
            return self.look(port, at);
        }
        if next < u64::MAX {
            self.look(port, next);
        }
    }

    /// A packet has come to its host.
    fn receive(&mut self, host: u32, packet: u32) {
        self.note(host, packet);
        if self.packets.get(packet).is_ack {
            let ack = *self.packets.get(packet);
            self.packets.remove(packet);
            return self.acknowledged(&ack);
        }
        let Packet { flow, seq, payload, .. } = *self.packets.get(packet);
        let state = &mut self.flows[flow as usize];
        let is_gap = seq > state.expected;
        if is_gap && std::mem::replace(&mut state.gap_told, true) {
            // It was told, and all behind it comes again.
            return self.packets.remove(packet);
        }
        if seq == state.expected {
            self.hosts[host as usize].incoming += u32::from(seq == 0);
            state.expected += u64::from(payload);
            state.gap_told = false;
        }
        let expected = state.expected;
        let size = self.setup.acknowledgement();
        let answer = self.packets.get_mut(packet);
        (answer.is_ack, answer.is_nak, answer.size) = (true, is_gap, size);
        (answer.seq, answer.payload) = (expected, 0);
        self.ports[host as usize].queue.push_back(packet);
        self.serve(host);
    }

    fn acknowledged(&mut self, packet: &Packet) {
        let (flow, now) = (packet.flow, self.now);
        let instant = self.instant();
        let spec = self.setup.flows[flow as usize];
        let line = self.line(spec.source);
        let floor = self.floor(spec.destination, packet.hops);
        let Some(sender) = &mut self.flows[flow as usize].sender else { return };
        let acked_bytes = packet.seq.saturating_sub(sender.una) as u32;
        sender.una = sender.una.max(packet.seq);
        sender.next = sender.next.max(sender.una);
        if acked_bytes > 0 {
            sender.progress = now;
        }
        if sender.una >= spec.bytes {
            return self.finish(flow);
        }
        if packet.is_nak {
            sender.next = sender.una;
            sender.algorithm.on_loss(instant);
        }
        let ce_bytes = if packet.is_marked { acked_bytes } else { 0 };
        let ack = Ack { now: instant, seq: packet.seq, next: sender.next, acked_bytes, ce_bytes, rtt: None };
        if packet.is_marked {
            sender.algorithm.on_congestion_notification(instant);
        }
        if let Algorithm::Hpcc(hpcc) = &mut sender.algorithm {
            hpcc.set_floor(floor);
        }
        if packet.hops > 0 {
            sender.algorithm.on_telemetry(&ack, &packet.telemetry());
        }
        sender.algorithm.on_ack(&ack);
        let before = sender.listen(line);
        sender.repace(before, self.setup);
        self.arm(flow);
        self.serve(spec.source);
    }

    /// What a receiver says of its own link, where it counts its flows.
    fn floor(&self, host: u32, hops: u8) -> Option<FairFloor> {
        let part = self.setup.fair_floor?;
        let flows = f64::from(self.hosts[host as usize].incoming.max(1));
        let rate = Rate::from_bps((self.line(host).as_bps() as f64 * part / flows) as u64);
        Some(FairFloor { hop: hops.checked_sub(1)?, rate })
    }

    /// Its algorithm's timer is set where it wants it earlier.
    fn arm(&mut self, flow: u32) {
        let now = self.now;
        let Some(sender) = &mut self.flows[flow as usize].sender else { return };
        let Some(at) = sender.algorithm.poll_timeout() else { return };
        let at = (at.as_nanos() * 1000).max(now + 1000);
        if sender.timer.is_none_or(|timer| at < timer || timer <= now) {
            sender.timer = Some(at);
            self.events.push(at, Event::Timer(flow));
        }
    }

    fn timer(&mut self, flow: u32) {
        let (instant, now) = (self.instant(), self.now);
        let source = self.setup.flows[flow as usize].source;
        let line = self.line(source);
        let Some(sender) = &mut self.flows[flow as usize].sender else { return };
        if sender.timer != Some(now) {
            return;
        }
        sender.timer = None;
        sender.algorithm.on_timeout(instant);
        let before = sender.listen(line);
        sender.repace(before, self.setup);
        self.arm(flow);
        self.serve(source);
    }

    /// A packet was dropped a while ago; if nothing has come of it since, the sender goes back.
    fn expire(&mut self, flow: u32) {
        let (instant, now) = (self.instant(), self.now);
        let source = self.setup.flows[flow as usize].source;
        let Some(sender) = &mut self.flows[flow as usize].sender else { return };
        if now - sender.progress >= EXPIRE / 2 && sender.next > sender.una {
            sender.next = sender.una;
            sender.progress = now;
            sender.algorithm.on_loss(instant);
            self.flows[flow as usize].gap_told = false;
            self.serve(source);
        }
    }

    fn finish(&mut self, flow: u32) {
        let spec = &self.setup.flows[flow as usize];
        self.flows[flow as usize].sender = None;
        self.hosts[spec.destination as usize].incoming -= 1;
        let host = &mut self.hosts[spec.source as usize];
        if let Some(place) = host.active.iter().position(|&active| active == flow) {
            host.active.remove(place);
            // Whose turn it was has moved by one.
            if place <= host.turn {
                host.turn = host.turn.saturating_sub(1);
            }
        }
        let start = self.flows[flow as usize].start;
        let nanos = |picos: u64| Duration::from_nanos(picos / 1000);
        let (base_rtt, slowest) = self.path(flow);
        self.finished.push(Finished {
            flow: flow as usize,
            start: nanos(start),
            time: nanos(self.now - start),
            alone: nanos(self.setup.alone(spec, base_rtt, slowest)),
        });
        self.serve(self.setup.flows[flow as usize].source);
    }

    /// A flow's round trip on an idle path as the authors count it, each link's delay twice and a full payload's time once;
    /// and the rate of its slowest link.
    fn path(&self, flow: u32) -> (u64, Rate) {
        let spec = &self.setup.flows[flow as usize];
        let (mut port, mut rtt, mut slowest) = (spec.source, 0, u32::MAX);
        loop {
            let place = &self.ports[port as usize];
            rtt += 2 * place.delay + place.serialisation(self.setup.conventions.payload, false);
            slowest = slowest.min(place.gbps);
            match self.ports[place.peer as usize].switch {
                Some(switch) => {
                    port = self.routes.port(switch, spec.destination, self.flows[flow as usize].hash);
                }
                None => return (rtt, Rate::from_gbps(u64::from(slowest))),
            }
        }
    }

    fn sample(&mut self) {
        let Some(sampling) = self.setup.sampling else { return };
        let port = &self.ports[self.ports[sampling.host as usize].peer as usize];
        let flows = &self.flows[..sampling.flows.min(self.flows.len())];
        let specs = &self.setup.flows;
        let acked = |(state, spec): (&FlowState, &super::Flow)| match &state.sender {
            Some(sender) => sender.una,
            None if state.expected >= spec.bytes => spec.bytes,
            None => 0,
        };
        self.series.push(Row {
            time: self.now / 1000,
            queue: port.bytes,
            tx_bytes: port.tx_bytes,
            rates: flows.iter().map(|state| state.sender.as_ref().map_or(0, |at| at.rate.as_bps())).collect(),
            acked: flows.iter().zip(specs).map(acked).collect(),
        });
        self.events.push(self.now + picos(sampling.every).max(1000), Event::Sample);
    }

    /// Takes an arrival into the trace (FNV-1a over words).
    fn note(&mut self, port: u32, packet: u32) {
        let packet = self.packets.get(packet);
        for word in [self.now, u64::from(port) << 32 | u64::from(packet.flow), packet.seq] {
            self.trace = (self.trace ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

//! Hosts as a model: packets are descriptors, each is acknowledged, and losses are recovered by go-back-N.

use super::engine::{Hosts, Progress};
use super::event::Event;
use super::flow::{FlowState, Sender};
use super::network::{EXPIRE, Network as AnyNetwork};
use super::packet::Packet;
use super::setup::{Setup, SetupError};
use cc::{Ack, ActiveFlows, CongestionController, FlowMark, Hpcc, ReceiverLink};
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

type Network<'a> = AnyNetwork<'a, Packet>;

/// A host's active flows, served round-robin.
#[derive(Default)]
struct Host {
    active: Vec<u32>,
    turn: usize,
    /// Number of incoming flows.
    incoming: ActiveFlows,
    acknowledgements: VecDeque<u32>,
}

pub(super) struct Model<'a> {
    setup: &'a Setup,
    hosts: Vec<Host>,
    flows: Vec<FlowState>,
    marks: Vec<FlowMark>,
    count_over: Duration,
    retransmitted: u64,
}

/// Returns the period over which receivers count flows: long enough for a slow flow to send in each.
fn count_over(base_rtt: Duration) -> Duration {
    (8 * base_rtt).clamp(Duration::from_micros(100), Duration::from_millis(10))
}

impl<'a> Hosts<'a> for Model<'a> {
    type Packet = Packet;

    fn may_divide(_: &Setup) -> bool {
        true
    }

    fn new(setup: &'a Setup, _: &Network<'a>) -> Result<Self, SetupError> {
        Ok(Self {
            setup,
            hosts: (0..setup.topology.hosts()).map(|_| Host::default()).collect(),
            flows: setup.flows.iter().map(|_| FlowState::default()).collect(),
            marks: vec![FlowMark::default(); setup.flows.len()],
            count_over: count_over(setup.base_rtt()),
            retransmitted: 0,
        })
    }

    fn is_stamped(setup: &Setup) -> bool {
        setup.stamps()
    }

    fn start(&mut self, network: &mut Network<'a>, flow: u32) {
        let source = self.setup.flows[flow as usize].source;
        // Checked in `Setup::check`.
        let Ok(algorithm) = self.setup.congestion_of(flow).algorithm.build() else { return };
        let sender = Sender::new(algorithm, network.line(source), network.now);
        self.flows[flow as usize].sender = Some(Box::new(sender));
        self.hosts[source as usize].active.push(flow);
        self.serve(network, source);
    }

    /// Sends acknowledgements first, then data of the flows in turn.
    fn serve(&mut self, network: &mut Network<'a>, host: u32) {
        if !network.is_free(host) {
            return;
        }
        if let Some(packet) = self.hosts[host as usize].acknowledgements.pop_front() {
            let at = network.transmit(host, packet);
            return network.look(host, at);
        }
        let at = &self.hosts[host as usize];
        let (count, turn) = (at.active.len(), at.turn);
        let mut next = u64::MAX;
        for step in 1..=count {
            let place = (turn + step) % count;
            let flow = self.hosts[host as usize].active[place];
            let bytes = self.setup.flows[flow as usize].bytes;
            let Some(sender) = &mut self.flows[flow as usize].sender else { continue };
            let Some(payload) = sender.may_send(bytes, self.setup.conventions.payload) else { continue };
            if sender.paced_until > network.now {
                next = next.min(sender.paced_until);
                continue;
            }
            let size = payload + self.setup.header();
            let is_restart = std::mem::take(&mut sender.restarts);
            let (seq, sent) = (sender.next, network.now);
            let packet = Packet { flow, size, payload, seq, sent, is_restart, ..Packet::default() };
            sender.sent(network.now, payload, size, self.setup);
            self.hosts[host as usize].turn = place;
            let place = network.packets.take();
            *network.packets.get_mut(place) = packet;
            let at = network.transmit(host, place);
            return network.look(host, at);
        }
        if next < u64::MAX {
            network.look(host, next);
        }
    }

    fn receive(&mut self, network: &mut Network<'a>, host: u32, packet: u32) {
        if network.packets.get(packet).is_ack {
            let ack = *network.packets.get(packet);
            network.packets.give_back(packet);
            return self.acknowledged(network, &ack);
        }
        let Packet { flow, seq, payload, is_restart, .. } = *network.packets.get(packet);
        let state = &mut self.flows[flow as usize];
        state.has_sent_nak &= !is_restart;
        let is_gap = seq > state.expected;
        if is_gap && std::mem::replace(&mut state.has_sent_nak, true) {
            // The NAK was sent; everything after the gap will be sent again.
            return network.packets.give_back(packet);
        }
        if seq == state.expected {
            state.expected += u64::from(payload);
            state.has_sent_nak = false;
        }
        let expected = state.expected;
        let now = network.instant();
        let incoming = &mut self.hosts[host as usize].incoming;
        incoming.on_packet(now, self.count_over, &mut self.marks[flow as usize]);
        let flows = incoming.count().get();
        let size = self.setup.acknowledgement();
        let answer = network.packets.get_mut(packet);
        (answer.is_ack, answer.is_nak, answer.size) = (true, is_gap, size);
        (answer.seq, answer.payload, answer.flows) = (expected, 0, flows);
        self.hosts[host as usize].acknowledgements.push_back(packet);
        self.serve(network, host);
    }

    fn timer(&mut self, network: &mut Network<'a>, flow: u32) {
        let (instant, now) = (network.instant(), network.now);
        let source = self.setup.flows[flow as usize].source;
        let line = network.line(source);
        let Some(sender) = &mut self.flows[flow as usize].sender else { return };
        if sender.timer != Some(now) {
            return;
        }
        sender.timer = None;
        sender.algorithm.on_timeout(instant);
        let before = sender.listen(line);
        sender.repace(before, self.setup);
        self.arm(network, flow);
        self.serve(network, source);
    }

    /// Goes back to the oldest unacknowledged byte, if the flow has made no progress for [`EXPIRE`] / 2. Otherwise looks again then: what was
    /// dropped may not be missed yet, because packets before it wait in a queue.
    fn expire(&mut self, network: &mut Network<'a>, flow: u32) {
        let (instant, now) = (network.instant(), network.now);
        let source = self.setup.flows[flow as usize].source;
        let Some(sender) = &mut self.flows[flow as usize].sender else { return };
        if sender.next == sender.una {
            return;
        }
        let due = sender.progress + EXPIRE / 2;
        if now < due {
            if sender.expires <= now {
                sender.expires = due;
                network.push(due, Event::Expire(flow));
            }
            return;
        }
        self.retransmitted += sender.go_back(self.setup.conventions.payload);
        (sender.progress, sender.restarts) = (now, true);
        sender.algorithm.on_loss(instant);
        self.serve(network, source);
    }

    /// Does nothing: a model's destination needs no connection.
    fn disconnect(&mut self, _: &mut Network<'a>, _: u32) {}

    fn progress(&self, flow: u32) -> Progress {
        let (state, bytes) = (&self.flows[flow as usize], self.setup.flows[flow as usize].bytes);
        match &state.sender {
            Some(sender) => Progress { rate: sender.rate.as_bps(), acked: sender.una },
            None if state.is_ended => Progress { rate: 0, acked: bytes },
            None => Progress::default(),
        }
    }

    fn state(&self, _: &Self, flow: u32) -> String {
        format!("{:?} acknowledged", self.flows[flow as usize].sender.as_ref().map(|at| at.una))
    }

    fn retransmitted(&self) -> u64 {
        self.retransmitted
    }

    fn add(&mut self, other: Self) {
        self.retransmitted += other.retransmitted;
    }

    fn memory() -> [usize; 2] {
        let flow = size_of::<FlowState>() + size_of::<Sender>();
        [flow, size_of::<Host>() + size_of::<super::port::Port>()]
    }
}

impl<'a> Model<'a> {
    fn acknowledged(&mut self, network: &mut Network<'a>, packet: &Packet) {
        let (flow, now, instant) = (packet.flow, network.now, network.instant());
        let spec = self.setup.flows[flow as usize];
        let line = network.line(spec.source);
        let Some(sender) = &mut self.flows[flow as usize].sender else { return };
        let acked_bytes = packet.seq.saturating_sub(sender.una) as u32;
        sender.una = sender.una.max(packet.seq);
        sender.next = sender.next.max(sender.una);
        if acked_bytes > 0 {
            sender.progress = now;
        }
        if sender.una >= spec.bytes {
            return self.finish(network, flow);
        }
        if packet.is_nak {
            self.retransmitted += sender.go_back(self.setup.conventions.payload);
            sender.algorithm.on_loss(instant);
        }
        let ce_bytes = if packet.is_marked { acked_bytes } else { 0 };
        let rtt = Some(Duration::from_nanos((now - packet.sent) / 1000));
        let ack = Ack { now: instant, seq: packet.seq, next: sender.next, acked_bytes, ce_bytes, rtt };
        if packet.is_marked {
            sender.algorithm.on_congestion_notification(instant);
        }
        if let Some(hop) = packet.hops.checked_sub(1) {
            let is_fair = sender.algorithm.as_hpcc().is_some_and(Hpcc::is_fair);
            if is_fair || self.setup.congestion.reported_flows {
                let flows = NonZeroU32::new(packet.flows).unwrap_or(NonZeroU32::MIN);
                sender.algorithm.on_receiver_link(ReceiverLink { hop, flows });
            }
            sender.algorithm.on_telemetry(&ack, &packet.telemetry());
        }
        sender.algorithm.on_ack(&ack);
        let before = sender.listen(line);
        sender.repace(before, self.setup);
        self.arm(network, flow);
        self.serve(network, spec.source);
    }

    fn arm(&mut self, network: &mut Network<'a>, flow: u32) {
        let now = network.now;
        let Some(sender) = &mut self.flows[flow as usize].sender else { return };
        let Some(at) = sender.algorithm.poll_timeout() else { return };
        let at = (at.as_nanos() * 1000).max(now + 1000);
        if sender.timer.is_none_or(|timer| at < timer || timer <= now) {
            sender.timer = Some(at);
            network.push(at, Event::Timer(flow));
        }
    }

    fn finish(&mut self, network: &mut Network<'a>, flow: u32) {
        let spec = &self.setup.flows[flow as usize];
        let state = &mut self.flows[flow as usize];
        (state.sender, state.is_ended) = (None, true);
        let host = &mut self.hosts[spec.source as usize];
        if let Some(place) = host.active.iter().position(|&active| active == flow) {
            host.active.remove(place);
            // The flows after the removed one moved by one place.
            if place <= host.turn {
                host.turn = host.turn.saturating_sub(1);
            }
        }
        network.finish(flow);
        self.serve(network, spec.source);
    }
}

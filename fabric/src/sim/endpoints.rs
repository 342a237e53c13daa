//! Hosts as endpoints, each behind a NIC that sends one frame at a time.

use super::engine::{Hosts, Progress, shortest_delay};
use super::event::Event;
use super::frame::Frame;
use super::network::Network as AnyNetwork;
use super::nic::{Ended, Link, Nic};
use super::setup::{Application, Requests, Setup, SetupError, Verb};
use crate::Probability;
use cc::{Instant, Rate};
use roce::qp::CompletionStatus;
use roce::wire::{MAX_IN_BAND, MAX_OVERHEAD, Mtu};
use roce::{ControlError, CoreIndex, Discard, Endpoint, Psn, Qpn};
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::time::Duration;

type Network<'a> = AnyNetwork<'a, Frame>;

/// Numbers that no queue pair gets: 0, 1 and all ones (IBA 3.5.3).
const RESERVED_NUMBERS: u32 = 3;

/// The sending end of a running flow.
struct Sender {
    qpn: Qpn,
    /// Bytes that have not been posted.
    unposted: u64,
    /// Post times of the requests that have not completed (ps), oldest first.
    posted: VecDeque<u64>,
}

#[derive(Default)]
enum Source {
    #[default]
    Waits,
    Sends(Sender),
    Ended,
}

/// The ends of a flow that are at hosts of this thread.
#[derive(Default)]
struct FlowEnds {
    source: Source,
    destination: Option<Qpn>,
}

/// An application that consumes messages at a limited rate.
struct Consumer {
    rate: Rate,
    /// Time at which it has consumed everything that it has received, ps.
    busy_until: u64,
}

pub(super) struct Endpoints<'a> {
    setup: &'a Setup,
    mtu: Mtu,
    /// The NICs of other threads' hosts only number queue pairs.
    nics: Vec<Nic>,
    applications: HashMap<u32, Consumer>,
    flows: Vec<FlowEnds>,
    room: usize,
    /// Time from the end of a flow until its destination learns of it, ps.
    notice: u64,
}

/// Returns the number of flows of each host.
fn ends(setup: &Setup) -> Vec<u32> {
    let mut ends = vec![0_u32; setup.topology.hosts()];
    for flow in &setup.flows {
        ends[flow.source as usize] += 1;
        ends[flow.destination as usize] += 1;
    }
    ends
}

/// Returns the ps of `instant`.
const fn picos(instant: Instant) -> u64 {
    instant.as_nanos().saturating_mul(1000)
}

impl<'a> Hosts<'a> for Endpoints<'a> {
    type Packet = Frame;

    /// One thread runs setups with captures, whose frames are in the order of time, and setups that take random numbers from one sequence.
    /// It also runs setups in which the flows of a host need more queue pair numbers than there are: the free numbers then depend on when
    /// earlier flows ended.
    fn may_divide(setup: &Setup) -> bool {
        let is_random = setup.loses() || !setup.spread.is_zero() || setup.forgery != Probability::NEVER;
        let numbers = CoreIndex::new(0, setup.cores).max_qps() - RESERVED_NUMBERS;
        let is_numbered = |flows: u32| flows.div_ceil(setup.cores.into()) <= numbers;
        setup.captured.is_empty() && !is_random && ends(setup).into_iter().all(is_numbered)
    }

    fn new(setup: &'a Setup, network: &Network<'a>) -> Result<Self, SetupError> {
        let mtu = setup.mtu()?;
        let clears = !setup.captured.is_empty();
        let nic = |(number, flows): (u32, u32)| {
            let (flows, depth) = if network.owns(number) { (flows, setup.requests.depth) } else { (1, 1) };
            Nic::new(number, setup.cores, flows, (depth, setup.seed), clears)
                .map_err(|error| SetupError::Failed { flow: 0, why: error.to_string() })
        };
        let consumer = |application: &Application| {
            (application.host, Consumer { rate: application.rate, busy_until: 0 })
        };
        let formats = setup.congestions().map(|congestion| congestion.format.longest());
        let telemetry = formats.max().unwrap_or_default().max(MAX_IN_BAND);
        Ok(Self {
            setup,
            mtu,
            nics: (0..).zip(ends(setup)).map(nic).collect::<Result<_, _>>()?,
            applications: setup.applications.iter().map(consumer).collect(),
            flows: setup.flows.iter().map(|_| FlowEnds::default()).collect(),
            room: mtu.bytes() as usize + MAX_OVERHEAD + telemetry,
            notice: shortest_delay(setup),
        })
    }

    fn is_stamped(_: &Setup) -> bool {
        true
    }

    fn start(&mut self, network: &mut Network<'a>, flow: u32) {
        let spec = &self.setup.flows[flow as usize];
        let owns = [spec.source, spec.destination].map(|host| network.owns(host));
        if let Err(why) = self.connect(network.instant(), flow, owns) {
            network.fail_flow(flow, why);
        }
        if owns[0] {
            self.serve(network, spec.source);
        }
    }

    fn serve(&mut self, network: &mut Network<'a>, host: u32) {
        let instant = network.instant();
        let cores = &mut self.nics[host as usize].cores;
        if cores.poll_timeout().is_some_and(|at| at <= instant) {
            cores.on_timeout(instant);
        }
        while let Some(ended) = self.nics[host as usize].ended() {
            self.ended(network, &ended);
        }
        if network.ports[host as usize].is_stopped() {
            return self.sleep(network, host);
        }
        if !network.is_free(host) {
            return;
        }
        let place = network.packets.take();
        let frame = network.packets.get_mut(place);
        let nic = &mut self.nics[host as usize];
        match nic.cores.poll_transmit(instant, &nic.memory, frame.room(self.room)) {
            Some(length) => {
                frame.written(length);
                let at = network.transmit(host, place);
                network.look(host, at);
            }
            None => {
                network.packets.give_back(place);
                self.sleep(network, host);
            }
        }
    }

    fn receive(&mut self, network: &mut Network<'a>, host: u32, packet: u32) {
        let nic = &mut self.nics[host as usize];
        // The endpoint counts the frames that it drops.
        let _ = nic.cores.on_frame(network.instant(), &mut nic.memory, network.packets.get(packet));
        network.packets.give_back(packet);
        self.serve(network, host);
    }

    /// Posts another receive: the receiver's application has consumed a message.
    fn timer(&mut self, network: &mut Network<'a>, flow: u32) {
        self.post_receive(network, flow);
    }

    /// Endpoints detect losses themselves.
    fn expire(&mut self, _: &mut Network<'a>, _: u32) {}

    fn disconnect(&mut self, network: &mut Network<'a>, flow: u32) {
        if let Some(qpn) = self.flows[flow as usize].destination.take() {
            self.destroy(network.instant(), self.setup.flows[flow as usize].destination, qpn);
        }
    }

    fn progress(&self, flow: u32) -> Progress {
        let spec = &self.setup.flows[flow as usize];
        let sender = match &self.flows[flow as usize].source {
            Source::Waits => return Progress::default(),
            Source::Ended => return Progress { rate: 0, acked: spec.bytes },
            Source::Sends(sender) => sender,
        };
        let Some(report) = self.nics[spec.source as usize].report(sender.qpn) else {
            return Progress::default();
        };
        // PSNs start at 0. With 1 KiB packets they wrap after 16 GiB.
        let sent = report.send_psn.distance(Psn::new(0)).rem_euclid(Psn::CIRCLE as i32) as u64;
        let sent = (sent * u64::from(self.mtu.bytes())).min(spec.bytes);
        let rate = report.rate.unwrap_or_else(|| self.setup.topology.rates().next().unwrap_or_default());
        Progress { rate: rate.as_bps(), acked: sent.saturating_sub(report.in_flight) }
    }

    fn state(&self, other: &Self, flow: u32) -> String {
        let spec = &self.setup.flows[flow as usize];
        let Source::Sends(sender) = &self.flows[flow as usize].source else {
            return "it does not run".into();
        };
        let source = self.nics[spec.source as usize].report(sender.qpn);
        let report = |qpn| other.nics[spec.destination as usize].report(qpn);
        let destination = other.flows[flow as usize].destination.and_then(report);
        let (left, unposted) = (sender.posted.len(), sender.unposted);
        format!(
            "{left} requests have not ended and {unposted} bytes were not posted; {source:?}, {destination:?}"
        )
    }

    fn retransmitted(&self) -> u64 {
        self.endpoints().map(|endpoint| endpoint.counters().retransmitted).sum()
    }

    fn add(&mut self, other: Self) {
        self.nics.extend(other.nics);
    }

    fn doubled(&self) -> u64 {
        self.endpoints().map(|endpoint| endpoint.counters().discarded(Discard::Duplicate)).sum()
    }

    fn memory() -> [usize; 2] {
        let flow = size_of::<FlowEnds>() + 2 * Endpoint::QP_BYTES;
        [flow, size_of::<Nic>() + size_of::<super::port::Port>()]
    }
}

impl<'a> Endpoints<'a> {
    fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.nics.iter().flat_map(|nic| nic.cores.iter())
    }

    /// Creates both queue pairs, and connects those at hosts of this thread. Destroys the others, which were needed only for their numbers.
    fn connect(&mut self, now: Instant, flow: u32, owns: [bool; 2]) -> Result<(), String> {
        let spec = &self.setup.flows[flow as usize];
        let ends = [spec.source as usize, spec.destination as usize];
        let Ok([a, b]) = self.nics.get_disjoint_mut(ends) else {
            return Err("a flow has two hosts".into());
        };
        let Requests { verb, depth, selective_repeat, .. } = self.setup.requests;
        let (congestion, mtu) = (*self.setup.congestion_of(flow), self.mtu);
        let mut make = || -> Result<(Qpn, Qpn), ControlError> {
            let (source, destination) = (a.create_qp(now, depth)?, b.create_qp(now, depth)?);
            let link = Link { now, mtu, dscp: spec.dscp, selective_repeat };
            let join = |is_own, end: &mut Nic, qpn, peer: (&Nic, Qpn)| match is_own {
                true => end.connect(&link, qpn, peer, congestion),
                false => end.cores.of_mut(qpn).destroy_qp(now, qpn),
            };
            join(owns[0], a, source, (&*b, destination))?;
            join(owns[1], b, destination, (&*a, source))?;
            Ok((source, destination))
        };
        let (source, destination) = make().map_err(|error| error.to_string())?;
        if owns[1] {
            if verb == Verb::Send {
                (0..depth).try_for_each(|_| b.receive(destination, flow))?;
            }
            self.flows[flow as usize].destination = Some(destination);
        }
        if owns[0] {
            let mut sender = Sender { qpn: source, unposted: spec.bytes, posted: VecDeque::new() };
            while sender.posted.len() < depth as usize && sender.unposted > 0 {
                self.post(&mut sender, now, flow)?;
            }
            self.flows[flow as usize].source = Source::Sends(sender);
        }
        Ok(())
    }

    fn post(&mut self, sender: &mut Sender, now: Instant, flow: u32) -> Result<(), String> {
        let spec = &self.setup.flows[flow as usize];
        let region = self.nics[spec.destination as usize].region();
        let Requests { verb, bytes, .. } = self.setup.requests;
        let bytes = sender.unposted.min(bytes.into());
        self.nics[spec.source as usize].post(now, sender.qpn, flow, (verb, bytes as u32), region)?;
        sender.unposted -= bytes;
        sender.posted.push_back(picos(now));
        Ok(())
    }

    #[cold]
    fn ended(&mut self, network: &mut Network<'a>, ended: &Ended) {
        let flow = ended.flow;
        if ended.status != CompletionStatus::Success {
            return network.fail_flow(flow, ended.status.to_string());
        }
        let now = network.instant();
        if let Some(bytes) = ended.received {
            return self.consume(network, flow, bytes);
        }
        let Source::Sends(mut sender) = mem::replace(&mut self.flows[flow as usize].source, Source::Ended)
        else {
            return;
        };
        let since = sender.posted.pop_front().unwrap_or(network.now);
        network.latencies.push(Duration::from_nanos(network.now.saturating_sub(since) / 1000));
        if sender.unposted == 0 && sender.posted.is_empty() {
            return self.finish(network, flow, sender.qpn);
        }
        if sender.unposted > 0
            && let Err(why) = self.post(&mut sender, now, flow)
        {
            network.fail_flow(flow, why);
        }
        self.flows[flow as usize].source = Source::Sends(sender);
    }

    /// Posts another receive when the application has consumed this message.
    fn consume(&mut self, network: &mut Network<'a>, flow: u32, bytes: u32) {
        let host = self.setup.flows[flow as usize].destination;
        let Some(consumer) = self.applications.get_mut(&host) else {
            return self.post_receive(network, flow);
        };
        let needed = (f64::from(bytes) * 8e12 / consumer.rate.as_bps() as f64) as u64;
        consumer.busy_until = consumer.busy_until.max(network.now).saturating_add(needed);
        network.push(consumer.busy_until, Event::Timer(flow));
    }

    fn post_receive(&mut self, network: &mut Network<'a>, flow: u32) {
        let Some(qpn) = self.flows[flow as usize].destination else { return };
        let host = self.setup.flows[flow as usize].destination;
        if let Err(why) = self.nics[host as usize].receive(qpn, flow) {
            network.fail_flow(flow, why);
        }
    }

    /// Ends a flow at its source. The destination learns of it as soon as a message over a link could arrive.
    fn finish(&mut self, network: &mut Network<'a>, flow: u32, source: Qpn) {
        self.destroy(network.instant(), self.setup.flows[flow as usize].source, source);
        network.push_to_destination(flow, self.notice, Event::Disconnect(flow));
        network.finish(flow);
    }

    fn destroy(&mut self, now: Instant, host: u32, qpn: Qpn) {
        let gone = self.nics[host as usize].cores.of_mut(qpn).destroy_qp(now, qpn);
        debug_assert!(gone.is_ok(), "a queue pair of a running flow: {gone:?}");
    }

    fn sleep(&mut self, network: &mut Network<'a>, host: u32) {
        if let Some(at) = self.nics[host as usize].cores.poll_timeout() {
            network.look(host, picos(at).max(network.now + 1));
        }
    }
}

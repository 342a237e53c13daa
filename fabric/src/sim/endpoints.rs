//! Hosts as endpoints, each behind a NIC that sends one frame at a time.

use super::engine::{Hosts, Progress};
use super::event::Event;
use super::frame::Frame;
use super::network::Network as AnyNetwork;
use super::nic::{Ended, Link, Nic};
use super::setup::{Application, Requests, Setup, SetupError, Verb};
use cc::{Instant, Rate};
use roce::qp::CompletionStatus;
use roce::wire::{MAX_IN_BAND, MAX_OVERHEAD, Mtu};
use roce::{ControlError, Discard, Endpoint, Psn, Qpn};
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::time::Duration;

type Network<'a> = AnyNetwork<'a, Frame>;

struct Running {
    source: Qpn,
    destination: Qpn,
    /// Bytes that have not been posted.
    unposted: u64,
    /// Post times of the requests that have not completed (ps), oldest first.
    posted: VecDeque<u64>,
}

enum Flow {
    Waits,
    Runs(Running),
    Ended,
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
    nics: Vec<Nic>,
    applications: HashMap<u32, Consumer>,
    flows: Vec<Flow>,
    room: usize,
}

/// Returns the ps of `instant`.
const fn picos(instant: Instant) -> u64 {
    instant.as_nanos().saturating_mul(1000)
}

impl<'a> Hosts<'a> for Endpoints<'a> {
    type Packet = Frame;

    fn new(setup: &'a Setup) -> Result<Self, SetupError> {
        let mtu = setup.mtu()?;
        let mut ends = vec![0_u32; setup.topology.hosts()];
        for flow in &setup.flows {
            ends[flow.source as usize] += 1;
            ends[flow.destination as usize] += 1;
        }
        let clears = !setup.captured.is_empty();
        let nic = |(number, &flows): (usize, &u32)| {
            Nic::new(number as u32, setup.cores, flows, (setup.requests.depth, setup.seed), clears)
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
            nics: ends.iter().enumerate().map(nic).collect::<Result<_, _>>()?,
            applications: setup.applications.iter().map(consumer).collect(),
            flows: setup.flows.iter().map(|_| Flow::Waits).collect(),
            room: mtu.bytes() as usize + MAX_OVERHEAD + telemetry,
        })
    }

    fn is_stamped(_: &Setup) -> bool {
        true
    }

    fn start(&mut self, network: &mut Network<'a>, flow: u32) {
        match self.connect(network.instant(), flow) {
            Ok(running) => self.flows[flow as usize] = Flow::Runs(running),
            Err(why) => network.failed = Some((flow, why)),
        }
        self.serve(network, self.setup.flows[flow as usize].source);
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

    fn progress(&self, flow: u32) -> Progress {
        let spec = &self.setup.flows[flow as usize];
        let running = match &self.flows[flow as usize] {
            Flow::Waits => return Progress::default(),
            Flow::Ended => return Progress { rate: 0, acked: spec.bytes },
            Flow::Runs(running) => running,
        };
        let Some(report) = self.nics[spec.source as usize].report(running.source) else {
            return Progress::default();
        };
        // PSNs start at 0. With 1 KiB packets they wrap after 16 GiB.
        let sent = report.send_psn.distance(Psn::new(0)).rem_euclid(Psn::CIRCLE as i32) as u64;
        let sent = (sent * u64::from(self.mtu.bytes())).min(spec.bytes);
        let rate = report.rate.unwrap_or_else(|| self.setup.topology.rates().next().unwrap_or_default());
        Progress { rate: rate.as_bps(), acked: sent.saturating_sub(report.in_flight) }
    }

    fn state(&self, flow: u32) -> String {
        let (spec, Flow::Runs(running)) = (&self.setup.flows[flow as usize], &self.flows[flow as usize])
        else {
            return "it does not run".into();
        };
        let source = self.nics[spec.source as usize].report(running.source);
        let left = running.posted.len();
        format!(
            "{left} requests have not ended and {} bytes were not posted; {source:?}, {:?}",
            running.unposted,
            self.nics[spec.destination as usize].report(running.destination)
        )
    }

    fn retransmitted(&self) -> u64 {
        self.endpoints().map(|endpoint| endpoint.counters().retransmitted).sum()
    }

    /// Does nothing: endpoints run on one thread.
    fn add(&mut self, _: &Self) {}

    fn doubled(&self) -> u64 {
        self.endpoints().map(|endpoint| endpoint.counters().discarded(Discard::Duplicate)).sum()
    }

    fn memory() -> [usize; 2] {
        let flow = size_of::<Flow>() + 2 * Endpoint::QP_BYTES;
        [flow, size_of::<Nic>() + size_of::<super::port::Port>()]
    }
}

impl<'a> Endpoints<'a> {
    fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.nics.iter().flat_map(|nic| nic.cores.iter())
    }

    fn connect(&mut self, now: Instant, flow: u32) -> Result<Running, String> {
        let spec = &self.setup.flows[flow as usize];
        let ends = [spec.source as usize, spec.destination as usize];
        let Ok([a, b]) = self.nics.get_disjoint_mut(ends) else {
            return Err("a flow has two hosts".into());
        };
        let Requests { verb, depth, selective_repeat, .. } = self.setup.requests;
        let (congestion, mtu) = (*self.setup.congestion_of(flow), self.mtu);
        let mut make = || -> Result<(Qpn, Qpn), ControlError> {
            let (source, destination) = (a.create_qp(now, depth)?, b.create_qp(now, depth)?);
            let link = |dscp| Link { now, mtu, dscp, selective_repeat };
            a.connect(&link(spec.dscp), source, (b, destination), congestion)?;
            b.connect(&link(spec.dscp), destination, (a, source), congestion)?;
            Ok((source, destination))
        };
        let (source, destination) = make().map_err(|error| error.to_string())?;
        if verb == Verb::Send {
            (0..depth).try_for_each(|_| b.receive(destination, flow))?;
        }
        let mut running = Running { source, destination, unposted: spec.bytes, posted: VecDeque::new() };
        while running.posted.len() < depth as usize && running.unposted > 0 {
            self.post(&mut running, now, flow)?;
        }
        Ok(running)
    }

    fn post(&mut self, running: &mut Running, now: Instant, flow: u32) -> Result<(), String> {
        let spec = &self.setup.flows[flow as usize];
        let region = self.nics[spec.destination as usize].region();
        let Requests { verb, bytes, .. } = self.setup.requests;
        let bytes = running.unposted.min(bytes.into());
        self.nics[spec.source as usize].post(now, running.source, flow, (verb, bytes as u32), region)?;
        running.unposted -= bytes;
        running.posted.push_back(picos(now));
        Ok(())
    }

    #[cold]
    fn ended(&mut self, network: &mut Network<'a>, ended: &Ended) {
        let flow = ended.flow;
        let Flow::Runs(running) = &mut self.flows[flow as usize] else { return };
        if ended.status != CompletionStatus::Success {
            network.failed = Some((flow, ended.status.to_string()));
            return;
        }
        let now = network.instant();
        if let Some(bytes) = ended.received {
            return self.consume(network, flow, bytes);
        }
        let since = running.posted.pop_front().unwrap_or(network.now);
        network.latencies.push(Duration::from_nanos(network.now.saturating_sub(since) / 1000));
        if running.unposted == 0 && running.posted.is_empty() {
            return self.finish(network, flow);
        }
        if running.unposted > 0
            && let Flow::Runs(mut running) = mem::replace(&mut self.flows[flow as usize], Flow::Waits)
        {
            network.failed = self.post(&mut running, now, flow).err().map(|why| (flow, why));
            self.flows[flow as usize] = Flow::Runs(running);
        }
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
        let Flow::Runs(running) = &self.flows[flow as usize] else { return };
        let host = self.setup.flows[flow as usize].destination;
        let posted = self.nics[host as usize].receive(running.destination, flow);
        if let Err(why) = posted {
            network.failed = Some((flow, why));
        }
    }

    fn finish(&mut self, network: &mut Network<'a>, flow: u32) {
        let spec = &self.setup.flows[flow as usize];
        let Flow::Runs(running) = mem::replace(&mut self.flows[flow as usize], Flow::Ended) else { return };
        for (host, qpn) in [(spec.source, running.source), (spec.destination, running.destination)] {
            let core = self.nics[host as usize].cores.of_mut(qpn);
            let gone = core.destroy_qp(network.instant(), qpn);
            debug_assert!(gone.is_ok(), "a queue pair of a running flow: {gone:?}");
        }
        network.finish(flow);
    }

    fn sleep(&mut self, network: &mut Network<'a>, host: u32) {
        if let Some(at) = self.nics[host as usize].cores.poll_timeout() {
            network.look(host, picos(at).max(network.now + 1));
        }
    }
}

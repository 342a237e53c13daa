use super::event::{Event, Events, Picos};
use super::frame::{Frame, Frames};
use super::host::Host;
use super::outcome::{Completed, Outcome};
use super::scenario::{Flow, Scenario, ScenarioError};
use crate::random::Random;
use crate::{PortConfig, PortId, Switch, SwitchConfig};
use datapath::io::PacketBuf;
use roce::qp::{CompletionStatus, CongestionAlgorithm};
use roce::wire::{MAX_IN_BAND, MAX_OVERHEAD};
use roce::{ControlError, Qpn};
use std::time::Duration;

/// Events between two looks at the progress.
const WATCH: u64 = 1 << 16;
/// Ethernet, IPv4, UDP, BTH, ICRC.
const PACKET_OVERHEAD: u64 = 14 + 20 + 8 + 12 + 4;
/// The same with an AETH.
const ACK_BYTES: u64 = PACKET_OVERHEAD + 4;

/// Hosts around a switch.
pub(super) struct Network<'a> {
    scenario: &'a Scenario,
    hosts: Vec<Host>,
    switch: Switch<Frame>,
    switch_wake: Option<Picos>,
    events: Events,
    frames: Frames,
    /// The queue pairs of each flow, at its source.
    sources: Vec<Qpn>,
    starts: Vec<Picos>,
    completed: Vec<Completed>,
    trace: u64,
    picos_per_byte: f64,
    delay: u64,
}

impl<'a> Network<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Result<Self, ScenarioError> {
        scenario.check()?;
        let mut random = Random::new(scenario.seed);
        let port = PortConfig {
            rate: Some(scenario.rate),
            queue_bytes: scenario.queue,
            queue_frames: (scenario.queue / 64).clamp(1, 1 << 20) as usize,
            ecn_threshold: scenario.ecn_threshold,
            load_period: base_rtt(scenario),
            ..PortConfig::default()
        };
        let config = SwitchConfig { ports: vec![port; scenario.hosts as usize], ..SwitchConfig::default() };
        let switch = Switch::new(&config).map_err(ScenarioError::Switch)?;
        let jitter = u64::try_from(scenario.jitter.as_nanos()).unwrap_or(u64::MAX).saturating_add(1);
        let start = |flow: &Flow| {
            let late = random.below(jitter);
            Picos((u64::try_from(flow.start.as_nanos()).unwrap_or(u64::MAX / 2000) + late) * 1000)
        };
        let starts = scenario.flows.iter().map(start).collect();
        let (hosts, sources) = connect(scenario)?;
        let telemetry = MAX_IN_BAND.max(scenario.congestion.format.longest());
        let frame = scenario.mtu.bytes() as usize + MAX_OVERHEAD + telemetry;
        Ok(Self {
            scenario,
            hosts,
            switch,
            switch_wake: None,
            events: Events::default(),
            frames: Frames::new(frame),
            sources,
            starts,
            completed: Vec::with_capacity(scenario.flows.len()),
            trace: 0xcbf2_9ce4_8422_2325,
            picos_per_byte: 8e12 / scenario.rate.as_bps() as f64,
            delay: u64::try_from(scenario.delay.as_nanos()).unwrap_or(u64::MAX / 4000) * 1000,
        })
    }

    pub(super) fn run(mut self, watch: &mut dyn FnMut(usize, u64, u64)) -> Result<Outcome, ScenarioError> {
        self.introduce();
        for (flow, &at) in self.starts.iter().enumerate() {
            self.events.push(at, Event::Start(flow));
        }
        let limit = Picos(u64::try_from(self.scenario.limit.as_nanos()).unwrap_or(u64::MAX / 1000) * 1000);
        let (mut count, mut now) = (0_u64, Picos(0));
        while self.completed.len() < self.scenario.flows.len() {
            let left = self.scenario.flows.len() - self.completed.len();
            let unfinished = ScenarioError::Unfinished { left, seconds: self.scenario.limit.as_secs() };
            let (at, event) = self.events.pop().ok_or(unfinished.clone())?;
            if at > limit {
                return Err(unfinished);
            }
            now = at;
            count += 1;
            self.handle(now, event)?;
            if count.is_multiple_of(WATCH) {
                watch(self.completed.len(), count, now.0 / 1000);
            }
        }
        let retransmitted = self.hosts.iter().map(|host| host.endpoint.counters().retransmitted).sum();
        Ok(Outcome {
            completed: self.completed,
            report: self.switch.report(now.instant()),
            events: count,
            time: Duration::from_nanos(now.0 / 1000),
            trace: self.trace,
            retransmitted,
        })
    }

    /// Every host says a word that goes no farther than the switch, so that it knows them and floods nothing.
    fn introduce(&mut self) {
        for host in 0..self.hosts.len() {
            let mut word = self.frames.take();
            word.set_len(60);
            word.fill(0);
            word[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0x0e]);
            word[6..12].copy_from_slice(&self.hosts[host].mac().0);
            self.switch.on_frame(cc::Instant::ZERO, PortId(host as u16), word, |_| None);
        }
        self.switch.reset_statistics(cc::Instant::ZERO);
    }

    fn handle(&mut self, now: Picos, event: Event) -> Result<(), ScenarioError> {
        match event {
            Event::Start(flow) => {
                let Flow { source, destination, bytes, .. } = self.scenario.flows[flow];
                let remote = self.hosts[destination as usize - 1].remote();
                let host = source as usize - 1;
                self.hosts[host].start(now, flow, self.sources[flow], bytes, remote);
                self.serve(now, host)?;
            }
            Event::AtHost { host, frame } => {
                self.note(now, host as u64, &frame);
                let at = &mut self.hosts[host];
                // What an endpoint drops it counts; here nothing is damaged.
                let _ = at.endpoint.on_frame(now.instant(), &mut at.memory, &frame);
                self.frames.give_back(frame);
                self.serve(now, host)?;
            }
            Event::AtSwitch { from, frame } => {
                self.note(now, u64::MAX - from as u64, &frame);
                self.switch.on_frame(now.instant(), PortId(from as u16), frame, |_| None);
                self.forward(now);
            }
            Event::WakeHost(host) => {
                if self.hosts[host].wake_at == Some(now) {
                    self.hosts[host].wake_at = None;
                    self.serve(now, host)?;
                }
            }
            Event::WakeSwitch => {
                if self.switch_wake == Some(now) {
                    self.switch_wake = None;
                    self.forward(now);
                }
            }
        }
        Ok(())
    }

    /// Timers, what ended, and the next frame where the card is free.
    fn serve(&mut self, now: Picos, index: usize) -> Result<(), ScenarioError> {
        let instant = now.instant();
        let host = &mut self.hosts[index];
        if host.endpoint.poll_timeout().is_some_and(|at| at <= instant) {
            host.endpoint.on_timeout(instant);
        }
        for (flow, status) in host.ended() {
            if status != CompletionStatus::Success {
                return Err(ScenarioError::Control { flow, why: status.to_string() });
            }
            let start = self.starts[flow];
            let time = Duration::from_nanos((now.0 - start.0) / 1000);
            let alone = self.alone(self.scenario.flows[flow].bytes);
            self.completed.push(Completed { flow, start: Duration::from_nanos(start.0 / 1000), time, alone });
        }
        if self.hosts[index].free_at > now {
            let at = self.hosts[index].free_at;
            self.wake_host(index, at);
            return Ok(());
        }
        let mut frame = self.frames.take();
        let host = &mut self.hosts[index];
        match host.endpoint.poll_transmit(instant, &host.memory, &mut frame) {
            Some(length) => {
                frame.set_len(length);
                let left = now.plus(self.serialisation(length));
                self.hosts[index].free_at = left;
                self.events.push(left.plus(self.delay), Event::AtSwitch { from: index, frame });
                self.wake_host(index, left);
            }
            None => {
                self.frames.give_back(frame);
                if let Some(at) = self.hosts[index].endpoint.poll_timeout() {
                    self.wake_host(index, Picos::of(at).max(now.plus(1)));
                }
            }
        }
        Ok(())
    }

    fn wake_host(&mut self, index: usize, at: Picos) {
        let host = &mut self.hosts[index];
        if host.wake_at.is_none_or(|wake| at < wake) {
            host.wake_at = Some(at);
            self.events.push(at, Event::WakeHost(index));
        }
    }

    /// Sends on what leaves the switch by now.
    fn forward(&mut self, now: Picos) {
        for port in self.switch.ports() {
            while let Some(frame) = self.switch.poll_transmit(now.instant(), port, |_| None) {
                let arrives = now.plus(self.serialisation(frame.len()) + self.delay);
                self.events.push(arrives, Event::AtHost { host: usize::from(port.0), frame });
            }
        }
        if let Some(at) = self.switch.poll_timeout() {
            let at = Picos::of(at).max(now.plus(1));
            if self.switch_wake.is_none_or(|wake| at < wake) {
                self.switch_wake = Some(at);
                self.events.push(at, Event::WakeSwitch);
            }
        }
    }

    fn serialisation(&self, bytes: usize) -> u64 {
        (bytes as f64 * self.picos_per_byte) as u64
    }

    /// From the first bit of a message to its acknowledgement, with the links to itself.
    fn alone(&self, bytes: u32) -> Duration {
        let mtu = u64::from(self.scenario.mtu.bytes());
        let packets = u64::from(bytes).div_ceil(mtu);
        let wire = u64::from(bytes) + packets * PACKET_OVERHEAD + 16;
        let last = u64::from(bytes) - (packets - 1) * mtu + PACKET_OVERHEAD;
        let picos = 4 * self.delay
            + self.serialisation(wire as usize)
            + self.serialisation(last as usize)
            + 2 * self.serialisation(ACK_BYTES as usize);
        Duration::from_nanos(picos / 1000)
    }

    /// Takes a frame's arrival into the trace (FNV-1a over words).
    fn note(&mut self, now: Picos, place: u64, frame: &[u8]) {
        let end = frame.last_chunk().map_or(0, |icrc| u64::from(u32::from_le_bytes(*icrc)));
        for word in [now.0, place, frame.len() as u64, end] {
            self.trace = (self.trace ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// `T` as the flows have it, for switches that compute with it themselves.
fn base_rtt(scenario: &Scenario) -> Duration {
    match scenario.congestion.algorithm {
        CongestionAlgorithm::Hpcc(config) | CongestionAlgorithm::HpccReceiver(config) => config.base_rtt,
        _ => PortConfig::default().load_period,
    }
}

/// All hosts, with a connection for each flow; and the flows' queue pairs at their sources.
fn connect(scenario: &Scenario) -> Result<(Vec<Host>, Vec<Qpn>), ScenarioError> {
    let refused = |flow| move |error: ControlError| ScenarioError::Control { flow, why: error.to_string() };
    let mut hosts = Vec::new();
    for number in 1..=scenario.hosts {
        let ends = scenario.flows.iter().filter(|flow| flow.source == number || flow.destination == number);
        let host = Host::new(number, ends.count() as u32, scenario.seed).map_err(refused(0))?;
        hosts.push(host);
    }
    let mut sources = Vec::new();
    for (index, flow) in scenario.flows.iter().enumerate() {
        let [source, destination] = [flow.source, flow.destination].map(|number| number as usize - 1);
        let (error, again) = (refused(index), refused(index));
        let Ok([a, b]) = hosts.get_disjoint_mut([source, destination]) else {
            return Err(ScenarioError::Hosts { hosts: scenario.hosts });
        };
        let ends = a.create_qp().and_then(|ours| Ok((ours, b.create_qp()?)));
        let (ours, theirs) = ends.map_err(error)?;
        let connected =
            a.connect(ours, b, theirs, scenario).and_then(|()| b.connect(theirs, a, ours, scenario));
        connected.map_err(again)?;
        sources.push(ours);
    }
    Ok((hosts, sources))
}

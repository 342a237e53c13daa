//! A learning switch with queues, ECN marks and telemetry.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use crate::classes::SecondClass;
use crate::counters::PortCounters;
use crate::direct::{Direct, DirectResponder};
use crate::egress::{Egress, Refused, Snapshot};
use crate::fault::{FaultConfig, FaultLine, copy_of};
use crate::load::LoadMeter;
use crate::marking::{Marker, Red};
use crate::report::{PortReport, Report, RuleReport};
use crate::script::FaultRule;
use crate::stations::Stations;
use cc::{Instant, Rate};
use datapath::io::PacketBuf;
use roce::wire::format::{PortState, Request};
use roce::wire::{Mac, Numbers, mark_ce};
use std::time::Duration;

/// The index of a port in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

/// The settings of an egress port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Rate of the link for frames from the Ethernet header on, without FCS. `None` sends as fast as the port accepts, and stamps nothing.
    /// HPCC INT and IFA can express only rates that have a code ([`Speed`](roce::wire::telemetry::Speed)).
    pub rate: Option<Rate>,
    /// Longest pause of the poller that the link makes up for; zero for virtual time.
    pub catch_up: Duration,
    /// Limit on the bytes that wait for the link; a frame beyond it is dropped.
    pub queue_bytes: u64,
    /// Limit on the frames inside the port.
    pub queue_frames: usize,
    /// Waiting bytes above which ECN-capable frames are marked Congestion Experienced.
    pub ecn_threshold: Option<u64>,
    /// RED marking, which replaces `ecn_threshold`.
    pub red: Option<Red>,
    /// Second class of service; each class has a queue of `queue_bytes`.
    pub second_class: Option<SecondClass>,
    /// Telemetry reports the bytes that the link carries in the packet's sojourn time as the queue length. If classes share the link, a
    /// queue's length does not determine its drain time (rtgwg-00 9.3).
    pub tell_sojourn: bool,
    /// Direct responses to subscribed senders while this port is congested.
    pub direct: Option<Direct>,
    /// `T` of the flows: the period over which AECN and direct responses measure load.
    pub load_period: Duration,
    /// Faults of the port's link. The port's index is mixed into the seed.
    pub faults: FaultConfig,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            rate: None,
            catch_up: Duration::ZERO,
            queue_bytes: 1_000_000,
            queue_frames: 16_384,
            ecn_threshold: None,
            red: None,
            second_class: None,
            tell_sojourn: false,
            direct: None,
            load_period: Duration::from_millis(1),
            faults: FaultConfig::default(),
        }
    }
}

/// The settings of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Id that telemetry XORs into its path id, 0 to 4095.
    pub id: u16,
    /// Ports, by [`PortId`].
    pub ports: Vec<PortConfig>,
    /// Places in the station table, rounded up to a power of two.
    pub stations: usize,
    /// Silence after which a station is forgotten.
    pub station_age: Duration,
    /// Code points that the network uses for telemetry formats without registered ones.
    pub numbers: Numbers,
    /// Faults by script, in addition to the faults of each port. The first rule that matches a frame applies.
    pub rules: Vec<FaultRule>,
}

impl Default for SwitchConfig {
    /// No ports, 4096 stations, 300 s.
    fn default() -> Self {
        Self {
            id: 1,
            ports: Vec::new(),
            stations: 4096,
            station_age: Duration::from_secs(300),
            numbers: Numbers::DEFAULT,
            rules: Vec::new(),
        }
    }
}

/// The reason why a switch cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ConfigError {
    #[error("switch with {0} ports: out of range; use 1 to 256")]
    Ports(usize),
    #[error("switch id {0}: it exceeds the 12 bits of telemetry; use 0 to 4095")]
    SwitchId(u16),
    #[error("port {0} has rate 0; use a higher rate, or none for no limit")]
    Rate(usize),
    #[error(
        "port {0} has room for {1} frames and {2} bytes: less than one full frame; use at least 1 frame and 1514 bytes"
    )]
    Queue(usize, usize, u64),
    #[error("port {0} marks from {1} to {2} waiting bytes: the first is above the second; swap them")]
    Red(usize, u64, u64),
    #[error("port {0} has a second class of DSCP {1}: out of range; use 0 to 63")]
    Dscp(usize, u8),
    #[error("station table of {0} entries: out of range; use 1 to 1048576")]
    Stations(usize),
}

struct Port<B> {
    egress: Egress<B>,
    place: u16,
    /// `None` if the link has no rate.
    load: Option<LoadMeter>,
    faults: FaultConfig,
    /// `None` without faults and rules.
    link: Option<FaultLine<B>>,
    marker: Marker,
    responder: Option<DirectResponder>,
    tell_sojourn: bool,
    numbers: Numbers,
    catch_up: Duration,
    counters: PortCounters,
}

/// A learning Ethernet switch over buffers of any kind. The caller's `alloc` provides buffers for copies of flooded frames.
///
/// Time must never go back. All calls of one turn of a poll loop must pass the same time.
pub struct Switch<B> {
    id: u16,
    ports: Vec<Port<B>>,
    stations: Stations,
    now: Instant,
    /// Time of the previous turn: frames received in this turn may have waited since then.
    previous: Instant,
    statistics_since: Instant,
}

impl<B: PacketBuf> Switch<B> {
    /// Creates a switch. Only this and [`change_rules`](Self::change_rules) allocate.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a value is out of its range.
    pub fn new(config: &SwitchConfig) -> Result<Self, ConfigError> {
        if config.ports.is_empty() || config.ports.len() > 256 {
            return Err(ConfigError::Ports(config.ports.len()));
        }
        if config.id > 4095 {
            return Err(ConfigError::SwitchId(config.id));
        }
        if config.stations == 0 || config.stations > 1 << 20 {
            return Err(ConfigError::Stations(config.stations));
        }
        let ports = config.ports.iter().enumerate().map(|(index, port)| Port::new(index, port, config));
        Ok(Self {
            id: config.id,
            ports: ports.collect::<Result<_, _>>()?,
            stations: Stations::new(config.stations, config.station_age),
            now: Instant::ZERO,
            previous: Instant::ZERO,
            statistics_since: Instant::ZERO,
        })
    }

    /// Handles a frame received by `from`. `alloc` returns an empty buffer for a port's copy; without a buffer, no copy is sent by that
    /// port.
    ///
    /// # Panics
    /// Panics if there is no port `from`.
    #[expect(clippy::indexing_slicing, reason = "the switch itself numbered the port")]
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    pub fn on_frame(
        &mut self,
        now: Instant,
        from: PortId,
        buf: B,
        mut alloc: impl FnMut(PortId) -> Option<B>,
    ) {
        self.turn(now);
        let counters = &mut self.ports[usize::from(from.0)].counters;
        counters.rx_frames += 1;
        counters.rx_bytes += buf.len() as u64;
        let Some((destination, source)) = addresses(&buf) else {
            counters.drops.runt += 1;
            return;
        };
        if is_group(source) {
            counters.drops.group_source += 1;
            return;
        }
        self.stations.learn(now, source, from);
        if matches!(destination.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f]) {
            counters.drops.link_local += 1;
            return;
        }
        let known = if is_group(destination) { None } else { self.stations.find(now, destination) };
        match known {
            Some(to) if to == from => counters.drops.same_port += 1,
            Some(to) => {
                self.respond(from, to, &buf, &mut alloc);
                self.enqueue(to, buf);
            }
            None => self.flood(from, buf, &mut alloc),
        }
    }

    /// Returns the next frame to send by `port`. `alloc` returns a buffer if the link duplicates the frame.
    ///
    /// # Panics
    /// Panics if there is no port `port`.
    #[expect(clippy::indexing_slicing, reason = "the switch itself numbered the port")]
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        port: PortId,
        mut alloc: impl FnMut(PortId) -> Option<B>,
    ) -> Option<B> {
        self.turn(now);
        let id = self.id;
        let at = &mut self.ports[usize::from(port.0)];
        at.advance(now, id);
        let buf = match &mut at.link {
            None => at.egress.fetch()?,
            Some(link) => {
                while link.room() > 0
                    && let Some(buf) = at.egress.fetch()
                {
                    link.push(now, buf, || alloc(port));
                }
                link.poll(now)?
            }
        };
        at.counters.tx_frames += 1;
        at.counters.tx_bytes += buf.len() as u64;
        Some(buf)
    }

    /// Returns when [`poll_transmit`](Self::poll_transmit) next has a frame for some port; in the past if it has one now.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.ports.iter().filter_map(Port::poll_timeout).min()
    }

    /// Replaces the script's rules. An unchanged rule keeps its counts, and frames on a link are unaffected.
    pub fn change_rules(&mut self, rules: &[FaultRule]) {
        for port in &mut self.ports {
            let place = PortId(port.place);
            let rules = rules.iter().filter(|rule| rule.port.is_none_or(|port| port == place));
            if port.link.is_none() && rules.clone().next().is_some() {
                port.link = Some(FaultLine::new(port.faults));
            }
            if let Some(link) = &mut port.link {
                link.change_rules(rules.cloned());
            }
        }
    }

    /// Returns the counts of each rule, summed over all ports.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    pub fn rule_reports(&self) -> Vec<RuleReport> {
        let mut reports: Vec<RuleReport> = Vec::new();
        let links = self.ports.iter().filter_map(|port| port.link.as_ref());
        for (name, fitted, happened) in links.flat_map(FaultLine::rule_counts) {
            if let Some(report) = reports.iter_mut().find(|report| report.name == name) {
                report.fitted += fitted;
                report.happened += happened;
            } else {
                reports.push(RuleReport { name: name.to_owned(), fitted, happened });
            }
        }
        reports
    }

    /// Returns all ports.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + use<B> {
        (0..self.ports.len() as u16).map(PortId)
    }

    /// Returns the number of frames inside the switch and on its links.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "the held frames are few")]
    pub fn frames_inside(&self) -> usize {
        self.ports
            .iter()
            .map(|port| port.egress.frames() + port.link.as_ref().map_or(0, FaultLine::len))
            .sum()
    }

    /// Returns the statistics since their last reset.
    pub fn report(&mut self, now: Instant) -> Report {
        self.turn(now);
        let id = self.id;
        Report {
            switch_id: id,
            seconds: now.saturating_since(self.statistics_since).as_secs_f64(),
            stations: self.stations.len(now),
            stations_refused: self.stations.refused(),
            ports: self.ports.iter_mut().map(|port| port.report(now, id)).collect(),
            rules: self.rule_reports(),
        }
    }

    /// Resets the statistics. Stations, queues, random numbers and telemetry's counters are unchanged.
    pub fn reset_statistics(&mut self, now: Instant) {
        self.turn(now);
        self.statistics_since = now;
        for port in &mut self.ports {
            port.advance(now, self.id);
            port.egress.statistics.reset(now);
            port.counters = PortCounters::default();
            if let Some(link) = &mut port.link {
                link.reset_counters();
            }
        }
    }

    /// Returns a port's counters and the busy time of its link since the last reset.
    #[expect(clippy::indexing_slicing, reason = "the switch itself numbered the port")]
    pub(crate) fn totals(&self, port: PortId) -> (PortCounters, Duration) {
        let port = &self.ports[usize::from(port.0)];
        (port.counters, port.egress.statistics.busy_time())
    }

    /// Returns the bytes and nanoseconds at each length of a port's queue since the last call; empty the first time.
    #[expect(clippy::indexing_slicing, reason = "the switch itself numbered the port")]
    pub(crate) fn queue_times(&mut self, now: Instant, port: PortId) -> Vec<(u64, u64)> {
        self.turn(now);
        let id = self.id;
        let port = &mut self.ports[usize::from(port.0)];
        port.advance(now, id);
        let waiting = if port.egress.rate().is_some() { port.egress.waiting() } else { 0 };
        port.egress.statistics.take_interval(waiting, now)
    }

    fn turn(&mut self, now: Instant) {
        if now > self.now {
            self.previous = self.now;
            self.now = now;
        }
    }

    #[expect(clippy::indexing_slicing, reason = "the switch itself numbered the port")]
    fn enqueue(&mut self, to: PortId, buf: B) {
        let port = &mut self.ports[usize::from(to.0)];
        port.advance(self.now, self.id);
        if port.admits(&buf) {
            port.enqueue(self.now, self.previous, buf);
        }
    }

    /// Sends a direct response by `from` if the frame subscribes and `to` is congested.
    #[expect(clippy::indexing_slicing, reason = "the switch itself numbered the port")]
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    fn respond(
        &mut self,
        from: PortId,
        to: PortId,
        frame: &[u8],
        alloc: &mut impl FnMut(PortId) -> Option<B>,
    ) {
        let port = &mut self.ports[usize::from(to.0)];
        let (Some(responder), Some(load)) = (&mut port.responder, &port.load) else { return };
        let waiting = port.egress.waiting_in(port.egress.class_of(frame));
        let Some(subscription) = responder.subscription(self.now, frame, waiting) else { return };
        let Some(mut answer) = alloc(from) else { return };
        answer.set_len(answer.capacity());
        let Some(length) = responder.answer(self.now, &subscription, (load, waiting), &mut answer) else {
            return;
        };
        answer.set_len(length);
        port.counters.direct_responses += 1;
        self.enqueue(from, answer);
    }

    #[expect(clippy::indexing_slicing, reason = "the switch itself numbered the port")]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "64-bit counters never wrap; there are 1 to 256 ports, and `last` is above 0 behind the first arm"
    )]
    fn flood(&mut self, from: PortId, buf: B, alloc: &mut impl FnMut(PortId) -> Option<B>) {
        let last = match (self.ports.len() as u16 - 1, from.0) {
            (0, _) => {
                self.ports[0].counters.drops.same_port += 1;
                return;
            }
            (last, from) if last == from => PortId(last - 1),
            (last, _) => PortId(last),
        };
        self.ports[usize::from(from.0)].counters.flooded += 1;
        for to in (0..last.0).map(PortId).filter(|to| *to != from) {
            let port = &mut self.ports[usize::from(to.0)];
            port.counters.copies += 1;
            port.advance(self.now, self.id);
            if !port.admits(&buf) {
                continue;
            }
            match copy_of(&buf, || alloc(to)) {
                Some(copy) => port.enqueue(self.now, self.previous, copy),
                None => port.counters.drops.no_buffer += 1,
            }
        }
        self.enqueue(last, buf);
    }
}

impl<B: PacketBuf> Port<B> {
    fn new(index: usize, config: &PortConfig, switch: &SwitchConfig) -> Result<Self, ConfigError> {
        if config.rate.is_some_and(|rate| rate.as_bps() == 0) {
            return Err(ConfigError::Rate(index));
        }
        if config.queue_bytes < 1514 || config.queue_frames == 0 {
            return Err(ConfigError::Queue(index, config.queue_frames, config.queue_bytes));
        }
        if let Some(Red { from, to, .. }) = config.red.filter(|red| red.from > red.to) {
            return Err(ConfigError::Red(index, from, to));
        }
        if let Some(SecondClass { dscp, .. }) = config.second_class.filter(|class| class.dscp > 63) {
            return Err(ConfigError::Dscp(index, dscp));
        }
        let seed = config.faults.seed ^ (index as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let faults = FaultConfig { seed, ..config.faults };
        let place = PortId(index as u16);
        let rules = switch.rules.iter().filter(|rule| rule.port.is_none_or(|port| port == place));
        Ok(Self {
            place: index as u16,
            load: config.rate.map(|rate| {
                LoadMeter::new(rate, config.load_period, config.queue_bytes, config.ecn_threshold)
            }),
            egress: Egress::new(config.rate, config.queue_bytes, config.queue_frames, config.second_class),
            faults,
            link: (faults.any() || rules.clone().next().is_some())
                .then(|| FaultLine::new(faults).with_rules(rules.cloned())),
            marker: Marker::new(config.red, config.ecn_threshold, !seed),
            responder: config.direct.map(|direct| DirectResponder::new(direct, switch.numbers)),
            tell_sojourn: config.tell_sojourn,
            numbers: switch.numbers,
            catch_up: config.catch_up,
            counters: PortCounters::default(),
        })
    }

    /// Releases and stamps the frames that start to leave by `now`.
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    fn advance(&mut self, now: Instant, switch: u16) {
        let Self { load, counters, place, tell_sojourn, numbers, .. } = self;
        let rate = self.egress.rate();
        self.egress.advance(now, |buf: &mut B, at: Snapshot| {
            let (Some(rate), Some(load)) = (rate, load.as_mut()) else { return };
            let load = load.on_departure(&at, buf.len() as u64);
            let Some(request) = Request::find(buf, *numbers) else { return };
            let state = PortState {
                switch,
                port: *place,
                rate,
                time: at.time.as_nanos(),
                tx_bytes: at.reported.0,
                queue: if *tell_sojourn { rate.bytes_in(at.sojourn) } else { at.reported.1 },
                sojourn: at.sojourn.as_nanos() as u64,
                load,
            };
            counters.stamped += u64::from(write(buf, request, &state));
        });
    }

    /// Returns whether the queue accepts a frame; counts a drop if not.
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    fn admits(&mut self, frame: &[u8]) -> bool {
        let class = self.egress.class_of(frame);
        match self.egress.admits(class, frame.len() as u64) {
            Ok(()) => return true,
            Err(Refused::QueueFull) => self.counters.drops.queue_full += 1,
            Err(Refused::PortBlocked) => self.counters.drops.port_blocked += 1,
        }
        false
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "64-bit counters never wrap; subtracting from an `Instant` saturates"
    )]
    fn enqueue(&mut self, now: Instant, previous: Instant, mut buf: B) {
        let class = self.egress.class_of(&buf);
        if self.marker.marks(self.egress.waiting_in(class)) && mark_ce(&mut buf) {
            self.counters.ce_marked += 1;
        }
        let ready = previous.max(now - self.catch_up);
        self.egress.push(now, ready, class, buf);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let link = self.link.as_ref();
        let departure = self.egress.next_departure().filter(|_| link.is_none_or(|link| link.room() > 0));
        departure.into_iter().chain(link.and_then(FaultLine::poll_timeout)).min()
    }

    fn report(&mut self, now: Instant, switch: u16) -> PortReport {
        self.advance(now, switch);
        let waiting = self.egress.waiting();
        if waiting > 0 {
            self.egress.statistics.held(waiting, now);
        }
        let statistics = &self.egress.statistics;
        let active = statistics.active().as_secs_f64();
        let busy = statistics.busy_time().as_secs_f64();
        PortReport {
            rate_bps: self.egress.rate().map(Rate::as_bps),
            counters: self.counters,
            faults: self.link.as_ref().map(FaultLine::counters).unwrap_or_default(),
            active_seconds: active,
            busy_seconds: busy,
            utilisation: if active > 0.0 { (busy / active).min(1.0) } else { 0.0 },
            throughput_bps: if active > 0.0 { self.counters.tx_bytes as f64 * 8.0 / active } else { 0.0 },
            queue: statistics.queue(waiting),
        }
    }
}

/// Writes telemetry into a frame. The frame grows if its format requires it and the buffer has room. Returns whether telemetry was written.
#[expect(clippy::arithmetic_side_effects, reason = "a buffer's length is at most its capacity")]
pub(crate) fn write<B: PacketBuf>(buf: &mut B, request: Request, state: &PortState) -> bool {
    let length = buf.len();
    let room = request.growth().min(buf.capacity() - length);
    if room == 0 {
        return request.stamp(buf, length, state).is_some();
    }
    buf.set_len(length + room);
    let stamped = request.stamp(buf, length, state);
    buf.set_len(stamped.unwrap_or(length));
    stamped.is_some()
}

/// Returns the destination and source addresses; `None` for a runt.
fn addresses(frame: &[u8]) -> Option<(Mac, Mac)> {
    let (destination, rest) = frame.split_first_chunk::<6>()?;
    let (source, rest) = rest.split_first_chunk::<6>()?;
    (rest.len() >= 2).then_some((Mac(*destination), Mac(*source)))
}

const fn is_group(mac: Mac) -> bool {
    mac.0[0] & 1 != 0
}

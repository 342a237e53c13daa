//! Links, switches and faults.

use super::Captured;
use super::memory::Buffer;
use super::plan::{Detours, Faults, Plan, Shape};
use super::reached::Reached;
use crate::events::{Events, Ranked};
use crate::random::Random;
use crate::{PortConfig, PortId, Switch, SwitchConfig};
use cc::Instant;
use roce::wire::Mac;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

impl Ranked for Event {}

pub(super) enum Event {
    AtHost(usize, Buffer),
    AtSwitch(usize, PortId, Buffer),
    /// A switch may have frames to send.
    Leave(usize),
    /// A core of a host takes a turn.
    Turn(usize, usize),
    /// The program at one side of a connection posts and polls.
    Look(usize, usize),
    /// The fate of a connection occurs.
    Fate(usize),
}

#[derive(Clone, Copy)]
enum Leads {
    Host(usize),
    Switch(usize, PortId),
}

pub(super) struct Network<'c> {
    events: Events<Event>,
    /// Number of scheduled events. Simultaneous events are in the order in which they were scheduled.
    scheduled: u64,
    switches: Vec<Switch<Buffer>>,
    leads: Vec<Vec<Leads>>,
    homes: Vec<(usize, PortId)>,
    wakes: Vec<Option<u64>>,
    faults: Faults,
    detours: Detours,
    random: Random,
    picos_per_byte: u64,
    delay: u64,
    pub(super) alive: Arc<AtomicUsize>,
    capture: Option<&'c mut Vec<Captured>>,
}

pub(super) const fn mac(host: usize) -> Mac {
    Mac([2, 0, 0, 0, 1, host as u8])
}

/// Returns the path of a frame, 0 to 3, from its UDP source port.
fn path_of(frame: &[u8]) -> u64 {
    const IPV6: [u8; 2] = [0x86, 0xdd];
    let udp = if frame.get(12..14) == Some(&IPV6) { 54 } else { 34 };
    frame.get(udp + 1).map_or(0, |port| u64::from(port % 4))
}

impl<'c> Network<'c> {
    pub(super) fn new(plan: &Plan, capture: Option<&'c mut Vec<Captured>>) -> Result<Self, String> {
        let hosts = plan.cores.len();
        let count = if plan.shape == Shape::Star { 1 } else { 2 };
        let mut leads: Vec<Vec<Leads>> = vec![Vec::new(); count];
        let mut homes = Vec::new();
        for host in 0..hosts {
            let switch = host % count;
            homes.push((switch, PortId(leads[switch].len() as u16)));
            leads[switch].push(Leads::Host(host));
        }
        if count == 2 {
            let ends = [0, 1].map(|switch: usize| PortId(leads[switch].len() as u16));
            leads[0].push(Leads::Switch(1, ends[1]));
            leads[1].push(Leads::Switch(0, ends[0]));
        }
        let port = PortConfig {
            rate: Some(plan.rate),
            queue_bytes: plan.queue,
            ecn_threshold: Some(plan.ecn),
            ..PortConfig::default()
        };
        let switch = |(id, leads): (usize, &Vec<Leads>)| {
            let (id, ports) = (id as u16 + 1, vec![port; leads.len()]);
            Switch::new(&SwitchConfig { id, ports, ..SwitchConfig::default() })
        };
        let switches = leads.iter().enumerate().map(switch).collect::<Result<_, _>>();
        let mut network = Self {
            events: Events::default(),
            scheduled: 0,
            switches: switches.map_err(|error| error.to_string())?,
            leads,
            homes,
            wakes: vec![None; count],
            faults: plan.faults,
            detours: plan.detours,
            random: Random::new(plan.seed),
            picos_per_byte: 8_000_000_000_000 / plan.rate.as_bps(),
            delay: plan.delay,
            alive: Arc::default(),
            capture,
        };
        (0..hosts).for_each(|host| network.introduce(host));
        Ok(network)
    }

    /// Enters the port of `host` in every switch's table, by frames that switches do not forward.
    fn introduce(&mut self, host: usize) {
        let mut word = [0; 60];
        word[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0x0e]);
        word[6..12].copy_from_slice(&mac(host).0);
        let (home, port) = self.homes[host];
        for switch in 0..self.switches.len() {
            let trunk = PortId(self.leads[switch].len() as u16 - 1);
            let port = if switch == home { port } else { trunk };
            let word = Buffer::new(&word, &self.alive);
            self.switches[switch].on_frame(Instant::ZERO, port, word, |_| None);
        }
    }

    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.events.push(at, self.scheduled, event);
        self.scheduled += 1;
    }

    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        self.events.pop()
    }

    pub(super) fn buffers_alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }

    pub(super) fn serialisation(&self, bytes: usize) -> u64 {
        (bytes as u64 * self.picos_per_byte).div_ceil(1000)
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        self.faults = Faults::default();
        self.detours.dark = None;
    }

    /// Sends a frame from `host`. Returns the fault that affects it; empty if none.
    pub(super) fn send(
        &mut self,
        now: u64,
        host: usize,
        frame: &[u8],
        cut: bool,
        reached: &mut Reached,
    ) -> &'static str {
        let Faults { loss, duplicate, late, flip } = self.faults;
        let mut chance = |per_mille| per_mille > 0 && self.random.below(1000) < per_mille;
        let (lost, twice, late, flipped) =
            (cut || chance(loss), chance(duplicate), chance(late), chance(flip));
        let path = path_of(frame);
        let dark =
            path == 1 && self.detours.dark.is_some_and(|(from, long)| (from..from + long).contains(&now));
        let lost = lost || dark;
        let harm = match (lost, flipped, late, twice) {
            _ if dark => "dark",
            (true, ..) => "lost",
            (_, true, ..) => "flipped",
            (_, _, true, _) => "late",
            (.., true) => "twice",
            _ => "",
        };
        if let Some(capture) = &mut self.capture {
            capture.push(Captured { at: now, frame: frame.to_vec(), harm });
        }
        if !harm.is_empty() {
            reached.once(&format!("link: {harm}"));
        }
        if lost {
            return harm;
        }
        let mut buffer = Buffer::new(frame, &self.alive);
        if flipped {
            // The flip excludes the Ethernet header, which only the FCS would protect.
            let bit = self.random.below((frame.len() as u64 - 14) * 8);
            buffer[14 + (bit / 8) as usize] ^= 1 << (bit % 8);
        }
        let (switch, port) = self.homes[host];
        let mut at = now + self.serialisation(frame.len()) + self.delay + path * self.detours.step;
        if twice {
            let again = at + self.random.below(20_000);
            self.push(again, Event::AtSwitch(switch, port, buffer.again()));
        }
        if late {
            at += self.random.below(20_000);
        }
        self.push(at, Event::AtSwitch(switch, port, buffer));
        harm
    }

    pub(super) fn at_switch(&mut self, now: u64, switch: usize, port: PortId, frame: Buffer) {
        self.switches[switch].on_frame(Instant::from_nanos(now), port, frame, |_| None);
        self.leave(now, switch);
    }

    pub(super) fn leave(&mut self, now: u64, switch: usize) {
        if self.wakes[switch].is_some_and(|wake| wake <= now) {
            self.wakes[switch] = None;
        }
        let instant = Instant::from_nanos(now);
        for port in self.switches[switch].ports() {
            while let Some(frame) = self.switches[switch].poll_transmit(instant, port, |_| None) {
                let at = now + self.serialisation(frame.len()) + self.delay;
                let event = match self.leads[switch][usize::from(port.0)] {
                    Leads::Host(host) => Event::AtHost(host, frame),
                    Leads::Switch(next, by) => Event::AtSwitch(next, by, frame),
                };
                self.push(at, event);
            }
        }
        if let Some(at) = self.switches[switch].poll_timeout() {
            let at = at.as_nanos().max(now + 1);
            if self.wakes[switch].is_none_or(|wake| at < wake) {
                self.wakes[switch] = Some(at);
                self.push(at, Event::Leave(switch));
            }
        }
    }

    pub(super) fn dropped_and_marked(&mut self, now: u64) -> (u64, u64) {
        let reports = self.switches.iter_mut().map(|switch| switch.report(Instant::from_nanos(now)));
        reports.flat_map(|report| report.ports).fold((0, 0), |(drops, marks), port| {
            let lost = port.counters.drops.total() - port.counters.drops.link_local;
            (drops + lost, marks + port.counters.ce_marked)
        })
    }

    pub(super) fn inside(&self) -> usize {
        self.switches.iter().map(Switch::frames_inside).sum()
    }
}

//! Ports and routes. A port is one direction of a link with its queue; a route is the choice of ports towards a host.

use super::faults::{PortScript, ScriptedFault};
use super::setup::{Setup, SetupError};
use super::topology::Topology;
use crate::classes::{Length, Queues};
use crate::direct::DirectResponder;
use crate::load::LoadMeter;
use crate::marking::Marker;
use crate::shares::Shares;
use crate::{Probability, Red};
use cc::Rate;
use roce::wire::Numbers;
use std::collections::{HashMap, HashSet};

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) packet: u32,
    pub(super) size: u32,
}

impl Length for Waiting {
    fn length(&self) -> u64 {
        self.size.into()
    }
}

/// The egress of a host or of a switch.
pub(super) struct Port {
    /// Index of the link.
    link: usize,
    /// Port at the other end of the link.
    pub(super) peer: u32,
    /// Thread of the node at the other end.
    pub(super) peer_owner: u16,
    /// Number of the switch, from 0; `None` for a host.
    pub(super) switch: Option<u32>,
    /// Index among the ports of its node.
    pub(super) place: u16,
    pub(super) rate: Rate,
    picos_per_byte: f64,
    /// ps.
    pub(super) delay: u64,
    /// Probability that the link loses a packet.
    pub(super) loss: Probability,
    /// `None` unless the setup has faults for the port.
    pub(super) script: Option<Box<PortScript>>,
    /// Index in the setup's captured ports, if the port's frames are captured.
    pub(super) captured: Option<u16>,
    pub(super) free_at: u64,
    /// Time of the next scheduled [`Event::Look`](super::event::Event::Look).
    pub(super) look_at: Option<u64>,
    pub(super) queue: Queues<Waiting>,
    pub(super) marker: Marker,
    /// `None` unless packets request the link's load.
    pub(super) load: Option<LoadMeter>,
    /// `None` without direct responses.
    pub(super) responder: Option<DirectResponder>,
    /// `None` with one class.
    pub(super) shares: Option<Shares>,
    pub(super) bytes: u64,
    pub(super) tx_bytes: u64,
    pub(super) is_paused: bool,
    /// Number of pauses and ends that were sent to the peer.
    pub(super) pauses_sent: u32,
    /// Whether the link has failed.
    pub(super) is_down: bool,
    pub(super) paused_since: u64,
    /// Time of the last change of `bytes`.
    pub(super) changed: u64,
}

/// Setups give RED's limits for links of 100 Gb/s.
const HUNDRED: u128 = 100_000_000_000;

impl Port {
    fn new(switch: Option<u32>, rate: Rate, delay: std::time::Duration, setup: &Setup, id: usize) -> Self {
        let red = red_at(rate, setup);
        let load = setup
            .needs_load()
            .then(|| LoadMeter::new(rate, setup.base_rtt(), setup.buffer, red.map(|red| red.from)));
        Self {
            link: 0,
            peer: 0,
            peer_owner: 0,
            switch,
            place: 0,
            rate,
            marker: Marker::new(red, None, setup.seed ^ (id as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)),
            load,
            responder: setup.direct.map(|direct| DirectResponder::new(direct, Numbers::DEFAULT)),
            picos_per_byte: picos_per_byte(rate),
            delay: u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX / 4000) * 1000,
            loss: Probability::NEVER,
            script: None,
            captured: None,
            free_at: 0,
            look_at: None,
            queue: Queues::new(0, setup.second_class),
            shares: setup.second_class.map(|second| Shares::new(rate, second)),
            bytes: 0,
            tx_bytes: 0,
            is_paused: false,
            pauses_sent: 0,
            is_down: false,
            paused_since: 0,
            changed: 0,
        }
    }

    /// Returns whether a pause or a failure prevents the port from sending.
    pub(super) const fn is_stopped(&self) -> bool {
        self.is_paused | self.is_down
    }

    /// Changes the link's rate, from the next packet on.
    pub(super) fn change_rate(&mut self, rate: Rate, setup: &Setup) {
        let red = red_at(rate, setup);
        (self.rate, self.picos_per_byte) = (rate, picos_per_byte(rate));
        self.marker.change(red);
        if let Some(load) = &mut self.load {
            load.change_rate(rate, red.map(|red| red.from));
        }
        if let Some((shares, second)) = self.shares.as_mut().zip(setup.second_class) {
            shares.change_rate(rate, second);
        }
    }

    /// Returns the time that `bytes` take on the link, in ps.
    pub(super) fn serialisation(&self, bytes: u32, whole_nanos: bool) -> u64 {
        cut((f64::from(bytes) * self.picos_per_byte) as u64, whole_nanos)
    }
}

fn picos_per_byte(rate: Rate) -> f64 {
    8e12 / rate.as_bps() as f64
}

/// Returns RED's limits, scaled to a link of `rate`.
fn red_at(rate: Rate, setup: &Setup) -> Option<Red> {
    let scaled = |bytes: u64| (u128::from(bytes) * u128::from(rate.as_bps()) / HUNDRED) as u64;
    setup.red.map(|red| Red { from: scaled(red.from), to: scaled(red.to), ..red })
}

/// Returns the ports at both ends of these links.
pub(super) fn ends(ports: &[Port], links: &[usize]) -> Vec<u32> {
    let is_end = |port: &(usize, &Port)| links.contains(&port.1.link);
    ports.iter().enumerate().filter(is_end).map(|(id, _)| id as u32).collect()
}

/// Returns the ports of a setup's time series.
pub(super) fn sampled(setup: &Setup, ports: &[Port]) -> Vec<u32> {
    let Some(sampling) = setup.sampling else { return Vec::new() };
    if setup.sampled.is_empty() {
        return vec![ports[sampling.host as usize].peer];
    }
    setup.sampled.iter().filter_map(|&nodes| port_between(&setup.topology, ports, nodes)).collect()
}

/// Returns the number of ports of a setup's time series.
pub(super) fn sampled_ports(setup: &Setup) -> usize {
    setup.sampling.map_or(0, |_| setup.sampled.len().max(1))
}

/// Returns the port of the first node towards the second.
fn port_between(topology: &Topology, ports: &[Port], [from, to]: [usize; 2]) -> Option<u32> {
    let link = topology.link_between(from, to)?;
    // `ends` is in the order of nodes, so the port of the node with the lower number is first.
    ends(ports, &[link]).get(usize::from(from > to)).copied()
}

/// Marks the ports whose frames are captured.
pub(super) fn mark_captured(setup: &Setup, ports: &mut [Port]) {
    for (index, &nodes) in (0..).zip(&setup.captured) {
        if let Some(port) = port_between(&setup.topology, ports, nodes) {
            ports[port as usize].captured = Some(index);
        }
    }
}

/// Adds the setup's scripts of faults to the ports.
pub(super) fn add_scripts(setup: &Setup, ports: &mut [Port]) {
    let mut rules = vec![Vec::new(); ports.len()];
    for ScriptedFault { port, rule } in &setup.faults {
        match port {
            None => rules[..setup.topology.hosts()].iter_mut().for_each(|rules| rules.push(rule.clone())),
            Some(nodes) => {
                let port = port_between(&setup.topology, ports, *nodes);
                port.into_iter().for_each(|port| rules[port as usize].push(rule.clone()));
            }
        }
    }
    for (id, (port, rules)) in
        ports.iter_mut().zip(rules).enumerate().filter(|(_, (_, rules))| !rules.is_empty())
    {
        port.script = Some(Box::new(PortScript::new(rules.into_iter(), mix(setup.seed ^ mix(id as u64)))));
    }
}

/// Rounds down to whole ns if the conventions require it.
pub(super) const fn cut(picos: u64, whole_nanos: bool) -> u64 {
    if whole_nanos { picos / 1000 * 1000 } else { picos }
}

/// Creates all ports. A host's port has the host's number. `owners` has the thread of each node.
pub(super) fn ports(setup: &Setup, owners: &[u16]) -> Vec<Port> {
    let topology = &setup.topology;
    let hosts = topology.hosts();
    let mut ends: Vec<(usize, usize)> = Vec::new();
    for (index, link) in topology.links().iter().enumerate() {
        ends.extend(link.ends.map(|node| (node, index)));
    }
    ends.sort_unstable();
    let places: HashMap<(usize, usize), u32> =
        ends.iter().enumerate().map(|(place, &end)| (end, place as u32)).collect();
    let port = |(id, &(node, index)): (usize, &(usize, usize))| {
        let link = topology.links()[index];
        let switch = (node >= hosts).then(|| (node - hosts) as u32);
        let mut port = Port::new(switch, link.rate, link.delay, setup, id);
        // The ports of a node have consecutive numbers.
        port.place = (id - ends.partition_point(|end| end.0 < node)) as u16;
        let other = if link.ends[0] == node { link.ends[1] } else { link.ends[0] };
        (port.link, port.peer, port.peer_owner) = (index, places[&(other, index)], owners[other]);
        port.loss = if switch.is_none() { setup.loss.or(link.loss) } else { link.loss };
        port
    };
    ends.iter().enumerate().map(port).collect()
}

/// Represents the absence of a path to a host.
pub(super) const NO_PATH: u32 = u32::MAX;

/// Per switch and host: the ports on shortest paths to the host.
pub(super) struct Routes {
    hosts: usize,
    /// Per switch and host: first index in `ports`, and number of ports. Index 0 if there is no path.
    places: Vec<(u32, u32)>,
    /// The first element is [`NO_PATH`].
    ports: Vec<u32>,
}

impl Routes {
    /// Finds the paths over the links that have not failed.
    pub(super) fn new(topology: &Topology, ports: &[Port]) -> Self {
        let down: HashSet<usize> = ports.iter().filter(|port| port.is_down).map(|port| port.link).collect();
        let topology = topology.without(|link| down.contains(&link));
        let (hosts, switches) = (topology.hosts(), topology.switches());
        let node = |port: &Port, id: usize| port.switch.map_or(id, |switch| hosts + switch as usize);
        let nodes: Vec<usize> = ports.iter().enumerate().map(|(id, port)| node(port, id)).collect();
        let mut by_switch = vec![Vec::new(); switches];
        for (id, port) in ports.iter().enumerate() {
            if let Some(switch) = port.switch {
                by_switch[switch as usize].push(id as u32);
            }
        }
        let mut routes = Self { hosts, places: vec![(0, 0); hosts * switches], ports: vec![NO_PATH] };
        for host in 0..hosts {
            let distances = topology.distances(host);
            for (switch, of) in by_switch.iter().enumerate() {
                let Some(here) = distances[hosts + switch] else { continue };
                let begin = routes.ports.len() as u32;
                let nearer = |port: &&u32| {
                    let Port { peer, is_down, .. } = ports[**port as usize];
                    !is_down && distances[nodes[peer as usize]].is_some_and(|there| there < here)
                };
                routes.ports.extend(of.iter().filter(nearer));
                routes.places[switch * hosts + host] = (begin, routes.ports.len() as u32 - begin);
            }
        }
        routes
    }

    /// # Errors
    /// Returns [`SetupError::Unreachable`] if a switch has no path to a host.
    pub(super) fn check(&self) -> Result<(), SetupError> {
        let lacks = self.places.iter().position(|place| place.0 == 0);
        let unreachable =
            |place: usize| SetupError::Unreachable { switch: place / self.hosts, host: place % self.hosts };
        lacks.map_or(Ok(()), |place| Err(unreachable(place)))
    }

    /// Returns the port towards `host`, or [`NO_PATH`]. The flow's hash, mixed with the switch, selects one of several shortest paths.
    #[inline]
    pub(super) fn port(&self, switch: u32, host: u32, hash: u64) -> u32 {
        let (begin, count) = self.places[switch as usize * self.hosts + host as usize];
        let which = if count > 1 { mix(hash ^ u64::from(switch)) % u64::from(count) } else { 0 };
        self.ports[(begin as u64 + which) as usize]
    }
}

pub(super) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

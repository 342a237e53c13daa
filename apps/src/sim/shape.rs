//! The topology of a scenario, and the names of its nodes.

use crate::units;
use cc::Rate;
use fabric::sim::{Topology, check_rate};

/// Parses the rate of a link.
pub(super) fn link_rate(text: &str) -> Result<Rate, String> {
    let rate = units::rate(text)?;
    check_rate(rate).map_err(|error| error.to_string()).map(|()| rate)
}

/// The names of nodes in a scenario: `h` and the number of a host, counted from `first`, or `s` and the number of a switch, counted from 1.
#[derive(Clone, Copy)]
pub(super) struct NodeNames {
    first: u32,
    hosts: usize,
    switches: usize,
}

impl NodeNames {
    pub(super) const fn new(first: u32, hosts: usize, switches: usize) -> Self {
        Self { first, hosts, switches }
    }

    /// Returns the node with this name, or an error text.
    pub(super) fn node(self, name: &str) -> Result<usize, String> {
        let Self { first, hosts, switches } = self;
        let number = |first: usize| name.get(1..)?.parse::<usize>().ok()?.checked_sub(first);
        let node = match name.chars().next() {
            Some('h') => number(first as usize).filter(|host| *host < hosts),
            Some('s') => number(1).filter(|switch| *switch < switches).map(|switch| hosts + switch),
            _ => None,
        };
        let last = u64::from(first) + hosts as u64 - 1;
        node.ok_or_else(|| format!("'{name}': no such node; use h{first} to h{last} and s1 to s{switches}"))
    }

    pub(super) fn pair(self, names: &[String; 2]) -> Result<[usize; 2], String> {
        Ok([self.node(&names[0])?, self.node(&names[1])?])
    }
}

/// A topology, the rates of hosts' links and of links between switches, and the number of the first host.
pub(super) struct Shape {
    pub(super) topology: Topology,
    pub(super) line: Rate,
    pub(super) fabric: Rate,
    pub(super) first_host: u32,
}

impl Shape {
    pub(super) const fn names(&self) -> NodeNames {
        NodeNames::new(self.first_host, self.topology.hosts(), self.topology.switches())
    }

    /// Parses the name of a port, such as `s1_h3`. Returns its node and the node at the other end of its link.
    pub(super) fn port(&self, name: &str) -> Result<[usize; 2], String> {
        let not = |why: &str| format!("{why}; write the two ends of a link, such as s1_h{}", self.first_host);
        let (from, to) = name.split_once('_').ok_or_else(|| not("not two nodes"))?;
        let nodes = self.names().pair(&[from.to_owned(), to.to_owned()]).map_err(|why| not(&why))?;
        let link = self.topology.link_between(nodes[0], nodes[1]);
        link.map(|_| nodes).ok_or_else(|| not("no link connects them"))
    }
}

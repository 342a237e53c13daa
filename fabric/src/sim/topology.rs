//! Hosts, switches and links of a simulation.

use crate::Probability;
use cc::Rate;
use std::collections::VecDeque;
use std::time::Duration;
use thiserror::Error;

/// A link between two nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The nodes at both ends. Hosts have the first numbers, from 0; switches follow.
    pub ends: [usize; 2],
    /// Rate of each direction: whole Gb/s from 1 to 1000.
    pub rate: Rate,
    /// Propagation delay.
    pub delay: Duration,
    /// Probability that a packet is lost on the link, in either direction. Endpoints only.
    pub loss: Probability,
}

impl Link {
    /// Creates a link without loss.
    #[must_use]
    pub const fn new(ends: [usize; 2], rate: Rate, delay: Duration) -> Self {
        Self { ends, rate, delay, loss: Probability::NEVER }
    }
}

/// The reason why links do not form a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum GraphError {
    #[error("there is no host; add two")]
    NoHost,
    #[error("link {link} ends at node {node}, which does not exist")]
    End { link: usize, node: usize },
    #[error("link {link} connects two hosts, or a node with itself; connect it to a switch")]
    NoSwitch { link: usize },
    #[error("host {host} has {links} links; give it one, to a switch")]
    HostLinks { host: usize, links: usize },
    #[error("no path leads from host 0 to node {node}; connect them")]
    Separate { node: usize },
}

/// Hosts, switches and links.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    hosts: usize,
    switches: usize,
    links: Vec<Link>,
}

impl Topology {
    /// Creates `hosts` hosts around one switch.
    #[must_use]
    pub fn star(hosts: usize, rate: Rate, delay: Duration) -> Self {
        let links = (0..hosts).map(|host| Link::new([host, hosts], rate, delay)).collect();
        Self { hosts, switches: 1, links }
    }

    /// Creates two switches with `left` and `right` hosts, and a link of rate `trunk` between them.
    #[must_use]
    pub fn dumbbell(left: usize, right: usize, rate: Rate, trunk: Rate, delay: Duration) -> Self {
        let hosts = left + right;
        let home = |host| hosts + usize::from(host >= left);
        let mut links: Vec<_> = (0..hosts).map(|host| Link::new([host, home(host)], rate, delay)).collect();
        links.push(Link::new([hosts, hosts + 1], trunk, delay));
        Self { hosts, switches: 2, links }
    }

    /// Creates a line of `switches` switches with `each` hosts per switch.
    #[must_use]
    pub fn parking_lot(switches: usize, each: usize, rate: Rate, delay: Duration) -> Self {
        let hosts = switches * each;
        let mut links: Vec<_> =
            (0..hosts).map(|host| Link::new([host, hosts + host / each.max(1)], rate, delay)).collect();
        links.extend((1..switches).map(|at| Link::new([hosts + at - 1, hosts + at], rate, delay)));
        Self { hosts, switches, links }
    }

    /// Creates `leaves` switches with `each` hosts per switch. Links of rate `uplink` connect each of them to all `spines` switches.
    #[must_use]
    pub fn leaf_spine(
        leaves: usize,
        spines: usize,
        each: usize,
        rate: Rate,
        uplink: Rate,
        delay: Duration,
    ) -> Self {
        let hosts = leaves * each;
        let mut links: Vec<_> =
            (0..hosts).map(|host| Link::new([host, hosts + host / each.max(1)], rate, delay)).collect();
        for leaf in 0..leaves {
            let link = |spine| Link::new([hosts + leaf, hosts + leaves + spine], uplink, delay);
            links.extend((0..spines).map(link));
        }
        Self { hosts, switches: leaves + spines, links }
    }

    /// Creates two hosts, each on its own switch, and one path per element of `detours` between the switches. Its links have the rate
    /// `fabric`, and the element is its additional delay.
    #[must_use]
    pub fn unequal_paths(rate: Rate, fabric: Rate, delay: Duration, detours: &[Duration]) -> Self {
        let mut links: Vec<_> = (0..2).map(|host| Link::new([host, 2 + host], rate, delay)).collect();
        for (path, detour) in detours.iter().enumerate() {
            links.push(Link::new([2, 4 + path], fabric, delay + *detour));
            links.push(Link::new([4 + path, 3], fabric, delay));
        }
        Self { hosts: 2, switches: 2 + detours.len(), links }
    }

    /// Creates the fat tree of HPCC's authors: 5 pods of 4 top-of-rack and 4 aggregation switches, 16 core switches, 16 hosts per rack. The
    /// links of the 320 hosts have the rate `rate`; links between switches have the rate `fabric`.
    #[must_use]
    pub fn fat_tree(rate: Rate, fabric: Rate, delay: Duration) -> Self {
        const PODS: usize = 5;
        const WIDTH: usize = 4;
        const EACH: usize = 16;
        let hosts = PODS * WIDTH * EACH;
        let (tor, aggregation, core) = (hosts, hosts + PODS * WIDTH, hosts + 2 * PODS * WIDTH);
        let mut links: Vec<_> =
            (0..hosts).map(|host| Link::new([host, tor + host / EACH], rate, delay)).collect();
        for pod in 0..PODS {
            for a in 0..WIDTH {
                for b in 0..WIDTH {
                    let (up, top) = (aggregation + pod * WIDTH + a, core + a * WIDTH + b);
                    links.push(Link::new([tor + pod * WIDTH + b, up], fabric, delay));
                    links.push(Link::new([up, top], fabric, delay));
                }
            }
        }
        Self { hosts, switches: 2 * PODS * WIDTH + WIDTH * WIDTH, links }
    }

    /// Creates `hosts` hosts and `switches` switches with these links. Several links may connect the same two switches.
    ///
    /// # Errors
    /// Returns a [`GraphError`] unless each host has one link, which leads to a switch, and paths connect all nodes.
    pub fn graph(hosts: usize, switches: usize, links: Vec<Link>) -> Result<Self, GraphError> {
        if hosts == 0 {
            return Err(GraphError::NoHost);
        }
        let mut of_host = vec![0; hosts];
        for (link, Link { ends: [a, b], .. }) in links.iter().enumerate() {
            if let Some(&node) = [a, b].into_iter().find(|node| **node >= hosts + switches) {
                return Err(GraphError::End { link, node });
            }
            if a == b || a.max(b) < &hosts {
                return Err(GraphError::NoSwitch { link });
            }
            if let Some(count) = of_host.get_mut(*a.min(b)) {
                *count += 1;
            }
        }
        if let Some((host, &links)) = of_host.iter().enumerate().find(|(_, count)| **count != 1) {
            return Err(GraphError::HostLinks { host, links });
        }
        let topology = Self { hosts, switches, links };
        match topology.distances(0).iter().position(Option::is_none) {
            Some(node) => Err(GraphError::Separate { node }),
            None => Ok(topology),
        }
    }

    /// Returns the number of hosts.
    #[must_use]
    pub const fn hosts(&self) -> usize {
        self.hosts
    }

    /// Returns the number of switches.
    #[must_use]
    pub const fn switches(&self) -> usize {
        self.switches
    }

    /// Returns the number of nodes.
    #[must_use]
    pub const fn nodes(&self) -> usize {
        self.hosts + self.switches
    }

    /// Returns the links.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Returns the index of the first link between these nodes, if there is one.
    #[must_use]
    pub fn link_between(&self, a: usize, b: usize) -> Option<usize> {
        self.links.iter().position(|link| link.ends == [a, b] || link.ends == [b, a])
    }

    /// Returns the topology without the links for which `is_down`, called with their indices, returns true.
    pub(super) fn without(&self, is_down: impl Fn(usize) -> bool) -> Self {
        let links = self.links.iter().enumerate().filter(|(index, _)| !is_down(*index));
        Self { links: links.map(|(_, link)| *link).collect(), ..*self }
    }

    pub(super) fn rates(&self) -> impl Iterator<Item = Rate> {
        self.links.iter().map(|link| link.rate)
    }

    /// Returns the share of flows between random hosts that pass a link from the first to the second of two nodes. Switches divide flows
    /// equally among the shortest paths. Returns 0 if there is no such link.
    #[must_use]
    pub fn share_of_flows(&self, [from, to]: [usize; 2]) -> f64 {
        let neighbours = self.neighbours();
        let mut sum = 0.0;
        for destination in 0..self.hosts {
            let distances = self.distances(destination);
            let far = |node: usize| distances[node].unwrap_or(0);
            let mut nodes: Vec<usize> = (0..self.nodes()).filter(|&node| far(node) > 0).collect();
            nodes.sort_by_key(|&node| std::cmp::Reverse(far(node)));
            // Each host sends one flow.
            let mut flows: Vec<f64> =
                (0..self.nodes()).map(|node| f64::from(u8::from(node < self.hosts))).collect();
            for node in nodes {
                let nearer = || neighbours[node].iter().filter(|(next, _)| far(*next) + 1 == far(node));
                let part = flows[node] / nearer().count() as f64;
                for &(next, _) in nearer() {
                    flows[next] += part;
                    sum += if (node, next) == (from, to) { part } else { 0.0 };
                }
            }
        }
        sum / (self.hosts * self.hosts.saturating_sub(1).max(1)) as f64
    }

    fn neighbours(&self) -> Vec<Vec<(usize, usize)>> {
        let mut neighbours = vec![Vec::new(); self.nodes()];
        for (index, link) in self.links.iter().enumerate() {
            let [a, b] = link.ends;
            neighbours[a].push((b, index));
            neighbours[b].push((a, index));
        }
        neighbours
    }

    /// Returns the hops from every node to `host`; `None` if there is no path. Hosts do not forward.
    pub(super) fn distances(&self, host: usize) -> Vec<Option<u32>> {
        let neighbours = self.neighbours();
        let mut distances = vec![None; self.nodes()];
        distances[host] = Some(0);
        let mut next = VecDeque::from([(host, 0)]);
        while let Some((node, distance)) = next.pop_front() {
            for &(neighbour, _) in &neighbours[node] {
                if distances[neighbour].is_none() && (node == host || node >= self.hosts) {
                    distances[neighbour] = Some(distance + 1);
                    next.push_back((neighbour, distance + 1));
                }
            }
        }
        distances
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate::from_gbps(100);
    const DELAY: Duration = Duration::from_micros(1);

    fn far(topology: &Topology, from: usize, to: usize) -> u32 {
        topology.distances(to)[from].unwrap()
    }

    #[test]
    fn the_fat_tree_is_the_authors() {
        let tree = Topology::fat_tree(RATE, Rate::from_gbps(400), DELAY);
        assert_eq!((tree.hosts(), tree.switches()), (320, 56));
        assert_eq!(tree.links().len(), 320 + 80 + 80);
        // In the same rack, in the same pod, and across pods.
        assert_eq!((far(&tree, 0, 15), far(&tree, 0, 16), far(&tree, 0, 319)), (2, 4, 6));
    }

    #[test]
    fn a_graph_has_a_path_between_all_its_nodes() {
        let graph = |hosts, switches, links: &[[usize; 2]]| {
            let link = |&ends| Link::new(ends, RATE, DELAY);
            Topology::graph(hosts, switches, links.iter().map(link).collect())
        };
        // Two links between the switches 2 and 3.
        let two = graph(2, 2, &[[2, 0], [1, 3], [2, 3], [3, 2]]).unwrap();
        assert_eq!(far(&two, 0, 1), 3);
        for (links, error) in [
            (&[[0, 2], [1, 2], [2, 4]][..], GraphError::End { link: 2, node: 4 }),
            (&[[0, 1]], GraphError::NoSwitch { link: 0 }),
            (&[[0, 2], [3, 3]], GraphError::NoSwitch { link: 1 }),
            (&[[0, 2], [0, 3]], GraphError::HostLinks { host: 0, links: 2 }),
            (&[[0, 2]], GraphError::HostLinks { host: 1, links: 0 }),
            (&[[0, 2], [1, 3]], GraphError::Separate { node: 1 }),
            (&[[0, 2], [1, 2]], GraphError::Separate { node: 3 }),
        ] {
            assert_eq!(graph(2, 2, links), Err(error), "{links:?}");
        }
        assert_eq!(graph(0, 1, &[]), Err(GraphError::NoHost));
    }

    #[test]
    fn random_flows_divide_among_the_shortest_paths() {
        let near =
            |share: f64, expected: f64| assert!((share - expected).abs() < 1e-9, "{share}, not {expected}");
        // Each host sends a quarter of all flows. Two thirds of a host's flows are to the other leaf; half of these pass each spine.
        let leaves = Topology::leaf_spine(2, 2, 2, RATE, RATE, DELAY);
        near(leaves.share_of_flows([0, 4]), 0.25);
        near(leaves.share_of_flows([4, 0]), 0.25);
        near(leaves.share_of_flows([4, 6]), 0.5 * 2.0 / 3.0 / 2.0);
        near(leaves.share_of_flows([6, 5]), 0.5 * 2.0 / 3.0 / 2.0);
        near(leaves.share_of_flows([6, 7]), 0.0);
        // Of four hosts in a line, the middle link carries the flows from the left half to the right half.
        near(Topology::parking_lot(4, 1, RATE, DELAY).share_of_flows([5, 6]), 4.0 / 12.0);
    }

    #[test]
    fn the_other_topologies_have_the_expected_path_lengths() {
        assert_eq!(far(&Topology::star(4, RATE, DELAY), 0, 3), 2);
        let dumbbell = Topology::dumbbell(2, 3, RATE, RATE, DELAY);
        assert_eq!((dumbbell.hosts(), far(&dumbbell, 0, 1), far(&dumbbell, 0, 4)), (5, 2, 3));
        let line = Topology::parking_lot(3, 2, RATE, DELAY);
        assert_eq!((far(&line, 0, 5), far(&line, 2, 4)), (4, 3));
        let leaves = Topology::leaf_spine(4, 2, 8, RATE, RATE, DELAY);
        assert_eq!((leaves.hosts(), leaves.switches(), far(&leaves, 0, 31)), (32, 6, 4));
        let paths = Topology::unequal_paths(RATE, RATE, DELAY, &[Duration::ZERO, DELAY, DELAY * 2]);
        assert_eq!((paths.hosts(), paths.switches(), far(&paths, 0, 1)), (2, 5, 4));
    }
}

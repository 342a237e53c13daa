//! The partition of a topology among threads: hosts with their switch, so that most packets stay on their thread.

use super::topology::Topology;
use std::sync::Arc;

/// The thread of each node.
pub(super) struct Partition {
    /// Number of threads, at least 1.
    pub(super) count: usize,
    /// Per node.
    pub(super) owners: Arc<[u16]>,
}

impl Partition {
    /// Divides the nodes among at most `threads` threads. Each thread has at least one switch with hosts.
    pub(super) fn new(topology: &Topology, threads: usize) -> Self {
        let hosts = topology.hosts();
        let mut neighbours = vec![Vec::new(); topology.nodes()];
        for link in topology.links() {
            let [a, b] = link.ends;
            neighbours[a].push(b);
            neighbours[b].push(a);
        }
        let has_hosts = |switch: &usize| neighbours[*switch].iter().any(|&node| node < hosts);
        let (edge, inner): (Vec<usize>, Vec<usize>) = (hosts..topology.nodes()).partition(has_hosts);
        let count = threads.clamp(1, edge.len().max(1)).min(usize::from(u16::MAX));
        let mut division =
            Division { owners: vec![None; topology.nodes()], loads: vec![0; count], neighbours: &neighbours };
        let mut before = 0;
        for (place, &switch) in edge.iter().enumerate() {
            let of = neighbours[switch].iter().filter(|node| **node < hosts);
            // By hosts, but a thread without a switch gets the next one.
            let owner = (before * count / hosts.max(1)).max(place + count - edge.len().min(place + count));
            before += of.clone().count();
            of.for_each(|&host| division.assign(host, owner.min(count - 1)));
            division.assign(switch, owner.min(count - 1));
        }
        for switch in inner {
            let owner = division.nearest(switch, 2 * topology.links().len() / count);
            division.assign(switch, owner);
        }
        let owners = division.owners.into_iter().map(|owner| owner.unwrap_or_default() as u16);
        Self { count, owners: owners.collect() }
    }
}

struct Division<'a> {
    owners: Vec<Option<usize>>,
    /// Ports of each thread.
    loads: Vec<usize>,
    neighbours: &'a [Vec<usize>],
}

impl Division<'_> {
    fn assign(&mut self, node: usize, owner: usize) {
        self.owners[node] = Some(owner);
        self.loads[owner] += self.neighbours[node].len();
    }

    /// Returns the thread with the most neighbours of a node, of those with fewer than `fair` ports; else the one with the fewest ports.
    fn nearest(&self, node: usize, fair: usize) -> usize {
        let near = |owner: &usize| {
            self.neighbours[node].iter().filter(|&&other| self.owners[other] == Some(*owner)).count()
        };
        let has_room = |owner: &usize| self.loads[*owner] < fair;
        let lightest = || (0..self.loads.len()).min_by_key(|&owner| self.loads[owner]);
        let best = (0..self.loads.len())
            .filter(has_room)
            .max_by_key(|owner| (near(owner), std::cmp::Reverse(self.loads[*owner])));
        best.or_else(lightest).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc::Rate;
    use std::time::Duration;

    const RATE: Rate = Rate::from_gbps(100);
    const DELAY: Duration = Duration::from_micros(1);

    #[test]
    fn a_fat_tree_is_divided_equally_and_hosts_stay_with_their_switch() {
        let tree = Topology::fat_tree(RATE, RATE, DELAY);
        for threads in [1, 2, 3, 5, 20] {
            let partition = Partition::new(&tree, threads);
            assert_eq!(partition.count, threads);
            let mut ports = vec![0; threads];
            for link in tree.links() {
                let [a, b] = link.ends.map(|node| partition.owners[node]);
                assert!(link.ends[0] >= 320 || a == b, "a host and its switch");
                ports[usize::from(a)] += 1;
                ports[usize::from(b)] += 1;
            }
            let (least, most) = (ports.iter().min(), ports.iter().max());
            assert!(least.zip(most).is_some_and(|(least, most)| most - least <= 40), "{threads}: {ports:?}");
        }
    }

    #[test]
    fn there_are_no_more_threads_than_switches_with_hosts() {
        for (topology, count) in [
            (Topology::star(8, RATE, DELAY), 1),
            (Topology::parking_lot(3, 2, RATE, DELAY), 3),
            (Topology::dumbbell(1, 9, RATE, RATE, DELAY), 2),
            (Topology::leaf_spine(4, 2, 8, RATE, RATE, DELAY), 4),
        ] {
            let partition = Partition::new(&topology, 7);
            assert_eq!(partition.count, count);
            let has_host = |owner: usize| partition.owners[..topology.hosts()].contains(&(owner as u16));
            assert!((0..count).all(has_host), "{:?}", partition.owners);
        }
        assert_eq!(Partition::new(&Topology::star(8, RATE, DELAY), 0).count, 1);
    }
}

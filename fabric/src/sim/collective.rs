//! Collective operations as flows with dependencies.

use super::setup::{Dependency, Flow};
use std::time::Duration;

/// A collective operation of several hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Each host has data for each other host. In round `r` it sends to the host `r` places further, after its flow of the previous round.
    AllToAll,
    /// All-reduce on a ring, in `2 (n - 1)` steps. In each, a host sends a part of its data to the next host, after it has received the
    /// part of the previous step.
    Ring,
}

impl Collective {
    /// Returns the number of flows between `hosts` hosts.
    #[must_use]
    pub const fn flows(self, hosts: u64) -> u64 {
        hosts * self.steps(hosts)
    }

    const fn steps(self, hosts: u64) -> u64 {
        match self {
            Self::AllToAll => hosts.saturating_sub(1),
            Self::Ring => 2 * hosts.saturating_sub(1),
        }
    }

    /// Returns the flows of `hosts`, which begin at `start`, and their dependencies. The first flow has the number `first`. `bytes` is the
    /// data from each host to each other host, or on a ring, all data of a host.
    #[must_use]
    pub fn of(self, hosts: &[u32], bytes: u64, start: Duration, first: u32) -> (Vec<Flow>, Vec<Dependency>) {
        let count = hosts.len();
        let (mut flows, mut dependencies) = (Vec::new(), Vec::new());
        for step in 0..self.steps(count as u64) as usize {
            for (place, &source) in hosts.iter().enumerate() {
                let (distance, bytes, waits_for) = match self {
                    Self::AllToAll => (step + 1, bytes, place),
                    Self::Ring => (1, bytes.div_ceil(count as u64), (place + count - 1) % count),
                };
                let flow = first + flows.len() as u32;
                if let Some(before) = step.checked_sub(1) {
                    let after = first + (before * count + waits_for) as u32;
                    dependencies.push(Dependency { flow, after });
                }
                let destination = hosts[(place + distance) % count];
                let start = if step == 0 { start } else { Duration::ZERO };
                flows.push(Flow { source, destination, bytes, start, is_incast: false, dscp: 0 });
            }
        }
        (flows, dependencies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source, destination and bytes of each flow, and pairs of a flow and the flow that must end before it.
    type Ends = (Vec<(u32, u32, u64)>, Vec<(u32, u32)>);

    fn ends(kind: Collective) -> Ends {
        let (flows, dependencies) = kind.of(&[4, 5, 6], 10, Duration::ZERO, 100);
        assert_eq!(flows.len() as u64, kind.flows(3));
        let flows = flows.iter().map(|flow| (flow.source, flow.destination, flow.bytes));
        let waits = dependencies.iter().map(|dependency| (dependency.flow, dependency.after));
        (flows.collect(), waits.collect())
    }

    #[test]
    fn an_all_to_all_has_a_flow_for_each_pair() {
        let (flows, waits) = ends(Collective::AllToAll);
        let pairs = [(4, 5), (5, 6), (6, 4), (4, 6), (5, 4), (6, 5)];
        assert_eq!(flows, pairs.map(|(from, to)| (from, to, 10)));
        assert_eq!(waits, [(103, 100), (104, 101), (105, 102)]);
    }

    #[test]
    fn a_ring_flow_waits_for_the_flow_into_its_source() {
        let (flows, waits) = ends(Collective::Ring);
        assert_eq!(flows, [(4, 5, 4), (5, 6, 4), (6, 4, 4)].repeat(4));
        assert_eq!(waits[..3], [(103, 102), (104, 100), (105, 101)]);
        assert_eq!((waits.len(), waits[8]), (9, (111, 107)));
    }
}

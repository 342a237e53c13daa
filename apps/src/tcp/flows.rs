//! The TCP flows of this host that the kernel has reported.

use super::flow::{Paced, Settings};
use datapath::tcp::Flow;
use roce::wire::AnswerLimit;
use std::collections::HashMap;
use std::net::SocketAddrV4;

type Ends = (SocketAddrV4, SocketAddrV4);

/// The limit on lookups of single flows in the kernel between two refreshes. A lookup is a system call, and any host can send packets of
/// flows that do not exist.
const LOOKUPS: u32 = 64;

#[derive(Debug)]
pub struct Tracked {
    /// The flow in the kernel's last report.
    pub flow: Flow,
    /// The state of this host as the sender.
    pub paced: Paced,
    /// The limit on answers of this host as the receiver.
    pub answers: AnswerLimit,
}

impl Tracked {
    fn new(flow: Flow, settings: Settings) -> Self {
        Self { flow, paced: Paced::new(settings), answers: AnswerLimit::default() }
    }
}

/// The flows that the kernel has reported. The kernel's table limits their number.
#[derive(Debug, Default)]
pub struct Flows {
    known: HashMap<Ends, Tracked>,
    began: u64,
    lookups: u32,
}

impl Flows {
    /// Replaces the flows by the flows that exist now, and keeps the state of flows that already existed.
    pub fn refresh(&mut self, flows: impl Iterator<Item = Flow>, settings: Settings) {
        let mut seen = HashMap::with_capacity(self.known.len());
        for flow in flows {
            let ends = (flow.local, flow.remote);
            let tracked = self.known.remove(&ends).map_or_else(
                || {
                    self.began += 1;
                    Tracked::new(flow, settings)
                },
                |tracked| Tracked { flow, ..tracked },
            );
            seen.insert(ends, tracked);
        }
        self.known = seen;
        self.lookups = 0;
    }

    /// Returns the flow with these ends. Looks up an unknown flow with `kernel`, because it may have begun since the last refresh.
    pub fn find(
        &mut self,
        ends: Ends,
        settings: Settings,
        kernel: impl FnOnce() -> Option<Flow>,
    ) -> Option<&mut Tracked> {
        if !self.known.contains_key(&ends) && self.lookups < LOOKUPS {
            self.lookups += 1;
            if let Some(flow) = kernel() {
                self.began += 1;
                self.known.insert(ends, Tracked::new(flow, settings));
            }
        }
        self.known.get_mut(&ends)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tracked> {
        self.known.values_mut()
    }

    /// Returns the number of flows seen since the start.
    pub fn began(&self) -> u64 {
        self.began
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings { line_rate: None, base_rtt: None };

    fn ends(port: u16) -> Ends {
        (SocketAddrV4::new([10, 0, 0, 2].into(), 5201), SocketAddrV4::new([10, 0, 0, 1].into(), port))
    }

    fn flow(port: u16) -> Flow {
        let (local, remote) = ends(port);
        Flow { local, remote, touched: 0, acknowledged: 0, next: 0, segment: 1448 }
    }

    #[test]
    fn unknown_flows_cost_64_lookups_per_refresh_and_no_memory() {
        let mut flows = Flows::default();
        flows.refresh([flow(1)].into_iter(), SETTINGS);
        let mut lookups = 0;
        for port in 2..20_000 {
            let found = flows.find(ends(port), SETTINGS, || {
                lookups += 1;
                None
            });
            assert!(found.is_none());
        }
        assert_eq!((lookups, flows.known.len()), (64, 1));
        assert!(flows.find(ends(1), SETTINGS, || unreachable!("known")).is_some());
        flows.refresh([flow(1)].into_iter(), SETTINGS);
        assert!(flows.find(ends(2), SETTINGS, || Some(flow(2))).is_some(), "it began since the last look");
        assert!(flows.find(ends(2), SETTINGS, || unreachable!("known")).is_some());
        assert_eq!(flows.began(), 2);
    }

    #[test]
    fn a_flow_that_has_ended_is_not_found() {
        let mut flows = Flows::default();
        flows.refresh([flow(1), flow(2)].into_iter(), SETTINGS);
        flows.refresh([flow(2)].into_iter(), SETTINGS);
        assert!(flows.find(ends(1), SETTINGS, || None).is_none());
        assert!(flows.find(ends(2), SETTINGS, || None).is_some());
    }
}

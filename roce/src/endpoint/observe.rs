//! An observer's view of queue pairs: their state, and what they waited for.

use super::Endpoint;
use crate::qp::{QpReport, Waiting, WaitingTimes};
use crate::wire::Service;
use crate::{CqId, FailureReason, Qpn};
use alloc::vec::Vec;
use cc::{HeardHop, Instant};
use core::net::IpAddr;

/// A queue pair at one moment.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Its number.
    pub qpn: Qpn,
    /// The service of its packets.
    pub service: Service,
    /// The address that its packets go to, and the queue pair there; `None` without a connection.
    pub peer: Option<(IpAddr, Qpn)>,
    /// The completion queue of its send requests.
    pub send_cq: CqId,
    /// The queue pair's own report.
    pub report: QpReport,
    /// The last telemetry of each hop of its path, in path order.
    pub hops: Vec<HeardHop>,
    /// The likely reason why its peer keeps it waiting; `None` if the peer does not.
    pub suspected: Option<FailureReason>,
    /// The state that it waits in now.
    pub waiting: Waiting,
    /// The time that it spent in each state since it was created.
    pub waited: WaitingTimes,
}

impl Endpoint {
    /// Returns up to `most` queue pairs at `now`, and the place to go on at; `None` once there are no more. The first place is 0.
    #[must_use]
    pub fn observe(&self, now: Instant, from: u32, most: usize) -> (Vec<Observation>, Option<u32>) {
        let mut seen = Vec::new();
        for index in from..self.qps.len() {
            if seen.len() == most {
                return (seen, Some(index));
            }
            let Some(slot) = self.qps.at(index) else { continue };
            let identity = slot.qp.identity();
            seen.push(Observation {
                qpn: identity.qpn,
                service: slot.qp.service(),
                peer: slot.qp.peer().map(|peer| (peer.address, peer.qpn)),
                send_cq: identity.send_cq,
                report: slot.qp.report(),
                hops: slot.qp.hops().collect(),
                suspected: slot.qp.suspects(now, &self.commons.events),
                waiting: slot.account.state(),
                waited: slot.account.at(now),
            });
        }
        (seen, None)
    }

    /// Returns what the endpoint's queue pairs waited for up to `now`, those that are gone among them.
    #[must_use]
    pub fn waited(&self, now: Instant) -> WaitingTimes {
        let mut sum = self.gone;
        let slots = (0..self.qps.len()).filter_map(|index| self.qps.at(index));
        slots.for_each(|slot| sum.add(&slot.account.at(now)));
        sum
    }

    /// Notes for a queue pair with nothing posted whether its completions wait to be polled.
    pub fn note_unpolled(&mut self, now: Instant, qpn: Qpn, unpolled: bool) {
        if let Some(slot) = self.qps.find(qpn).and_then(|index| self.qps.at_mut(index)) {
            slot.account.note_unpolled(now, unpolled);
        }
    }
}

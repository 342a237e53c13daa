//! The state of queue pairs, and their waiting times, for tools that observe them.

use super::Endpoint;
use crate::qp::{QpReport, Waiting, WaitingTimes};
use crate::wire::Service;
use crate::{CqId, FailureReason, Qpn};
use alloc::vec::Vec;
use cc::{Instant, RecordedHop};
use core::net::IpAddr;

/// State of a queue pair at one moment.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Queue pair number.
    pub qpn: Qpn,
    /// Service of its packets.
    pub service: Service,
    /// Address and queue pair of the peer; `None` without a connection.
    pub peer: Option<(IpAddr, Qpn)>,
    /// Completion queue of its send requests.
    pub send_cq: CqId,
    /// Report on the queue pair.
    pub report: QpReport,
    /// Last telemetry of each hop of its path, in path order.
    pub hops: Vec<RecordedHop>,
    /// Likely reason why its requests wait for the peer; `None` if they do not.
    pub suspected: Option<FailureReason>,
    /// State in which it waits now.
    pub waiting: Waiting,
    /// Time spent in each state since it was created.
    pub waited: WaitingTimes,
}

impl Endpoint {
    /// Returns up to `most` queue pairs from index `from` on, and the index at which to continue; `None` if there are no more. The first
    /// index is 0.
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
                suspected: slot.qp.suspects(now, &self.shared.events),
                waiting: slot.account.state(),
                waited: slot.account.at(now),
            });
        }
        (seen, None)
    }

    /// Returns the waiting times of all queue pairs up to `now`, including destroyed ones.
    #[must_use]
    pub fn waited(&self, now: Instant) -> WaitingTimes {
        let mut sum = self.destroyed_waiting;
        let slots = (0..self.qps.len()).filter_map(|index| self.qps.at(index));
        slots.for_each(|slot| sum.add(&slot.account.at(now)));
        sum
    }

    /// Records, for a queue pair with nothing posted, whether completions wait to be polled.
    pub fn record_unpolled(&mut self, now: Instant, qpn: Qpn, unpolled: bool) {
        if let Some(slot) = self.qps.find(qpn).and_then(|index| self.qps.at_mut(index)) {
            slot.account.record_unpolled(now, unpolled);
        }
    }
}

//! XRC for the test harness: domains, shared receive queues, initiators and targets.

use super::{BASE, Host, Options, Pair};
use cc::Instant;
use roce::qp::{Completion, QpInit, RecvRequest, Sge};
use roce::wire::Service;
use roce::{Access, CqId, PdId, Region, SrqId, SrqInit, SrqNumber, XrcReceives, XrcdId};

/// A shared receive queue of an XRC domain, with its own protection domain and completion queue. All of the host's memory is a region of
/// that protection domain.
#[derive(Clone, Copy, Debug)]
pub struct Inbox {
    pub srq: SrqId,
    pub number: SrqNumber,
    pub pd: PdId,
    pub cq: CqId,
    pub region: Region,
}

impl Host {
    pub fn inbox(&mut self, domain: XrcdId) -> Inbox {
        let cq = self.endpoint.create_cq(64).unwrap();
        self.inbox_with(domain, cq)
    }

    pub fn inbox_with(&mut self, domain: XrcdId, cq: CqId) -> Inbox {
        let pd = self.endpoint.create_pd();
        let xrc = Some(XrcReceives { domain, cq });
        let srq = self.endpoint.create_srq(SrqInit { pd, depth: 64, max_sge: 4, xrc }).unwrap();
        let number = self.endpoint.srq_number(srq).unwrap();
        let region = self.endpoint.register(pd, BASE, self.ram.0.len() as u64, Access::ALL).unwrap();
        Inbox { srq, number, pd, cq, region }
    }

    pub fn initiator(&self, options: &Options) -> QpInit {
        QpInit { service: Service::Xrc, ..self.init(options) }
    }

    pub fn post_to(&mut self, inbox: &Inbox, id: u64, offset: u64, length: u32) {
        let sge = Sge { address: BASE + offset, length, lkey: inbox.region.lkey };
        self.endpoint.post_srq_recv(inbox.srq, RecvRequest::new(id, sge)).unwrap();
    }

    pub fn arrived(&mut self, inbox: &Inbox) -> Vec<Completion> {
        self.poll(inbox.cq)
    }
}

/// Connects an initiator on host 0 to a target on host 1, with two shared receive queues in the target's domain.
pub fn connected(options: Options) -> (Pair, XrcdId, [Inbox; 2]) {
    let mut hosts = [Host::new(1, &options), Host::new(2, &options)];
    let initiator = hosts[0].initiator(&options);
    hosts[0].qpn = hosts[0].endpoint.create_qp(Instant::ZERO, initiator).unwrap();
    let domain = hosts[1].endpoint.create_xrcd().unwrap();
    hosts[1].qpn = hosts[1].endpoint.create_xrc_target(Instant::ZERO, domain).unwrap();
    let inboxes = [hosts[1].inbox(domain), hosts[1].inbox(domain)];
    (Pair::of(hosts, options), domain, inboxes)
}

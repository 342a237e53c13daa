//! One poll-mode core's queue pairs, completion queues and regions, and who of them sends next.

mod datapath;
mod numbers;
mod table;

use crate::address::AddressTable;
use crate::cq::CompletionQueues;
use crate::key_space::KeySpace;
use crate::qp::{
    AnyQueuePair, Books, Capabilities, Completion, CompletionStatus, Identity, Modify, PostError, QpInit,
    QpReport, RecvRequest, SendRequest,
};
use crate::srq::SharedQueues;
use crate::wire::Path;
use crate::{
    Access, AddressId, Counters, Lkey, Qpn, Region, RegionTable, SrqId, SrqInit, SrqReport, TimingWheel,
};
use alloc::collections::VecDeque;
use cc::{ActiveFlows, ConfigError, Instant};
use core::net::IpAddr;
use core::time::Duration;
use table::QpTable;
use thiserror::Error;

/// How late a timer may fire. Pacing at 100 Gb/s wants it below a packet's time.
const TIMER_GRANULARITY: Duration = Duration::from_nanos(256);
/// Requests in one queue.
const MAX_QUEUE: u32 = 1 << 15;
/// Buffers in one request.
const MAX_SGE: u32 = 32;
/// Bytes inline in one request.
const MAX_INLINE: u32 = 4096;

/// A protection domain: queue pairs and regions of different domains don't meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// A completion queue of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// Limits and secrets of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// Queue pairs it may hold.
    pub max_qps: u32,
    /// Completion queues it may hold.
    pub max_cqs: u32,
    /// Memory regions it may hold.
    pub max_regions: u32,
    /// Unpredictable: keys, queue pair numbers and initial PSNs are drawn from it.
    pub seed: [u8; 32],
    /// 0 to 15: the top 4 bits of every queue pair's number, so that any core sees whose a packet is.
    pub core: u8,
}

/// Why a control call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[allow(missing_docs)]
pub enum ControlError {
    #[error("no more than {limit} {what} on one core")]
    Limit { what: &'static str, limit: u32 },
    #[error("there is no QP {0}")]
    NoQp(Qpn),
    #[error("there is no CQ {}", .0.0)]
    NoCq(CqId),
    #[error("there is no region with lkey {0}")]
    NoRegion(Lkey),
    #[error("QP {qpn} can't go from {from:?} to {to}")]
    Transition { qpn: Qpn, from: crate::qp::State, to: &'static str },
    #[error("{what} is {value}: the limit is {limit}")]
    Value { what: &'static str, value: u64, limit: u64 },
    #[error("CQ {} still serves {qps} queue pairs", .cq.0)]
    CqBusy { cq: CqId, qps: u32 },
    #[error("source {from} and destination {to} are of different families: use two of one")]
    Families { from: IpAddr, to: IpAddr },
    #[error("there is no shared receive queue {}", .0.0)]
    NoSrq(SrqId),
    #[error("shared receive queue {} still serves {qps} queue pairs", .srq.0)]
    SrqBusy { srq: SrqId, qps: u32 },
    #[error("shared receive queue {} is of another protection domain", .srq.0)]
    SrqDomain { srq: SrqId },
    #[error("there is no such address handle")]
    NoAddress,
    #[error("congestion control: {0}")]
    Congestion(ConfigError),
}

/// All queue pairs, completion queues and memory regions of one poll-mode core.
pub struct Endpoint {
    qps: QpTable,
    cqs: CompletionQueues,
    regions: RegionTable,
    addresses: AddressTable,
    shared: SharedQueues,
    counters: Counters,
    /// Who sends telemetry here.
    flows: ActiveFlows,
    /// One timer per queue pair, called by its place in the table.
    wheel: TimingWheel,
    /// Places of queue pairs that may have something to send, each at most once.
    ready: VecDeque<u32>,
    next_pd: u32,
}

impl Endpoint {
    /// An endpoint without queue pairs. All that grows with packets has its room from now on.
    #[must_use]
    pub fn new(config: EndpointConfig) -> Self {
        let qps = config.max_qps.min(numbers::MAX_QPS);
        // One secret each, so that numbers that everybody sees tell nothing about keys.
        let [for_numbers, for_keys] = derive(&config.seed);
        Self {
            qps: QpTable::new(config.core, qps, &for_numbers),
            cqs: CompletionQueues::new(config.max_cqs),
            regions: RegionTable::new(config.max_regions, &for_keys),
            addresses: AddressTable::new(),
            shared: SharedQueues::default(),
            counters: Counters::default(),
            flows: ActiveFlows::new(),
            wheel: TimingWheel::new(qps, TIMER_GRANULARITY),
            ready: VecDeque::with_capacity(qps as usize),
            next_pd: 0,
        }
    }

    /// Makes a protection domain.
    pub fn create_pd(&mut self) -> PdId {
        self.next_pd += 1;
        PdId(self.next_pd)
    }

    /// Makes a completion queue that holds `depth` completions not yet polled.
    ///
    /// # Errors
    /// A depth of 0 or above 2^22, or one queue too many.
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId, ControlError> {
        self.cqs.create(depth)
    }

    /// Gives up a completion queue and what it holds.
    ///
    /// # Errors
    /// There is none of this number, or queue pairs still use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        self.cqs.destroy(cq)
    }

    /// Moves completions out, oldest first, until `into` takes no more (`false`) or none are left.
    pub fn poll_cq(&mut self, cq: CqId, into: &mut dyn FnMut(&Completion) -> bool) -> usize {
        self.cqs.poll(cq, into)
    }

    /// Whether the queue lost completions because nobody polled; its queue pairs are in ERR.
    #[must_use]
    pub fn cq_overflowed(&self, cq: CqId) -> bool {
        self.cqs.overflowed(cq)
    }

    /// Registers `length` bytes at `address` for queue pairs of `pd`.
    ///
    /// # Errors
    /// An empty region, one that runs over the end of the address space, or one too many.
    pub fn register(
        &mut self,
        pd: PdId,
        address: u64,
        length: u64,
        access: Access,
    ) -> Result<Region, ControlError> {
        self.regions.register(pd, address, length, access)
    }

    /// Forgets a region. When this returns, none of its bytes is touched any more.
    ///
    /// # Errors
    /// No region has this key.
    pub fn deregister(&mut self, lkey: Lkey) -> Result<(), ControlError> {
        self.regions.deregister(lkey).map(drop)
    }

    /// Makes an address handle: the way that datagrams of `pd` take.
    ///
    /// # Errors
    /// The path's addresses are of different families, or one handle too many.
    pub fn create_address(&mut self, pd: PdId, path: &Path) -> Result<AddressId, ControlError> {
        self.addresses.create(pd, path)
    }

    /// Forgets an address handle. Datagrams that wait to go there fail.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn destroy_address(&mut self, address: AddressId) -> Result<(), ControlError> {
        if self.addresses.destroy(address) { Ok(()) } else { Err(ControlError::NoAddress) }
    }

    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// A depth or a number of buffers beyond its limit, or one queue too many.
    pub fn create_srq(&mut self, init: SrqInit) -> Result<SrqId, ControlError> {
        self.shared.create(init)
    }

    /// Gives up a shared receive queue; its requests are forgotten, without completions.
    ///
    /// # Errors
    /// There is none of this number, or queue pairs still take from it.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ControlError> {
        self.shared.destroy(srq)
    }

    /// Takes in a receive request for whichever queue pair comes first.
    ///
    /// # Errors
    /// Why it was not taken; nothing of it was done.
    pub fn post_srq_recv(&mut self, srq: SrqId, request: RecvRequest) -> Result<(), PostError> {
        self.shared.post(srq, request)
    }

    /// Asks for an event, once, when fewer than `limit` requests wait: [`Self::poll_srq_limit`] gives it. 0 asks for
    /// none.
    ///
    /// # Errors
    /// There is none of this number, or it holds no more than `limit`.
    pub fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), ControlError> {
        self.shared.arm(srq, limit)
    }

    /// A shared receive queue that fell below the limit it was armed with.
    pub fn poll_srq_limit(&mut self) -> Option<SrqId> {
        self.shared.poll_low()
    }

    /// What a shared receive queue says of itself.
    #[must_use]
    pub fn srq_report(&self, srq: SrqId) -> Option<SrqReport> {
        self.shared.report(srq)
    }

    /// Receive requests that a shared queue would still take now.
    #[must_use]
    pub fn srq_room(&self, srq: SrqId) -> u32 {
        self.shared.room(srq)
    }

    /// Makes a queue pair, in RESET.
    ///
    /// # Errors
    /// A capability above its limit, an unknown completion queue, or one queue pair too
    /// many.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, ControlError> {
        check_capabilities(&init.capabilities)?;
        if let Some(srq) = init.srq {
            self.shared.join(srq, init.pd)?;
        }
        let made = self.make_qp(init);
        if let (Err(_), Some(srq)) = (&made, init.srq) {
            self.shared.leave(srq);
        }
        made
    }

    fn make_qp(&mut self, init: QpInit) -> Result<Qpn, ControlError> {
        self.cqs.join(init.send_cq)?;
        let made = self.cqs.join(init.recv_cq).and_then(|()| {
            let identity = |qpn| Identity {
                qpn,
                pd: init.pd,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                signal_all: init.signal_all,
                srq: init.srq,
                capabilities: init.capabilities,
            };
            self.qps.insert(init.service, identity).inspect_err(|_| self.cqs.leave(init.recv_cq))
        });
        made.inspect_err(|_| self.cqs.leave(init.send_cq))
    }

    /// Takes a queue pair to another state.
    ///
    /// # Errors
    /// A transition that there is not, or a setting out of its limits; the queue pair stays as it is.
    pub fn modify_qp(&mut self, now: Instant, qpn: Qpn, modify: Modify) -> Result<(), ControlError> {
        let (index, qp, mut books) = self.open(now, qpn).ok_or(ControlError::NoQp(qpn))?;
        qp.modify(modify, &mut books)?;
        self.settle(now, index);
        Ok(())
    }

    /// Forgets a queue pair, without completions for what is outstanding.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ControlError> {
        let (index, slot) = self.qps.remove(qpn).ok_or(ControlError::NoQp(qpn))?;
        self.wheel.cancel(index);
        if slot.is_ready {
            self.ready.retain(|&ready| ready != index);
        }
        let identity = slot.qp.identity();
        self.cqs.leave(identity.send_cq);
        self.cqs.leave(identity.recv_cq);
        if let Some(srq) = identity.srq {
            self.shared.leave(srq);
        }
        Ok(())
    }

    /// What a queue pair says of itself.
    #[must_use]
    pub fn report(&self, qpn: Qpn) -> Option<QpReport> {
        self.qps.get(qpn).map(|slot| slot.qp.report())
    }

    /// Takes in a send request.
    ///
    /// # Errors
    /// Why it was not taken; nothing of it was done.
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, request: SendRequest) -> Result<(), PostError> {
        let (index, qp, mut books) = self.open(now, qpn).ok_or(PostError::NoQp { qpn })?;
        qp.post_send(request, &mut books)?;
        self.settle(now, index);
        Ok(())
    }

    /// Takes in a receive request.
    ///
    /// # Errors
    /// Why it was not taken; nothing of it was done.
    pub fn post_recv(&mut self, qpn: Qpn, request: RecvRequest) -> Result<(), PostError> {
        // A receive needs no time: what waits for it comes back by itself.
        let (_, qp, mut books) = self.open(Instant::ZERO, qpn).ok_or(PostError::NoQp { qpn })?;
        qp.post_recv(request, &mut books)?;
        self.spread_overflow(Instant::ZERO);
        Ok(())
    }

    /// Send requests that the queue pair would still take now; 0 means that `post_send` answers `QueueFull`. Requests
    /// that are done, signalled or not, take no room.
    #[must_use]
    pub fn send_room(&self, qpn: Qpn) -> u32 {
        self.qps.get(qpn).map_or(0, |slot| slot.qp.send_room())
    }

    /// Receive requests that the queue pair would still take now.
    #[must_use]
    pub fn recv_room(&self, qpn: Qpn) -> u32 {
        self.qps.get(qpn).map_or(0, |slot| slot.qp.recv_room())
    }

    /// What was counted since the endpoint was made.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A queue pair with its place, and beside it what it shares with all others.
    fn open(&mut self, now: Instant, qpn: Qpn) -> Option<(u32, &mut AnyQueuePair, Books<'_>)> {
        let index = self.qps.find(qpn)?;
        let slot = self.qps.at_mut(index)?;
        let (regions, cqs, counters) = (&self.regions, &mut self.cqs, &mut self.counters);
        let (addresses, flows) = (&self.addresses, &mut self.flows);
        let shared = &mut self.shared;
        let books = Books { now, regions, addresses, shared, cqs, counters, flows };
        Some((index, &mut slot.qp, books))
    }

    /// Where a completion queue overflowed: its queue pairs go to ERR (IBA 10.2.6). Rare, so it
    /// looks at all of them.
    #[inline]
    fn spread_overflow(&mut self, now: Instant) {
        if self.cqs.has_news() {
            self.fail_overflowed(now);
        }
    }

    #[cold]
    fn fail_overflowed(&mut self, now: Instant) {
        while self.cqs.take_news() {
            for index in 0..self.qps.len() {
                let Some(slot) = self.qps.at_mut(index) else { continue };
                let Identity { send_cq, recv_cq, .. } = *slot.qp.identity();
                if self.cqs.overflowed(send_cq) || self.cqs.overflowed(recv_cq) {
                    let (regions, cqs, counters) = (&self.regions, &mut self.cqs, &mut self.counters);
                    let (addresses, flows) = (&self.addresses, &mut self.flows);
                    let shared = &mut self.shared;
                    let mut books = Books { now, regions, addresses, shared, cqs, counters, flows };
                    let flushed = CompletionStatus::Flushed;
                    slot.qp.fail(flushed, flushed, &mut books);
                }
            }
        }
    }
}

fn check_capabilities(capabilities: &Capabilities) -> Result<(), ControlError> {
    let Capabilities { max_send, max_recv, max_send_sge, max_recv_sge, max_inline } = *capabilities;
    for (what, value, limit) in [
        ("max_send", max_send, MAX_QUEUE),
        ("max_recv", max_recv, MAX_QUEUE),
        ("max_send_sge", max_send_sge, MAX_SGE),
        ("max_recv_sge", max_recv_sge, MAX_SGE),
        ("max_inline", max_inline, MAX_INLINE),
    ] {
        if value > limit {
            return Err(ControlError::Value { what, value: u64::from(value), limit: u64::from(limit) });
        }
    }
    Ok(())
}

/// Secrets that tell nothing of each other, nor of the seed.
fn derive<const N: usize>(seed: &[u8; 32]) -> [[u8; 32]; N] {
    let half = |at: usize| KeySpace::new(&core::array::from_fn(|i| seed[at + i]));
    let (low, high) = (half(0), half(16));
    core::array::from_fn(|secret| {
        let word = |i: usize| (low.seal((secret * 8 + i) as u32) ^ high.seal(i as u32)).to_le_bytes();
        core::array::from_fn(|i| word(i / 4)[i % 4])
    })
}

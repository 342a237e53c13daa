//! The protocol state of one core without I/O: its queue pairs, completion queues and regions, and the queue pair that sends next.

mod addresses;
mod burst;
mod config;
mod datapath;
mod groups;
mod idle;
mod numbers;
mod observe;
mod peers;
mod posting;
mod redirect;
mod shared_objects;
mod steering;
mod table;
mod xrc;

use crate::event::Event;
use crate::memory::KeySpace;
use crate::qp::{
    Capabilities, Completion, CompletionStatus, Context, Identity, Modify, QpInit, QpReport, QueuePair,
    Receives, WaitingTimes,
};
use crate::steering::FlowTable;
use crate::wire::Service;
use crate::{
    Access, ControlError, Counters, CqId, FailureCause, Lkey, PdId, Qpn, Region, Rkey, SrqId, SrqInit,
    SrqReport, TimingWheel, WindowKind,
};
use alloc::collections::VecDeque;
use cc::{Instant, PublishedFlows, Rate};
pub use config::EndpointConfig;
use core::num::NonZeroU32;
use core::time::Duration;
use groups::Groups;
pub use groups::{GROUP_QPN, MAX_GROUPS, MAX_MEMBERS};
use idle::TelemetryHolders;
pub use numbers::{CoreIndex, QPN_QUARANTINE, process_of};
pub use observe::Observation;
use peers::{IndexEntry, PeerIndex};
use shared_objects::SharedObjects;
use table::QpTable;

/// Resolution of timers. At 100 Gb/s a packet of 1 KiB takes 90 ns. With a coarser resolution, pacing would send packets in groups.
const TIMER_GRANULARITY: Duration = Duration::from_nanos(16);

/// All queue pairs, completion queues and memory regions of one core.
pub struct Endpoint {
    qps: QpTable,
    shared: SharedObjects,
    /// One timer per queue pair, by its slot in the table.
    wheel: TimingWheel,
    /// Slots of queue pairs that may have something to send, each at most once.
    ready: VecDeque<u32>,
    /// Queue pair before those in `ready`: it sent last while no other was ready. Usually only one is active, and its turns do not use the
    /// queues.
    last_sender: Option<u32>,
    /// Queue pairs with a pending answer, which are before all others.
    responders: VecDeque<u32>,
    link: Option<Link>,
    next_pd: u32,
    peers: PeerIndex,
    groups: Groups,
    flows: FlowTable,
    telemetry_holders: TelemetryHolders,
    destroyed_waiting: WaitingTimes,
}

/// Configured rate of the link, for a port without its own.
#[derive(Clone, Copy, Debug)]
struct Link {
    rate: Rate,
    /// When the frames sent so far have passed.
    free_at: Instant,
}

impl Endpoint {
    /// Creates an endpoint without queue pairs. Memory that grows with packets is allocated now.
    #[must_use]
    pub fn new(config: EndpointConfig) -> Self {
        Self::of_core(config, CoreIndex::ONLY)
    }

    /// Creates the endpoint of one of several cores of a port. Endpoints with the same seed and the same sequence of creations assign the
    /// same numbers and keys. This applies to protection domains, completion queues, regions, windows and shared receive queues.
    #[must_use]
    pub fn of_core(config: EndpointConfig, core: CoreIndex) -> Self {
        let qps = config.max_qps.min(core.max_qps());
        // Separate secrets, so that numbers, which are public, reveal nothing about keys.
        let [for_numbers, for_keys] = derive(&config.seed);
        Self {
            qps: QpTable::new(config.process, core, qps, &for_numbers),
            shared: SharedObjects::new(&config, &for_keys),
            wheel: TimingWheel::new(qps, TIMER_GRANULARITY),
            ready: VecDeque::with_capacity(qps as usize),
            last_sender: None,
            responders: VecDeque::with_capacity(qps as usize),
            link: None,
            next_pd: 0,
            peers: PeerIndex::default(),
            groups: Groups::default(),
            flows: FlowTable::default(),
            telemetry_holders: TelemetryHolders::default(),
            destroyed_waiting: WaitingTimes::default(),
        }
    }

    /// Bytes of a queue pair before its first use. Its queues, and the state that answers telemetry, are allocated on first use.
    pub const QP_BYTES: usize = QpTable::QP_BYTES;

    /// Spaces frames as a link of this rate would, in bits of frames; with `None` they are sent as fast as the port accepts them. For ports
    /// without a rate of their own (veth, tap, memif), where all queue pairs would otherwise send at the same time. After a pause of the
    /// poller, the endpoint does not send faster to compensate.
    pub fn set_link_rate(&mut self, rate: Option<Rate>) {
        let rate = rate.filter(|rate| rate.as_bps() > 0);
        self.link = rate.map(|rate| Link { rate, free_at: Instant::ZERO });
    }

    /// Returns the number of flows that receivers report, at least 1: of this endpoint, and of those in
    /// [`set_other_flows`](Self::set_other_flows).
    #[must_use]
    pub fn flow_count(&self) -> NonZeroU32 {
        self.shared.flows.count()
    }

    /// Returns the number of flows whose telemetry arrives here, for the other endpoints that share the link.
    #[inline]
    #[must_use]
    pub fn published_flows(&self) -> PublishedFlows {
        self.shared.flows.published()
    }

    /// Sets the number of flows whose telemetry arrives at the other endpoints that share the link, 0 in a new endpoint. Receivers report
    /// the flows of all endpoints, and compute windows for them.
    #[inline]
    pub const fn set_other_flows(&mut self, others: u32) {
        self.shared.flows.set_others(others);
    }

    /// Sets the limit of the memory that all queue pairs together use for early packets, in bytes; 64 MiB in a new endpoint. Packets that
    /// exceed it are dropped, and their sender retransmits them. A queue pair may evict the packets of another that uses more than twice as
    /// much. If the limit is lowered, memory above it is freed when it is no longer needed.
    pub fn set_early_budget(&mut self, bytes: usize) {
        self.shared.early.set_limit(bytes);
    }

    /// Returns the memory that all queue pairs together use for early packets, in bytes.
    #[must_use]
    pub fn early_bytes(&self) -> usize {
        self.shared.early.used()
    }

    /// Creates a protection domain.
    pub fn create_pd(&mut self) -> PdId {
        self.next_pd += 1;
        PdId(self.next_pd)
    }

    /// Creates a completion queue with room for `depth` completions not yet polled.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the depth is 0 or above 2^22, or the limit of completion queues is reached.
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId, ControlError> {
        self.shared.cqs.create(depth)
    }

    /// Destroys a completion queue with its completions.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the queue does not exist, or queue pairs still use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        self.shared.cqs.destroy(cq)?;
        self.shared.events.forget(|event| *event == Event::CqOverflowed(cq));
        Ok(())
    }

    /// Changes the depth of a completion queue. Its completions stay.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the queue does not exist, the depth is 0 or above 2^22, or the queue contains more completions.
    pub fn resize_cq(&mut self, cq: CqId, depth: u32) -> Result<(), ControlError> {
        self.shared.cqs.resize(cq, depth)
    }

    /// Moves completions out, oldest first, until `into` returns `false` or none are left. Returns their number.
    pub fn poll_cq(&mut self, cq: CqId, into: &mut dyn FnMut(&Completion) -> bool) -> usize {
        self.shared.cqs.poll(cq, into)
    }

    /// Returns the completions in a queue, oldest first.
    #[inline]
    #[must_use]
    pub fn completions(&self, cq: CqId) -> &[Completion] {
        self.shared.cqs.waiting(cq)
    }

    /// Removes all completions in a queue, after [`Self::completions`] returned them.
    pub fn clear_cq(&mut self, cq: CqId) {
        self.shared.cqs.clear(cq);
    }

    /// Removes the completions of one queue pair from a completion queue.
    pub fn discard_completions(&mut self, cq: CqId, qpn: Qpn) {
        self.shared.cqs.discard(cq, qpn);
    }

    /// Returns a completion queue that received completions since it was last returned. Queues without new completions cost nothing.
    #[inline]
    pub fn poll_filled_cq(&mut self) -> Option<CqId> {
        self.shared.cqs.take_filled()
    }

    /// Returns whether the queue lost completions because the program did not poll it. Its queue pairs are then in ERR.
    #[must_use]
    pub fn cq_overflowed(&self, cq: CqId) -> bool {
        self.shared.cqs.overflowed(cq)
    }

    /// Puts a completion queue into error permanently, and its queue pairs into ERR, because completions were lost before they reached the
    /// poller (IBA 10.2.6).
    pub fn overflow_cq(&mut self, now: Instant, cq: CqId) {
        self.shared.cqs.overflow(cq);
        self.fail_overflowed_cqs(now);
    }

    /// Registers `length` bytes at `address` for queue pairs of `pd`.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the region is empty or exceeds the address space, or the limit of regions is reached.
    pub fn register(
        &mut self,
        pd: PdId,
        address: u64,
        length: u64,
        access: Access,
    ) -> Result<Region, ControlError> {
        self.shared.regions.register(pd, address, length, access)
    }

    /// Registers a region whose first byte has the address `origin` in requests of both sides; 0 makes it zero-based.
    ///
    /// # Errors
    /// Returns the errors of [`Self::register`].
    pub fn register_as(
        &mut self,
        pd: PdId,
        address: u64,
        length: u64,
        origin: u64,
        access: Access,
    ) -> Result<Region, ControlError> {
        self.shared.regions.register_as(pd, address, length, origin, access)
    }

    /// Changes all properties of a region except its keys. When this returns, bytes that are no longer part of the region are not accessed
    /// any more.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if no region has this key, memory windows are bound to it, or [`Self::register`] would refuse the memory.
    pub fn change_region(&mut self, lkey: Lkey, pd: PdId, wanted: &Region) -> Result<Region, ControlError> {
        self.shared.regions.change(lkey, pd, wanted)
    }

    /// Deregisters a region. When this returns, none of its bytes is accessed any more.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if no region has this key, or memory windows are bound to it.
    pub fn deregister(&mut self, lkey: Lkey) -> Result<(), ControlError> {
        self.shared.regions.deregister(lkey).map(drop)
    }

    /// Deregisters a region, and unbinds the windows that are bound to it.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if no region has this key.
    pub fn deregister_with_windows(&mut self, lkey: Lkey) -> Result<(), ControlError> {
        self.shared.regions.deregister_with_windows(lkey).map(drop)
    }

    /// Returns the number of memory windows that are bound to a region.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if no region has this key.
    pub fn windows_of(&self, lkey: Lkey) -> Result<u32, ControlError> {
        self.shared.regions.windows_of(lkey)
    }

    /// Creates an unbound memory window, and returns its key.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the limit of windows is reached.
    pub fn create_window(&mut self, pd: PdId, kind: WindowKind) -> Result<Rkey, ControlError> {
        self.shared.regions.create_window(pd, kind)
    }

    /// Destroys a memory window, by any of the keys that it had.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if no window has this key.
    pub fn destroy_window(&mut self, rkey: Rkey) -> Result<(), ControlError> {
        self.shared.regions.destroy_window(rkey)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the depth or number of buffers exceeds its limit, the XRC domain or completion queue does not exist,
    /// or the limit of shared receive queues is reached.
    pub fn create_srq(&mut self, init: SrqInit) -> Result<SrqId, ControlError> {
        match init.xrc {
            None => self.shared.srqs.create(init),
            Some(xrc) => self.create_xrc_srq(init, xrc),
        }
    }

    /// Destroys a shared receive queue, and its requests without completions.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the queue does not exist, or queue pairs still use it.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ControlError> {
        let init = self.shared.srqs.destroy(srq)?;
        if let Some(xrc) = init.xrc {
            self.leave_xrc(xrc);
        }
        Ok(())
    }

    /// Requests one event when the queue has fewer than `limit` requests; [`Self::poll_event`] returns it. 0 requests none.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the queue does not exist, or contains no more than `limit` requests.
    pub fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), ControlError> {
        self.shared.srqs.arm(srq, limit)
    }

    /// Returns the oldest event that no completion reports, once. Events of destroyed queue pairs and queues are discarded.
    pub fn poll_event(&mut self) -> Option<Event> {
        let SharedObjects { events, srqs, .. } = &mut self.shared;
        events.pop().or_else(|| srqs.poll_low().map(Event::SharedReceivesLow))
    }

    /// Returns the number of events that were lost because more than 65,536 were pending.
    #[must_use]
    pub const fn events_lost(&self) -> u64 {
        self.shared.events.lost()
    }

    /// Returns the state of a shared receive queue; `None` if it does not exist.
    #[must_use]
    pub fn srq_report(&self, srq: SrqId) -> Option<SrqReport> {
        self.shared.srqs.report(srq)
    }

    /// Returns how many more receive requests fit into a shared queue.
    #[must_use]
    pub fn srq_room(&self, srq: SrqId) -> u32 {
        self.shared.srqs.room(srq)
    }

    /// Creates a queue pair, in RESET. An XRC queue pair is an initiator; [`Self::create_xrc_target`] creates targets.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if a capability is above its limit, a queue does not exist, or no number is free: those of destroyed
    /// queue pairs are not reused for [`QPN_QUARANTINE`].
    pub fn create_qp(&mut self, now: Instant, init: QpInit) -> Result<Qpn, ControlError> {
        check_capabilities(&init.capabilities)?;
        if init.service == Service::Xrc && init.srq.is_some() {
            return Err(ControlError::InitiatorReceives);
        }
        if let Some(srq) = init.srq {
            self.shared.srqs.join(srq, init.pd)?;
        }
        let made = self.make_qp(now, init);
        if let (Err(_), Some(srq)) = (&made, init.srq) {
            self.shared.srqs.leave(srq);
        }
        made
    }

    fn make_qp(&mut self, now: Instant, init: QpInit) -> Result<Qpn, ControlError> {
        let receives = match (init.service, init.srq) {
            (Service::Xrc, _) => Receives::Never,
            (_, Some(srq)) => Receives::Shared(srq),
            (_, None) => Receives::Own,
        };
        self.shared.cqs.join(init.send_cq)?;
        let made = self.shared.cqs.join(init.recv_cq).and_then(|()| {
            let identity = |qpn| Identity::new(qpn, &init, receives);
            self.qps.insert(now, init.service, identity).inspect_err(|_| self.shared.cqs.leave(init.recv_cq))
        });
        made.inspect_err(|_| self.shared.cqs.leave(init.send_cq))
    }

    /// Moves a queue pair to another state, or changes its settings.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the transition is not possible, or a setting is out of its range. The queue pair is then unchanged.
    pub fn modify_qp(&mut self, now: Instant, qpn: Qpn, modify: Modify) -> Result<(), ControlError> {
        let (index, qp, mut context) = self.open(now, qpn).ok_or(ControlError::NoQp(qpn))?;
        let before = IndexEntry::of(qp);
        let outcome = qp.modify(modify, &mut context);
        let after = IndexEntry::of(qp);
        self.peers.update(index, before, after);
        outcome?;
        self.schedule(now, index);
        Ok(())
    }

    /// Destroys a queue pair. Outstanding requests get no completions. Its number is not reused for [`QPN_QUARANTINE`].
    ///
    /// # Errors
    /// Returns [`ControlError::NoQp`] if the queue pair does not exist.
    pub fn destroy_qp(&mut self, now: Instant, qpn: Qpn) -> Result<(), ControlError> {
        let (index, mut slot) = self.qps.remove(now, qpn).ok_or(ControlError::NoQp(qpn))?;
        self.destroyed_waiting.add(&slot.account.at(now));
        self.shared.events.forget(|event| event.qpn() == Some(qpn));
        self.shared.events.forget_changes(qpn);
        self.wheel.cancel(index);
        self.peers.update(index, IndexEntry::of(&slot.qp), IndexEntry::default());
        self.groups.forget(qpn);
        self.flows.forget(qpn);
        self.shared.regions.release_queue_pair(qpn);
        slot.qp.abandon(&mut self.shared.srqs);
        if slot.is_ready {
            self.ready.retain(|&ready| ready != index);
            self.last_sender = self.last_sender.filter(|&last_sender| last_sender != index);
            self.responders.retain(|&ready| ready != index);
        }
        let identity = slot.qp.identity();
        self.shared.cqs.leave(identity.send_cq);
        self.shared.cqs.leave(identity.recv_cq);
        match identity.receives {
            Receives::Own | Receives::Never => {}
            Receives::Shared(srq) => self.shared.srqs.leave(srq),
            Receives::XrcTarget(domain) => self.shared.xrc.leave(domain),
        }
        Ok(())
    }

    /// Returns the state of a queue pair; `None` if it does not exist.
    #[must_use]
    pub fn report(&self, qpn: Qpn) -> Option<QpReport> {
        self.qps.get(qpn).map(|slot| slot.qp.report())
    }

    /// Returns the counts since the endpoint was created.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Removes frames that the port dropped instead of sending from the count of sent frames.
    #[cold]
    pub fn on_discarded(&mut self, frames: u64) {
        let sent = &mut self.shared.counters.tx_frames;
        *sent = sent.saturating_sub(frames);
    }

    /// Returns a queue pair with its slot, and the objects that it shares with others.
    fn open(&mut self, now: Instant, qpn: Qpn) -> Option<(u32, &mut QueuePair, Context<'_>)> {
        let index = self.qps.find(qpn)?;
        self.open_at(now, index).map(|(qp, context)| (index, qp, context))
    }

    #[inline]
    fn open_at(&mut self, now: Instant, index: u32) -> Option<(&mut QueuePair, Context<'_>)> {
        let slot = self.qps.at_mut(index)?;
        Some((&mut slot.qp, self.shared.context(now)))
    }

    /// Moves the queue pairs of an overflowed completion queue to ERR (IBA 10.2.6).
    #[inline]
    fn fail_overflowed_cqs(&mut self, now: Instant) {
        if self.shared.cqs.has_overflowed() {
            self.fail_overflowed(now);
        }
    }

    #[cold]
    fn fail_overflowed(&mut self, now: Instant) {
        while let Some(cq) = self.shared.cqs.take_overflowed() {
            self.shared.events.push(Event::CqOverflowed(cq));
            for index in 0..self.qps.len() {
                let Some(slot) = self.qps.at_mut(index) else { continue };
                if slot.qp.completes_to(cq) {
                    let cause = FailureCause::CompletionQueue;
                    slot.qp.fail(Some(cause), CompletionStatus::Flushed, &mut self.shared.context(now));
                }
            }
        }
    }
}

fn check_capabilities(capabilities: &Capabilities) -> Result<(), ControlError> {
    let Capabilities { max_send, max_recv, max_send_sge, max_recv_sge, max_inline } = *capabilities;
    for (what, value, limit) in [
        ("max_send", max_send, Capabilities::MAX.max_send),
        ("max_recv", max_recv, Capabilities::MAX.max_recv),
        ("max_send_sge", max_send_sge, Capabilities::MAX.max_send_sge),
        ("max_recv_sge", max_recv_sge, Capabilities::MAX.max_recv_sge),
        ("max_inline", max_inline, Capabilities::MAX.max_inline),
    ] {
        if value > limit {
            return Err(ControlError::Value { what, value: u64::from(value), limit: u64::from(limit) });
        }
    }
    Ok(())
}

/// Derives secrets that reveal nothing about each other or the seed.
fn derive<const N: usize>(seed: &[u8; 32]) -> [[u8; 32]; N] {
    let half = |at: usize| KeySpace::new(&core::array::from_fn(|i| seed[at + i]));
    let (low, high) = (half(0), half(16));
    core::array::from_fn(|secret| {
        let word = |i: usize| (low.seal((secret * 8 + i) as u32) ^ high.seal(i as u32)).to_le_bytes();
        core::array::from_fn(|i| word(i / 4)[i % 4])
    })
}

use super::CoreConfig;
use super::doorbell::Doorbells;
use super::events::{AsyncEvent, Subscribers};
use super::follow::Followed;
use super::management::{Mad, Management};
use super::notify::Notifier;
use super::qpn_hash::ByQpn;
use super::rings::{self, CqProducer, CqRing, Place, QpQueues, QpRings, SrqQueues, SrqRings, Unpolled};
use super::vlan;
use crate::event_fd::EventFd;
use crate::host_memory::HostMemory;
use crate::neighbour::{self, Neighbours};
use cc::Instant;
use roce::qp::{Completion, CompletionOpcode, CompletionStatus, QpInit};
use roce::wire::{Mac, Path, Vlan};
use roce::{ControlError, CqId, Endpoint, Qpn, SrqId, SrqInit, XrcdId};
use std::net::IpAddr;
use std::sync::Arc;

/// Completions moved in one go.
const BATCH: usize = 64;

/// What a core counts beside its endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreCounters {
    /// Turns that found something to do.
    pub busy_turns: u64,
    /// Turns that found nothing.
    pub idle_turns: u64,
    /// Frames to another Ethernet address.
    pub not_for_us: u64,
    /// Frames of another VLAN than the port's, or tagged where the port has none.
    pub other_vlan: u64,
    /// ARP and neighbour discovery packets taken in.
    pub neighbour_packets: u64,
    /// ARP and neighbour discovery packets that were malformed.
    pub neighbour_malformed: u64,
    /// Times that the port's pool had no buffer to send from.
    pub pool_dry: u64,
    /// Completion queues that overflowed.
    pub cq_overflows: u64,
}

/// What stands in a doorbell's slot.
#[derive(Debug)]
enum Queues {
    Pair(QpQueues),
    Shared(SrqQueues),
}

impl Queues {
    const fn pair(&self) -> Option<&QpQueues> {
        match self {
            Self::Pair(queues) => Some(queues),
            Self::Shared(_) => None,
        }
    }

    const fn shared(&self) -> Option<&SrqQueues> {
        match self {
            Self::Pair(_) => None,
            Self::Shared(queues) => Some(queues),
        }
    }
}

/// All that a core owns beside its port.
pub struct Station {
    /// Queue pairs, completion queues, regions.
    pub endpoint: Endpoint,
    /// Who answers for which address.
    pub neighbours: Neighbours,
    /// What was counted.
    pub counters: CoreCounters,
    followed: Followed,
    mac: Mac,
    vlan: Option<Vlan>,
    management: Option<Management>,
    memory: HostMemory,
    doorbells: Arc<Doorbells>,
    queues: Vec<Option<Queues>>,
    /// No slot before this one is free.
    free_from: usize,
    slots: ByQpn<usize>,
    /// Of each shared receive queue.
    srq_slots: Vec<Option<usize>>,
    /// By number.
    cqs: Vec<Option<CqProducer>>,
    unpolled: Arc<Unpolled>,
    subscribers: Arc<Subscribers>,
    /// The port's, for messages.
    name: String,
    generation: u32,
    /// Queue pairs whose posters may have to be told of room.
    served: Vec<usize>,
    batch: Vec<(Completion, Option<Place>)>,
}

impl Station {
    /// # Safety
    /// Whoever registers a region keeps its memory valid for reads and writes until it is deregistered.
    pub(super) unsafe fn new(
        endpoint: Endpoint,
        neighbours: Neighbours,
        config: &CoreConfig,
        subscribers: Arc<Subscribers>,
    ) -> Self {
        let max_qps = config.endpoint.max_qps as usize;
        Self {
            endpoint,
            neighbours,
            counters: CoreCounters::default(),
            followed: Followed::default(),
            mac: config.mac,
            vlan: config.vlan,
            management: None,
            // SAFETY: the slices come from `endpoint`, whose regions the caller keeps valid.
            memory: unsafe { HostMemory::new() },
            doorbells: Arc::new(Doorbells::new(max_qps)),
            queues: (0..max_qps).map(|_| None).collect(),
            free_from: 0,
            slots: ByQpn::with_capacity_and_hasher(max_qps, Default::default()),
            srq_slots: Vec::new(),
            cqs: Vec::new(),
            unpolled: Arc::new(Unpolled::new(max_qps)),
            subscribers,
            name: config.name.clone(),
            generation: 0,
            served: Vec::with_capacity(max_qps),
            batch: Vec::with_capacity(BATCH),
        }
    }

    /// Makes a completion queue of exactly `depth`.
    ///
    /// # Errors
    /// As the endpoint has it.
    pub fn create_cq(&mut self, depth: u32) -> Result<(CqId, CqRing), ControlError> {
        let cq = self.endpoint.create_cq(depth)?;
        let (ring, producer) = rings::completion_queue(depth, self.unpolled.clone());
        let index = cq.0 as usize;
        if index >= self.cqs.len() {
            self.cqs.resize_with(index + 1, || None);
        }
        self.cqs[index] = Some(producer);
        Ok((cq, ring))
    }

    /// Has a completion queue ring a bell.
    ///
    /// # Errors
    /// Where there is none of that number.
    pub fn watch_cq(&mut self, cq: CqId, notifier: Arc<Notifier>) -> Result<(), ControlError> {
        producer(&mut self.cqs, cq).ok_or(ControlError::NoCq(cq))?.watch(notifier);
        Ok(())
    }

    /// Gives a completion queue another depth. `ring` is its present one; the one that comes back takes its place, with
    /// all that was in it.
    ///
    /// # Errors
    /// As the endpoint has it: where more completions wait than the new depth holds. Then the ring is as it was.
    pub fn resize_cq(
        &mut self,
        cq: CqId,
        mut ring: CqRing,
        depth: u32,
    ) -> (CqRing, Result<(), ControlError>) {
        let resized = self.try_resize(cq, &mut ring, depth);
        (ring, resized)
    }

    fn try_resize(&mut self, cq: CqId, ring: &mut CqRing, depth: u32) -> Result<(), ControlError> {
        let producer = producer(&mut self.cqs, cq).ok_or(ControlError::NoCq(cq))?;
        let waiting = ring.waiting();
        if waiting > depth as usize {
            return Err(ControlError::CqFull { cq, waiting, depth: depth as usize });
        }
        self.endpoint.resize_cq(cq, depth)?;
        producer.resize(ring, depth);
        Ok(())
    }

    /// Takes a completion queue away.
    ///
    /// # Errors
    /// As the endpoint has it: while queue pairs use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        self.endpoint.destroy_cq(cq)?;
        self.cqs[cq.0 as usize] = None;
        Ok(())
    }

    /// Makes a queue pair.
    ///
    /// # Errors
    /// As the endpoint has it.
    pub fn create_qp(&mut self, now: Instant, init: QpInit) -> Result<QpRings, ControlError> {
        let slot = self.free_slot()?;
        let qpn = self.endpoint.create_qp(now, init)?;
        Ok(self.connect_rings(qpn, slot, &init))
    }

    /// Makes an XRC target. Its rings take nothing: it has no queues.
    ///
    /// # Errors
    /// As the endpoint has it.
    pub fn create_xrc_target(&mut self, now: Instant, domain: XrcdId) -> Result<QpRings, ControlError> {
        let slot = self.free_slot()?;
        let qpn = self.endpoint.create_xrc_target(now, domain)?;
        Ok(self.connect_rings(qpn, slot, &QpInit::XRC_TARGET))
    }

    fn connect_rings(&mut self, qpn: Qpn, slot: usize, init: &QpInit) -> QpRings {
        self.generation = self.generation.wrapping_add(1);
        let (rings, queues) =
            rings::queue_pair(qpn, slot, init, self.doorbells.clone(), &self.unpolled, self.generation);
        self.slots.insert(qpn.get(), slot);
        self.fill(slot, Queues::Pair(queues));
        rings
    }

    fn free_slot(&self) -> Result<usize, ControlError> {
        let limit = self.queues.len() as u32;
        let slot = (self.free_from..self.queues.len()).find(|&slot| self.queues[slot].is_none());
        slot.ok_or(ControlError::Limit { what: "queue pairs and shared receive queues", limit })
    }

    /// Puts queues into the slot that [`Self::free_slot`] found.
    fn fill(&mut self, slot: usize, queues: Queues) {
        self.queues[slot] = Some(queues);
        self.free_from = slot + 1;
    }

    fn empty(&mut self, slot: usize) {
        self.queues[slot] = None;
        self.free_from = self.free_from.min(slot);
    }

    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// As the endpoint has it.
    pub fn create_srq(&mut self, init: SrqInit) -> Result<SrqRings, ControlError> {
        let slot = self.free_slot()?;
        let srq = self.endpoint.create_srq(init)?;
        self.generation = self.generation.wrapping_add(1);
        let (doorbells, generation) = (self.doorbells.clone(), self.generation);
        let (rings, queues) =
            rings::shared_receive_queue(srq, slot, init.depth, doorbells, &self.unpolled, generation);
        self.fill(slot, Queues::Shared(queues));
        let index = srq.0 as usize;
        self.srq_slots.resize(self.srq_slots.len().max(index + 1), None);
        self.srq_slots[index] = Some(slot);
        Ok(rings)
    }

    /// Takes a shared receive queue away.
    ///
    /// # Errors
    /// As the endpoint has it: while queue pairs take from it.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ControlError> {
        self.endpoint.destroy_srq(srq)?;
        if let Some(slot) = self.srq_slots.get_mut(srq.0 as usize).and_then(Option::take) {
            self.empty(slot);
        }
        Ok(())
    }

    /// Takes a queue pair away. What is outstanding is forgotten, without completions.
    ///
    /// # Errors
    /// Where there is none of that number.
    pub fn destroy_qp(&mut self, now: Instant, qpn: Qpn) -> Result<(), ControlError> {
        self.endpoint.destroy_qp(now, qpn)?;
        if let Some(slot) = self.slots.remove(&qpn.get()) {
            self.empty(slot);
        }
        Ok(())
    }

    /// Opens queue pair 1; each management datagram that comes adds 1 to `bell`, an eventfd. `false` where it is open.
    pub fn open_management(&mut self, bell: Arc<EventFd>) -> bool {
        let free = self.management.is_none();
        if free {
            self.management = Some(Management::new(bell));
        }
        free
    }

    /// Closes queue pair 1: what comes is dropped.
    pub fn close_management(&mut self) {
        self.management = None;
    }

    /// Sends a management datagram; `false` where queue pair 1 is not open, or too many wait.
    pub fn send_mad(&mut self, path: Path, mad: Mad) -> bool {
        self.management.as_mut().is_some_and(|management| management.send(path, mad))
    }

    /// The oldest management datagram that came, and who sent it.
    pub fn receive_mad(&mut self) -> Option<(IpAddr, Mad)> {
        self.management.as_mut()?.receive()
    }

    /// The Ethernet address that the management datagram received last came from, if `ip` sent it: the way back needs no
    /// resolution, which a stranger could make us wait for.
    #[must_use]
    pub fn way_back(&self, ip: IpAddr) -> Option<Mac> {
        self.management.as_ref()?.way_back(ip)
    }

    /// Hands what was posted to the endpoint.
    pub(super) fn take_posts(&mut self, now: Instant) -> bool {
        let Self { endpoint, queues, doorbells, cqs, served, .. } = self;
        doorbells.take(|slot| {
            // A bell may outlive its queue pair.
            match &mut queues[slot] {
                None => return,
                Some(Queues::Pair(queues)) => post(now, endpoint, queues, cqs),
                Some(Queues::Shared(queues)) => post_shared(endpoint, queues),
            }
            served.push(slot);
        })
    }

    /// Takes one frame in.
    pub(super) fn on_frame(&mut self, now: Instant, frame: &[u8]) {
        if !is_for(self.mac, frame) {
            self.counters.not_for_us += 1;
            return;
        }
        let tag = vlan::tag(frame);
        // A tag with identifier 0 tells a priority, and belongs to no VLAN.
        if tag.map_or(0, Vlan::id) != self.vlan.map_or(0, Vlan::id) {
            self.counters.other_vlan += 1;
            return;
        }
        let is_taken = match tag {
            None => self.take_control(now, frame),
            Some(_) => self.take_control(now, vlan::without(frame, &mut [0; vlan::ROOM])),
        };
        if !is_taken {
            // The endpoint counts what it drops, by reason.
            let _ = self.endpoint.on_frame(now, &mut self.memory, frame);
        }
    }

    /// Takes an untagged frame in that is no queue pair's; `false` where it is.
    fn take_control(&mut self, now: Instant, frame: &[u8]) -> bool {
        if !neighbour::is_resolution(frame) {
            return self.management.as_mut().is_some_and(|management| management.on_frame(frame));
        }
        self.counters.neighbour_packets += 1;
        if self.neighbours.on_frame(now, frame).is_err() {
            self.counters.neighbour_malformed += 1;
        }
        true
    }

    /// Writes the next frame that may leave now, and gives its length.
    pub(super) fn poll_transmit(&mut self, now: Instant, frame: &mut [u8]) -> Option<usize> {
        if self.neighbours.may_transmit() || self.management.is_some() {
            let length = self.transmit_control(frame);
            if length.is_some() {
                return length;
            }
        }
        self.endpoint.poll_transmit(now, &self.memory, frame)
    }

    fn transmit_control(&mut self, frame: &mut [u8]) -> Option<usize> {
        let neighbours = self.neighbours.poll_transmit(frame);
        let tagged = |length| self.vlan.map_or(length, |tag| vlan::insert(tag, frame, length));
        neighbours.map(tagged).or_else(|| self.management.as_mut()?.poll_transmit(frame))
    }

    /// Whether [`Self::poll_transmit`] may have a frame: `false` is sure.
    pub(super) fn may_transmit(&self) -> bool {
        self.endpoint.is_asked() || self.neighbours.may_transmit() || self.management.is_some()
    }

    /// Runs the timers that are due.
    pub(super) fn on_timeout(&mut self, now: Instant) -> bool {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let (endpoint, neighbours) = (due(self.endpoint.poll_timeout()), due(self.neighbours.poll_timeout()));
        if endpoint {
            self.endpoint.on_timeout(now);
        }
        if neighbours {
            self.neighbours.on_timeout(now);
        }
        endpoint || neighbours
    }

    /// When a timer is due next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.endpoint.poll_timeout(), self.neighbours.poll_timeout()].into_iter().flatten().min()
    }

    /// Moves completions to their queues' rings, and tells posters of the room that there is now.
    pub(super) fn deliver(&mut self, now: Instant) -> bool {
        let mut any = self.tell_events();
        self.followed.turn(now, &mut self.endpoint, &mut self.neighbours);
        while let Some(cq) = self.endpoint.poll_filled_cq() {
            while self.collect(cq) {
                any = true;
                self.deliver_batch(now, cq);
            }
            // More came in one turn than the queue holds: the endpoint itself lost some.
            if self.endpoint.cq_overflowed(cq)
                && producer(&mut self.cqs, cq).is_some_and(CqProducer::overflow)
            {
                self.counters.cq_overflows += 1;
            }
        }
        for slot in self.served.drain(..) {
            match &self.queues[slot] {
                None => {}
                Some(Queues::Pair(queues)) => publish(&self.endpoint, queues),
                Some(Queues::Shared(queues)) => publish_shared(&self.endpoint, queues),
            }
        }
        any
    }

    fn tell_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.endpoint.poll_event() {
            self.subscribers.tell(&self.name, AsyncEvent::Transport(event));
            any = true;
        }
        any
    }

    /// Takes a batch of completions from the endpoint; tells whether there were any.
    fn collect(&mut self, cq: CqId) -> bool {
        let Self { endpoint, batch, slots, srq_slots, queues, .. } = self;
        endpoint.poll_cq(cq, &mut |completion| {
            let place = match completion.srq {
                Some(srq) => shared(queues, srq_slots, srq).map(|queues| queues.recv.place),
                None => slots
                    .get(&completion.qpn.get())
                    .and_then(|&slot| queues[slot].as_ref()?.pair())
                    .map(|queues| place(queues, completion.opcode)),
            };
            batch.push((*completion, place));
            batch.len() < BATCH
        });
        !batch.is_empty()
    }

    /// Room in the work queues is told before the completion that makes it: who polls it can post again. That it is not
    /// polled yet is told before both.
    fn deliver_batch(&mut self, now: Instant, cq: CqId) {
        let Some(producer) = producer(&mut self.cqs, cq).filter(|producer| !producer.is_lost()) else {
            self.batch.clear();
            return;
        };
        let room = producer.room();
        let half_way = self.unpolled.begin_move();
        for (_, place) in self.batch.iter().take(room) {
            place.iter().for_each(|place| self.unpolled.add(*place));
        }
        let mut last = None;
        for (completion, _) in &self.batch {
            let whose = (completion.qpn, completion.srq);
            if last.replace(whose) == Some(whose) {
                continue;
            }
            if let Some(queues) =
                self.slots.get(&completion.qpn.get()).and_then(|&s| self.queues[s].as_ref()?.pair())
            {
                publish(&self.endpoint, queues);
            }
            if let Some(srq) = completion.srq
                && let Some(queues) = shared(&self.queues, &self.srq_slots, srq)
            {
                publish_shared(&self.endpoint, queues);
            }
        }
        drop(half_way);
        let lost = self.batch.len() > room;
        let mut solicited = false;
        for (completion, place) in self.batch.drain(..).take(room) {
            solicited |= completion.solicited || completion.status != CompletionStatus::Success;
            producer.push(completion, place);
        }
        producer.notify(solicited);
        if lost && producer.overflow() {
            self.counters.cq_overflows += 1;
            self.endpoint.overflow_cq(now, cq);
        }
    }
}

fn producer(cqs: &mut [Option<CqProducer>], cq: CqId) -> Option<&mut CqProducer> {
    cqs.get_mut(cq.0 as usize)?.as_mut()
}

fn shared<'a>(queues: &'a [Option<Queues>], slots: &[Option<usize>], srq: SrqId) -> Option<&'a SrqQueues> {
    let slot = (*slots.get(srq.0 as usize)?)?;
    queues[slot].as_ref().and_then(Queues::shared)
}

fn publish(endpoint: &Endpoint, queues: &QpQueues) {
    queues.send.publish(endpoint.send_room(queues.qpn));
    queues.recv.publish(endpoint.recv_room(queues.qpn));
}

fn publish_shared(endpoint: &Endpoint, queues: &SrqQueues) {
    queues.recv.publish(endpoint.srq_room(queues.srq));
}

fn place(queues: &QpQueues, opcode: CompletionOpcode) -> Place {
    match opcode {
        CompletionOpcode::Recv | CompletionOpcode::RecvWithWrite => queues.recv.place,
        CompletionOpcode::Send
        | CompletionOpcode::Write
        | CompletionOpcode::Read
        | CompletionOpcode::FetchAdd
        | CompletionOpcode::CompareSwap
        | CompletionOpcode::AtomicWrite
        | CompletionOpcode::Flush
        | CompletionOpcode::Bind
        | CompletionOpcode::LocalInvalidate => queues.send.place,
    }
}

/// Receives first: a send may be answered by a message that needs one.
fn post(now: Instant, endpoint: &mut Endpoint, queues: &mut QpQueues, cqs: &mut [Option<CqProducer>]) {
    while let Some(request) = queues.recv.pop() {
        let id = request.id;
        if endpoint.post_recv(queues.qpn, request).is_err() {
            refuse(cqs, queues.recv_cq, queues.qpn, id, CompletionOpcode::Recv);
        }
    }
    let QpQueues { qpn, send, send_cq, .. } = queues;
    let refused = |id, opcode| refuse(cqs, *send_cq, *qpn, id, opcode);
    endpoint.post_sends(now, *qpn, || send.pop(), refused);
}

/// The poster's own checks let nothing pass that the endpoint refuses.
fn post_shared(endpoint: &mut Endpoint, queues: &mut SrqQueues) {
    while let Some(request) = queues.recv.pop() {
        let posted = endpoint.post_srq_recv(queues.srq, request);
        debug_assert!(posted.is_ok(), "{posted:?}");
    }
}

/// The poster was told that the request is taken, so a refusal must come as a completion. Only a queue pair whose
/// state changed meanwhile refuses what the poster's own checks let pass.
fn refuse(cqs: &mut [Option<CqProducer>], cq: CqId, qpn: Qpn, id: u64, opcode: CompletionOpcode) {
    let completion = Completion::new(id, CompletionStatus::Flushed, opcode, qpn);
    if let Some(producer) = producer(cqs, cq) {
        producer.push(completion, None);
        producer.notify(true);
    }
}

/// To our address, or to a group (the first byte's lowest bit). What has no whole address is for the endpoint to
/// count as truncated.
fn is_for(mac: Mac, frame: &[u8]) -> bool {
    frame.get(..6).is_none_or(|to| to == mac.0 || to[0] & 1 == 1)
}

//! The cores behind one port, and how each of them reaches it.
//!
//! Core 0 leads: it owns the port. It hands each received frame to the core that the destination QPN names, and sends what the others pass
//! to it. Between it and each other core there are three rings of buffers, none of which is copied: received frames and empty buffers one
//! way, leaving frames the other.
//!
//! Some ports have a queue for each core. There the others receive most of their frames and send by themselves, and the rings carry the
//! rest: frames that the port cannot steer, and those to the port's own address. A fourth ring carries strays, frames that a NIC's hash has
//! led to the wrong core, to core 0, which takes them as if it had received them.
//!
//! The poll-mode cores use it, and the soak of `fabric`, whose cores run in virtual time.

pub use super::team_state::Team;
use crate::io::{BURST, Bell, Burst, PacketBuf, PacketIo, PortCounters, QueueError};
use crate::steering::{Steering, Whose};
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::sync::Arc;

/// The most received frames that wait for a core. More are dropped and counted, as by a NIC whose queue is full.
const RECEIVED: usize = 1024;
/// The most frames of a core that wait for core 0. A core with a full ring waits, as it would for a port.
const LEAVING: usize = 256;
/// Empty buffers that core 0 keeps ready for each other core.
const EMPTY: usize = 2 * BURST;
/// Received buffers that a core keeps to send from.
const STOCK: usize = 4 * BURST;

/// The way of a core to the port. It is one type for all, so that a core's code is compiled once.
pub enum Way<P: PacketIo> {
    /// The port's only core.
    Alone(P),
    /// Core 0 of several.
    Lead(Box<Lead<P>>),
    /// Any other core.
    Member(Box<Member<P>>),
}

/// Core 0's ends of the rings to another core.
struct Link<B> {
    received: Producer<B>,
    empty: Producer<B>,
    leaving: Consumer<B>,
    strays: Consumer<B>,
}

/// Core 0's way to the port: the port itself, and the rings to the other cores.
pub struct Lead<P: PacketIo> {
    team: Arc<Team>,
    steering: Steering,
    /// The links to cores 1 and up.
    links: Box<[Link<P::Buf>]>,
    /// The link whose frames leave first in this turn.
    first: usize,
    /// Other cores' queues may receive frames of any core.
    strays_come: bool,
    /// Frames handed over so far, and those that found a full ring.
    handed: Handed,
    /// Last, so that it outlives the buffers above.
    port: P,
}

/// Frames that a core handed to others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Handed {
    /// Frames that were handed over.
    pub over: u64,
    /// Frames that found a full ring, and were dropped.
    pub full: u64,
}

impl<P: PacketIo> Lead<P> {
    fn receive(&mut self, into: &mut Burst<P::Buf>) -> bool {
        self.team.check();
        self.supply();
        if self.strays_come {
            self.take_strays(into);
        }
        self.port.receive_or_lend(into)
    }

    /// Takes the strays of other cores' queues: half a burst, so that the port's own frames have room.
    fn take_strays(&mut self, into: &mut Burst<P::Buf>) {
        let mut room = (BURST / 2).min(into.remaining_capacity());
        for link in &mut self.links {
            let count = link.strays.slots().min(room);
            if let Ok(chunk) = link.strays.read_chunk(count) {
                into.extend(chunk);
                room -= count;
            }
        }
    }

    /// Refills the rings of empty buffers from which the other cores send.
    fn supply(&mut self) {
        for link in self.links.iter_mut().filter(|link| link.empty.slots() >= BURST) {
            for _ in 0..BURST {
                let Some(buffer) = self.port.alloc() else { return };
                // There is room.
                let _ = link.empty.push(buffer);
            }
        }
    }

    /// Hands frames of other cores to them. Returns true if there were any.
    fn deal(&mut self, frames: &mut Burst<P::Buf>) -> bool {
        let mut touched = 0_u32;
        let whose: Burst<Whose> = frames.iter().map(|frame| self.steering.whose(frame)).collect();
        let mut all = std::mem::take(frames).into_iter();
        for run in whose.chunk_by(Whose::eq) {
            match run[0] {
                Whose::Leads => frames.extend(all.by_ref().take(run.len())),
                Whose::Of(link) => {
                    self.hand_run(link.into(), all.by_ref().take(run.len()), run.len());
                    touched |= 1 << link;
                }
                Whose::Any => {
                    for frame in all.by_ref().take(run.len()) {
                        self.hand_copies(&frame);
                        frames.push(frame);
                    }
                    touched = u32::MAX;
                }
            }
        }
        for link in (0..self.links.len()).filter(|link| touched & (1 << link) != 0) {
            self.team.wake(link + 1);
        }
        touched != 0
    }

    /// Hands `count` frames to one core. Those without room are dropped.
    #[inline]
    fn hand_run(&mut self, link: usize, mut frames: impl Iterator<Item = P::Buf>, count: usize) {
        let received = &mut self.links[link].received;
        let room = received.slots().min(count);
        if let Ok(chunk) = received.write_chunk_uninit(room) {
            chunk.fill_from_iter(frames.by_ref());
        }
        frames.for_each(drop);
        self.handed.over += room as u64;
        self.handed.full += (count - room) as u64;
    }

    fn hand(&mut self, link: usize, frame: P::Buf) {
        self.hand_run(link, std::iter::once(frame), 1);
    }

    /// Hands a copy of the frame to each other core. A copy for which no buffer is free is lost, as on a busy network.
    #[cold]
    fn hand_copies(&mut self, frame: &P::Buf) {
        for link in 0..self.links.len() {
            let Some(mut copy) = self.port.alloc() else { return };
            copy.set_len(frame.len());
            copy.copy_from_slice(frame);
            self.hand(link, copy);
        }
    }

    /// Delivers a frame to this process's own address; returns it if it belongs to core 0.
    fn route(&mut self, frame: P::Buf) -> Option<P::Buf> {
        match self.steering.whose(&frame) {
            Whose::Leads => Some(frame),
            Whose::Of(link) => {
                self.hand(link.into(), frame);
                self.team.wake(usize::from(link) + 1);
                None
            }
            Whose::Any => {
                self.hand_copies(&frame);
                (1..=self.links.len()).for_each(|core| self.team.wake(core));
                Some(frame)
            }
        }
    }

    #[inline(always)]
    fn has_leaving(&self) -> bool {
        self.links.iter().any(|link| !link.leaving.is_empty())
            || self.strays_come && self.links.iter().any(|link| !link.strays.is_empty())
    }

    /// Returns the next frame of another core that leaves.
    fn next_leaving(&mut self) -> Option<P::Buf> {
        for _ in 0..self.links.len() {
            if let Ok(frame) = self.links[self.first].leaving.pop() {
                return Some(frame);
            }
            self.turn_to_next();
        }
        None
    }

    fn turn_to_next(&mut self) {
        self.first = if self.first + 1 == self.links.len() { 0 } else { self.first + 1 };
    }
}

/// Another core's way to the port: its ends of the rings to core 0, and a queue of its own if the port has one for it.
pub struct Member<P: PacketIo> {
    team: Arc<Team>,
    steering: Steering,
    core: usize,
    /// Strays that it passed on.
    handed: Handed,
    /// The capacity of a buffer to send from, in bytes.
    room: usize,
    received: Consumer<P::Buf>,
    empty: Consumer<P::Buf>,
    leaving: Producer<P::Buf>,
    strays: Producer<P::Buf>,
    stock: Vec<P::Buf>,
    /// Last, so that it outlives the buffers above.
    queue: Option<P>,
}

impl<P: PacketIo> Member<P> {
    fn receive(&mut self, into: &mut Burst<P::Buf>) -> bool {
        self.team.check();
        let count = self.received.slots().min(BURST - into.len());
        if let Ok(chunk) = self.received.read_chunk(count) {
            into.extend(chunk);
        }
        let own = into.len();
        let Some(queue) = &mut self.queue else { return own > 0 };
        let any = queue.receive_or_lend(into);
        if queue.strays() && into[own..].iter().any(|frame| !self.is_own(frame)) {
            self.pass_strays(into, own);
        }
        any
    }

    /// Passes lent frames to `take`, with whether they are this core's, and the others on to core 0.
    fn lend(&mut self, mut take: impl FnMut(bool, &[u8]) -> bool) {
        let mut strays = Burst::new();
        if let Some(queue) = &mut self.queue {
            let (core, steering) = (self.core, &self.steering);
            let is_own = |frame: &[u8]| usize::from(steering.core_of(frame)) == core;
            queue.lend(&mut strays, |frame| take(is_own(frame), frame));
        }
        if !strays.is_empty() {
            self.pass_strays(&mut strays, 0);
        }
    }

    fn is_own(&self, frame: &[u8]) -> bool {
        usize::from(self.steering.core_of(frame)) == self.core
    }

    /// Passes those of the frames from `at` on to core 0 that are not this core's. They are dropped and counted if there is no room.
    #[cold]
    fn pass_strays(&mut self, into: &mut Burst<P::Buf>, at: usize) {
        let received: Burst<_> = into.drain(at..).collect();
        for frame in received {
            if self.is_own(&frame) {
                into.push(frame);
            } else if self.strays.push(frame).is_ok() {
                self.handed.over += 1;
            } else {
                self.handed.full += 1;
            }
        }
        self.team.wake(0);
    }

    fn alloc(&mut self) -> Option<P::Buf> {
        if let Some(queue) = &mut self.queue {
            return queue.alloc();
        }
        if let Some(buffer) = self.stock.pop() {
            return Some(buffer);
        }
        let buffer = self.empty.pop().ok();
        if buffer.is_none() {
            // The core may sleep, and now it has buffers.
            self.team.wake(0);
        }
        buffer
    }

    /// Keeps received buffers to send from, as far as there is room, and frees the others.
    fn recycle(&mut self, from: &mut Burst<P::Buf>) {
        if let Some(queue) = &mut self.queue {
            return queue.recycle(from);
        }
        while self.stock.len() < STOCK
            && from.last().is_some_and(|buffer| buffer.capacity() >= self.room)
            && let Some(buffer) = from.pop()
        {
            self.stock.push(buffer);
        }
        P::Buf::free_all(from);
    }

    fn transmit(&mut self, from: &mut Burst<P::Buf>) {
        if let Some(queue) = &mut self.queue {
            return queue.transmit(from);
        }
        if self.leaving.is_abandoned() {
            // The port is gone.
            from.clear();
        }
        let count = self.leaving.slots().min(from.len());
        if count > 0
            && let Ok(chunk) = self.leaving.write_chunk_uninit(count)
        {
            chunk.fill_from_iter(from.drain(..count));
            self.team.wake(0);
        }
    }

    /// Passes a frame to the port's own address on to core 0, which knows whose it is. Returns the frame while there is no room.
    fn pass(&mut self, frame: P::Buf) -> Result<(), P::Buf> {
        self.leaving.push(frame).map_err(|PushError::Full(frame)| frame)?;
        self.team.wake(0);
        Ok(())
    }
}

impl<P: PacketIo> Way<P> {
    /// Returns the ways of all cores, core 0's first. There are at least two.
    ///
    /// # Errors
    /// Returns the port's error if it has queues for the cores, and one does not open.
    pub fn of_all(mut port: P, team: &Arc<Team>, steering: Steering) -> Result<Vec<Self>, QueueError> {
        let room = port.caps().max_frame;
        let (mut links, mut members) = (Vec::new(), Vec::new());
        let mut queues = port.open_queues(&steering)?.into_iter();
        for core in 1..usize::from(steering.cores) {
            let (received, received_end) = RingBuffer::new(RECEIVED);
            let queue = queues.next();
            // A queue has a pool.
            let (empty, empty_end) = RingBuffer::new(if queue.is_some() { 0 } else { EMPTY });
            let (leaving_end, leaving) = RingBuffer::new(LEAVING);
            let strays_come = queue.as_ref().is_some_and(P::strays);
            let (strays_end, strays) = RingBuffer::new(if strays_come { RECEIVED } else { 0 });
            links.push(Link { received, empty, leaving, strays });
            members.push(Self::Member(Box::new(Member {
                team: team.clone(),
                steering,
                core,
                handed: Handed::default(),
                room,
                received: received_end,
                empty: empty_end,
                leaving: leaving_end,
                strays: strays_end,
                stock: Vec::with_capacity(STOCK),
                queue,
            })));
        }
        let strays_come = members.iter().any(Self::strays_come);
        let (team, links) = (team.clone(), links.into_boxed_slice());
        let lead = Lead { team, steering, links, first: 0, strays_come, handed: Handed::default(), port };
        Ok(std::iter::once(Self::Lead(Box::new(lead))).chain(members).collect())
    }

    #[inline(always)]
    pub(super) fn attach(&mut self) {
        match self {
            Self::Alone(port) => port.attach(),
            Self::Lead(lead) => lead.port.attach(),
            Self::Member(member) => member.queue.iter_mut().for_each(P::attach),
        }
    }

    /// Appends received frames to `into`: those of the port, unless it lends them, or those that core 0 has handed over. Returns true if there
    /// are frames: in `into`, or lent ones.
    #[inline(always)]
    pub fn receive(&mut self, into: &mut Burst<P::Buf>) -> bool {
        match self {
            Self::Alone(port) => port.receive_or_lend(into),
            Self::Lead(lead) => lead.receive(into),
            Self::Member(member) => member.receive(into),
        }
    }

    /// Returns true if the port, or this core's queue of it, lends frames.
    #[inline(always)]
    pub(super) fn lends(&self) -> bool {
        match self {
            Self::Alone(port) => port.lends(),
            Self::Lead(lead) => lead.port.lends(),
            Self::Member(member) => member.queue.as_ref().is_some_and(P::lends),
        }
    }

    /// Passes the lent frames that are this core's to `take`. If this is core 0, those of other cores are appended to `received`, to be
    /// [dealt](Self::deal); any other core passes them on.
    pub(super) fn lend(&mut self, received: &mut Burst<P::Buf>, mut take: impl FnMut(&[u8])) {
        let mut take_if = |is_own: bool, frame: &[u8]| {
            if is_own {
                take(frame);
            }
            is_own
        };
        match self {
            Self::Alone(port) => port.lend(received, |frame| take_if(true, frame)),
            Self::Lead(lead) => {
                let Lead { port, steering, .. } = &mut **lead;
                port.lend(received, |frame| take_if(steering.whose(frame) == Whose::Leads, frame));
            }
            Self::Member(member) => member.lend(take_if),
        }
    }

    /// Returns an empty buffer; `None` while there is none.
    #[inline(always)]
    pub fn alloc(&mut self) -> Option<P::Buf> {
        match self {
            Self::Alone(port) => port.alloc(),
            Self::Lead(lead) => lead.port.alloc(),
            Self::Member(member) => member.alloc(),
        }
    }

    /// Frees received buffers.
    #[inline(always)]
    pub fn recycle(&mut self, from: &mut Burst<P::Buf>) {
        match self {
            Self::Alone(port) => port.recycle(from),
            Self::Lead(lead) => lead.port.recycle(from),
            Self::Member(member) => member.recycle(from),
        }
    }

    /// Sends from the front of `from` what the port, or core 0, takes now. The rest stays, in order.
    #[inline(always)]
    pub fn transmit(&mut self, from: &mut Burst<P::Buf>) {
        match self {
            Self::Alone(port) => port.transmit(from),
            Self::Lead(lead) => lead.port.transmit(from),
            Self::Member(member) => member.transmit(from),
        }
    }

    /// Returns the counts of what the port, or this core's queue of it, dropped.
    pub(super) fn counters(&mut self) -> PortCounters {
        match self {
            Self::Alone(port) => port.counters(),
            Self::Lead(lead) => lead.port.counters(),
            Self::Member(member) => member.queue.as_mut().map_or_else(PortCounters::default, P::counters),
        }
    }

    /// Returns true if the port receives all that it sends.
    pub(super) fn loops(&self) -> bool {
        match self {
            Self::Alone(port) => port.loops(),
            Self::Lead(lead) => lead.port.loops(),
            Self::Member(_) => false,
        }
    }

    /// Sets whether the port's descriptor, or another core, reports frames from now on.
    pub(super) fn listen(&mut self, on: bool) {
        match self {
            Self::Alone(port) => port.listen(on),
            Self::Lead(lead) => {
                lead.port.listen(on);
                lead.team.doze(0).listen(on);
            }
            Self::Member(member) => {
                member.queue.iter_mut().for_each(|queue| queue.listen(on));
                member.team.doze(member.core).listen(on);
            }
        }
    }

    /// Becomes readable when a frame arrives and the core listens, if there is such a descriptor.
    pub(super) fn descriptor(&self) -> Option<Bell> {
        match self {
            Self::Alone(port) => port.descriptor(),
            Self::Lead(lead) => lead.port.descriptor(),
            // Core 0 ends the sleep of any core.
            Self::Member(member) => match &member.queue {
                Some(queue) => queue.descriptor(),
                None => Some(Bell::Now(member.team.doze(member.core).descriptor())),
            },
        }
    }

    /// Returns true if this core, which is not core 0, has a queue of the port.
    pub(super) fn has_own_queue(&self) -> bool {
        matches!(self, Self::Member(member) if member.queue.is_some())
    }

    /// Returns true if frames of other cores may come to this one's queue, so that they wait for it.
    pub(super) fn strays_come(&self) -> bool {
        matches!(self, Self::Member(member) if member.queue.as_ref().is_some_and(P::strays))
    }

    /// Returns true if this is core 0 of several.
    #[inline(always)]
    pub(super) fn is_lead(&self) -> bool {
        matches!(self, Self::Lead(_))
    }

    /// Returns true if other cores have frames that leave, or strays.
    #[must_use]
    #[inline(always)]
    pub fn has_leaving(&self) -> bool {
        match self {
            Self::Alone(_) | Self::Member(_) => false,
            Self::Lead(lead) => lead.has_leaving(),
        }
    }

    /// Returns the processes of the interface without room, of which `held` are those that this core knows: core 0 informs the others.
    pub(super) fn share_full(&self, held: u64) -> u64 {
        match self {
            Self::Alone(_) => held,
            Self::Lead(lead) => {
                lead.team.set_full(held);
                held
            }
            Self::Member(member) => member.team.full(),
        }
    }

    /// Hands received frames to their cores if this is core 0 of several. Returns true if there were any.
    #[inline(never)]
    pub fn deal(&mut self, frames: &mut Burst<P::Buf>) -> bool {
        match self {
            Self::Lead(lead) if !frames.is_empty() => lead.deal(frames),
            Self::Alone(_) | Self::Lead(_) | Self::Member(_) => false,
        }
    }

    /// Routes a frame to this process's own address. Returns it if it belongs to the calling core, or if core 0 must pass it on.
    pub(super) fn route(&mut self, frame: P::Buf) -> Routed<P::Buf> {
        match self {
            Self::Alone(_) => Routed::Here(frame),
            Self::Lead(lead) => lead.route(frame).map_or(Routed::Done, Routed::Here),
            Self::Member(member) if member.queue.is_some() => match member.pass(frame) {
                Ok(()) => Routed::Done,
                Err(frame) => Routed::Waits(frame),
            },
            Self::Member(_) => Routed::Leaves(frame),
        }
    }

    /// Lets the frames of another core leave first in the next turn.
    pub fn turn_to_next(&mut self) {
        if let Self::Lead(lead) = self {
            lead.turn_to_next();
        }
    }

    /// Returns the next frame of another core that leaves.
    pub fn next_leaving(&mut self) -> Option<P::Buf> {
        if let Self::Lead(lead) = self { lead.next_leaving() } else { None }
    }

    /// Returns the counts of frames handed over so far.
    #[must_use]
    pub fn handed(&self) -> Handed {
        match self {
            Self::Alone(_) => Handed::default(),
            Self::Lead(lead) => lead.handed,
            Self::Member(member) => member.handed,
        }
    }

    /// Records that the core ends by a defect. Returns true if it is the first of the port's cores.
    pub(super) fn fail(&self, reason: &str) -> bool {
        match self {
            Self::Alone(_) => true,
            Self::Lead(lead) => lead.team.fail(reason),
            Self::Member(member) => member.team.fail(reason),
        }
    }
}

/// The result of routing a frame to this process's own address.
pub(super) enum Routed<B> {
    /// It belongs to the calling core.
    Here(B),
    /// Core 0 passes it on, as the port would.
    Leaves(B),
    /// Core 0 passes it on when there is room.
    Waits(B),
    /// Another core has it.
    Done,
}

//! The cores behind one port, and how each of them reaches it.
//!
//! Core 0 leads: it alone owns the port and its one queue. It hands each received frame to the core that the destination QPN names, and
//! sends what the others pass to it. Between it and each other core there are three rings of buffers, none of which is copied: received
//! frames and empty buffers one way, leaving frames the other.
//!
//! The poll-mode cores use it, and the soak of `fabric`, whose cores run in virtual time.

use super::doze::Doze;
use crate::event_fd::EventFd;
use crate::io::{BURST, Bell, Burst, PacketBuf, PacketIo};
use roce::wire::{self, Mac, Numbers, Opcode};
use roce::{CoreIndex, GROUP_QPN};
use rtrb::{Consumer, Producer, RingBuffer};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The most received frames that wait for a core. More are dropped and counted, as by a NIC whose queue is full.
const RECEIVED: usize = 1024;
/// The most frames of a core that wait for core 0. A core with a full ring waits, as it would for a port.
const LEAVING: usize = 256;
/// Empty buffers that core 0 keeps ready for each other core.
const EMPTY: usize = 2 * BURST;
/// Received buffers that a core keeps to send from.
const STOCK: usize = 4 * BURST;

/// The state that all cores of a port share.
#[derive(Debug)]
pub struct Team {
    /// One for each core, in the cores' order.
    dozes: Box<[Doze]>,
    failed: AtomicBool,
    /// The reason, once a core has failed.
    reason: OnceLock<String>,
}

impl Team {
    /// Creates the state of as many cores as there are bells. Each bell ends the sleep of its core.
    #[must_use]
    pub fn new(bells: impl IntoIterator<Item = EventFd>) -> Self {
        let dozes = bells.into_iter().map(Doze::new).collect();
        Self { dozes, failed: AtomicBool::new(false), reason: OnceLock::new() }
    }

    /// Wakes a core, after something was put into its ring or its inbox.
    pub(super) fn wake(&self, core: usize) {
        self.dozes[core].wake();
    }

    /// Records that a core ends by a defect, so that the others end with it. Returns true if it is the first.
    fn fail(&self, reason: &str) -> bool {
        let first = self.reason.set(reason.to_owned()).is_ok();
        self.failed.store(true, Ordering::Release);
        (0..self.dozes.len()).for_each(|core| self.wake(core));
        first
    }

    /// Ends the calling core as a panic does if another core has failed.
    #[inline]
    fn check(&self) {
        if self.failed.load(Ordering::Acquire) {
            self.follow();
        }
    }

    #[cold]
    fn follow(&self) -> ! {
        let reason = self.reason.get().cloned().unwrap_or_default();
        resume_unwind(Box::new(reason))
    }
}

/// The way of a core to the port. It is one type for all, so that a core's code is compiled once.
pub enum Way<P: PacketIo> {
    /// The port's only core.
    Alone(P),
    /// Core 0 of several.
    Lead(Box<Lead<P>>),
    /// Any other core.
    Member(Box<Member<P::Buf>>),
}

/// Core 0's ends of the rings to another core.
struct Link<B> {
    received: Producer<B>,
    empty: Producer<B>,
    leaving: Consumer<B>,
}

/// Core 0's way to the port: the port itself, and the rings to the other cores.
pub struct Lead<P: PacketIo> {
    team: Arc<Team>,
    names: Names,
    /// The links to cores 1 and up.
    links: Box<[Link<P::Buf>]>,
    /// The link whose frames leave first in this turn.
    first: usize,
    /// Frames handed over so far, and those that found a full ring.
    handed: Handed,
    /// Last, so that it outlives the buffers above.
    port: P,
}

/// Frames that core 0 handed to others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Handed {
    /// Frames that were handed over.
    pub over: u64,
    /// Frames that found a full ring, and were dropped.
    pub full: u64,
}

/// The addresses by which core 0 finds the core of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The port's Ethernet address.
    pub mac: Mac,
    /// The top bits of this process's QPNs.
    pub process: u8,
    /// Core 0.
    pub core: CoreIndex,
    /// The number of cores.
    pub cores: u8,
    /// The port numbers and identifiers of the wire format.
    pub numbers: Numbers,
}

/// The core that a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Leads,
    /// The core behind this link. A byte, since 32 of these stand beside a burst.
    Of(u8),
    /// All cores: its QPN is not one of ours.
    Any,
}

impl Names {
    #[inline(always)]
    fn whose(&self, frame: &[u8]) -> Whose {
        if !frame.starts_with(&self.mac.0) {
            return Whose::Leads;
        }
        let Some((opcode, qpn)) = wire::opcode_and_destination(frame, self.numbers) else {
            return Whose::Leads;
        };
        // A switch names the queue pair that its packet was for.
        if opcode == Opcode::DIRECT_RESPONSE {
            return Whose::Any;
        }
        match self.core.place_of(self.process, qpn) {
            core if (1..u32::from(self.cores)).contains(&core) && qpn != GROUP_QPN => {
                Whose::Of(core as u8 - 1)
            }
            // Core 0 counts frames to a number that no core has.
            _ => Whose::Leads,
        }
    }
}

impl<P: PacketIo> Lead<P> {
    fn receive(&mut self, into: &mut Burst<P::Buf>) {
        self.team.check();
        self.supply();
        self.port.receive(into);
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

    /// Hands frames of other cores to them, and shows each to `seen` first. Returns true if there were any.
    fn deal(&mut self, frames: &mut Burst<P::Buf>, mut seen: Option<impl FnMut(&[u8])>) -> bool {
        let mut touched = 0_u32;
        let whose: Burst<Whose> = frames.iter().map(|frame| self.names.whose(frame)).collect();
        let mut all = std::mem::take(frames).into_iter();
        for run in whose.chunk_by(Whose::eq) {
            match run[0] {
                Whose::Leads => frames.extend(all.by_ref().take(run.len())),
                Whose::Of(link) => {
                    if let Some(seen) = &mut seen {
                        all.as_slice()[..run.len()].iter().for_each(|frame| seen(frame));
                    }
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
        match self.names.whose(&frame) {
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

/// Another core's ends of the rings to core 0.
pub struct Member<B> {
    team: Arc<Team>,
    core: usize,
    /// The capacity of a buffer to send from, in bytes.
    room: usize,
    received: Consumer<B>,
    empty: Consumer<B>,
    leaving: Producer<B>,
    stock: Vec<B>,
}

impl<B: PacketBuf> Member<B> {
    fn receive(&mut self, into: &mut Burst<B>) {
        self.team.check();
        let count = self.received.slots().min(BURST - into.len());
        if let Ok(chunk) = self.received.read_chunk(count) {
            into.extend(chunk);
        }
    }

    fn alloc(&mut self) -> Option<B> {
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
    fn recycle(&mut self, from: &mut Burst<B>) {
        while self.stock.len() < STOCK
            && from.last().is_some_and(|buffer| buffer.capacity() >= self.room)
            && let Some(buffer) = from.pop()
        {
            self.stock.push(buffer);
        }
        B::free_all(from);
    }

    fn transmit(&mut self, from: &mut Burst<B>) {
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
}

impl<P: PacketIo> Way<P> {
    /// Returns the ways of all cores, core 0's first. There are at least two.
    #[must_use]
    pub fn of_all(port: P, team: &Arc<Team>, names: Names) -> Vec<Self> {
        let room = port.caps().max_frame;
        let (mut links, mut members) = (Vec::new(), Vec::new());
        for core in 1..usize::from(names.cores) {
            let (received, received_end) = RingBuffer::new(RECEIVED);
            let (empty, empty_end) = RingBuffer::new(EMPTY);
            let (leaving_end, leaving) = RingBuffer::new(LEAVING);
            links.push(Link { received, empty, leaving });
            members.push(Self::Member(Box::new(Member {
                team: team.clone(),
                core,
                room,
                received: received_end,
                empty: empty_end,
                leaving: leaving_end,
                stock: Vec::with_capacity(STOCK),
            })));
        }
        let (team, links) = (team.clone(), links.into_boxed_slice());
        let lead = Lead { team, names, links, first: 0, handed: Handed::default(), port };
        std::iter::once(Self::Lead(Box::new(lead))).chain(members).collect()
    }

    #[inline(always)]
    pub(super) fn attach(&mut self) {
        match self {
            Self::Alone(port) => port.attach(),
            Self::Lead(lead) => lead.port.attach(),
            Self::Member(_) => {}
        }
    }

    /// Appends received frames to `into`: those of the port, or those that core 0 has handed over.
    #[inline(always)]
    pub fn receive(&mut self, into: &mut Burst<P::Buf>) {
        match self {
            Self::Alone(port) => port.receive(into),
            Self::Lead(lead) => lead.receive(into),
            Self::Member(member) => member.receive(into),
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

    /// Sets whether the port's descriptor, or another core, reports frames from now on.
    pub(super) fn listen(&mut self, on: bool) {
        match self {
            Self::Alone(port) => port.listen(on),
            Self::Lead(lead) => {
                lead.port.listen(on);
                lead.team.dozes[0].listen(on);
            }
            Self::Member(member) => member.team.dozes[member.core].listen(on),
        }
    }

    /// Becomes readable when a frame arrives and the core listens, if there is such a descriptor.
    pub(super) fn descriptor(&self) -> Option<Bell> {
        match self {
            Self::Alone(port) => port.descriptor(),
            Self::Lead(lead) => lead.port.descriptor(),
            Self::Member(member) => Some(Bell::Now(member.team.dozes[member.core].descriptor())),
        }
    }

    /// Returns true if this is core 0 of several.
    #[inline(always)]
    pub(super) fn is_lead(&self) -> bool {
        matches!(self, Self::Lead(_))
    }

    /// Returns true if other cores have frames that leave.
    #[must_use]
    #[inline(always)]
    pub fn has_leaving(&self) -> bool {
        match self {
            Self::Alone(_) | Self::Member(_) => false,
            Self::Lead(lead) => lead.links.iter().any(|link| !link.leaving.is_empty()),
        }
    }

    /// Hands received frames to their cores if this is core 0 of several, and shows each to `seen` first. Returns true if there were any.
    #[inline(never)]
    pub fn deal(&mut self, frames: &mut Burst<P::Buf>, seen: Option<impl FnMut(&[u8])>) -> bool {
        match self {
            Self::Lead(lead) if !frames.is_empty() => lead.deal(frames, seen),
            Self::Alone(_) | Self::Lead(_) | Self::Member(_) => false,
        }
    }

    /// Routes a frame to this process's own address. Returns it if it belongs to the calling core, or if core 0 must pass it on.
    pub(super) fn route(&mut self, frame: P::Buf) -> Routed<P::Buf> {
        match self {
            Self::Alone(_) => Routed::Here(frame),
            Self::Lead(lead) => lead.route(frame).map_or(Routed::Done, Routed::Here),
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
        if let Self::Lead(lead) = self { lead.handed } else { Handed::default() }
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
    /// Core 0 passes it on.
    Leaves(B),
    /// Another core has it.
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::wire::{Bth, Header, Path};
    use roce::{Psn, Qpn};

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn whose(process: u8, cores: u8, qpn: u32, to: Mac) -> Whose {
        let names =
            Names { mac: MAC, process, core: CoreIndex::new(0, cores), cores, numbers: Numbers::DEFAULT };
        let (from, to) = ((MAC, [10, 0, 0, 1].into()), (to, [10, 0, 0, 2].into()));
        let bth = Bth::new(Qpn::new(qpn), Psn::new(0));
        let header = Header::Datagram { bth, queue_key: 1, source: Qpn::new(1), immediate: None };
        let mut frame = [0; 256];
        let length = wire::emit(&Path::new(from, to), 0, &header, 0, &mut frame).unwrap().seal();
        names.whose(&frame[..length])
    }

    #[test]
    fn a_frame_is_the_cores_that_its_qpn_names() {
        for (process, cores, qpn, is) in [
            (0, 4, 5, Whose::Leads),
            (0, 4, 1 << 16 | 5, Whose::Of(0)),
            (0, 4, 3 << 16 | 5, Whose::Of(2)),
            (0, 3, 3 << 16 | 5, Whose::Leads),
            (0, 16, 15 << 14 | 5, Whose::Of(14)),
            (9, 2, 9 << 18 | 1 << 16, Whose::Of(0)),
            // A number of another process, queue pair 1, and a group's.
            (9, 2, 8 << 18 | 1 << 16, Whose::Leads),
            (9, 2, 1, Whose::Leads),
            (63, 16, 0xff_ffff, Whose::Leads),
        ] {
            assert_eq!(whose(process, cores, qpn, MAC), is, "process {process}, {cores} cores, QPN {qpn:#x}");
        }
        assert_eq!(whose(0, 4, 1 << 16, Mac([1, 0, 0x5e, 0, 0, 1])), Whose::Leads, "a group's address");
    }

    #[test]
    fn what_is_no_packet_is_core_0s() {
        let (mac, core, numbers) = (MAC, CoreIndex::new(0, 4), Numbers::DEFAULT);
        let names = Names { mac, process: 0, core, cores: 4, numbers };
        for length in 0..80 {
            let mut frame = vec![0x45; length];
            frame.iter_mut().zip(MAC.0).for_each(|(byte, mac)| *byte = mac);
            assert_eq!(names.whose(&frame), Whose::Leads);
        }
    }
}

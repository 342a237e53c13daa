//! The cores behind one port, and the access of each core to the port.
//!
//! Core 0, the main core, owns the port. It forwards each received frame to the core that the destination QPN names, and sends the outgoing
//! frames of the others, the worker cores. Three rings of buffers connect it with each worker core: received frames and empty buffers to
//! the worker, outgoing frames from it. No frame is copied.
//!
//! Some ports have a queue for each core. There the worker cores receive most of their frames and send by themselves. The rings then carry
//! only frames that the port cannot steer, and frames to the port's own address. A fourth ring carries misdirected frames to core 0: those
//! that a NIC's hash put into the queue of the wrong core. Core 0 handles them as if it had received them.
//!
//! Used by the poll-mode cores, and by the soak test of `fabric`, whose cores run in virtual time.

pub use super::group_state::CoreGroup;
use crate::io::{BURST, Burst, PacketBuf, PacketIo, QueueError, WakeDescriptor};
use crate::steering::{CoreTarget, Steering};
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::sync::Arc;

/// Most received frames queued for a core. Further ones are dropped and counted, as by a NIC whose queue is full.
const RECEIVE_RING: usize = 1024;
/// Most frames of a worker core queued for core 0. While the ring is full, the worker keeps its frames, as with a port that accepts none.
const SEND_RING: usize = 256;
/// Empty buffers that core 0 keeps in the ring to each worker core.
const EMPTY_RING: usize = 2 * BURST;
/// Most received buffers that a worker core keeps to send from.
const MAX_STOCK: usize = 4 * BURST;

/// A core's access to the port. One type for all cores, so that the code of a core is compiled once.
pub enum PortAccess<P: PacketIo> {
    /// The port's only core.
    Single(P),
    /// Core 0 of several.
    Main(Box<MainCore<P>>),
    /// A worker core.
    Worker(Box<WorkerCore<P>>),
}

/// Core 0's ends of the rings to a worker core.
struct WorkerRings<B> {
    received: Producer<B>,
    empty: Producer<B>,
    outgoing: Consumer<B>,
    misdirected: Consumer<B>,
}

/// Core 0's access to the port: the port itself, and the rings to the worker cores.
pub struct MainCore<P: PacketIo> {
    group: Arc<CoreGroup>,
    steering: Steering,
    /// The rings to cores 1 and up.
    rings: Box<[WorkerRings<P::Buf>]>,
    /// The index of the worker whose frames are sent first in this turn.
    first: usize,
    /// Whether the queues of worker cores may receive frames of any core.
    may_misdirect: bool,
    /// Counts of frames forwarded to worker cores.
    forwarded: Forwarded,
    /// Last, so that it outlives the buffers above.
    port: P,
}

/// Counts of the frames that a core forwarded to others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forwarded {
    /// Frames forwarded.
    pub frames: u64,
    /// Frames dropped because the ring was full.
    pub dropped: u64,
}

impl<P: PacketIo> MainCore<P> {
    fn receive(&mut self, into: &mut Burst<P::Buf>) -> bool {
        self.group.check();
        self.refill();
        if self.may_misdirect {
            self.take_misdirected(into);
        }
        self.port.poll_receive(into)
    }

    /// Appends misdirected frames from the queues of worker cores: at most half a burst, so that the port's own frames have room.
    fn take_misdirected(&mut self, into: &mut Burst<P::Buf>) {
        let mut room = (BURST / 2).min(into.remaining_capacity());
        for worker in &mut self.rings {
            let count = worker.misdirected.slots().min(room);
            if let Ok(chunk) = worker.misdirected.read_chunk(count) {
                into.extend(chunk);
                room -= count;
            }
        }
    }

    fn refill(&mut self) {
        for worker in self.rings.iter_mut().filter(|worker| worker.empty.slots() >= BURST) {
            for _ in 0..BURST {
                let Some(buffer) = self.port.alloc() else { return };
                // Cannot fail: the ring has room for a burst.
                let _ = worker.empty.push(buffer);
            }
        }
    }

    /// Forwards frames of worker cores to them. Returns true if there were any.
    fn distribute(&mut self, frames: &mut Burst<P::Buf>) -> bool {
        let mut touched = 0_u32;
        let targets: Burst<CoreTarget> = frames.iter().map(|frame| self.steering.target(frame)).collect();
        // If all frames are for one worker core, as in a burst of one queue pair, the list need not be copied.
        if let [first @ CoreTarget::Worker(worker), rest @ ..] = &targets[..]
            && rest.iter().all(|target| target == first)
        {
            let count = frames.len();
            self.forward_run((*worker).into(), frames.drain(..), count);
            self.group.wake(usize::from(*worker) + 1);
            return true;
        }
        let mut all = std::mem::take(frames).into_iter();
        for run in targets.chunk_by(CoreTarget::eq) {
            match run[0] {
                CoreTarget::Main => frames.extend(all.by_ref().take(run.len())),
                CoreTarget::Worker(worker) => {
                    self.forward_run(worker.into(), all.by_ref().take(run.len()), run.len());
                    touched |= 1 << worker;
                }
                CoreTarget::All => {
                    for frame in all.by_ref().take(run.len()) {
                        self.forward_copies(&frame);
                        frames.push(frame);
                    }
                    touched = u32::MAX;
                }
            }
        }
        for worker in (0..self.rings.len()).filter(|worker| touched & (1 << worker) != 0) {
            self.group.wake(worker + 1);
        }
        touched != 0
    }

    /// Forwards `count` frames to one core. Drops those for which the ring has no room.
    #[inline]
    fn forward_run(&mut self, worker: usize, mut frames: impl Iterator<Item = P::Buf>, count: usize) {
        let received = &mut self.rings[worker].received;
        let room = received.slots().min(count);
        if let Ok(chunk) = received.write_chunk_uninit(room) {
            chunk.fill_from_iter(frames.by_ref());
        }
        frames.for_each(drop);
        self.forwarded.frames += room as u64;
        self.forwarded.dropped += (count - room) as u64;
    }

    fn forward(&mut self, worker: usize, frame: P::Buf) {
        self.forward_run(worker, std::iter::once(frame), 1);
    }

    /// Forwards a copy of the frame to each worker core. A copy for which no buffer is free is lost, as on a congested network.
    #[cold]
    fn forward_copies(&mut self, frame: &P::Buf) {
        for worker in 0..self.rings.len() {
            let Some(mut copy) = self.port.alloc() else { return };
            copy.set_len(frame.len());
            copy.copy_from_slice(frame);
            self.forward(worker, copy);
        }
    }

    /// Delivers a frame to this process's own address; returns it if it belongs to core 0.
    fn route(&mut self, frame: P::Buf) -> Option<P::Buf> {
        match self.steering.target(&frame) {
            CoreTarget::Main => Some(frame),
            CoreTarget::Worker(worker) => {
                self.forward(worker.into(), frame);
                self.group.wake(usize::from(worker) + 1);
                None
            }
            CoreTarget::All => {
                self.forward_copies(&frame);
                (1..=self.rings.len()).for_each(|core| self.group.wake(core));
                Some(frame)
            }
        }
    }

    #[inline(always)]
    fn has_outgoing(&self) -> bool {
        self.rings.iter().any(|worker| !worker.outgoing.is_empty())
            || self.may_misdirect && self.rings.iter().any(|worker| !worker.misdirected.is_empty())
    }

    fn next_outgoing(&mut self) -> Option<P::Buf> {
        for _ in 0..self.rings.len() {
            if let Ok(frame) = self.rings[self.first].outgoing.pop() {
                return Some(frame);
            }
            self.select_next();
        }
        None
    }

    fn select_next(&mut self) {
        self.first = if self.first + 1 == self.rings.len() { 0 } else { self.first + 1 };
    }
}

/// A worker core's access to the port: its ends of the rings to core 0, and its own queue if the port has one for it.
pub struct WorkerCore<P: PacketIo> {
    group: Arc<CoreGroup>,
    steering: Steering,
    core: usize,
    /// Misdirected frames forwarded to core 0.
    forwarded: Forwarded,
    /// The capacity of a buffer to send from, in bytes.
    room: usize,
    received: Consumer<P::Buf>,
    empty: Consumer<P::Buf>,
    outgoing: Producer<P::Buf>,
    misdirected: Producer<P::Buf>,
    stock: Vec<P::Buf>,
    /// Last, so that it outlives the buffers above.
    queue: Option<P>,
}

impl<P: PacketIo> WorkerCore<P> {
    fn receive(&mut self, into: &mut Burst<P::Buf>) -> bool {
        self.group.check();
        let count = self.received.slots().min(BURST - into.len());
        if let Ok(chunk) = self.received.read_chunk(count) {
            into.extend(chunk);
        }
        let own = into.len();
        let Some(queue) = &mut self.queue else { return own > 0 };
        let any = queue.poll_receive(into);
        if queue.misdirects() && into[own..].iter().any(|frame| !self.is_own(frame)) {
            self.return_misdirected(into, own);
        }
        any
    }

    /// Passes each frame in place to `take`, with whether it is for this core, and forwards the frames that `take` declines to core 0.
    fn receive_in_place(&mut self, mut take: impl FnMut(bool, &[u8]) -> bool) {
        let mut misdirected = Burst::new();
        if let Some(queue) = &mut self.queue {
            let (core, steering) = (self.core, &self.steering);
            let is_own = |frame: &[u8]| usize::from(steering.core_of(frame)) == core;
            queue.receive_in_place(&mut misdirected, |frame| take(is_own(frame), frame));
        }
        if !misdirected.is_empty() {
            self.return_misdirected(&mut misdirected, 0);
        }
    }

    fn is_own(&self, frame: &[u8]) -> bool {
        usize::from(self.steering.core_of(frame)) == self.core
    }

    /// Forwards the frames from `at` on that are for other cores to core 0. Drops and counts them if there is no room.
    #[cold]
    fn return_misdirected(&mut self, into: &mut Burst<P::Buf>, at: usize) {
        let received: Burst<_> = into.drain(at..).collect();
        for frame in received {
            if self.is_own(&frame) {
                into.push(frame);
            } else if self.misdirected.push(frame).is_ok() {
                self.forwarded.frames += 1;
            } else {
                self.forwarded.dropped += 1;
            }
        }
        self.group.wake(0);
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
            // Core 0 may be asleep; it refills the ring.
            self.group.wake(0);
        }
        buffer
    }

    /// Keeps received buffers to send from, up to [`MAX_STOCK`], and frees the others.
    fn recycle(&mut self, from: &mut Burst<P::Buf>) {
        if let Some(queue) = &mut self.queue {
            return queue.recycle(from);
        }
        while self.stock.len() < MAX_STOCK
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
        if self.outgoing.is_abandoned() {
            // Core 0 has been dropped, and the port with it.
            from.clear();
        }
        let count = self.outgoing.slots().min(from.len());
        if count > 0
            && let Ok(chunk) = self.outgoing.write_chunk_uninit(count)
        {
            chunk.fill_from_iter(from.drain(..count));
            self.group.wake(0);
        }
    }

    /// Forwards a frame to the port's own address to core 0, which routes it. Returns the frame if there is no room.
    fn send_to_main(&mut self, frame: P::Buf) -> Result<(), P::Buf> {
        self.outgoing.push(frame).map_err(|PushError::Full(frame)| frame)?;
        self.group.wake(0);
        Ok(())
    }
}

impl<P: PacketIo> PortAccess<P> {
    /// Returns the accesses of all cores, core 0's first. There must be at least two cores.
    ///
    /// # Errors
    /// Returns the port's error if it has queues for the cores and one cannot be opened.
    pub fn of_all(mut port: P, group: &Arc<CoreGroup>, steering: Steering) -> Result<Vec<Self>, QueueError> {
        let room = port.caps().max_frame;
        let (mut rings, mut workers) = (Vec::new(), Vec::new());
        let mut queues = port.open_queues(&steering)?.into_iter();
        for core in 1..usize::from(steering.cores) {
            let (received, received_end) = RingBuffer::new(RECEIVE_RING);
            let queue = queues.next();
            // A core with a queue allocates from the pool of the queue.
            let (empty, empty_end) = RingBuffer::new(if queue.is_some() { 0 } else { EMPTY_RING });
            let (outgoing_end, outgoing) = RingBuffer::new(SEND_RING);
            let may_misdirect = queue.as_ref().is_some_and(P::misdirects);
            let (misdirected_end, misdirected) =
                RingBuffer::new(if may_misdirect { RECEIVE_RING } else { 0 });
            rings.push(WorkerRings { received, empty, outgoing, misdirected });
            workers.push(Self::Worker(Box::new(WorkerCore {
                group: group.clone(),
                steering,
                core,
                forwarded: Forwarded::default(),
                room,
                received: received_end,
                empty: empty_end,
                outgoing: outgoing_end,
                misdirected: misdirected_end,
                stock: Vec::with_capacity(MAX_STOCK),
                queue,
            })));
        }
        let may_misdirect = workers.iter().any(Self::may_misdirect);
        let (group, rings) = (group.clone(), rings.into_boxed_slice());
        let main = MainCore {
            group,
            steering,
            rings,
            first: 0,
            may_misdirect,
            forwarded: Forwarded::default(),
            port,
        };
        Ok(std::iter::once(Self::Main(Box::new(main))).chain(workers).collect())
    }

    /// Returns the port, or this core's queue of it if it has one.
    #[inline(always)]
    pub(super) fn own_port(&mut self) -> Option<&mut P> {
        match self {
            Self::Single(port) => Some(port),
            Self::Main(main) => Some(&mut main.port),
            Self::Worker(worker) => worker.queue.as_mut(),
        }
    }

    /// Appends received frames to `into`: those of the port except frames in place, or those that core 0 forwarded. Returns true if there
    /// are frames, in `into` or in place.
    #[inline(always)]
    pub fn receive(&mut self, into: &mut Burst<P::Buf>) -> bool {
        match self {
            Self::Single(port) => port.poll_receive(into),
            Self::Main(main) => main.receive(into),
            Self::Worker(worker) => worker.receive(into),
        }
    }

    /// Returns true if the port, or this core's queue of it, has frames in place.
    #[inline(always)]
    pub(super) fn has_in_place(&self) -> bool {
        match self {
            Self::Single(port) => port.has_in_place(),
            Self::Main(main) => main.port.has_in_place(),
            Self::Worker(worker) => worker.queue.as_ref().is_some_and(P::has_in_place),
        }
    }

    /// Passes the frames in place that are for this core to `take`. Core 0 appends those for other cores to `received`, to be
    /// [distributed](Self::distribute); a worker core forwards them to core 0.
    pub(super) fn receive_in_place(&mut self, received: &mut Burst<P::Buf>, mut take: impl FnMut(&[u8])) {
        let mut take_if = |is_own: bool, frame: &[u8]| {
            if is_own {
                take(frame);
            }
            is_own
        };
        match self {
            Self::Single(port) => port.receive_in_place(received, |frame| take_if(true, frame)),
            Self::Main(main) => {
                let MainCore { port, steering, .. } = &mut **main;
                port.receive_in_place(received, |frame| {
                    take_if(steering.target(frame) == CoreTarget::Main, frame)
                });
            }
            Self::Worker(worker) => worker.receive_in_place(take_if),
        }
    }

    /// Returns an empty buffer, or `None` if there is none.
    #[inline(always)]
    pub fn alloc(&mut self) -> Option<P::Buf> {
        match self {
            Self::Single(port) => port.alloc(),
            Self::Main(main) => main.port.alloc(),
            Self::Worker(worker) => worker.alloc(),
        }
    }

    /// Frees received buffers.
    #[inline(always)]
    pub fn recycle(&mut self, from: &mut Burst<P::Buf>) {
        match self {
            Self::Single(port) => port.recycle(from),
            Self::Main(main) => main.port.recycle(from),
            Self::Worker(worker) => worker.recycle(from),
        }
    }

    /// Sends frames from the front of `from`, as many as the port, or core 0, accepts now. The others stay, in order.
    #[inline(always)]
    pub fn transmit(&mut self, from: &mut Burst<P::Buf>) {
        match self {
            Self::Single(port) => port.transmit(from),
            Self::Main(main) => main.port.transmit(from),
            Self::Worker(worker) => worker.transmit(from),
        }
    }

    pub(super) fn loops_back(&self) -> bool {
        match self {
            Self::Single(port) => port.loops_back(),
            Self::Main(main) => main.port.loops_back(),
            Self::Worker(_) => false,
        }
    }

    /// Sets whether the port's descriptor, or another core, signals the arrival of frames from now on.
    pub(super) fn listen(&mut self, on: bool) {
        match self {
            Self::Single(port) => port.listen(on),
            Self::Main(main) => {
                main.port.listen(on);
                main.group.sleep_state(0).listen(on);
            }
            Self::Worker(worker) => {
                worker.queue.iter_mut().for_each(|queue| queue.listen(on));
                worker.group.sleep_state(worker.core).listen(on);
            }
        }
    }

    /// Returns the descriptor that becomes readable when a frame arrives while the core listens, if there is one.
    pub(super) fn descriptor(&self) -> Option<WakeDescriptor> {
        match self {
            Self::Single(port) => port.descriptor(),
            Self::Main(main) => main.port.descriptor(),
            // Core 0 signals the worker's eventfd.
            Self::Worker(worker) => match &worker.queue {
                Some(queue) => queue.descriptor(),
                None => Some(WakeDescriptor::Reliable(worker.group.sleep_state(worker.core).descriptor())),
            },
        }
    }

    /// Returns true if this is a worker core with a queue of the port.
    pub(super) fn has_own_queue(&self) -> bool {
        matches!(self, Self::Worker(worker) if worker.queue.is_some())
    }

    /// Returns true if this core's queue may receive frames of other cores, which are delayed until this core runs.
    pub(super) fn may_misdirect(&self) -> bool {
        matches!(self, Self::Worker(worker) if worker.queue.as_ref().is_some_and(P::misdirects))
    }

    #[inline(always)]
    pub(super) fn is_main(&self) -> bool {
        matches!(self, Self::Main(_))
    }

    /// Returns true if worker cores have frames to send, or misdirected frames.
    #[must_use]
    #[inline(always)]
    pub fn has_outgoing(&self) -> bool {
        match self {
            Self::Single(_) | Self::Worker(_) => false,
            Self::Main(main) => main.has_outgoing(),
        }
    }

    /// Returns the processes of the interface whose rings are full, a bit for each. Core 0 publishes `held`, its own set. Worker cores read
    /// that set.
    pub(super) fn share_full(&self, held: u64) -> u64 {
        match self {
            Self::Single(_) => held,
            Self::Main(main) => {
                main.group.set_full(held);
                held
            }
            Self::Worker(worker) => worker.group.full(),
        }
    }

    /// Forwards received frames to their cores if this is core 0 of several. Returns true if there were any.
    #[inline(never)]
    pub fn distribute(&mut self, frames: &mut Burst<P::Buf>) -> bool {
        match self {
            Self::Main(main) if !frames.is_empty() => main.distribute(frames),
            Self::Single(_) | Self::Main(_) | Self::Worker(_) => false,
        }
    }

    /// Routes a frame to this process's own address. Returns it if it belongs to the calling core, or if core 0 must pass it on.
    pub(super) fn route(&mut self, frame: P::Buf) -> Routed<P::Buf> {
        match self {
            Self::Single(_) => Routed::Local(frame),
            Self::Main(main) => main.route(frame).map_or(Routed::Done, Routed::Local),
            Self::Worker(worker) if worker.queue.is_some() => match worker.send_to_main(frame) {
                Ok(()) => Routed::Done,
                Err(frame) => Routed::Deferred(frame),
            },
            Self::Worker(_) => Routed::Outgoing(frame),
        }
    }

    /// Selects the worker core whose frames are sent first in the next turn.
    pub fn select_next(&mut self) {
        if let Self::Main(main) = self {
            main.select_next();
        }
    }

    /// Returns the next frame that another core sends.
    pub fn next_outgoing(&mut self) -> Option<P::Buf> {
        if let Self::Main(main) = self { main.next_outgoing() } else { None }
    }

    /// Returns the counts of frames forwarded so far.
    #[must_use]
    pub fn forwarded(&self) -> Forwarded {
        match self {
            Self::Single(_) => Forwarded::default(),
            Self::Main(main) => main.forwarded,
            Self::Worker(worker) => worker.forwarded,
        }
    }

    /// Records that the core ends because of a defect. Returns true if it is the first of the port's cores.
    pub(super) fn fail(&self, reason: &str) -> bool {
        match self {
            Self::Single(_) => true,
            Self::Main(main) => main.group.fail(reason),
            Self::Worker(worker) => worker.group.fail(reason),
        }
    }
}

/// The result of routing a frame to this process's own address.
pub(super) enum Routed<B> {
    /// The frame is for the calling core.
    Local(B),
    /// Core 0 sends it, as the port would.
    Outgoing(B),
    /// To be forwarded to core 0 when the ring has room.
    Deferred(B),
    /// Another core received it.
    Done,
}

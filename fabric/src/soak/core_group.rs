//! The cores of a host and its NIC.
//!
//! As in `datapath`, either core 0 owns the NIC, or each core has a queue of it. Frames pass between cores through the rings of
//! `CoreGroup`. All cores create the same shared objects, but a queue pair exists on one core. All cores run in one thread, in an order
//! drawn from the seed.

use super::memory::{Buffer, Ram};
use super::network::mac;
use super::plan::Talk;
use super::requests::rule;
use cc::Instant;
use datapath::engine::core_group::{CoreGroup, Forwarded, PortAccess};
use datapath::event_fd::EventFd;
use datapath::io::{Burst, Caps, PacketIo, QueueError};
use datapath::steering::Steering;
use roce::wire::{MAX_IN_BAND, MAX_OVERHEAD, Numbers, Service};
use roce::{CoreIndex, Endpoint, EndpointConfig};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Frames that a core receives or sends in one turn.
pub(super) const BURST: usize = 16;
/// Longest frame, in bytes.
pub(super) const LONGEST: usize = 4096 + MAX_OVERHEAD + MAX_IN_BAND;

/// Frames between the network and a NIC, in one direction.
#[derive(Clone, Default)]
struct Ring(Arc<Mutex<VecDeque<Buffer>>>);

impl Ring {
    fn get(&self) -> MutexGuard<'_, VecDeque<Buffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A host's NIC, as one of its cores accesses it. It has one queue, which core 0 polls, or one per core. Steering is by QPN, as with
/// Linux's sockets, or by UDP source port, as with RSS.
#[derive(Clone)]
pub(super) struct Nic {
    received: Arc<[Ring]>,
    queue: usize,
    /// Whether steering is by source port.
    hashes: bool,
    sent: Ring,
    alive: Arc<AtomicUsize>,
}

impl PacketIo for Nic {
    type Buf = Buffer;

    fn open_queues(&mut self, _steering: &Steering) -> Result<Vec<Self>, QueueError> {
        Ok((1..self.received.len()).map(|queue| Self { queue, ..self.clone() }).collect())
    }

    fn misdirects(&self) -> bool {
        self.hashes
    }

    fn receive(&mut self, into: &mut Burst<Buffer>) {
        let mut ring = self.received[self.queue].get();
        while into.len() < BURST
            && let Some(frame) = ring.pop_front()
        {
            into.push(frame.with_capacity(LONGEST));
        }
    }

    fn alloc(&mut self) -> Option<Buffer> {
        Some(Buffer::new(&[], &self.alive).with_capacity(LONGEST))
    }

    fn transmit(&mut self, from: &mut Burst<Buffer>) {
        self.sent.get().extend(from.drain(..));
    }

    fn caps(&self) -> Caps {
        Caps { max_frame: LONGEST, speed_mbps: None }
    }
}

pub(super) struct Core {
    pub(super) endpoint: Endpoint,
    pub(super) port: PortAccess<Nic>,
    /// Frames that did not fit in the ring to core 0.
    waiting: Burst<Buffer>,
    pub(super) wake: Option<u64>,
    pub(super) paused_until: u64,
}

impl Core {
    /// Returns a buffer for a frame to send; `None` while frames of this core do not fit in the ring to core 0.
    pub(super) fn alloc(&mut self) -> Option<Buffer> {
        self.port.transmit(&mut self.waiting);
        if self.waiting.is_empty() { self.port.alloc() } else { None }
    }

    /// Returns whether the core has frames or work that depends on another core.
    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty() || self.endpoint.may_transmit() || self.port.has_outgoing()
    }

    pub(super) fn transmit(&mut self, frame: Buffer) {
        self.waiting.push(frame);
        self.port.transmit(&mut self.waiting);
    }

    /// Sends the next frame that another core passed to core 0. Returns whether there was one.
    pub(super) fn forward(&mut self) -> bool {
        let frame = self.port.next_outgoing();
        let any = frame.is_some();
        frame.into_iter().for_each(|frame| self.transmit(frame));
        any
    }
}

pub(super) struct Cores {
    pub(super) all: Vec<Core>,
    nic: Nic,
    steering: Steering,
}

impl Cores {
    pub(super) fn new(host: usize, count: u8, config: EndpointConfig, alive: &Arc<AtomicUsize>) -> Self {
        // The seed determines the number of queues and the steering.
        let queues = if config.seed[0] & 1 == 1 { count } else { 1 };
        let hashes = config.seed[0] & 2 == 2;
        let received = (0..queues).map(|_| Ring::default()).collect();
        let nic = Nic { received, queue: 0, hashes, sent: Ring::default(), alive: alive.clone() };
        let steering = Steering {
            mac: mac(host),
            process: config.process,
            core: CoreIndex::new(0, count),
            cores: count,
            numbers: Numbers::DEFAULT,
        };
        let ports = match count {
            1 => vec![PortAccess::Single(nic.clone())],
            _ => {
                let wake = |_| EventFd::new(0).expect("a descriptor for each core");
                PortAccess::of_all(nic.clone(), &Arc::new(CoreGroup::new((0..count).map(wake))), steering)
                    .expect("a NIC's queues open")
            }
        };
        let core = |(index, port)| Core {
            endpoint: Endpoint::of_core(config, CoreIndex::new(index, count)),
            port,
            waiting: Burst::new(),
            wake: None,
            paused_until: 0,
        };
        Self { all: (0..count).zip(ports).map(core).collect(), nic, steering }
    }

    pub(super) const fn count(&self) -> u8 {
        self.all.len() as u8
    }

    /// Runs a command on all cores. Panics if the results differ.
    pub(super) fn on_all<R: PartialEq + Debug>(&mut self, mut command: impl FnMut(&mut Endpoint) -> R) -> R {
        let mut answers = self.all.iter_mut().map(|core| command(&mut core.endpoint));
        let first = answers.next().expect("a host has a core");
        answers.for_each(|answer| assert_eq!(answer, first, "cores agree on numbers and keys"));
        first
    }

    /// Adds a frame to a receive ring of at most `most` frames. Returns the ring's core; `None` if the ring is full.
    pub(super) fn arrives(&mut self, frame: Buffer, most: usize) -> Option<usize> {
        let rings = &self.nic.received;
        let core = match rings.len() {
            1 => 0,
            queues if self.nic.hashes => {
                let udp = if frame[12..14] == [0x86, 0xdd] { 14 + 40 } else { 14 + 20 };
                usize::from(frame[udp + 1]) % queues
            }
            _ => self.steering.core_of(&frame).into(),
        };
        let mut ring = rings[core].get();
        (ring.len() < most).then(|| {
            ring.push_back(frame);
            core
        })
    }

    pub(super) fn leaves(&mut self) -> Option<Buffer> {
        self.nic.sent.get().pop_front()
    }

    pub(super) fn has_received(&self, core: usize) -> bool {
        self.nic.received.get(core).is_some_and(|ring| !ring.get().is_empty())
    }

    pub(super) fn clear(&mut self) {
        self.nic.received.iter().for_each(|ring| ring.get().clear());
    }

    /// Processes the received frames of `core` and runs its timers. Returns whether it received frames, and whether it forwarded any.
    pub(super) fn take_in(&mut self, core: usize, ram: &mut Ram, now: Instant) -> (bool, bool) {
        let Core { port, endpoint, .. } = &mut self.all[core];
        let (mut frames, before) = (Burst::new(), port.forwarded().frames);
        port.receive(&mut frames);
        let any = !frames.is_empty();
        port.distribute(&mut frames);
        let distributed = port.forwarded().frames > before;
        for frame in &frames {
            // The endpoint counts dropped frames by reason.
            let _ = endpoint.on_frame(now, ram, frame);
        }
        port.recycle(&mut frames);
        endpoint.on_timeout(now);
        (any, distributed)
    }

    /// Frees the rings between the cores with all buffers, and returns the counts of forwarded frames. Fails if a live host has frames
    /// left.
    pub(super) fn close(&mut self, is_dead: bool) -> Result<Forwarded, String> {
        self.clear();
        let forwarded = self.all[0].port.forwarded();
        for core in &mut self.all {
            let mut frames = Burst::new();
            core.port.receive(&mut frames);
            let left = frames.len() + core.waiting.len() + usize::from(core.port.has_outgoing());
            rule(is_dead || left == 0, || format!("{left} frames were left between cores"))?;
            core.waiting.clear();
            core.port = PortAccess::Single(self.nic.clone());
        }
        Ok(forwarded)
    }
}

impl Talk {
    /// Returns the core of a side's queue pair; datagrams use core 0.
    pub(super) fn core(&self, side: usize, cores: u8) -> usize {
        match self.service {
            Service::Ud | Service::Raw => 0,
            Service::Rc | Service::Xrc | Service::Uc => {
                (self.seed >> (8 + 24 * side)) as usize % usize::from(cores)
            }
        }
    }
}

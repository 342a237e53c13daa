//! Processes that share an interface, as they would share a NIC.
//!
//! Each process has one of 64 slots. The kernel allows one process in a network namespace to have the abstract socket name of a slot. The
//! slot is the top of a process's queue pair numbers and communication ids, so these never collide, and identify the process. A new process
//! sends a hello to the names of all slots (`introductions`). Everything else is in memory that each process writes and all others read
//! (`memory`): frames for siblings, claims, and the messages to peers after the process has ended. All processes are equal, and none blocks
//! another.
//!
//! One thread of each process watches the others. It sleeps while no process joins, ends or sends a message.

mod claims;
mod disconnect_notices;
mod flows;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod guard;
mod introductions;
mod join;
mod lanes;
mod memory;
mod message;
mod repeats;
mod socket;
#[cfg(test)]
mod tests;
mod watch;

pub use claims::{Claim, ClaimError};
pub use disconnect_notices::DisconnectNotice;
pub(crate) use flows::MemberFlows;
pub(crate) use guard::Guarded;
pub use join::{Delivery, JoinError};
pub(crate) use lanes::{MemberRings, ProcessTarget, Pushed};
pub use memory::MEMBERS;
pub use socket::ForeignProcess;

use crate::event_fd::EventFd;
use crate::{fork, signals};
use claims::{Decision, OwnClaims};
use disconnect_notices::DisconnectNotices;
use guard::Guard;
use introductions::Introductions;
use memory::{OwnMemory, PeerMemory};
use repeats::Repeats;
use socket::User;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use watch::Quarantine;

/// Longest wait of a claim for rival claims to be decided.
const DECISION: Duration = Duration::from_millis(500);
/// Time between two attempts after a failure that would repeat at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Bits of a communication id below the slot.
const ID_BITS: u32 = 26;

/// This process's view of another process of the interface.
#[derive(Debug)]
pub(crate) struct Member {
    memory: Arc<PeerMemory>,
    /// Wakes its core.
    event_fd: EventFd,
    /// Hangs up when the process has ended.
    life: OwnedFd,
    /// The number that distinguishes the process from earlier ones in its slot, and the number by which it identifies this process.
    identity: u64,
    known_as: u64,
}

impl Member {
    fn new(descriptors: Vec<OwnedFd>, own_slot: u8, known_as: u64) -> io::Result<Self> {
        let descriptors: [OwnedFd; 3] =
            descriptors.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let [memory, event_fd, life] = descriptors;
        memory::check_event_fd(&event_fd)?;
        memory::check_life(&life)?;
        let memory = Arc::new(PeerMemory::new(memory, own_slot)?);
        let identity = memory.head().identity().load(std::sync::atomic::Ordering::Relaxed);
        Ok(Self { memory, event_fd: event_fd.into(), life, identity, known_as })
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.memory.file(), self.event_fd.as_fd(), self.life.as_fd()]
    }

    /// Adds the process to those whose flows are counted.
    pub(crate) fn join_flows(&self, slot: u8, flows: &MemberFlows) {
        flows.add(slot, self.memory.clone());
    }

    fn is_alive(&self) -> bool {
        let mut watched = libc::pollfd { fd: self.life.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one descriptor, which is open.
        unsafe { libc::poll(&mut watched, 1, 0) <= 0 }
    }
}

/// Callbacks for changes of a process's siblings.
pub(crate) trait Events: Send {
    fn joined(&self, slot: u8, member: Arc<Member>);
    fn left(&self, slot: u8);
    /// A process has ended, and this process informs its peers.
    fn died(&self, notice: DisconnectNotice);
}

/// A process's membership in its interface. After it is dropped, siblings treat the process as ended.
pub struct Siblings {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    guard: Option<Guard>,
}

struct Shared {
    /// The name of the interface, which is the prefix of the slots' names.
    name: String,
    slot: u8,
    /// The user to whom the interface belongs. The process may have changed its user since.
    user: User,
    own: Arc<OwnMemory>,
    identity: u64,
    /// Wakes this process's core.
    event_fd: EventFd,
    /// Ends the thread.
    stop: EventFd,
    /// Interrupts a wait of the thread, because another thread has changed the set of descriptors.
    changed: EventFd,
    state: Mutex<State>,
    /// Both ends of a pipe that hangs up when this process ends. Dropped last: the process's name is free by then, so another process can
    /// reserve it.
    life: (OwnedFd, fork::CloseOnFork),
}

struct State {
    members: [Option<Arc<Member>>; MEMBERS],
    quarantined: Vec<Quarantine>,
    introductions: Introductions,
    claimed: OwnClaims,
    notices: DisconnectNotices,
    repeats: Repeats,
    events: Option<Box<dyn Events>>,
    /// Whether the thread must read the set of descriptors again before it waits.
    stale: bool,
}

fn slot_name(name: &str, slot: u8) -> String {
    format!("{name}/{slot}")
}

impl Siblings {
    /// Returns the process's slot.
    #[must_use]
    pub fn slot(&self) -> u8 {
        self.shared.slot
    }

    pub(crate) fn member_rings(&self) -> MemberRings {
        MemberRings::new(self.shared.own.clone(), self.shared.slot)
    }

    pub(crate) fn member_flows(&self) -> MemberFlows {
        MemberFlows::new(self.shared.own.clone())
    }

    /// Returns a descriptor that wakes the process's core. Siblings signal it after they have sent something.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptor left.
    pub(crate) fn event_fd(&self) -> io::Result<EventFd> {
        self.shared.event_fd.try_clone()
    }

    /// Starts watching the siblings. Also calls `events` for the present ones.
    ///
    /// # Errors
    /// Returns an error if the system cannot create a thread.
    pub(crate) fn watch(&mut self, events: Box<dyn Events>) -> io::Result<()> {
        let mut state = self.shared.lock();
        for (slot, member) in state.present() {
            events.joined(slot, member.clone());
        }
        state.events = Some(events);
        drop(state);
        self.run()
    }

    /// Handles everything that siblings have sent so far, so that all that have joined are known.
    pub(crate) fn meet(&self) {
        drop(self.shared.catch_up());
    }

    /// Prepares a guard on the interface with this index if the process was started by `ferroce run`. The guard starts with the first
    /// disconnect notice.
    pub(crate) fn prepare_guard(&mut self, interface: u32) {
        self.guard = Guard::new(interface);
    }

    /// Starts answering siblings in a process without a core.
    ///
    /// # Errors
    /// Returns an error if the system cannot create a thread.
    pub fn run(&mut self) -> io::Result<()> {
        let shared = self.shared.clone();
        self.thread = Some(signals::spawn("ferroce-sibling", move || watch::run(&shared))?);
        Ok(())
    }

    /// Claims a service.
    ///
    /// # Errors
    /// Returns a [`ClaimError`] if another process has the service, or this process has reached its limit.
    pub fn claim(&self, claim: &Claim) -> Result<(), ClaimError> {
        let shared = &*self.shared;
        let at = shared.lock().claimed.ask(&shared.own, claim).ok_or(ClaimError::Full)?;
        let decided = shared.settle(claim, at);
        claims::decided(&shared.own, at, decided.is_ok());
        decided
    }

    /// Withdraws one [`claim`](Self::claim).
    pub fn release(&self, claim: &Claim) {
        self.shared.lock().claimed.release(&self.shared.own, claim);
    }

    /// Sets whether this process has a connection manager.
    pub fn manage(&self, on: bool) {
        self.shared.own.head().manages().store(on.into(), std::sync::atomic::Ordering::Release);
    }

    /// Returns true if this process must answer a request for a service that it does not listen to: no other process listens either, and it
    /// is this one's turn. `id` is the communication id in the request, which the peer has just sent.
    #[must_use]
    pub fn answers_for(&self, peer: IpAddr, id: u32, service: u64, at: IpAddr) -> bool {
        let mut state = self.shared.catch_up();
        let elsewhere = |head| claims::matches(head, service, at);
        !state.present().any(|(_, member)| elsewhere(member.memory.head()))
            && self.shared.has_turn(&mut state, peer, id)
    }

    /// Returns true if this process must answer a message that `peer` has just sent to a communication id that this process does not know.
    #[must_use]
    pub fn answers_to(&self, peer: IpAddr, id: u32) -> bool {
        let slot = (id >> ID_BITS) as u8;
        let mut state = self.shared.catch_up();
        slot == self.shared.slot
            || state.members[usize::from(slot)].is_none() && self.shared.has_turn(&mut state, peer, id)
    }

    /// Registers a notice, so that a peer is informed of the end of a connection if this process ends.
    pub fn register_disconnect(&self, notice: &DisconnectNotice) {
        self.shared.lock().notices.register_disconnect(&self.shared.own, notice);
        if let Some(guard) = &self.guard {
            guard.start(self.shared.own.file(), self.shared.life.0.as_fd());
        }
    }

    /// Removes the notice of a connection.
    pub fn unregister_disconnect(&self, id: u32) {
        self.shared.lock().notices.unregister_disconnect(&self.shared.own, id);
    }
}

impl Drop for Siblings {
    fn drop(&mut self) {
        self.shared.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.own.file(), self.event_fd.as_fd(), self.life.0.as_fd()]
    }

    /// Returns the state after handling all that siblings have sent so far.
    fn catch_up(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        self.step(&mut state);
        self.rewatch(&state);
        state
    }

    /// Wakes the thread if its set of descriptors is stale, because another thread accepted a process.
    fn rewatch(&self, state: &State) {
        if state.stale {
            self.changed.signal();
        }
    }

    /// Decides the claim in the entry at `at`, and waits for processes that decide a rival claim at the same time. A process that is
    /// stopped while it decides has the service for as long as it is stopped.
    fn settle(&self, claim: &Claim, at: usize) -> Result<(), ClaimError> {
        let until = Instant::now() + DECISION;
        loop {
            let members = self.living();
            let heads = members.iter().map(|(slot, member)| (*slot, member.memory.head()));
            let rival = match claims::decide(self.slot, claim, heads) {
                Decision::Free => return Ok(()),
                Decision::Taken(errno) => return Err(ClaimError::Taken { errno }),
                Decision::Undecided(rival) => rival,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ClaimError::Taken { errno: rival.errno });
            }
            if rival.slot < self.slot {
                claims::withdraw(&self.own, at);
            }
            if let Some((_, member)) = members.iter().find(|(slot, _)| *slot == rival.slot) {
                rival.wait(member.memory.head(), left);
            }
            claims::request_again(&self.own, at);
        }
    }

    /// Returns all other living processes. One that joined after this process wrote its claim reads that claim.
    fn living(&self) -> Vec<(u8, Arc<Member>)> {
        let state = self.catch_up();
        let alive = state.present().filter(|(_, member)| member.is_alive());
        alive.map(|(slot, member)| (slot, member.clone())).collect()
    }

    /// Returns true if this process must answer a message that belongs to no process. The first time, that is the process with a connection
    /// manager and the lowest slot. Each repetition adds the next one.
    fn has_turn(&self, state: &mut State, peer: IpAddr, id: u32) -> bool {
        let manages =
            |member: &Member| member.memory.head().manages().load(std::sync::atomic::Ordering::Acquire) != 0;
        let before = state.present().filter(|(slot, member)| *slot < self.slot && manages(member)).count();
        state.repeats.count(peer, id) >= before
    }
}

impl State {
    /// Returns the other processes that have joined.
    fn present(&self) -> impl Iterator<Item = (u8, &Arc<Member>)> {
        self.members.iter().enumerate().filter_map(|(slot, member)| Some((slot as u8, member.as_ref()?)))
    }
}

impl std::fmt::Debug for Siblings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Siblings").field("name", &self.shared.name).field("slot", &self.shared.slot).finish()
    }
}

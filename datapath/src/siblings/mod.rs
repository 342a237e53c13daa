//! Processes that share an interface, as they would share a NIC.
//!
//! Each has one of 64 slots: the kernel lets one process have the abstract socket name of a slot, in a network namespace. A slot is the top of
//! a process's queue pair numbers and communication ids, so these never collide and name their process. A new process says hello at the
//! names of all slots (`introductions`). All else is in memory that each process writes and all others read (`memory`): frames for siblings,
//! claims, and the messages for peers when the process is no more. All processes are alike, and none waits for another.
//!
//! One thread of each process watches the others, and does nothing while none comes, goes or asks.

mod claims;
mod disconnect_notices;
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

/// The time that a claim waits for other processes that claim the same.
const DECISION: Duration = Duration::from_millis(500);
/// Between two tries of what failed and would fail again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Bits of a communication id below the slot.
const ID_BITS: u32 = 26;

/// Another process of the interface, as this one sees it.
#[derive(Debug)]
pub(crate) struct Member {
    memory: PeerMemory,
    /// Ends a sleep of its core.
    event_fd: EventFd,
    /// Hangs up when the process is no more.
    life: OwnedFd,
    /// The number that distinguishes it from processes that had its slot before, and the number for this process.
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
        let memory = PeerMemory::new(memory, own_slot)?;
        let identity = memory.head().identity().load(std::sync::atomic::Ordering::Relaxed);
        Ok(Self { memory, event_fd: event_fd.into(), life, identity, known_as })
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.memory.file(), self.event_fd.as_fd(), self.life.as_fd()]
    }

    fn is_alive(&self) -> bool {
        let mut watched = libc::pollfd { fd: self.life.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one descriptor, which is open.
        unsafe { libc::poll(&mut watched, 1, 0) <= 0 }
    }
}

/// A process's handling of its siblings.
pub(crate) trait Events: Send {
    /// A sibling is there.
    fn joined(&self, slot: u8, member: Arc<Member>);
    /// A sibling has gone.
    fn left(&self, slot: u8);
    /// A process has died, and this process informs its peers.
    fn died(&self, notice: DisconnectNotice);
}

/// A process's part in its interface. Dropped, the process takes no part any more: to its siblings it has died.
pub struct Siblings {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    guard: Option<Guard>,
}

struct Shared {
    /// The name of the interface, with which the names of slots begin.
    name: String,
    slot: u8,
    /// The user to whom the interface belongs. This process may act for another one by now.
    user: User,
    own: Arc<OwnMemory>,
    identity: u64,
    /// Ends a sleep of this process's core.
    event_fd: EventFd,
    /// Ends a wait of the thread for good.
    stop: EventFd,
    /// Ends a wait of the thread for descriptors that another thread has replaced or added to.
    changed: EventFd,
    state: Mutex<State>,
    /// Both ends of what hangs up with this process. Last: its name is free then, so that another process can keep it from new ones.
    life: (OwnedFd, fork::CloseOnFork),
}

/// The part that changes.
struct State {
    members: [Option<Arc<Member>>; MEMBERS],
    quarantined: Vec<Quarantine>,
    introductions: Introductions,
    claimed: OwnClaims,
    notices: DisconnectNotices,
    repeats: Repeats,
    events: Option<Box<dyn Events>>,
    /// The thread must look at the descriptors again before it waits for them.
    stale: bool,
}

/// The name that the process in a slot has.
fn slot_name(name: &str, slot: u8) -> String {
    format!("{name}/{slot}")
}

impl Siblings {
    /// The process's slot.
    #[must_use]
    pub fn slot(&self) -> u8 {
        self.shared.slot
    }

    /// The core's end.
    pub(crate) fn member_rings(&self) -> MemberRings {
        MemberRings::new(self.shared.own.clone(), self.shared.slot)
    }

    /// Returns a descriptor that ends a sleep of the process's core: siblings signal it when they have sent something.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptor left.
    pub(crate) fn event_fd(&self) -> io::Result<EventFd> {
        self.shared.event_fd.try_clone()
    }

    /// Watches the siblings from now on. `events` learns of those that are there, too.
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

    /// Takes in all siblings that have come by now.
    pub(crate) fn meet(&self) {
        drop(self.shared.catch_up());
    }

    /// Gives this process a guard on the interface with this index, from its first disconnect notice on, if it was started by `ferroce run`.
    pub(crate) fn prepare_guard(&mut self, interface: u32) {
        self.guard = Guard::new(interface);
    }

    /// Answers siblings from now on, in a process without a core.
    ///
    /// # Errors
    /// Returns an error if the system cannot create a thread.
    pub fn run(&mut self) -> io::Result<()> {
        let shared = self.shared.clone();
        self.thread = Some(signals::spawn("ferroce-sibling", move || watch::run(&shared))?);
        Ok(())
    }

    /// Takes a service.
    ///
    /// # Errors
    /// Returns a [`ClaimError`] if another process has the service, or this one has too many.
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

    /// This process has a connection manager, or no longer.
    pub fn manage(&self, on: bool) {
        self.shared.own.head().manages().store(on.into(), std::sync::atomic::Ordering::Release);
    }

    /// Returns true if this process answers a request for a service that it does not listen to. No other process listens either, and it is
    /// this one's turn to answer for all. `id` is the communication id of the peer, which has just sent the request.
    #[must_use]
    pub fn answers_for(&self, peer: IpAddr, id: u32, service: u64, at: IpAddr) -> bool {
        let mut state = self.shared.catch_up();
        let elsewhere = |head| claims::matches(head, service, at);
        !state.present().any(|(_, member)| elsewhere(member.memory.head()))
            && self.shared.has_turn(&mut state, peer, id)
    }

    /// Returns true if this process answers a message of `peer`, which it has just sent, to a communication id that this process does not
    /// know.
    #[must_use]
    pub fn answers_to(&self, peer: IpAddr, id: u32) -> bool {
        let slot = (id >> ID_BITS) as u8;
        let mut state = self.shared.catch_up();
        slot == self.shared.slot
            || state.members[usize::from(slot)].is_none() && self.shared.has_turn(&mut state, peer, id)
    }

    /// Has a peer informed of the end of a connection, by its communication id, if this process dies.
    pub fn register_disconnect(&self, notice: &DisconnectNotice) {
        self.shared.lock().notices.register_disconnect(&self.shared.own, notice);
        if let Some(guard) = &self.guard {
            guard.start(self.shared.own.file(), self.shared.life.0.as_fd());
        }
    }

    /// Ends what [`register_disconnect`](Self::register_disconnect) began.
    pub fn unregister_disconnect(&self, id: u32) {
        self.shared.lock().notices.unregister_disconnect(&self.shared.own, id);
    }
}

impl Drop for Siblings {
    fn drop(&mut self) {
        self.shared.stop.signal();
        if let Some(thread) = self.thread.take() {
            // It has nothing to return.
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

    /// The state, with all that siblings have said so far.
    fn catch_up(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        self.step(&mut state);
        self.rewatch(&state);
        state
    }

    /// Wakes the thread if its descriptors are stale: another thread accepted a process.
    fn rewatch(&self, state: &State) {
        if state.stale {
            self.changed.signal();
        }
    }

    /// Decides a claim whose entry is at `at`, and waits for processes that decide the same at this time. One that is stopped meanwhile has
    /// the service for as long as it is stopped.
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

    /// Returns all other processes that are alive. One that came after this process claimed reads that claim.
    fn living(&self) -> Vec<(u8, Arc<Member>)> {
        let state = self.catch_up();
        let alive = state.present().filter(|(_, member)| member.is_alive());
        alive.map(|(slot, member)| (slot, member.clone())).collect()
    }

    /// Returns true if this process answers a message that belongs to none: at first the process with a connection manager and the lowest
    /// slot, and then one more at each repetition.
    fn has_turn(&self, state: &mut State, peer: IpAddr, id: u32) -> bool {
        let manages =
            |member: &Member| member.memory.head().manages().load(std::sync::atomic::Ordering::Acquire) != 0;
        let before = state.present().filter(|(slot, member)| *slot < self.slot && manages(member)).count();
        state.repeats.count(peer, id) >= before
    }
}

impl State {
    /// The other processes that are there.
    fn present(&self) -> impl Iterator<Item = (u8, &Arc<Member>)> {
        self.members.iter().enumerate().filter_map(|(slot, member)| Some((slot as u8, member.as_ref()?)))
    }
}

impl std::fmt::Debug for Siblings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Siblings").field("name", &self.shared.name).field("slot", &self.shared.slot).finish()
    }
}

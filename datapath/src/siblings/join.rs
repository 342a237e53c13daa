//! Joins a process to the others of its interface.

use super::claims::OwnClaims;
use super::disconnect_notices::DisconnectNotices;
use super::introductions::{Called, Introductions};
use super::memory::OwnMemory;
use super::repeats::Repeats;
use super::socket::{ForeignProcess, Listener, Unknown, User};
use super::watch::waits;
use super::{MEMBERS, Shared, Siblings, State, slot_name};
use crate::event_fd::EventFd;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest search of a process for a free slot, and then longest wait for introductions. Longer than the quarantine of a slot.
const JOIN_TIMEOUT: Duration = Duration::from_secs(6);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Reasons why a process cannot share an interface.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum JoinError {
    #[error("{0}")]
    User(ForeignProcess),
    #[error(
        "{MEMBERS} processes use the interface or have used it in the last 4 s, which is the limit; end one of those that `ss -xap | grep {name}` shows"
    )]
    Full { name: String },
    #[error(
        "process {process}, which shares the interface, has not answered for 6 s, nor has another that knows it; continue or end it"
    )]
    Silent { process: i32 },
    #[error(
        "process {process}, which shares the interface, refuses this process; end it, or run the same version"
    )]
    Refused { process: i32 },
    #[error(
        "@{name}: a process that does not answer has this name; end the process that `ss -xap | grep {name}` shows"
    )]
    Name { name: String },
    #[error(
        "process {process} uses the interface by another kind of port; end it, or open the same kind: udp: shares an interface with itself alone"
    )]
    Delivery { process: i32 },
    #[error("cannot connect to the other processes of the interface: {0}")]
    System(#[from] io::Error),
}

/// Returns an unpredictable number, from the source with which std seeds its hashes.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Returns all slots, starting at a random one, so that a new process rarely has the slot of one that has just ended.
fn slots() -> impl Iterator<Item = u8> {
    let start = random() % MEMBERS as u64;
    (0..MEMBERS as u64).map(move |n| ((start + n) % MEMBERS as u64) as u8)
}

/// The way in which the processes of an interface receive packets. It is the same for all processes of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Each process receives every packet.
    ToAll,
    /// The kernel delivers each packet to one process.
    ToOne,
}

impl Delivery {
    /// Returns the name of an interface, which is the prefix of its slots' names.
    fn name(self, interface: u32) -> String {
        let kind = if self == Self::ToOne { "/udp" } else { "" };
        format!("ferroce/interface/{interface}{kind}")
    }

    const fn other(self) -> Self {
        match self {
            Self::ToAll => Self::ToOne,
            Self::ToOne => Self::ToAll,
        }
    }
}

/// Checks that no process has joined the interface with the other kind of delivery. Packets to such a process would be lost or arrive
/// twice.
fn check_delivery(interface: u32, delivery: Delivery) -> Result<(), JoinError> {
    let [own, other] = [delivery, delivery.other()].map(|delivery| delivery.name(interface));
    let mut stranger = None;
    for slot in slots() {
        let Ok(unknown) = Unknown::connect(&slot_name(&other, slot)) else { continue };
        match unknown.authenticate(User::this()) {
            Ok(socket) => return Err(JoinError::Delivery { process: socket.process() }),
            Err(found) => stranger = Some(found),
        }
    }
    // Another user may listen there, too. That does not matter if a process of this user has joined the interface.
    match stranger {
        Some(stranger) if !has_process(&own, User::this()) => Err(JoinError::User(stranger)),
        Some(_) | None => Ok(()),
    }
}

/// Returns true if a process of `user` listens at one of the interface's names.
fn has_process(name: &str, user: User) -> bool {
    let connect = |slot| Unknown::connect(&slot_name(name, slot));
    slots().any(|slot| connect(slot).is_ok_and(|unknown| unknown.authenticate(user).is_ok()))
}

/// Checks that no other user has the interface. A process of `user` proves that: other users' listeners at free slots then do not matter.
fn check_user(name: &str, user: User) -> Result<(), JoinError> {
    let mut stranger = None;
    for slot in slots() {
        match Unknown::connect(&slot_name(name, slot)).map(|unknown| unknown.authenticate(user)) {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(found)) => stranger = Some(found),
            // No process listens there, or its user cannot be determined.
            Err(_) => {}
        }
    }
    // Processes of earlier versions listen at the interface's own name.
    match Unknown::connect(name).map(|unknown| unknown.authenticate(user)) {
        Ok(Ok(socket)) => return Err(JoinError::Refused { process: socket.process() }),
        Ok(Err(found)) => stranger = Some(found),
        Err(_) => {}
    }
    stranger.map_or(Ok(()), |stranger| Err(JoinError::User(stranger)))
}

/// Returns a free slot, with a listener at its name.
fn take_slot(name: &str, until: Instant) -> Result<(u8, Listener), JoinError> {
    loop {
        let is_last = Instant::now() >= until;
        for slot in slots() {
            match Listener::new(&slot_name(name, slot)) {
                Ok(listener) => return Ok((slot, listener)),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                // No descriptor or no memory is left. Waiting does not change that.
                Err(error) => return Err(error.into()),
            }
        }
        if is_last {
            return Err(JoinError::Full { name: name.into() });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

impl Siblings {
    /// Joins the interface with this index.
    ///
    /// # Errors
    /// Returns a [`JoinError`] if the process cannot join.
    pub fn join(interface: u32, delivery: Delivery) -> Result<Self, JoinError> {
        let joined = Self::join_at(delivery.name(interface))?;
        // After the name of this process is visible: of two processes that join at the same time with different delivery, at least one
        // finds the other.
        check_delivery(interface, delivery)?;
        Ok(joined)
    }

    /// Checks, before a port is opened on the interface, that no other user has it, and that no process shares it with another delivery.
    ///
    /// # Errors
    /// Returns [`JoinError::User`] or [`JoinError::Delivery`] otherwise.
    pub fn check_user(interface: u32, delivery: Delivery) -> Result<(), JoinError> {
        check_delivery(interface, delivery)?;
        check_user(&delivery.name(interface), User::this())
    }

    pub(super) fn join_at(name: String) -> Result<Self, JoinError> {
        Self::join_within(name, JOIN_TIMEOUT)
    }

    pub(super) fn join_within(name: String, timeout: Duration) -> Result<Self, JoinError> {
        let (user, until) = (User::this(), Instant::now() + timeout);
        check_user(&name, user)?;
        let identity = random() | 1;
        let own = Arc::new(OwnMemory::new(identity)?);
        let (reader, writer) = io::pipe()?;
        let (event_fd, stop) = (EventFd::new(libc::EFD_NONBLOCK)?, EventFd::new(0)?);
        let changed = EventFd::new(libc::EFD_NONBLOCK)?;
        let (slot, listener) = take_slot(&name, until)?;
        let state = State {
            members: std::array::from_fn(|_| None),
            quarantined: Vec::new(),
            introductions: Introductions::new(listener),
            claimed: OwnClaims::default(),
            notices: DisconnectNotices::default(),
            repeats: Repeats::default(),
            events: None,
            stale: false,
        };
        let life = (reader.into(), OwnedFd::from(writer).into());
        let state = Mutex::new(state);
        let shared = Shared { name, slot, user, own, identity, event_fd, life, stop, changed, state };
        shared.settle_in(until)?;
        Ok(Self { shared: Arc::new(shared), thread: None, guard: None })
    }
}

impl Shared {
    /// Exchanges introductions with all processes that have joined. Of two that join at the same time, the later one to connect finds the
    /// other's name.
    fn settle_in(&self, until: Instant) -> Result<(), JoinError> {
        let mut state = self.lock();
        state.introductions.uncalled = (0..MEMBERS as u8).filter(|slot| *slot != self.slot).collect();
        let mut stranger = None;
        loop {
            let is_last = Instant::now() >= until;
            for slot in std::mem::take(&mut state.introductions.uncalled) {
                match self.call(&mut state, slot)? {
                    Called::Done | Called::Nobody => {}
                    Called::NoRoom => state.introductions.uncalled.push(slot),
                    Called::ForeignProcess(found) => stranger = Some(found),
                }
            }
            self.greet(&mut state)?;
            self.step(&mut state);
            if let Some(process) = state.introductions.refused_by {
                return Err(JoinError::Refused { process });
            }
            match self.lacks(&state) {
                None => break,
                Some(why) if is_last => return Err(why),
                Some(_) => {
                    _ = waits(&state.descriptors().collect::<Vec<_>>(), POLL_INTERVAL.as_millis() as i32)
                }
            }
        }
        let introductions = &mut state.introductions;
        match stranger {
            // Processes of two users join at the same time.
            Some(stranger) if !introductions.is_welcome => Err(JoinError::User(stranger)),
            _ => {
                introductions.is_settled = true;
                introductions.uncalled.clear();
                Ok(())
            }
        }
    }

    /// Returns the reason why this process does not know all others yet. A slot whose queue is full does not matter if the processes that
    /// have sent their introductions know no process there: another user has the name.
    fn lacks(&self, state: &State) -> Option<JoinError> {
        let introductions = &state.introductions;
        let is_known = |slot: u8| state.members[usize::from(slot)].is_some();
        if let Some(call) = introductions.unanswered().find(|call| !call.is_greeted || !is_known(call.slot)) {
            return Some(JoinError::Silent { process: call.process() });
        }
        let mut uncalled = introductions.uncalled.iter();
        let slot = uncalled.find(|slot| !introductions.is_welcome || is_known(**slot))?;
        Some(JoinError::Name { name: slot_name(&self.name, *slot) })
    }
}

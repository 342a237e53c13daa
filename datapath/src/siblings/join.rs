//! Joins a process to the others of its interface.

use super::claims::{Claimed, Granted};
use super::farewells::Farewells;
use super::memory::Own;
use super::message::{Message, Refusal};
use super::owner::Owner;
use super::socket::{Peer, Socket};
use super::{MEMBERS, Member, Role, Shared, Siblings, State};
use crate::event_fd::EventFd;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The time that a process waits for the owner: longer than slots rest.
const PATIENCE: Duration = Duration::from_secs(6);
const LOOK: Duration = Duration::from_millis(1);

/// Why a process cannot share an interface.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum JoinError {
    #[error(
        "user {theirs} uses the interface (process {process}), but this process belongs to user {ours}; run as that user, or use another interface"
    )]
    User { theirs: u32, ours: u32, process: i32 },
    #[error(
        "{MEMBERS} processes use the interface or have used it in the last 4 s, which is the limit; end one"
    )]
    Full,
    #[error("process {process}, which shares the interface, has not answered for 6 s; continue or end it")]
    Silent { process: i32 },
    #[error(
        "process {process}, which shares the interface, refuses this process; end it, or run the same version"
    )]
    Refused { process: i32 },
    #[error("cannot connect to the other processes of the interface: {0}")]
    System(#[from] io::Error),
}

/// An unpredictable number: what std seeds its hashes with.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

pub(super) fn random_slot() -> u8 {
    (random() % MEMBERS as u64) as u8
}

/// The name by which the processes of an interface meet.
fn interface_name(interface: u32) -> String {
    format!("ferroce/interface/{interface}")
}

/// All processes of an interface belong to one user.
fn check_peer(peer: Peer) -> Result<(), JoinError> {
    let Peer { user: theirs, process } = peer;
    // SAFETY: takes nothing and cannot fail.
    let ours = unsafe { libc::geteuid() };
    if theirs == ours { Ok(()) } else { Err(JoinError::User { theirs, ours, process }) }
}

/// The name that the process in a slot has.
fn slot_name(name: &str, slot: u8) -> String {
    format!("{name}/{slot}")
}

/// The part that a process takes.
struct Place {
    slot: u8,
    /// The slot's name, which no two processes have.
    held: Socket,
    role: Role,
    members: Vec<(u8, Member)>,
}

/// The state of a process before it has a slot.
struct Candidate {
    name: String,
    own: Own,
    identity: u64,
    bell: EventFd,
    life: (OwnedFd, OwnedFd),
}

impl Siblings {
    /// Takes part in the interface of this index.
    ///
    /// # Errors
    /// Returns a [`JoinError`] if the process cannot join.
    pub fn join(interface: u32) -> Result<Self, JoinError> {
        Self::join_at(interface_name(interface))
    }

    /// Finds out, before a port is opened on it, whether another user has the interface of this index.
    ///
    /// # Errors
    /// Returns [`JoinError::User`] if so.
    pub fn check_user(interface: u32) -> Result<(), JoinError> {
        let owner = Socket::connect(&interface_name(interface)).and_then(|socket| socket.peer());
        // No process is there, or it cannot be determined.
        owner.map_or(Ok(()), check_peer)
    }

    pub(super) fn join_at(name: String) -> Result<Self, JoinError> {
        let identity = random() | 1;
        let (reader, writer) = io::pipe()?;
        let candidate = Candidate {
            name,
            own: Own::new(identity)?,
            identity,
            bell: EventFd::new(libc::EFD_NONBLOCK)?,
            life: (reader.into(), writer.into()),
        };
        let place = candidate.find_place()?;
        let mut state = State {
            members: std::array::from_fn(|_| None),
            resting: Vec::new(),
            role: place.role,
            claimed: Claimed::default(),
            farewells: Farewells::default(),
            events: None,
            stale: false,
        };
        place.members.into_iter().for_each(|(slot, member)| state.add(slot, member));
        let Candidate { name, own, identity, bell, life } = candidate;
        let shared = Shared {
            name,
            slot: place.slot,
            _held: place.held,
            own: Arc::new(own),
            identity,
            bell,
            life: (life.0, life.1.into()),
            stop: EventFd::new(0)?,
            changed: EventFd::new(libc::EFD_NONBLOCK)?,
            state: Mutex::new(state),
        };
        Ok(Self { shared: Arc::new(shared), thread: None })
    }
}

impl Candidate {
    /// The owner's role, or a slot from the owner.
    fn find_place(&self) -> Result<Place, JoinError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let is_last = Instant::now() >= until;
            match Socket::connect(&self.name) {
                Ok(socket) => match self.ask(socket, until)? {
                    Some(place) => return Ok(place),
                    // All slots are taken, or rest; or the owner has died.
                    None if is_last => return Err(JoinError::Full),
                    None => {}
                },
                // No descriptor is left, or no memory: no time mends that.
                Err(error)
                    if !matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::WouldBlock) =>
                {
                    return Err(error.into());
                }
                // If processes remain, one of them will soon be the owner, and it has more state than this one.
                Err(_) if self.is_alone() => {
                    if let Some(place) = self.own_place()? {
                        return Ok(place);
                    }
                }
                Err(error) if is_last => return Err(error.into()),
                Err(_) => {}
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Returns true if no process has a slot.
    fn is_alone(&self) -> bool {
        (0..MEMBERS as u8).all(|slot| Socket::hold(&slot_name(&self.name, slot)).is_ok())
    }

    /// The first process's place; `None` if another was first.
    fn own_place(&self) -> Result<Option<Place>, JoinError> {
        let listener = match Socket::listen(&self.name) {
            Ok(listener) => listener,
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let slot = random_slot();
        let held = match Socket::hold(&slot_name(&self.name, slot)) {
            Ok(held) => held,
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let role = Role::Owner(Owner::new(listener, Granted::default()));
        Ok(Some(Place { slot, held, role, members: Vec::new() }))
    }

    fn ask(&self, socket: Socket, until: Instant) -> Result<Option<Place>, JoinError> {
        let peer = socket.peer()?;
        check_peer(peer)?;
        let Peer { user: ours, process } = peer;
        let descriptors = [self.own.file(), self.bell.as_fd(), self.life.0.as_fd()];
        if socket.send(&Message::Hello { slot: None }.to_bytes(), &descriptors).is_err() {
            return Ok(None);
        }
        let mut joined = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now()).as_millis() as i32;
            if !socket.wait(left.max(1)) {
                return Err(JoinError::Silent { process });
            }
            let (bytes, descriptors) = match socket.receive() {
                Ok(came) => came,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(_) => return Ok(None),
            };
            match Message::from_bytes(&bytes) {
                Some(Message::Joined { slot }) => joined.push((slot, descriptors)),
                Some(Message::Welcome { slot }) => {
                    let member = |(there, descriptors)| {
                        Some((there, Member::new(descriptors, slot, self.identity).ok()?))
                    };
                    // An owner that knows less than the kernel may assign a slot that is in use. It learns that this attempt failed.
                    let Ok(held) = Socket::hold(&slot_name(&self.name, slot)) else { return Ok(None) };
                    let members = joined.into_iter().filter_map(member).collect();
                    return Ok(Some(Place { slot, held, role: Role::Sibling(socket), members }));
                }
                Some(Message::Refused(Refusal::Full)) => return Ok(None),
                Some(Message::Refused(Refusal::User(theirs))) => {
                    return Err(JoinError::User { theirs, ours, process });
                }
                _ => return Err(JoinError::Refused { process }),
            }
        }
    }
}

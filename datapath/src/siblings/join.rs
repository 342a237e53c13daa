//! Joins a process to the others of its interface.

use super::claims::Claimed;
use super::farewells::Farewells;
use super::memory::Own;
use super::message::{Message, Refusal};
use super::owner::Owner;
use super::socket::{Listener, Name, Stranger, Unknown, User};
use super::{MEMBERS, Member, Role, Shared, Siblings, State};
use crate::event_fd::EventFd;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The time that a process looks for an owner with a free slot, and then waits for its answer: longer than slots rest.
const PATIENCE: Duration = Duration::from_secs(6);
const LOOK: Duration = Duration::from_millis(1);

/// Why a process cannot share an interface.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum JoinError {
    #[error("{0}")]
    User(Stranger),
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
    #[error(
        "@{name}: a process that does not answer has this name; end the process that `ss -xap | grep {name}` shows"
    )]
    Name { name: String },
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

/// The name that the process in a slot has.
fn slot_name(name: &str, slot: u8) -> String {
    format!("{name}/{slot}")
}

/// The part that a process takes.
struct Place {
    user: User,
    slot: u8,
    /// The slot's name, which no two processes have.
    held: Name,
    role: Role,
    members: Vec<(u8, Member)>,
}

/// What a process that wants to take part gets.
enum Answer {
    Place(Place),
    /// Nothing at this time, and why.
    Later(JoinError),
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
        match Unknown::connect(&interface_name(interface)).map(|unknown| unknown.authenticate(User::this())) {
            Ok(Err(rejected)) => Err(JoinError::User(rejected.stranger)),
            // No process is there, or it cannot be determined.
            Ok(Ok(_)) | Err(_) => Ok(()),
        }
    }

    pub(super) fn join_at(name: String) -> Result<Self, JoinError> {
        Self::join_within(name, PATIENCE)
    }

    pub(super) fn join_within(name: String, patience: Duration) -> Result<Self, JoinError> {
        let identity = random() | 1;
        let (reader, writer) = io::pipe()?;
        let candidate = Candidate {
            name,
            own: Own::new(identity)?,
            identity,
            bell: EventFd::new(libc::EFD_NONBLOCK)?,
            life: (reader.into(), writer.into()),
        };
        let place = candidate.find_place(Instant::now() + patience)?;
        let mut state = State {
            user: place.user,
            members: std::array::from_fn(|_| None),
            resting: Vec::new(),
            role: place.role,
            is_welcome: true,
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
    fn find_place(&self, until: Instant) -> Result<Place, JoinError> {
        loop {
            let is_last = Instant::now() >= until;
            let failed = match Unknown::connect(&self.name) {
                Ok(unknown) => match self.ask(unknown)? {
                    Answer::Place(place) => return Ok(place),
                    Answer::Later(why) => why,
                },
                // If processes remain, one of them will soon be the owner, and it has more state than this one.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::WouldBlock) =>
                {
                    match self.held_slot() {
                        Some(name) => JoinError::Name { name },
                        None => match self.own_place()? {
                            Some(place) => return Ok(place),
                            None => self.unanswered(),
                        },
                    }
                }
                // No descriptor is left, or no memory: no time mends that.
                Err(error) => return Err(error.into()),
            };
            if is_last {
                return Err(failed);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn unanswered(&self) -> JoinError {
        JoinError::Name { name: self.name.clone() }
    }

    /// The name of a slot that a process has: the kernel does not say which process, of which user.
    fn held_slot(&self) -> Option<String> {
        let mut names = (0..MEMBERS as u8).map(|slot| slot_name(&self.name, slot));
        names.find(|name| Name::hold(name).is_err_and(|error| error.kind() == ErrorKind::AddrInUse))
    }

    /// The first process's place; `None` if another was first.
    fn own_place(&self) -> Result<Option<Place>, JoinError> {
        let listener = match Listener::new(&self.name) {
            Ok(listener) => listener,
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let slot = random_slot();
        let held = match Name::hold(&slot_name(&self.name, slot)) {
            Ok(held) => held,
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let role = Role::Owner(Owner::new(listener));
        Ok(Some(Place { user: User::this(), slot, held, role, members: Vec::new() }))
    }

    fn ask(&self, unknown: Unknown) -> Result<Answer, JoinError> {
        let user = User::this();
        let socket = unknown.authenticate(user).map_err(|rejected| JoinError::User(rejected.stranger))?;
        let process = socket.process();
        let descriptors = [self.own.file(), self.bell.as_fd(), self.life.0.as_fd()];
        if socket.send(&Message::Hello { slot: None }.to_bytes(), &descriptors).is_err() {
            return Ok(Answer::Later(self.unanswered()));
        }
        let until = Instant::now() + PATIENCE;
        let mut joined = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now()).as_millis() as i32;
            if !socket.wait(left.max(1)) {
                return Err(JoinError::Silent { process });
            }
            let (bytes, descriptors) = match socket.receive() {
                Ok(came) => came,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                // It has died.
                Err(_) => return Ok(Answer::Later(self.unanswered())),
            };
            match Message::from_bytes(&bytes) {
                Some(Message::Joined { slot }) => joined.push((slot, descriptors)),
                Some(Message::Welcome { slot }) => {
                    let member = |(there, descriptors)| {
                        Some((there, Member::new(descriptors, slot, self.identity).ok()?))
                    };
                    // An owner that knows less than the kernel may assign a slot that is in use. It learns that this attempt failed.
                    let name = slot_name(&self.name, slot);
                    let Ok(held) = Name::hold(&name) else {
                        return Ok(Answer::Later(JoinError::Name { name }));
                    };
                    let members = joined.into_iter().filter_map(member).collect();
                    let role = Role::Sibling(socket);
                    return Ok(Answer::Place(Place { user, slot, held, role, members }));
                }
                Some(Message::Refused(Refusal::Full)) => return Ok(Answer::Later(JoinError::Full)),
                Some(Message::Refused(Refusal::User(theirs))) => {
                    return Err(JoinError::User(Stranger { theirs, ours: user.0, process }));
                }
                _ => return Err(JoinError::Refused { process }),
            }
        }
    }
}

//! The thread that watches the siblings, and what it does when they come and go.

use super::message::Message;
use super::owner::Owner;
use super::socket::{Listener, Stranger, Unknown, User};
use super::{LOOK, LOOKS, Member, PAUSE, Role, Shared, State, farewells};
use roce::QPN_REST;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time without an owner.
#[derive(Debug)]
pub(super) struct Vacancy {
    /// The number of times that this process looked for an owner.
    looks: u32,
    /// When it looks again.
    next: Instant,
    /// The process of another user that has the name.
    pub(super) stranger: Option<Stranger>,
}

impl Vacancy {
    fn new() -> Self {
        Self { looks: 0, next: Instant::now(), stranger: None }
    }

    /// The time between two looks: short while other processes of the interface are about to take the name.
    pub(super) fn pause(&self) -> Duration {
        if self.stranger.is_none() && self.looks < LOOKS { LOOK } else { PAUSE }
    }
}

/// Until the process takes no part any more.
pub(super) fn run(shared: &Shared) {
    let mut descriptors: Vec<RawFd> = Vec::new();
    loop {
        // There is nothing to take unless another thread changed the descriptors.
        let _ = shared.changed.take();
        let mut state = shared.lock();
        shared.step(&mut state);
        state.stale = false;
        descriptors.clear();
        descriptors.extend([shared.stop.as_raw_fd(), shared.changed.as_raw_fd()]);
        match &state.role {
            Role::Owner(owner) => {
                descriptors.extend(owner.descriptors());
                descriptors.extend(state.present().map(|(_, member)| member.life.as_raw_fd()));
            }
            Role::Sibling(socket) => descriptors.push(socket.as_raw_fd()),
            Role::Nobody(_) => {}
        }
        let longest = match &state.role {
            Role::Nobody(vacancy) => {
                vacancy.next.saturating_duration_since(Instant::now()).as_millis() as i32 + 1
            }
            Role::Owner(_) | Role::Sibling(_) => -1,
        };
        drop(state);
        if waits(&descriptors, longest) {
            return;
        }
    }
}

/// Until one of the descriptors has news, or for so many ms, or for ever with -1; `true` if it is the first. A descriptor that is closed
/// meanwhile may be that of another, which has no news.
pub(super) fn waits(descriptors: &[RawFd], longest: i32) -> bool {
    let watch = |&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut watched: Vec<_> = descriptors.iter().map(watch).collect();
    // SAFETY: the array is as long as said.
    unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, longest) };
    watched.first().is_none_or(|stop| stop.revents != 0)
}

impl Shared {
    /// Handles all that has arrived, without waiting for more.
    pub(super) fn step(&self, state: &mut State) {
        match &mut state.role {
            Role::Owner(_) => self.serve(state),
            Role::Sibling(_) => self.hear(state),
            Role::Nobody(vacancy) if Instant::now() < vacancy.next => {}
            Role::Nobody(_) => self.regain(state),
        }
    }

    /// Handles a message from the owner.
    fn hear(&self, state: &mut State) {
        loop {
            let Role::Sibling(socket) = &state.role else { return };
            match socket.receive() {
                Ok((bytes, descriptors)) => self.take_in(state, Message::from_bytes(&bytes), descriptors),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // It has died, or has given this process up.
                Err(_) => return self.regain(state),
            }
        }
    }

    pub(super) fn take_in(&self, state: &mut State, message: Option<Message>, descriptors: Vec<OwnedFd>) {
        match message {
            Some(Message::Joined { slot }) if slot != self.slot => {
                match Member::new(descriptors, self.slot, self.identity) {
                    Ok(member) => state.add(slot, member),
                    Err(error) => tracing::warn!("{}: the process in slot {slot}: {error}", self.name),
                }
            }
            Some(Message::Left { slot }) => state.remove(slot),
            // The new owner has removed some dead ones before it could inform this process.
            Some(Message::Welcome { .. }) => {
                state.is_welcome = true;
                state.remove_dead();
            }
            Some(Message::Refused(why)) => {
                tracing::error!("{}: refused by the new owner: {why:?}", self.name);
                // It would be again at once.
                state.role =
                    Role::Nobody(Vacancy { looks: LOOKS, next: Instant::now() + PAUSE, stranger: None });
                state.stale = true;
            }
            _ => {}
        }
    }

    /// Becomes the owner, or finds the process that is, by one look without a wait. The process that has the name is sent nothing unless it
    /// belongs to the same user.
    pub(super) fn regain(&self, state: &mut State) {
        let mut vacancy = match std::mem::replace(&mut state.role, Role::Nobody(Vacancy::new())) {
            Role::Nobody(vacancy) => vacancy,
            Role::Owner(_) | Role::Sibling(_) => Vacancy::new(),
        };
        state.stale = true;
        match Listener::new(&self.name) {
            Ok(listener) => {
                state.role = Role::Owner(Owner::new(listener));
                tracing::debug!("{}: slot {} is the owner now", self.name, self.slot);
                return self.serve(state);
            }
            Err(error) if error.kind() != io::ErrorKind::AddrInUse && vacancy.looks == 0 => {
                tracing::error!("{}: {error}", self.name);
            }
            Err(_) => {}
        }
        let stranger = match Unknown::connect(&self.name).map(|unknown| unknown.authenticate(User::this())) {
            Ok(Ok(socket)) => {
                let hello = Message::Hello { slot: Some(self.slot) }.to_bytes();
                if socket.send(&hello, &self.descriptors()).is_ok() {
                    state.role = Role::Sibling(socket);
                    state.is_welcome = false;
                    return;
                }
                None
            }
            Ok(Err(rejected)) => Some(rejected.stranger),
            // No process has the name any more, or it does not listen, or its queue is full.
            Err(_) => None,
        };
        if let Some(stranger) = stranger.filter(|_| stranger != vacancy.stranger) {
            tracing::error!("@{}: {stranger}", self.name);
        }
        vacancy.looks = vacancy.looks.saturating_add(1);
        vacancy.stranger = stranger;
        vacancy.next = Instant::now() + vacancy.pause();
        state.role = Role::Nobody(vacancy);
    }
}

impl State {
    pub(super) fn add(&mut self, slot: u8, member: Member) {
        let place = &mut self.members[usize::from(slot)];
        if place.as_ref().is_some_and(|known| known.identity == member.identity) {
            return;
        }
        let member = Arc::new(member);
        *place = Some(member.clone());
        self.stale = true;
        if let Some(events) = &self.events {
            events.joined(slot, member);
        }
    }

    pub(super) fn remove(&mut self, slot: u8) {
        let now = Instant::now();
        self.resting.retain(|(until, _)| *until > now);
        if self.members[usize::from(slot)].take().is_some() {
            self.resting.push((now + QPN_REST, slot));
            if let Some(events) = &self.events {
                events.left(slot);
            }
        }
    }

    fn remove_dead(&mut self) {
        for slot in self.dead() {
            self.remove(slot);
        }
    }

    /// The slots of processes that have died.
    pub(super) fn dead(&self) -> Vec<u8> {
        self.present().filter(|(_, member)| !member.is_alive()).map(|(slot, _)| slot).collect()
    }

    /// A process has died: the owner informs its peers.
    pub(super) fn bury(&mut self, slot: u8) {
        let Some(member) = self.members[usize::from(slot)].clone() else { return };
        self.remove(slot);
        if let Some(events) = &self.events {
            farewells::of(member.memory.head()).into_iter().for_each(|farewell| events.died(farewell));
        }
    }
}

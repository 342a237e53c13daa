//! How a new process and those that are there get to know each other.
//!
//! Each process listens at the name of its slot. A new one says hello to all that listen, and passes on its memory. Each answers with its
//! own memory and that of all that it knows. So a process that is stopped is introduced by any other, and takes in the new one when it
//! goes on: the hello waits at its name.

use super::message::Message;
use super::socket::{Listener, Socket, Stranger, Unknown, User};
use super::{MEMBERS, Member, PAUSE, Shared, State, slot_name};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A process's connections for introductions.
pub(super) struct Introductions {
    listener: Listener,
    /// Processes that have connected and not said hello yet.
    guests: Vec<Socket>,
    /// Processes to which this one has said hello, and which have not answered.
    calls: Vec<Call>,
    /// Slots whose processes have not been greeted: they had no room for a connection, or closed it.
    pub(super) ungreeted: Vec<u8>,
    /// This process knows all that were there when it came.
    pub(super) is_settled: bool,
    /// A settled process has introduced all that it knows.
    pub(super) is_welcome: bool,
    /// The process that has refused this one.
    pub(super) refused_by: Option<i32>,
}

/// A connection to the process in a slot.
struct Call {
    slot: u8,
    socket: Socket,
}

/// The result of a hello.
pub(super) enum Greeted {
    /// The process in the slot has it, or will have it when it looks.
    Done,
    /// No process listens at the slot's name.
    Nobody,
    /// The process has no room for a connection at this time.
    NoRoom,
    /// The process belongs to another user.
    Stranger(Stranger),
}

impl Introductions {
    pub(super) fn new(listener: Listener) -> Self {
        Self {
            listener,
            guests: Vec::new(),
            calls: Vec::new(),
            ungreeted: Vec::new(),
            is_settled: false,
            is_welcome: false,
            refused_by: None,
        }
    }

    /// Returns the descriptors to wait for.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        let calls = self.calls.iter().map(|call| &call.socket);
        self.guests.iter().chain(calls).map(AsRawFd::as_raw_fd).chain([self.listener.as_raw_fd()])
    }

    /// Returns the slots and processes that have been greeted and have not answered.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = (u8, i32)> + '_ {
        self.calls.iter().map(|call| (call.slot, call.socket.process()))
    }

    /// Awaits answers by `socket` as if this process had greeted the one in `slot`.
    #[cfg(any(test, fuzzing))]
    pub(super) fn expect(&mut self, slot: u8, socket: Socket) {
        self.calls.push(Call { slot, socket });
    }

    /// Accepts the connections that wait, and closes those of other users; returns `false` if there were no others.
    fn accept(&mut self, user: User) -> bool {
        let mut accepted = false;
        // Another user may connect faster than this loop accepts.
        for _ in 0..MEMBERS {
            match self.listener.accept().map(|unknown| unknown.authenticate(user)) {
                Ok(Ok(socket)) => {
                    self.guests.push(socket);
                    accepted = true;
                }
                Ok(Err(_)) => {}
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        // No descriptor is left, and the connection stays: not all the time.
                        std::thread::sleep(PAUSE);
                    }
                    break;
                }
            }
        }
        // An honest process says hello at once.
        let excess = self.guests.len().saturating_sub(MEMBERS);
        self.guests.drain(..excess);
        accepted
    }
}

impl Shared {
    /// Says hello to the process in a slot.
    ///
    /// # Errors
    /// Returns an error if no descriptor or no memory is left.
    pub(super) fn greet(&self, state: &mut State, slot: u8) -> io::Result<Greeted> {
        let unknown = match Unknown::connect(&slot_name(&self.name, slot)) {
            Ok(unknown) => unknown,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(Greeted::Nobody),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Greeted::NoRoom),
            Err(error) => return Err(error),
        };
        let socket = match unknown.authenticate(self.user) {
            Ok(socket) => socket,
            Err(stranger) => return Ok(Greeted::Stranger(stranger)),
        };
        match socket.send(&Message::Hello { slot: self.slot }.to_bytes(), &self.descriptors()) {
            Ok(()) => {
                state.introductions.calls.push(Call { slot, socket });
                Ok(Greeted::Done)
            }
            // It has just ended.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Greeted::Nobody),
            Err(error) => Err(error),
        }
    }

    /// Answers the processes that say hello.
    pub(super) fn receive_guests(&self, state: &mut State) {
        state.stale |= state.introductions.accept(self.user);
        for guest in std::mem::take(&mut state.introductions.guests) {
            match guest.receive() {
                Ok((bytes, descriptors)) => {
                    if self.introduce(state, &guest, Message::from_bytes(&bytes), descriptors).is_none() {
                        let _ = guest.send(&Message::Refused.to_bytes(), &[]);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => state.introductions.guests.push(guest),
                Err(_) => {}
            }
        }
    }

    /// Takes in a guest, and introduces all others to it; `None` if its message is no hello of a process as it must be.
    fn introduce(
        &self,
        state: &mut State,
        guest: &Socket,
        message: Option<Message>,
        descriptors: Vec<OwnedFd>,
    ) -> Option<()> {
        let Some(Message::Hello { slot }) = message else { return None };
        let member = Member::new(descriptors, self.slot, self.identity).ok()?;
        if !self.meet(state, slot, member) {
            return None;
        }
        let tell = |slot: u8, descriptors: [BorrowedFd<'_>; 3]| {
            guest.send(&Message::Joined { slot }.to_bytes(), &descriptors)
        };
        let mut introduced = tell(self.slot, self.descriptors());
        for (there, member) in state.present().filter(|(there, member)| *there != slot && member.is_alive()) {
            introduced = introduced.and_then(|()| tell(there, member.descriptors()));
        }
        let welcome = Message::Welcome { is_settled: state.introductions.is_settled };
        // If the guest has ended, its life line says so too.
        introduced.and_then(|()| guest.send(&welcome.to_bytes(), &[])).ok()
    }

    /// Takes in the processes that others introduce.
    pub(super) fn receive_answers(&self, state: &mut State) {
        for call in std::mem::take(&mut state.introductions.calls) {
            if self.receive_answer(state, &call) {
                state.introductions.calls.push(call);
            }
        }
    }

    /// Handles what the process in a slot has answered so far; `false` if that is all.
    fn receive_answer(&self, state: &mut State, call: &Call) -> bool {
        loop {
            let (bytes, descriptors) = match call.socket.receive() {
                Ok(came) => came,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => {
                    if state.members[usize::from(call.slot)].is_none() {
                        state.introductions.ungreeted.push(call.slot);
                    }
                    return false;
                }
            };
            match Message::from_bytes(&bytes) {
                Some(Message::Joined { slot }) => match Member::new(descriptors, self.slot, self.identity) {
                    Ok(member) => _ = self.meet(state, slot, member),
                    Err(error) => tracing::warn!("{}: the process in slot {slot}: {error}", self.name),
                },
                Some(Message::Welcome { is_settled }) => {
                    state.introductions.is_welcome |= is_settled;
                    return false;
                }
                _ => {
                    let process = call.socket.process();
                    tracing::debug!("{}: process {process} refuses this one", self.name);
                    state.introductions.refused_by = Some(process);
                    return false;
                }
            }
        }
    }

    /// Takes in a process; `false` if it has died, or if the slot is this process's or another's that is alive.
    fn meet(&self, state: &mut State, slot: u8, member: Member) -> bool {
        if slot == self.slot || !member.is_alive() {
            return false;
        }
        match &state.members[usize::from(slot)] {
            Some(known) if known.identity == member.identity => return true,
            Some(known) if known.is_alive() => return false,
            Some(_) => self.bury(state, slot),
            None => {}
        }
        state.add(slot, member);
        true
    }
}

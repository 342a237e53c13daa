//! Introductions: the messages by which a new process and the present ones receive each other's memory.
//!
//! Each process listens at the name of its slot. A new process sends a hello with its memory to all names at which a process listens. Each
//! of these answers with its own memory and that of all processes that it knows. So any of the others introduces a stopped process. That
//! one handles the hello, which is queued at its name, when it continues.

use super::message::Message;
use super::socket::{ForeignProcess, Listener, MESSAGE, QUEUE, Socket, Unknown};
use super::{MEMBERS, Member, PAUSE, Shared, State, slot_name};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

pub(super) struct Introductions {
    listener: Listener,
    /// Processes that have connected and are not introduced yet.
    guests: Vec<Guest>,
    /// Processes to which this one has connected, and which have not answered.
    calls: Vec<MemberConnection>,
    /// Slots whose processes could not be connected to, because their queue was full, or that closed the connection.
    pub(super) uncalled: Vec<u8>,
    /// Whether this process knows all processes that had joined before it.
    pub(super) is_settled: bool,
    /// Whether a settled process has introduced all processes that it knows.
    pub(super) is_welcome: bool,
    /// Id of the process that has refused this one.
    pub(super) refused_by: Option<i32>,
}

/// A connection of a new process.
struct Guest {
    socket: Socket,
    /// Its hello, while the earlier process in its slot ends: the kernel closes a process's descriptors one after the other.
    hello: Option<(u8, Member)>,
}

/// A connection to the process in a slot.
pub(super) struct MemberConnection {
    pub(super) slot: u8,
    socket: Socket,
    /// Whether the hello of this process has been sent.
    pub(super) is_greeted: bool,
}

impl MemberConnection {
    /// Returns the process id of the other end.
    pub(super) fn process(&self) -> i32 {
        self.socket.process()
    }
}

pub(super) enum Called {
    /// The process is connected.
    Done,
    Nobody,
    /// The queue of the process is full.
    NoRoom,
    ForeignProcess(ForeignProcess),
}

impl Introductions {
    pub(super) fn new(listener: Listener) -> Self {
        Self {
            listener,
            guests: Vec::new(),
            calls: Vec::new(),
            uncalled: Vec::new(),
            is_settled: false,
            is_welcome: false,
            refused_by: None,
        }
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        let calls = self.calls.iter().map(|call| &call.socket);
        // A guest that has sent its hello waits for the end of another process.
        let guests = self.guests.iter().filter(|guest| guest.hello.is_none()).map(|guest| &guest.socket);
        guests.chain(calls).map(AsRawFd::as_raw_fd).chain([self.listener.as_raw_fd()])
    }

    pub(super) fn unanswered(&self) -> impl Iterator<Item = &MemberConnection> {
        self.calls.iter()
    }

    /// Returns the slots of guests that wait for the end of the earlier process in their slot.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> impl Iterator<Item = u8> {
        self.guests.iter().filter_map(|guest| guest.hello.as_ref().map(|(slot, _)| *slot))
    }

    /// Accepts answers on `socket` as if this process had sent a hello to the one in `slot`.
    #[cfg(any(test, fuzzing))]
    pub(super) fn expect(&mut self, slot: u8, socket: Socket) {
        self.calls.push(MemberConnection { slot, socket, is_greeted: true });
    }
}

impl Shared {
    /// Connects to the process in a slot.
    ///
    /// # Errors
    /// Returns an error if no descriptor or no memory is left.
    pub(super) fn call(&self, state: &mut State, slot: u8) -> io::Result<Called> {
        let unknown = match Unknown::connect(&slot_name(&self.name, slot)) {
            Ok(unknown) => unknown,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(Called::Nobody),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Called::NoRoom),
            Err(error) => return Err(error),
        };
        Ok(match unknown.authenticate(self.user) {
            Ok(socket) => {
                state.introductions.calls.push(MemberConnection { slot, socket, is_greeted: false });
                Called::Done
            }
            Err(stranger) => Called::ForeignProcess(stranger),
        })
    }

    /// Sends a hello to the processes that have been connected to.
    ///
    /// # Errors
    /// Returns an error if no memory is left.
    pub(super) fn greet(&self, state: &mut State) -> io::Result<()> {
        let hello = Message::Hello { slot: self.slot }.to_bytes();
        for call in state.introductions.calls.iter_mut().filter(|call| !call.is_greeted) {
            match call.socket.send(&hello, &self.descriptors()) {
                Ok(()) => call.is_greeted = true,
                // The process has closed the connection.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
                // The number of this user's descriptors in flight has reached the limit on open ones, because other processes start at the
                // same time (unix(7)).
                Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Answers the processes that send a hello: all that had connected when this began. When a stopped process continues and decides a
    /// claim, the decision depends on them.
    pub(super) fn receive_guests(&self, state: &mut State) {
        for guest in std::mem::take(&mut state.introductions.guests) {
            self.welcome(state, guest);
        }
        // Bounded, because another user may connect faster than this loop accepts.
        for _ in 0..=QUEUE {
            match state.introductions.listener.accept().map(|unknown| unknown.authenticate(self.user)) {
                Ok(Ok(socket)) => self.welcome(state, Guest { socket, hello: None }),
                Ok(Err(_)) => {}
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        // No descriptor is left, and the connection stays queued. The pause keeps the thread from spinning.
                        std::thread::sleep(PAUSE);
                    }
                    break;
                }
            }
        }
    }

    /// Adds a guest that has sent its hello, and introduces all others to it.
    fn welcome(&self, state: &mut State, guest: Guest) {
        let Guest { socket, hello } = guest;
        let hello = match hello {
            Some(hello) => Some(hello),
            None => match socket.receive() {
                Ok((bytes, descriptors)) => self.read_hello(&bytes, descriptors),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return state.await_guest(Guest { socket, hello: None });
                }
                Err(_) => return,
            },
        };
        let met = hello.map(|(slot, member)| (slot, self.meet(state, slot, member)));
        match met {
            Some((slot, Met::Known)) => self.introduce(state, &socket, slot),
            Some((slot, Met::Occupied(member))) => {
                state.await_guest(Guest { socket, hello: Some((slot, member)) });
            }
            // The guest may have ended.
            Some((_, Met::Refused)) | None => _ = socket.send(&Message::Refused.to_bytes(), &[]),
        }
    }

    /// Returns the slot and the process of a hello, or `None` if the hello is invalid.
    fn read_hello(&self, bytes: &[u8; MESSAGE], descriptors: Vec<OwnedFd>) -> Option<(u8, Member)> {
        let Message::Hello { slot } = Message::from_bytes(bytes)? else { return None };
        Some((slot, Member::new(descriptors, self.slot, self.identity).ok()?))
    }

    /// Introduces this process and all others to the one in `slot`. That fails if the guest has ended, or this user has too many
    /// descriptors in flight. The connection then ends, and the guest connects again if it still runs.
    fn introduce(&self, state: &State, guest: &Socket, slot: u8) {
        let send_member = |slot: u8, descriptors: [BorrowedFd<'_>; 3]| {
            guest.send(&Message::Joined { slot }.to_bytes(), &descriptors)
        };
        let mut introduced = send_member(self.slot, self.descriptors());
        for (there, member) in state.present().filter(|(there, member)| *there != slot && member.is_alive()) {
            introduced = introduced.and_then(|()| send_member(there, member.descriptors()));
        }
        let welcome = Message::Welcome { is_settled: state.introductions.is_settled };
        if let Err(error) = introduced.and_then(|()| guest.send(&welcome.to_bytes(), &[])) {
            tracing::debug!("{}: the process in slot {slot} is not introduced: {error}", self.name);
        }
    }

    pub(super) fn receive_answers(&self, state: &mut State) {
        for call in std::mem::take(&mut state.introductions.calls) {
            if self.receive_answer(state, &call) {
                state.introductions.calls.push(call);
            }
        }
    }

    /// Handles the answers received so far from a process. Returns false if none will follow.
    fn receive_answer(&self, state: &mut State, call: &MemberConnection) -> bool {
        loop {
            let (bytes, descriptors) = match call.socket.receive() {
                Ok(came) => came,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                // The process has ended, or could not introduce all others.
                Err(_) => {
                    state.introductions.uncalled.push(call.slot);
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

    fn meet(&self, state: &mut State, slot: u8, member: Member) -> Met {
        if slot == self.slot || !member.is_alive() {
            return Met::Refused;
        }
        match &state.members[usize::from(slot)] {
            Some(known) if known.identity == member.identity => return Met::Known,
            Some(known) if known.is_alive() => return Met::Occupied(member),
            Some(_) => self.on_death(state, slot),
            None => {}
        }
        state.add(slot, member);
        Met::Known
    }
}

enum Met {
    Known,
    /// Not added yet: another living process has its slot.
    Occupied(Member),
    /// The process has ended, or claims the slot of this process.
    Refused,
}

impl State {
    /// Keeps a guest until it sends its hello, or until the earlier process in its slot ends.
    fn await_guest(&mut self, guest: Guest) {
        let guests = &mut self.introductions.guests;
        // An honest process sends its hello at once.
        if guests.len() >= MEMBERS {
            guests.remove(0);
        }
        guests.push(guest);
        self.stale = true;
    }
}

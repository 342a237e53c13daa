//! The owner: it introduces processes to each other, and assigns their slots.

use super::message::{Message, Refusal};
use super::socket::{Listener, Socket, User};
use super::{MEMBERS, Member, PAUSE, Role, Shared, State, living};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;

/// The state that only the owner has.
pub(super) struct Owner {
    listener: Listener,
    connections: Vec<Connection>,
}

/// A process that has connected, and its slot once it said hello.
struct Connection {
    socket: Socket,
    slot: Option<u8>,
}

impl Owner {
    pub(super) fn new(listener: Listener) -> Self {
        Self { listener, connections: Vec::new() }
    }

    /// Returns the descriptors to wait for.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        let connections = self.connections.iter().map(|it| it.socket.as_raw_fd());
        connections.chain([self.listener.as_raw_fd()])
    }

    /// Sends `message` to all, but the process in slot `but`. One that takes nothing more is given up, and comes back.
    fn tell(&mut self, message: Message, descriptors: &[BorrowedFd<'_>], but: u8) {
        let hears = |it: &mut Connection| {
            it.slot.is_none_or(|slot| slot == but) || it.socket.send(&message.to_bytes(), descriptors).is_ok()
        };
        self.connections.retain_mut(hears);
    }

    /// Accepts the connections that wait, and closes those of other users; returns `false` if there were no others.
    fn accept(&mut self) -> bool {
        let mut accepted = false;
        // Another user may connect faster than this loop accepts.
        for _ in 0..MEMBERS {
            let unknown = match self.listener.accept() {
                Ok(unknown) => unknown,
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        // No descriptor is left, and the connection stays: not all the time.
                        std::thread::sleep(PAUSE);
                    }
                    return accepted;
                }
            };
            match unknown.authenticate(User::this()) {
                Ok(socket) => {
                    self.connections.push(Connection { socket, slot: None });
                    accepted = true;
                }
                Err(rejected) => {
                    let why = Message::Refused(Refusal::User(rejected.stranger.ours));
                    rejected.refuse(&why.to_bytes());
                }
            }
        }
        accepted
    }
}

impl Shared {
    /// Handles the siblings' requests, and cleans up after those that have died.
    pub(super) fn serve(&self, state: &mut State) {
        for slot in state.dead() {
            tracing::debug!("{}: the process in slot {slot} has ended", self.name);
            state.bury(slot);
            if let Role::Owner(owner) = &mut state.role {
                owner.connections.retain(|it| it.slot != Some(slot));
                owner.tell(Message::Left { slot }, &[], slot);
            }
        }
        if let Role::Owner(owner) = &mut state.role {
            state.stale |= owner.accept();
        }
        let mut at = 0;
        loop {
            let Role::Owner(owner) = &mut state.role else { return };
            // Out of the list while it is served, because that may send to all others.
            if at >= owner.connections.len() {
                return;
            }
            let mut connection = owner.connections.swap_remove(at);
            let stays = self.attend(state, &mut connection);
            if let (true, Role::Owner(owner)) = (stays, &mut state.role) {
                owner.connections.push(connection);
                let last = owner.connections.len() - 1;
                owner.connections.swap(at.min(last), last);
                at += 1;
            }
        }
    }

    /// Serves one connection; `false` if it has ended.
    fn attend(&self, state: &mut State, connection: &mut Connection) -> bool {
        loop {
            let (bytes, descriptors) = match connection.socket.receive() {
                Ok(came) => came,
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            };
            let (Some(Message::Hello { slot }), None) = (Message::from_bytes(&bytes), connection.slot) else {
                return false;
            };
            match self.admit(state, slot, descriptors, &connection.socket) {
                Ok(slot) => connection.slot = Some(slot),
                Err(why) => {
                    let _ = connection.socket.send(&Message::Refused(why).to_bytes(), &[]);
                    return false;
                }
            }
        }
    }

    /// A process says hello: it learns of all others, and they of it. They do first: a process that learns a slot may rely on it that the
    /// next owner knows of it.
    fn admit(
        &self,
        state: &mut State,
        wanted: Option<u8>,
        descriptors: Vec<OwnedFd>,
        socket: &Socket,
    ) -> Result<u8, Refusal> {
        let member = Member::new(descriptors, self.slot, self.identity).map_err(|_| Refusal::Wrong)?;
        if wanted.is_none() {
            // An earlier try of the same process came to nothing: it never held the slot that it was given.
            let earlier = state.present().find(|(_, known)| known.identity == member.identity);
            if let Some(slot) = earlier.map(|(slot, _)| slot) {
                state.dismiss(slot);
            }
        }
        let slot = match wanted {
            Some(slot) => slot,
            None => self.free_slot(state).ok_or(Refusal::Full)?,
        };
        let known = state.members[usize::from(slot)].as_ref();
        if slot == self.slot || known.is_some_and(|known| known.identity != member.identity) {
            return Err(Refusal::Wrong);
        }
        let is_new = known.is_none();
        if is_new && !self.may_introduce(state) {
            return Err(Refusal::User(state.user.0));
        }
        if is_new {
            if let Role::Owner(owner) = &mut state.role {
                owner.tell(Message::Joined { slot }, &member.descriptors(), slot);
            }
            state.add(slot, member);
        }
        let introduced = || -> io::Result<()> {
            socket.send(&Message::Joined { slot: self.slot }.to_bytes(), &self.descriptors())?;
            for (there, member) in state.present().filter(|(there, _)| *there != slot) {
                socket.send(&Message::Joined { slot: there }.to_bytes(), &member.descriptors())?;
            }
            socket.send(&Message::Welcome { slot }.to_bytes(), &[])
        };
        if introduced().is_err() {
            if is_new {
                state.dismiss(slot);
            }
            return Err(Refusal::Wrong);
        }
        Ok(slot)
    }

    /// Returns false if this process has changed its user since it joined, and knows processes of the former one: their memory is not for
    /// processes of the new one. Once they have ended, the interface belongs to the new user.
    fn may_introduce(&self, state: &mut State) -> bool {
        let user = User::this();
        if user != state.user && living(&state.members).next().is_none() {
            state.user = user;
        }
        user == state.user
    }

    /// A slot that no process has, or had a moment ago: any, so that it is not the last one's even if no process remembers that.
    pub(super) fn free_slot(&self, state: &State) -> Option<u8> {
        let now = Instant::now();
        let rests = |slot: u8| state.resting.iter().any(|&(until, resting)| resting == slot && until > now);
        let is_free =
            |slot: &u8| *slot != self.slot && state.members[usize::from(*slot)].is_none() && !rests(*slot);
        let start = super::join::random_slot();
        (0..MEMBERS as u8).map(|n| (start + n) % MEMBERS as u8).find(is_free)
    }
}

impl State {
    /// The process in a slot is there no more, without a farewell to its peers: it never had any.
    fn dismiss(&mut self, slot: u8) {
        self.remove(slot);
        if let Role::Owner(owner) = &mut self.role {
            owner.connections.retain(|it| it.slot != Some(slot));
            owner.tell(Message::Left { slot }, &[], slot);
        }
    }
}

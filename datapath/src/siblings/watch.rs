//! The thread that watches the siblings, and the actions when they join and end.

use super::socket::Name;
use super::{Member, Shared, State, disconnect_notices, slot_name};
use roce::QPN_QUARANTINE;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

/// Two names that are reserved for a time after a process has ended. One keeps new processes from its slot. The other keeps its peers from
/// receiving a second disconnect notice.
pub(super) struct Quarantine {
    until: Instant,
    _names: [Option<Name>; 2],
}

/// Watches the siblings until the process leaves the interface.
pub(super) fn run(shared: &Shared) {
    let mut descriptors: Vec<RawFd> = Vec::new();
    loop {
        // Fails if no other thread has changed the descriptors.
        let _ = shared.changed.take();
        let mut state = shared.lock();
        shared.step(&mut state);
        state.stale = false;
        descriptors.clear();
        descriptors.extend([shared.stop.as_raw_fd(), shared.changed.as_raw_fd()]);
        descriptors.extend(state.descriptors());
        let first = state.quarantined.iter().map(|rest| rest.until).min();
        drop(state);
        let left = first.map(|until| until.saturating_duration_since(Instant::now()).as_millis() as i32 + 1);
        if waits(&descriptors, left.unwrap_or(-1)) {
            return;
        }
    }
}

/// Waits until one of the descriptors is readable, or for `longest` ms; without limit if that is -1. Returns true if the first is readable.
/// A descriptor may be closed meanwhile and its number reused, in which case the wait only ends early.
pub(super) fn waits(descriptors: &[RawFd], longest: i32) -> bool {
    let watch = |&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut watched: Vec<_> = descriptors.iter().map(watch).collect();
    // SAFETY: the array has the given length.
    unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, longest) };
    watched.first().is_none_or(|stop| stop.revents != 0)
}

impl Shared {
    /// Handles all that has arrived, without waiting for more.
    pub(super) fn step(&self, state: &mut State) {
        // Ended processes first: their slots may be those of new ones.
        for slot in state.dead() {
            tracing::debug!("{}: the process in slot {slot} has ended", self.name);
            self.on_death(state, slot);
        }
        self.receive_guests(state);
        self.receive_answers(state);
        let now = Instant::now();
        state.quarantined.retain(|rest| rest.until > now);
    }

    /// Handles the end of a process. Of all processes that detect it, only the first informs the peers: it reserves a name made of the
    /// identity of the ended process. No process of another user knows that identity.
    pub(super) fn on_death(&self, state: &mut State, slot: u8) {
        let Some(member) = state.members[usize::from(slot)].take() else { return };
        let rests = Name::reserve(&slot_name(&self.name, slot)).ok();
        let mut is_first = false;
        let mut informs = None;
        // A process without a core cannot send.
        if state.events.is_some() {
            let informed = Name::reserve(&format!("{}/{:016x}", self.name, member.identity));
            is_first = !matches!(&informed, Err(error) if error.kind() == ErrorKind::AddrInUse);
            informs = informed.ok();
        }
        state
            .quarantined
            .push(Quarantine { until: Instant::now() + QPN_QUARANTINE, _names: [rests, informs] });
        state.stale = true;
        let Some(events) = &state.events else { return };
        events.left(slot);
        if is_first {
            disconnect_notices::of(member.memory.head()).into_iter().for_each(|notice| events.died(notice));
        }
    }
}

impl State {
    /// Returns the descriptors that become readable when a process joins, answers or ends.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        let lives = self.present().map(|(_, member)| member.life.as_raw_fd());
        self.introductions.descriptors().chain(lives)
    }

    pub(super) fn add(&mut self, slot: u8, member: Member) {
        let member = Arc::new(member);
        self.members[usize::from(slot)] = Some(member.clone());
        self.stale = true;
        if let Some(events) = &self.events {
            events.joined(slot, member);
        }
    }

    fn dead(&self) -> Vec<u8> {
        self.present().filter(|(_, member)| !member.is_alive()).map(|(slot, _)| slot).collect()
    }
}

//! The thread that watches the siblings, and what it does when they come and go.

use super::socket::Name;
use super::{Member, Shared, State, disconnect_notices, slot_name};
use roce::QPN_QUARANTINE;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

/// The names that keep the slot of a dead process from new ones for a while, and its peers from a second disconnect notice.
pub(super) struct Quarantine {
    until: Instant,
    _names: [Option<Name>; 2],
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
        descriptors.extend(state.descriptors());
        let first = state.quarantined.iter().map(|rest| rest.until).min();
        drop(state);
        let left = first.map(|until| until.saturating_duration_since(Instant::now()).as_millis() as i32 + 1);
        if waits(&descriptors, left.unwrap_or(-1)) {
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
        // The dead first: their slots may be those of new ones.
        for slot in state.dead() {
            tracing::debug!("{}: the process in slot {slot} has ended", self.name);
            self.on_death(state, slot);
        }
        self.receive_guests(state);
        self.receive_answers(state);
        let now = Instant::now();
        state.quarantined.retain(|rest| rest.until > now);
    }

    /// A process has died. Of all that see it, the first informs its peers: no other has the name that is made of its identity, which no
    /// process of another user knows.
    pub(super) fn on_death(&self, state: &mut State, slot: u8) {
        let Some(member) = state.members[usize::from(slot)].take() else { return };
        let rests = Name::reserve(&slot_name(&self.name, slot)).ok();
        let mut is_first = false;
        let mut informs = None;
        // A process without a core sends nothing.
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
    /// Returns the descriptors that have news when a process comes, answers or dies.
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

    /// The slots of processes that have died.
    fn dead(&self) -> Vec<u8> {
        self.present().filter(|(_, member)| !member.is_alive()).map(|(slot, _)| slot).collect()
    }
}

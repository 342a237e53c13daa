//! Frames between the processes of one interface: a ring in each direction, which only its sender writes.
//!
//! The sender counts the bytes that it put in. The receiver counts, in its own memory, the bytes that it took out. Either may end between
//! any two instructions: the other then sees counters that no longer change.

use super::memory::{OwnMemory, PeerMemory, RING};
use super::{MEMBERS, Member};
use crate::io::{BURST, Burst, PacketBuf};
use cc::Instant;
use roce::{Qpn, wire};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

const QUEUE_PAIR_1: Qpn = Qpn::new(1);
/// Opcodes from here on are reserved for manufacturers (IBA 9.2.1).
const FIRST_OWN_OPCODE: u8 = 0xc0;
/// Bytes of a record's header, which contains the length of the frame. Records are aligned to it.
const HEADER: usize = 8;
/// A length that marks the wrap of the ring to its start.
const WRAP: u32 = u32::MAX;
/// Longest wait of a sender for a receiver that accepts nothing. After that, frames to the receiver are dropped, as in a switch, until it
/// accepts some again.
const STALL_TIMEOUT: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// The frame is in the ring, or was dropped.
    Done,
    /// There is no room. The caller must try again.
    Full,
}

/// The destination of a frame to the interface's own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessTarget {
    Own,
    Sibling(u8),
    /// All processes, because each has a queue pair 1.
    All,
}

/// The rings between this process and one sibling.
struct MemberRing {
    slot: u8,
    member: Arc<Member>,
    /// Bytes put into the ring: those published to the sibling, and all.
    published: u64,
    sent: u64,
    /// Bytes that the sibling had taken out when its counter was last read.
    left: u64,
    /// Bytes that this process took out of the sibling's ring.
    taken: u64,
    /// Whether the sibling has reset its counters for this process.
    ready: bool,
    /// When a frame first had no room.
    waiting_since: Option<Instant>,
    /// Whether the receiver accepts nothing. Frames to it are dropped until it does.
    stalled: bool,
}

/// The core's ends of all rings of a process.
pub(crate) struct MemberRings {
    own: Arc<OwnMemory>,
    slot: u8,
    rings: Vec<MemberRing>,
    /// The index in `rings` of each slot's ring.
    places: [u8; MEMBERS],
    /// The ring that is read first; a different one each time.
    first: usize,
}

const NOWHERE: u8 = u8::MAX;

impl MemberRings {
    pub(super) fn new(own: Arc<OwnMemory>, slot: u8) -> Self {
        Self { own, slot, rings: Vec::with_capacity(MEMBERS), places: [NOWHERE; MEMBERS], first: 0 }
    }

    pub(crate) fn add(&mut self, slot: u8, member: Arc<Member>) {
        self.remove(slot);
        let head = self.own.head();
        head.sent(slot).store(0, Ordering::Relaxed);
        head.taken(slot).store(0, Ordering::Relaxed);
        head.meant_for(slot).store(member.identity, Ordering::Release);
        self.places[usize::from(slot)] = self.rings.len() as u8;
        let (published, sent, left, taken) = (0, 0, 0, 0);
        let (ready, waiting_since, stalled) = (false, None, false);
        self.rings.push(MemberRing {
            slot,
            member,
            published,
            sent,
            left,
            taken,
            ready,
            waiting_since,
            stalled,
        });
    }

    pub(crate) fn remove(&mut self, slot: u8) {
        self.rings.retain(|ring| ring.slot != slot);
        self.places = [NOWHERE; MEMBERS];
        for (at, ring) in self.rings.iter().enumerate() {
            self.places[usize::from(ring.slot)] = at as u8;
        }
    }

    /// Sets whether the core sleeps. Siblings signal its eventfd while it does. The caller must check the rings once more before it sleeps.
    pub(crate) fn listen(&self, on: bool) {
        self.own.head().sleeping().store(on.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns true if a sibling's ring has frames for this process.
    #[inline]
    #[cfg(test)]
    pub(crate) fn has_received(&self) -> bool {
        self.rings.iter().any(|ring| ring.waiting(self.slot) > 0)
    }

    /// Returns the destination of a frame to the interface's own address, by its queue pair number.
    pub(crate) fn target(&self, frame: &[u8]) -> ProcessTarget {
        if self.rings.is_empty() {
            return ProcessTarget::Own;
        }
        match wire::destination(frame) {
            None | Some(QUEUE_PAIR_1) => ProcessTarget::All,
            // The QPN of every multicast group, in the range of the last slot.
            Some(roce::GROUP_QPN) => ProcessTarget::All,
            Some(qpn) => {
                let slot = roce::process_of(qpn);
                // A frame to an ended process needs no answer. The endpoint of this process counts it.
                if self.is_sibling(slot) { ProcessTarget::Sibling(slot) } else { ProcessTarget::Own }
            }
        }
    }

    /// Returns true if a received frame is for a sibling's queue pair. The port delivers such frames to all processes. A direct response
    /// contains the peer's QPN, so it is never a sibling's here.
    #[inline]
    pub(crate) fn is_siblings(&self, frame: &[u8]) -> bool {
        if self.rings.is_empty() {
            return false;
        }
        let bth = match (frame.get(12..14), frame.get(14)) {
            (Some([0x08, 0x00]), Some(0x45)) => 42,
            (Some([0x86, 0xdd]), _) => 62,
            _ => return false,
        };
        let has_own_opcode = frame.get(bth).is_none_or(|opcode| *opcode >= FIRST_OWN_OPCODE);
        !has_own_opcode && matches!(self.target(frame), ProcessTarget::Sibling(_))
    }

    #[inline]
    pub(crate) fn is_sibling(&self, slot: u8) -> bool {
        self.places[usize::from(slot) % MEMBERS] != NOWHERE
    }

    /// Puts a frame into the ring to a sibling. The sibling sees it after [`publish`](Self::publish).
    pub(crate) fn push(&mut self, slot: u8, frame: &[u8], now: Instant) -> Pushed {
        let Some(ring) = self.rings.get_mut(usize::from(self.places[usize::from(slot) % MEMBERS])) else {
            return Pushed::Done;
        };
        if ring.put(&self.own, self.slot, frame) {
            (ring.waiting_since, ring.stalled) = (None, false);
            return Pushed::Done;
        }
        if ring.stalled {
            return Pushed::Done;
        }
        let since = *ring.waiting_since.get_or_insert(now);
        ring.stalled = now.saturating_since(since) > STALL_TIMEOUT;
        if ring.stalled {
            ring.waiting_since = None;
            return Pushed::Done;
        }
        Pushed::Full
    }

    /// Puts a frame into the rings to all siblings that have room.
    pub(crate) fn push_to_all(&mut self, frame: &[u8]) {
        for ring in &mut self.rings {
            ring.put(&self.own, self.slot, frame);
        }
    }

    /// Publishes the frames that were put in to the siblings, and wakes those that sleep.
    pub(crate) fn publish(&mut self) {
        for ring in self.rings.iter_mut().filter(|ring| ring.sent != ring.published) {
            ring.published = ring.sent;
            self.own.head().sent(ring.slot).store(ring.sent, Ordering::Release);
            ring.wake();
        }
    }

    /// Receives frames from siblings, up to the room in `into` and the available buffers.
    pub(crate) fn receive<B: PacketBuf>(
        &mut self,
        into: &mut Burst<B>,
        mut alloc: impl FnMut() -> Option<B>,
    ) {
        let count = self.rings.len();
        for at in 0..count {
            let Some(ring) = self.rings.get_mut((self.first + at) % count) else { return };
            let before = ring.taken;
            let waited = ring.waiting(self.slot);
            ring.take(self.slot, into, &mut alloc);
            if ring.taken != before {
                self.own.head().taken(ring.slot).store(ring.taken, Ordering::Release);
                // The sender may need room.
                if waited > RING as u64 / 2 {
                    ring.wake();
                }
            }
        }
        self.first = self.first.wrapping_add(1);
    }
}

impl MemberRing {
    /// Returns the number of bytes in the sibling's ring.
    #[inline]
    fn waiting(&self, own: u8) -> u64 {
        let head = self.member.memory.head();
        if !self.ready && head.meant_for(own).load(Ordering::Acquire) != self.member.known_as {
            return 0;
        }
        head.sent(own).load(Ordering::Relaxed).wrapping_sub(self.taken)
    }

    fn wake(&self) {
        // The counter is written before the flag is read. A core about to sleep writes the flag, then reads the counters.
        fence(Ordering::SeqCst);
        if self.member.memory.head().sleeping().load(Ordering::Relaxed) != 0 {
            self.member.event_fd.signal();
        }
    }

    /// Adds a frame if there is room. The ring also accepts frames for a sibling that is not ready, because it will add this process a
    /// moment later.
    fn put(&mut self, own: &OwnMemory, from: u8, frame: &[u8]) -> bool {
        let place = (self.sent % RING as u64) as usize;
        let record = (HEADER + frame.len()).next_multiple_of(HEADER);
        let skipped = if record > RING - place { RING - place } else { 0 };
        let need = (skipped + record) as u64;
        if record > RING / 2 {
            // No port has frames of this length.
            return true;
        }
        if self.sent - self.left + need > RING as u64 {
            // Until the sibling is ready, its counter is that of the earlier process in this slot.
            if self.is_ready(from) {
                self.left = self.member.memory.head().taken(from).load(Ordering::Acquire).min(self.sent);
            }
            if self.sent - self.left + need > RING as u64 {
                return false;
            }
        }
        let place = if skipped > 0 {
            own.write_ring(self.slot, place, &WRAP.to_le_bytes());
            0
        } else {
            place
        };
        own.write_ring(self.slot, place, &(frame.len() as u32).to_le_bytes());
        own.write_ring(self.slot, place + HEADER, frame);
        self.sent += need;
        true
    }

    /// Returns true if the sibling has added this process, not an earlier one in the same slot.
    #[inline]
    fn is_ready(&mut self, from: u8) -> bool {
        if !self.ready {
            let head = self.member.memory.head();
            let own = self.member.known_as;
            self.ready = head.meant_for(from).load(Ordering::Acquire) == own;
        }
        self.ready
    }

    fn take<B: PacketBuf>(&mut self, own: u8, into: &mut Burst<B>, alloc: &mut impl FnMut() -> Option<B>) {
        if !self.is_ready(own) {
            return;
        }
        let theirs: &PeerMemory = &self.member.memory;
        // The memory may have any content: records start at multiples of the header, a ring contains at most `RING` bytes, and counts may
        // wrap.
        let sent = theirs.head().sent(own).load(Ordering::Acquire) & !(HEADER as u64 - 1);
        // The second half of the burst is for the port.
        while self.taken != sent && into.len() < BURST / 2 {
            let available = sent.wrapping_sub(self.taken);
            if available > RING as u64 {
                self.taken = sent;
                return;
            }
            let place = (self.taken % RING as u64) as usize;
            let mut length = [0; 4];
            theirs.read_ring(place, &mut length);
            let length = u32::from_le_bytes(length);
            if length == WRAP && (RING - place) as u64 <= available {
                self.taken = self.taken.wrapping_add((RING - place) as u64);
                continue;
            }
            let record = (HEADER + length as usize).next_multiple_of(HEADER);
            if record as u64 > available || record > RING - place {
                // A sender of this project never writes such a record. The contents of the ring are lost, and the sender may continue.
                self.taken = sent;
                return;
            }
            let Some(mut buffer) = alloc() else { return };
            if length as usize <= buffer.capacity() {
                buffer.set_len(length as usize);
                theirs.read_ring(place + HEADER, &mut buffer);
                into.push(buffer);
            }
            self.taken = self.taken.wrapping_add(record as u64);
        }
    }
}

//! The burst of a core while frames are added: frames for the port, for this process, and for others of the interface.

use super::core_group::{PortAccess, Routed};
use super::pending_frames::PendingFrames;
use super::vlan;
use crate::capture::{Direction, Tap};
use crate::io::{BURST, Burst, PacketBuf, PacketIo};
use crate::probes;
use crate::siblings::{MemberRings, ProcessTarget, Pushed};
use cc::Instant;
use roce::qp::Waiting;
use roce::wire::Mac;
use roce::{Outbox, Qpn, TurnTrace};

/// The burst to which a core writes its frames.
pub(super) struct BurstBuilder<'a, P: PacketIo> {
    pub(super) now: Instant,
    pub(super) port: &'a mut PortAccess<P>,
    pub(super) mac: &'a Mac,
    pub(super) outgoing: &'a mut Burst<P::Buf>,
    pub(super) hairpin: &'a mut Burst<P::Buf>,
    /// A frame to another core whose ring is full. Later frames queue behind it.
    pub(super) deferred: &'a mut Option<P::Buf>,
    /// Frames to other processes of the interface whose rings are full.
    pub(super) pending: &'a mut PendingFrames<P::Buf>,
    pub(super) spare_buffer: &'a mut Option<P::Buf>,
    /// The other processes of the interface, if there may be any.
    pub(super) member_rings: &'a mut Option<Box<MemberRings>>,
    pub(super) tap: &'a mut Option<Box<Tap>>,
    /// Whether the pool is asked for buffers: not while a fault holds the port down.
    pub(super) allocates: bool,
    /// Buffer for frames that are dropped because the port is held down, or the pool has been empty for too long.
    pub(super) discard_buffer: Option<&'a mut [u8]>,
    /// Frames written to `discard_buffer`.
    pub(super) discarded: usize,
    /// Frames written.
    pub(super) filled: usize,
    pub(super) no_buffer: bool,
    /// Whether the port did not accept all frames of the previous burst.
    pub(super) is_backed_up: bool,
    /// Whether, in this turn of a queue pair, a ring to another process had no room for a frame. The turn of the queue pair then ends.
    pub(super) is_blocked: bool,
}

impl<P: PacketIo> Outbox for BurstBuilder<'_, P> {
    #[inline]
    fn room(&mut self) -> Option<&mut [u8]> {
        if self.outgoing.is_full() || self.hairpin.is_full() || self.deferred.is_some() || self.is_blocked {
            return None;
        }
        if self.spare_buffer.is_none() && self.allocates {
            *self.spare_buffer = self.port.alloc();
            self.no_buffer = self.spare_buffer.is_none();
        }
        let Some(buffer) = self.spare_buffer.as_mut() else {
            return self.discard_buffer.as_deref_mut().filter(|_| self.discarded < BURST);
        };
        buffer.set_len(buffer.capacity());
        Some(buffer)
    }

    #[inline(always)]
    fn begin_turn(&mut self) -> bool {
        self.is_blocked = false;
        self.pending.full() != 0
    }

    fn has_room_to(&self, mac: Mac, qpn: Qpn) -> bool {
        mac != *self.mac || !self.pending.is_full(roce::process_of(qpn))
    }

    fn why_full(&self) -> Waiting {
        match (self.no_buffer, self.is_backed_up || self.is_blocked) {
            (true, _) => Waiting::Pool,
            (false, true) => Waiting::Port,
            (false, false) => Waiting::Turn,
        }
    }

    #[inline(always)]
    fn is_traced(&self) -> bool {
        probes::are_turns_traced()
    }

    fn trace(&mut self, turn: &TurnTrace) {
        probes::turned(turn);
    }

    #[inline(always)]
    fn commit(&mut self, length: usize) {
        let Some(mut buffer) = self.spare_buffer.take() else {
            self.discarded += 1;
            return;
        };
        buffer.set_len(length);
        self.filled += 1;
        probes::transmitted(&buffer);
        if let Some(tap) = self.tap {
            tap.record(self.now, Direction::Out, &buffer);
        }
        self.add_frame(buffer);
    }
}

impl<P: PacketIo> BurstBuilder<'_, P> {
    #[inline(always)]
    fn add_frame(&mut self, buffer: P::Buf) {
        if buffer.starts_with(&self.mac.0) {
            self.deliver_locally(buffer);
        } else {
            // The lowest bit of a group's Ethernet address is set.
            if buffer.first().is_some_and(|first| first & 1 == 1) {
                self.copy_locally(&buffer);
            }
            self.outgoing.push(buffer);
        }
    }

    /// Adds up to `most` outgoing frames of worker cores.
    pub(super) fn forward(&mut self, most: usize) {
        let before = self.filled;
        while self.filled - before < most
            && !self.outgoing.is_full()
            && !self.hairpin.is_full()
            && self.deferred.is_none()
            && let Some(frame) = self.port.next_outgoing()
        {
            self.filled += 1;
            self.add_frame(frame);
        }
    }

    /// Delivers a frame to our own address: to this process, to another one of the interface, or to all.
    #[inline(never)]
    fn deliver_locally(&mut self, frame: P::Buf) {
        let target =
            self.member_rings.as_mut().map(|member_rings| (member_rings.target(&frame), member_rings));
        match target {
            Some((ProcessTarget::Sibling(slot), member_rings)) => {
                if !self.pending.is_full(slot) && member_rings.push(slot, &frame, self.now) == Pushed::Done {
                    *self.spare_buffer = Some(frame);
                } else {
                    // The turn of the queue pair ends. A datagram queue pair has many peers, and may continue with others.
                    *self.spare_buffer = self.pending.push(slot, frame);
                    self.is_blocked = true;
                }
            }
            Some((ProcessTarget::All, member_rings)) => {
                member_rings.push_to_all(&frame);
                self.route(frame);
            }
            Some((ProcessTarget::Own, _)) | None => self.route(frame),
        }
    }

    /// Delivers a frame within this process, to the core of its queue pair.
    fn route(&mut self, frame: P::Buf) {
        match self.port.route(frame) {
            Routed::Local(frame) => self.hairpin.push(frame),
            Routed::Outgoing(frame) => self.outgoing.push(frame),
            Routed::Deferred(frame) => *self.deferred = Some(frame),
            Routed::Done => {}
        }
    }

    /// Delivers a copy of a frame to a multicast group to this process and to others of the interface. Most ports do not loop back such
    /// frames. The copy is lost if no buffer is free, as on a congested network.
    #[cold]
    fn copy_locally(&mut self, frame: &P::Buf) {
        let is_wanted = match roce::wire::destination(frame) {
            Some(qpn) => qpn == roce::GROUP_QPN,
            // A raw packet, for which a queue pair of this interface may have a rule.
            None => !vlan::is_resolution(frame),
        };
        if self.port.loops_back() || !is_wanted {
            return;
        }
        if let Some(member_rings) = self.member_rings {
            member_rings.push_to_all(frame);
        }
        if let Some(mut copy) = self.port.alloc() {
            copy.set_len(frame.len());
            copy.copy_from_slice(frame);
            self.hairpin.push(copy);
        }
    }

    /// Retries the frames for which another core or another process of the interface had no room.
    #[cold]
    pub(super) fn retry_pending(&mut self) {
        if let Some(frame) = self.deferred.take() {
            self.route(frame);
        }
        let now = self.now;
        if let Some(member_rings) = self.member_rings {
            self.pending.retry(|slot, frame| member_rings.push(slot, frame, now));
        }
    }
}

//! A core's burst while it is filled: frames for the port, for this process itself, and for others of the interface.

use super::held::Held;
use super::team::{Routed, Way as PortWay};
use super::vlan;
use crate::capture::{Direction, Tap};
use crate::io::{BURST, Burst, PacketBuf, PacketIo};
use crate::probes;
use crate::siblings::{Lanes, Pushed, Way};
use cc::Instant;
use roce::qp::Waiting;
use roce::wire::Mac;
use roce::{Outbox, Qpn, TurnTrace};

/// The burst that a core writes its frames to.
pub(super) struct Filling<'a, P: PacketIo> {
    pub(super) now: Instant,
    pub(super) port: &'a mut PortWay<P>,
    pub(super) mac: &'a Mac,
    pub(super) leaving: &'a mut Burst<P::Buf>,
    pub(super) hairpin: &'a mut Burst<P::Buf>,
    /// A frame to another core, whose ring has no room yet. What comes later waits behind.
    pub(super) aside: &'a mut Option<P::Buf>,
    /// Frames to other processes of the interface, whose rings have no room yet.
    pub(super) held: &'a mut Held<P::Buf>,
    pub(super) spare: &'a mut Option<P::Buf>,
    /// The other processes of the interface, if there may be any.
    pub(super) lanes: &'a mut Option<Box<Lanes>>,
    pub(super) tap: &'a mut Option<Box<Tap>>,
    /// Takes frames once the pool has been dry for too long; nothing reads them.
    pub(super) sink: Option<&'a mut [u8]>,
    /// Frames lost there.
    pub(super) sunk: usize,
    /// Frames written.
    pub(super) filled: usize,
    /// The port's pool had no buffer.
    pub(super) is_dry: bool,
    /// The port did not take all of the burst before.
    pub(super) is_backed_up: bool,
    /// In this turn of a queue pair a frame was held, so the turn ends.
    pub(super) is_held: bool,
}

impl<P: PacketIo> Outbox for Filling<'_, P> {
    #[inline]
    fn room(&mut self) -> Option<&mut [u8]> {
        if self.leaving.is_full() || self.hairpin.is_full() || self.aside.is_some() || self.is_held {
            return None;
        }
        if self.spare.is_none() {
            *self.spare = self.port.alloc();
            self.is_dry = self.spare.is_none();
        }
        let Some(buffer) = self.spare.as_mut() else {
            return self.sink.as_deref_mut().filter(|_| self.sunk < BURST);
        };
        buffer.set_len(buffer.capacity());
        Some(buffer)
    }

    #[inline(always)]
    fn begin_turn(&mut self) -> bool {
        self.is_held = false;
        self.held.full() != 0
    }

    fn has_room_to(&self, mac: Mac, qpn: Qpn) -> bool {
        mac != *self.mac || !self.held.has(roce::process_of(qpn))
    }

    fn why_full(&self) -> Waiting {
        match (self.is_dry, self.is_backed_up || self.is_held) {
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
        let Some(mut buffer) = self.spare.take() else {
            self.sunk += 1;
            return;
        };
        buffer.set_len(length);
        self.filled += 1;
        probes::transmitted(&buffer);
        if let Some(tap) = self.tap {
            tap.record(self.now, Direction::Out, &buffer);
        }
        self.place(buffer);
    }
}

impl<P: PacketIo> Filling<'_, P> {
    /// Puts a whole frame into its burst.
    #[inline(always)]
    fn place(&mut self, buffer: P::Buf) {
        if buffer.starts_with(&self.mac.0) {
            self.keep_here(buffer);
        } else {
            // The lowest bit of a group's Ethernet address is set.
            if buffer.first().is_some_and(|first| first & 1 == 1) {
                self.copy_here(&buffer);
            }
            self.leaving.push(buffer);
        }
    }

    /// Takes up to `most` frames of other cores of the port that leave.
    pub(super) fn forward(&mut self, most: usize) {
        let before = self.filled;
        while self.filled - before < most
            && !self.leaving.is_full()
            && !self.hairpin.is_full()
            && self.aside.is_none()
            && let Some(frame) = self.port.next_leaving()
        {
            self.filled += 1;
            self.place(frame);
        }
    }

    /// Delivers a frame to our own address: to this process, to another one of the interface, or to all.
    #[inline(never)]
    fn keep_here(&mut self, frame: P::Buf) {
        let way = self.lanes.as_mut().map(|lanes| (lanes.way(&frame), lanes));
        match way {
            Some((Way::Sibling(slot), lanes)) => {
                if !self.held.has(slot) && lanes.push(slot, &frame, self.now) == Pushed::Done {
                    *self.spare = Some(frame);
                } else {
                    // A datagram queue pair has many peers, and goes on.
                    *self.spare = self.held.keep(slot, frame);
                    self.is_held = true;
                }
            }
            Some((Way::All, lanes)) => {
                lanes.push_to_all(&frame);
                self.route(frame);
            }
            Some((Way::Own, _)) | None => self.route(frame),
        }
    }

    /// Delivers a frame to this process: to the core whose it is.
    fn route(&mut self, frame: P::Buf) {
        match self.port.route(frame) {
            Routed::Here(frame) => self.hairpin.push(frame),
            Routed::Leaves(frame) => self.leaving.push(frame),
            Routed::Waits(frame) => *self.aside = Some(frame),
            Routed::Done => {}
        }
    }

    /// Delivers a copy of a frame to a multicast group to this process and to others of the interface: most ports return none to them.
    /// Without a buffer it is lost, as on a busy network.
    #[cold]
    fn copy_here(&mut self, frame: &P::Buf) {
        let is_wanted = match roce::wire::destination(frame) {
            Some(qpn) => qpn == roce::GROUP_QPN,
            // A raw packet, which a queue pair of this interface may take by a rule.
            None => !vlan::is_resolution(frame),
        };
        if self.port.loops() || !is_wanted {
            return;
        }
        if let Some(lanes) = self.lanes {
            lanes.push_to_all(frame);
        }
        if let Some(mut copy) = self.port.alloc() {
            copy.set_len(frame.len());
            copy.copy_from_slice(frame);
            self.hairpin.push(copy);
        }
    }

    /// Tries again to deliver the frames that wait for room at another core or at another process of the interface.
    #[cold]
    pub(super) fn send_waiting(&mut self) {
        if let Some(frame) = self.aside.take() {
            self.route(frame);
        }
        let now = self.now;
        if let Some(lanes) = self.lanes {
            self.held.send(|slot, frame| lanes.push(slot, frame, now));
        }
    }
}

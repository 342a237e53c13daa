//! Frames received and sent, timers, and the queue pair that sends next.

use super::Endpoint;
use super::burst::{SingleFrame, Traced};
use super::groups::GROUP_QPN;
use crate::qp::{Sent, Waiting};
use crate::wheel::earliest_of;
use crate::wire::{FastPathPacket, Frame, Header, unreachable};
use crate::{Discard, Memory, Outbox};
use cc::Instant;
use core::time::Duration;

/// Bytes of frames that a queue pair sends in one turn while others are ready; its last frame may exceed them.
const QUANTUM: u64 = 8 * 1024;
/// Limit of queue pairs that one call skips because their peers have no room; the next call continues after them.
const MAX_SKIPPED: usize = 16;

impl Endpoint {
    /// Receives one Ethernet frame. [`Self::poll_transmit`] sends the answers.
    ///
    /// # Errors
    /// Returns the reason if the frame was dropped or refused. The endpoint counts it.
    pub fn on_frame<M: Memory>(&mut self, now: Instant, memory: &mut M, frame: &[u8]) -> Result<(), Discard> {
        self.shared.counters.rx_frames += 1;
        self.receive(now, memory, frame).inspect_err(|&discard| self.record_discard(now, frame, discard))
    }

    fn receive<M: Memory>(&mut self, now: Instant, memory: &mut M, frame: &[u8]) -> Result<(), Discard> {
        if let Some(packet) = FastPathPacket::of(frame)
            && let Some(index) = self.qps.find(packet.destination())
            && let Some((qp, mut context)) = self.open_at(now, index)
            && qp.expects(&packet)
        {
            let taken = qp.on_fast_path(&packet, memory, &mut context);
            self.schedule(now, index);
            self.release_idle(now);
            return taken;
        }
        self.receive_any(now, memory, frame)
    }

    /// Counts a dropped frame. A frame that is not RoCEv2 may be an ICMP error about a RoCEv2 frame.
    fn record_discard(&mut self, now: Instant, frame: &[u8], discard: Discard) {
        self.shared.counters.discard(discard);
        if discard == Discard::NotRoce
            && let Some((peer, what)) = unreachable(frame)
            && self.peers.has(peer)
        {
            self.shared.events.record_unreachable(now, peer, what);
        }
    }

    /// Receives a frame of any kind.
    #[inline(never)]
    fn receive_any<M: Memory>(&mut self, now: Instant, memory: &mut M, frame: &[u8]) -> Result<(), Discard> {
        // The ICRC is checked here, before memory is accessed.
        // Parsed in place: `Frame` is large, and every move costs a copy.
        let frame = self.shared.numbers.parse(frame);
        let frame = frame.as_ref().map_err(|&discard| discard)?;
        let destination = frame.header.bth().destination;
        let index = match &frame.header {
            // A switch puts the destination of the packet into its report, not the queue pair that sent the packet.
            Header::DirectResponse { .. } => {
                self.peers.direct_response_user(frame.network.source(), destination)
            }
            _ if destination == GROUP_QPN && frame.network.destination().is_multicast() => {
                return self.deliver_to_group(now, memory, frame);
            }
            _ => self.qps.find(destination),
        };
        self.deliver(now, memory, frame, index.ok_or(Discard::UnknownQp)?)
    }

    /// Receives a frame for the queue pair in slot `index`.
    pub(super) fn deliver<M: Memory>(
        &mut self,
        now: Instant,
        memory: &mut M,
        frame: &Frame<'_>,
        index: u32,
    ) -> Result<(), Discard> {
        let (qp, mut context) = self.open_at(now, index).ok_or(Discard::UnknownQp)?;
        let taken = qp.on_packet(frame, memory, &mut context);
        self.schedule(now, index);
        self.track_telemetry(index);
        self.release_idle(now);
        taken
    }

    /// Writes the next frame that may be sent now to the start of `frame`, with its ICRC, and returns its length. `frame` must have room
    /// for the largest packet: MTU + [`MAX_OVERHEAD`](crate::wire::MAX_OVERHEAD).
    ///
    /// Queue pairs with something to send take turns of a packet each; those with a pending answer are first.
    #[inline]
    pub fn poll_transmit<M: Memory>(&mut self, now: Instant, memory: &M, frame: &mut [u8]) -> Option<usize> {
        let mut outbox = SingleFrame::new(frame);
        self.transmit(now, memory, &mut outbox);
        outbox.length()
    }

    /// Writes the frames that may be sent now until `out` is full, in the order of [`Self::poll_transmit`]. A turn of a queue pair is 8
    /// KiB.
    #[inline]
    pub fn transmit<M: Memory, O: Outbox>(&mut self, now: Instant, memory: &M, out: &mut O) {
        let (mut has_sent, mut skipped) = (false, 0);
        while self.has_pending() && self.link.is_none_or(|link| link.free_at <= now) {
            let is_any_full = out.begin_turn();
            if out.room().is_none() {
                if !has_sent {
                    self.record_full(now, out.why_full());
                }
                return;
            }
            let Some(index) = self.next_turn() else { return };
            if is_any_full && self.skip_turn(now, index, out) {
                skipped += 1;
                if skipped >= self.ready.len().min(MAX_SKIPPED) {
                    return;
                }
                continue;
            }
            self.take_turn(now, memory, index, out);
            has_sent = true;
        }
    }

    /// Skips the turn of a queue pair whose peer has no room. Returns whether the turn was skipped.
    #[cold]
    fn skip_turn<O: Outbox>(&mut self, now: Instant, index: u32, out: &O) -> bool {
        let Some(slot) = self.qps.at_mut(index) else { return false };
        let is_full = slot.qp.peer().is_some_and(|peer| !out.has_room_to(peer.mac, peer.qpn));
        if is_full {
            slot.account.enter(now, Waiting::Port);
            self.ready.push_back(index);
        }
        is_full
    }

    /// Records that the next queue pair is blocked, because the port had no room from the start.
    #[cold]
    fn record_full(&mut self, now: Instant, waits_for: Waiting) {
        let queues = [self.responders.front(), self.last_sender.as_ref(), self.ready.front()];
        let first = queues.into_iter().flatten().next().copied();
        if let Some(slot) = first.and_then(|index| self.qps.at_mut(index)) {
            slot.account.enter(now, waits_for);
        }
    }

    fn take_turn<M: Memory, O: Outbox>(&mut self, now: Instant, memory: &M, index: u32, out: &mut O) {
        let Some(slot) = self.qps.at_mut(index) else { return };
        // On a link with a set rate, one frame per turn.
        let quantum = if self.link.is_some() { 1 } else { QUANTUM };
        let before = self.shared.counters.retransmitted;
        let Sent { bytes, has_more } = slot.qp.transmit(memory, &mut self.shared.context(now), out, quantum);
        if out.is_traced() {
            let retransmitted = self.shared.counters.retransmitted - before;
            out.trace(&Traced::turn(&mut slot.traced, &slot.qp, retransmitted));
        }
        slot.is_ready = has_more;
        let waits_for = match has_more {
            false => slot.qp.waits_for(),
            true if self.link.is_some() => Waiting::Port,
            true if out.room().is_none() => out.why_full(),
            true => Waiting::Turn,
        };
        slot.account.enter(now, waits_for);
        match has_more {
            false => self.rearm(now, index),
            true if self.ready.is_empty() && self.last_sender.is_none() => self.last_sender = Some(index),
            true => self.ready.push_back(index),
        }
        if let Some(link) = &mut self.link {
            link.free_at = now + link.rate.time_for(bytes);
        }
        self.fail_overflowed_cqs(now);
    }

    #[inline]
    fn next_turn(&mut self) -> Option<u32> {
        if self.responders.is_empty()
            && let Some(index) = self.last_sender.take()
        {
            return Some(index);
        }
        self.responders.pop_front().or_else(|| self.ready.pop_front())
    }

    /// Returns whether [`Self::poll_transmit`] may have something to send before the time of [`Self::poll_timeout`].
    #[must_use]
    pub fn may_transmit(&self) -> bool {
        // With a set link rate, a timer reports it.
        self.has_pending() && self.link.is_none()
    }

    /// Returns whether a queue pair may have something to send, now or at the time of [`Self::poll_timeout`].
    #[inline]
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.last_sender.is_some() || !self.ready.is_empty() || !self.responders.is_empty()
    }

    /// Returns when a retry, the end of a pacing gap or a probe is due; `None` for never. The time may be too early. It is valid once
    /// [`Self::poll_transmit`] has nothing more to send.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let link = self.link.filter(|_| self.has_pending()).map(|link| link.free_at);
        earliest_of(earliest_of(self.wheel.next(), link), self.shared.early.next_scan())
    }

    /// Runs the timers that are due at `now`.
    pub fn on_timeout(&mut self, now: Instant) {
        while let Some(index) = self.wheel.pop(now) {
            let Some(slot) = self.qps.at_mut(index) else { continue };
            slot.armed = None;
            slot.qp.on_timeout(&mut self.shared.context(now));
            self.schedule(now, index);
        }
        self.release_idle(now);
    }

    /// Makes a queue pair ready after an event: it may have something to send or, if not, another time for its timer.
    #[inline(always)]
    pub(super) fn schedule(&mut self, now: Instant, index: u32) {
        if self.qps.at(index).is_some_and(|slot| !slot.is_ready) {
            self.make_ready(now, index);
        }
        self.fail_overflowed_cqs(now);
    }

    fn make_ready(&mut self, now: Instant, index: u32) {
        let Some(slot) = self.qps.at_mut(index) else { return };
        slot.is_ready = true;
        slot.account.on_ready(now);
        // An acknowledgement that is queued behind the data of others would keep its peer's window closed.
        let queue = if slot.qp.has_answer_due() { &mut self.responders } else { &mut self.ready };
        queue.push_back(index);
    }

    /// Sets the queue pair's timer if it must fire earlier than now set. A later time is set only after the timer has fired, because
    /// acknowledgements postpone it frequently. A queue pair in the ready queue needs no timer.
    fn rearm(&mut self, now: Instant, index: u32) {
        let Some(slot) = self.qps.at_mut(index) else { return };
        // Never at `now`: timers due now were just checked, and `on_timeout` must end.
        let Some(at) = slot.qp.poll_timeout().map(|at| at.max(now + Duration::from_nanos(1))) else { return };
        if slot.armed.is_none_or(|armed| at < armed) {
            slot.armed = Some(at);
            self.wheel.set(index, at);
        }
    }
}

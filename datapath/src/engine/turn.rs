//! The steps of a turn: received frames, frames to send, timers, completions.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use super::core_state::CoreState;
use super::events::AsyncEvent;
use super::management::Management;
use super::peer_moves::Context;
use super::port_flows::PortFlows;
use super::vlan;
use crate::capture::Direction;
use crate::siblings::{ProcessTarget, Pushed};
use crate::{neighbour, probes};
use cc::Instant;
use roce::Outbox;
use roce::qp::Modify;
use roce::wire::{self, Mac, Numbers, Opcode, Vlan};
use std::panic::{AssertUnwindSafe, catch_unwind};

impl CoreState {
    #[inline]
    pub(super) fn has_posts(&self) -> bool {
        self.queues.are_rung()
    }

    pub(super) fn take_posts(&mut self, now: Instant) -> bool {
        self.queues.take_posts(now, &mut self.endpoint)
    }

    /// Exchanges the number of active flows with the other cores and processes of the port, if the last exchange is too long ago.
    #[inline]
    pub(super) fn count_flows(&mut self, now: Instant) {
        if self.flows.is_some() && now >= self.next_count {
            self.exchange_flows(now);
        }
    }

    #[inline(never)]
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    fn exchange_flows(&mut self, now: Instant) {
        self.next_count = now + PortFlows::AGE;
        let (core, own) = (self.index(), self.endpoint.published_flows());
        // Without flows, this core reports no number. The numbers of others would be old when its next flow begins.
        if own.at(now) == 0 {
            self.endpoint.set_other_flows(0);
            return;
        }
        if let Some(others) = self.flows.as_ref().and_then(|flows| flows.exchange(now, core, own)) {
            self.endpoint.set_other_flows(others);
        }
    }

    /// Handles a frame that the port delivers in place: relays it if it is for another process only.
    #[inline]
    pub(super) fn on_frame_in_place(&mut self, now: Instant, frame: &[u8]) {
        if self.relays && self.relay(now, frame) {
            return;
        }
        self.on_frame(now, frame);
    }

    /// Drops a frame that the port delivers in place, unless it is for another process only.
    #[expect(clippy::arithmetic_side_effects, reason = "counts of frames stay below 2^64")]
    pub(super) fn drop_in_place(&mut self, now: Instant, frame: &[u8]) {
        if !self.relays || !self.relay(now, frame) {
            self.counters.unplugged += 1;
        }
    }

    /// Relays a frame that the kernel delivered to this process instead of the owner of its queue pair. Returns true if the frame is for
    /// another process only. A datagram to a group was delivered to all. A datagram to queue pair 1 and a direct response, whose QPN is the
    /// peer's, may be for any process.
    #[expect(clippy::arithmetic_side_effects, reason = "counts of frames stay below 2^64")]
    fn relay(&mut self, now: Instant, frame: &[u8]) -> bool {
        let Some(member_rings) = &mut self.member_rings else { return false };
        let is_to_group = frame.first().is_none_or(|first| first & 1 == 1);
        let Some((opcode, _)) =
            wire::opcode_and_destination(frame, Numbers::DEFAULT).filter(|_| !is_to_group)
        else {
            return false;
        };
        match member_rings.target(frame) {
            _ if opcode == Opcode::DIRECT_RESPONSE => member_rings.push_to_all(frame),
            ProcessTarget::All => member_rings.push_to_all(frame),
            ProcessTarget::Own => {}
            ProcessTarget::Sibling(slot) => {
                match member_rings.push(slot, frame, now) {
                    Pushed::Done => self.counters.siblings += 1,
                    Pushed::Full => self.counters.siblings_full += 1,
                }
                return true;
            }
        }
        false
    }

    #[expect(clippy::arithmetic_side_effects, reason = "counts of frames stay below 2^64")]
    pub(super) fn on_frame(&mut self, now: Instant, frame: &[u8]) {
        if self.endpoint.has_flows() && self.steer(now, frame) {
            return;
        }
        if !is_for(self.mac, frame) {
            self.counters.not_for_us += 1;
            return;
        }
        if self.member_rings.as_ref().is_some_and(|member_rings| member_rings.is_siblings(frame)) {
            self.counters.siblings += 1;
            return;
        }
        let tag = vlan::tag(frame);
        // A tag with VLAN identifier 0 only carries a priority (802.1Q priority-tagged).
        if tag.map_or(0, Vlan::id) != self.vlan.map_or(0, Vlan::id) {
            self.counters.other_vlan += 1;
            return;
        }
        self.trace_received(now, frame);
        let mut room;
        let untagged = match tag {
            None => frame,
            Some(_) => {
                room = [0; vlan::ROOM];
                vlan::without(frame, &mut room)
            }
        };
        if !self.handle_control(now, untagged) {
            // The endpoint counts the frames that it drops.
            let _ = self.endpoint.on_frame(now, &mut self.memory, frame);
        }
    }

    /// Delivers a frame by the rules of raw packet queue pairs, whatever its address and tag. Returns true if it was delivered and nothing
    /// else needs it. Packets of address resolution are also handled elsewhere.
    #[cold]
    fn steer(&mut self, now: Instant, frame: &[u8]) -> bool {
        let delivered = self.endpoint.steer(now, &mut self.memory, frame) && !vlan::is_resolution(frame);
        if delivered {
            self.trace_received(now, frame);
        }
        delivered
    }

    /// Passes a received frame to tracers, and to the observer that captures.
    #[inline(always)]
    fn trace_received(&mut self, now: Instant, frame: &[u8]) {
        probes::received(frame);
        if let Some(tap) = &mut self.tap {
            tap.record(now, Direction::In, frame);
        }
    }

    /// Handles an untagged frame that belongs to no queue pair of the endpoint. Returns false for other frames.
    #[inline]
    fn handle_control(&mut self, now: Instant, frame: &[u8]) -> bool {
        if neighbour::is_resolution(frame) {
            self.handle_resolution(now, frame);
            return true;
        }
        let Self { management, neighbours, .. } = self;
        management.as_mut().is_some_and(|management| management.on_frame(frame, neighbours))
    }

    #[cold]
    #[expect(clippy::arithmetic_side_effects, reason = "counts of frames stay below 2^64")]
    fn handle_resolution(&mut self, now: Instant, frame: &[u8]) {
        self.counters.neighbour_packets += 1;
        if self.neighbours.on_frame(now, frame).is_err() {
            self.counters.neighbour_malformed += 1;
        }
        while let Some((address, mac)) = self.neighbours.poll_conflict() {
            let name = &self.name;
            tracing::warn!("{name}: address {address}: {mac} uses it too; give one of both stations another");
        }
    }

    pub(super) fn transmit(&mut self, now: Instant, out: &mut impl Outbox) {
        while self.has_control_frames()
            && let Some(frame) = out.room()
        {
            let Some(length) = self.transmit_control(frame) else { break };
            out.commit(length);
        }
        self.endpoint.transmit(now, &self.memory, out);
    }

    fn transmit_control(&mut self, frame: &mut [u8]) -> Option<usize> {
        let neighbours = self.neighbours.poll_transmit(frame);
        let tagged = |length| self.vlan.map_or(length, |tag| vlan::insert(tag, frame, length));
        neighbours.map(tagged).or_else(|| self.management.as_mut()?.poll_transmit(frame))
    }

    #[inline]
    fn has_control_frames(&self) -> bool {
        self.neighbours.may_transmit() || self.management.as_ref().is_some_and(Management::may_transmit)
    }

    /// Returns true if the next turn has work even if nothing arrives.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.redirects || self.may_transmit()
    }

    /// Returns false only if [`Self::transmit`] has no frame.
    #[inline]
    pub(super) fn may_transmit(&self) -> bool {
        self.endpoint.has_pending() || self.has_control_frames()
    }

    /// Runs the timers that are due. Returns true if there were any.
    pub(super) fn on_timeout(&mut self, now: Instant) -> bool {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let (endpoint, neighbours) = (due(self.endpoint.poll_timeout()), due(self.neighbours.poll_timeout()));
        if endpoint {
            self.endpoint.on_timeout(now);
        }
        if neighbours {
            self.neighbours.on_timeout(now);
        }
        endpoint || neighbours
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.endpoint.poll_timeout(), self.neighbours.poll_timeout()].into_iter().flatten().min()
    }

    /// Delivers the results of the turn: events, completions and room. Returns true if there were any.
    #[expect(clippy::arithmetic_side_effects, reason = "counts of frames stay below 2^64")]
    pub(super) fn deliver(&mut self, now: Instant) -> bool {
        let mut reported = self.report_events();
        let Self { endpoint, neighbours, other_cores, peer_moves, .. } = self;
        self.redirects =
            peer_moves.turn(now, Context { endpoint, neighbours, other_cores: other_cores.as_deref() });
        let (overflows, moved) = self.queues.deliver(now, &mut self.endpoint);
        if overflows > 0 {
            self.counters.cq_overflows += overflows;
            reported |= self.report_events();
        }
        reported || self.redirects || moved
    }

    /// Fails all queue pairs when the core ends, and delivers their completions. If a step panics, continues with the next one.
    ///
    /// `first` is false if another core of the port failed before and has reported it.
    pub(super) fn fail_all(&mut self, now: Instant, reason: &str, first: bool) {
        tracing::error!("{}: {reason}; its queue pairs fail, other devices are not affected", self.name);
        let attempt = |step: &mut dyn FnMut()| _ = catch_unwind(AssertUnwindSafe(step));
        for qpn in self.queues.queue_pairs() {
            attempt(&mut || _ = self.endpoint.modify_qp(now, qpn, Modify::Error));
        }
        attempt(&mut || _ = self.take_posts(now));
        attempt(&mut || _ = self.deliver(now));
        if first {
            attempt(&mut || self.subscribers.publish(&self.name, AsyncEvent::CoreFailed));
        }
        attempt(&mut || _ = self.management.as_ref().map(Management::wake_waiters));
    }

    fn report_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.endpoint.poll_event() {
            self.subscribers.publish(&self.name, AsyncEvent::Transport(event));
            any = true;
        }
        any
    }
}

/// Returns true if a frame is for our address or for a group (lowest bit of the first byte). Also returns true for frames shorter than an
/// address, which the endpoint counts as truncated.
#[expect(clippy::indexing_slicing, reason = "the array has six bytes")]
fn is_for(mac: Mac, frame: &[u8]) -> bool {
    frame.get(..6).is_none_or(|to| to == mac.0 || to[0] & 1 == 1)
}

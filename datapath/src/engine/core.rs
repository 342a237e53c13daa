//! A core: a port, the core's state, and the turns that move packets between them.

use super::burst_builder::BurstBuilder;
use super::control::Inbox;
use super::core_group::PortAccess;
use super::core_state::CoreState;
use super::pending_frames::PendingFrames;
use crate::clock::Clock;
use crate::host_memory::faults;
use crate::io::{BURST, Burst, PacketIo, PortCounters, WakeDescriptor};
use crate::prefetch;
use cc::Instant;
use roce::wire::Mac;
use std::net::IpAddr;
use std::time::Duration;

/// Number of frames after which a turn sends no more.
const TRANSMIT_BUDGET: usize = 2 * BURST;

/// Turns in which the port sent nothing, after which queued frames no longer keep the thread awake: the peer may be gone permanently.
const MAX_STALLED_TURNS: u32 = 4096;

/// Longest time for which the port may accept no frame, or have no free buffer. After that, queued frames are dropped, as on an unplugged
/// cable, so that retry timers run: these start when a frame is sent. Linux never gives up a frame that a veth dropped because its peer's
/// MTU decreased, and sends none behind it.
const MAX_STALL: Duration = Duration::from_millis(500);

/// Length of the longest frame, in bytes.
const MAX_FRAME: usize = 16 << 10;

const NEVER: Instant = Instant::from_nanos(u64::MAX);

pub(super) struct Core<P: PacketIo> {
    clock: Clock,
    mac: Mac,
    state: CoreState,
    inbox: Inbox,
    received: Burst<P::Buf>,
    outgoing: Burst<P::Buf>,
    /// Frames to the port's own address, which the port itself does not loop back.
    hairpin: Burst<P::Buf>,
    /// A frame for another core whose ring is full. Later frames queue behind it.
    deferred: Option<P::Buf>,
    /// Frames for other processes on the interface whose rings are full.
    pending: PendingFrames<P::Buf>,
    /// An allocated buffer that no frame has used yet.
    spare_buffer: Option<P::Buf>,
    /// When the next timer was due after the last turn that had work.
    next_timer: Option<Instant>,
    /// Time until which turns are idle unless frames, posts or commands arrive. 0 if the last turn left work.
    idle_until: Instant,
    /// Consecutive turns in which a frame was queued for the port and none was sent.
    stalled_turns: u32,
    /// When the port began to accept no frames.
    stalled_since: Option<Instant>,
    /// When the port's pool ran out of buffers while a frame needed one.
    no_buffer_since: Option<Instant>,
    /// Frames for which no buffer was free for too long are written here and dropped.
    discard_buffer: Box<[u8]>,
    listens: bool,
    next_fault_check: Instant,
    /// Last, so that it outlives the buffers above.
    port: PortAccess<P>,
}

pub(super) trait Turn: Send {
    /// Does the current work in bounded time. Returns true if there was any.
    fn turn(&mut self) -> bool;
    /// Fails all queue pairs and delivers their completions. Called after a panic with the message `reason`.
    fn fail_all(&mut self, reason: &str);
    /// Returns the time until the next timer.
    fn idle_time(&self) -> Option<Duration>;
    /// Returns true if a frame is queued for the port, whose readiness neither a descriptor nor a timer signals.
    fn waits_for_port(&self) -> bool;
    /// Returns true if an acknowledgement waits for the next turns.
    fn delays_ack(&self) -> bool;
    /// Sets whether the port's descriptor signals the arrival of frames.
    fn listen(&mut self, on: bool);
    /// Returns a descriptor that becomes readable when a frame arrives while the port listens, if the port has one.
    fn descriptor(&self) -> Option<WakeDescriptor>;
}

impl<P: PacketIo> Core<P> {
    pub(super) fn new(port: PortAccess<P>, clock: Clock, mac: Mac, state: CoreState, inbox: Inbox) -> Self {
        Self {
            clock,
            mac,
            state,
            inbox,
            received: Burst::new(),
            outgoing: Burst::new(),
            hairpin: Burst::new(),
            deferred: None,
            pending: PendingFrames::new(),
            spare_buffer: None,
            next_timer: None,
            idle_until: Instant::ZERO,
            stalled_turns: 0,
            stalled_since: None,
            no_buffer_since: None,
            discard_buffer: vec![0; MAX_FRAME].into_boxed_slice(),
            listens: false,
            next_fault_check: Instant::ZERO,
            port,
        }
    }

    fn control(&mut self, now: Instant) -> bool {
        let Some(command) = self.inbox.take() else { return false };
        // The caller may poll no more.
        if self.state.delayed_ack.is_waiting() {
            self.send_delayed(now);
        }
        // Only commands read these counters.
        self.state.counters.port = self.port.own_port().map_or_else(PortCounters::default, P::counters);
        // The command must see the requests that its caller posted before.
        self.state.take_posts(now);
        command(&mut self.state, now);
        true
    }

    /// Returns true if only frames can have arrived since the last turn. An idle turn then ends after a few loads.
    #[inline]
    fn is_idle(&self) -> bool {
        !self.state.has_posts() && !self.inbox.is_filled() && self.clock.now() < self.idle_until
    }

    #[inline(never)]
    fn work(&mut self) -> bool {
        faults::unblock_signals();
        // Any thread may run this turn. A per-thread cache of the port's pool makes turns twice as fast.
        if let Some(port) = self.port.own_port() {
            port.attach();
        }
        let now = self.clock.now();
        let mut work = self.inbox.is_filled() && self.control(now);
        if work || now >= self.next_fault_check {
            faults::reinstall();
            self.next_fault_check = now + faults::PERIOD;
        }
        work |= self.state.take_posts(now);
        self.state.count_flows(now);
        work |= self.handle_received(now);
        // A timer that this turn starts is not due yet.
        if self.next_timer.is_some_and(|at| at <= now) {
            work |= self.state.on_timeout(now);
        }
        work |= self.transmit(now);
        work |= self.state.deliver(now);
        while let Some(peer) = self.state.peer_moves.take_suspected() {
            self.report_suspected(peer);
        }
        self.next_timer = self.state.poll_timeout();
        let nothing_waits = self.hairpin.is_empty() && self.outgoing.is_empty() && !self.waits_for_ring();
        let is_idle = nothing_waits && !self.state.has_more();
        self.idle_until = if is_idle { self.next_timer.unwrap_or(NEVER) } else { Instant::ZERO };
        work
    }

    /// Reports a peer whose packets may be lost to the port that sent them, and to core 0, which resolves the peer again.
    #[cold]
    fn report_suspected(&mut self, peer: IpAddr) {
        let port = self.port.own_port();
        let was_sent_by_main = port.is_none();
        if let Some(port) = port {
            port.suspect(peer);
        }
        if let Some(other_cores) = self.state.other_cores.as_ref().filter(|it| !it.is_main()) {
            other_cores.report_suspected(peer, was_sent_by_main);
        }
    }

    fn handle_received(&mut self, now: Instant) -> bool {
        let any = !self.received.is_empty() || !self.hairpin.is_empty();
        if self.state.is_unplugged {
            return self.drop_received(now) | any;
        }
        for frame in &self.hairpin {
            self.state.on_frame(now, frame);
        }
        for (at, frame) in self.received.iter().enumerate() {
            if let Some(next) = self.received.get(at + 1) {
                prefetch::begin_of(next);
            }
            self.state.on_frame(now, frame);
        }
        self.hairpin.clear();
        if !self.received.is_empty() {
            self.port.recycle(&mut self.received);
        }
        any | self.handle_in_place(now)
    }

    /// Drops all frames for this process, because a fault holds its port down.
    #[cold]
    fn drop_received(&mut self, now: Instant) -> bool {
        let Self { port, state, received, hairpin, .. } = self;
        state.counters.unplugged += (received.len() + hairpin.len()) as u64;
        hairpin.clear();
        if !received.is_empty() {
            port.recycle(received);
        }
        let has_in_place = port.has_in_place();
        if has_in_place {
            port.receive_in_place(received, |frame| state.drop_in_place(now, frame));
        }
        has_in_place
    }

    /// Handles the frames that the port has in place. They arrived after those in `received`.
    #[inline]
    fn handle_in_place(&mut self, now: Instant) -> bool {
        let Self { port, state, received, .. } = self;
        let has_in_place = port.has_in_place();
        if has_in_place {
            port.receive_in_place(received, |frame| state.on_frame_in_place(now, frame));
        }
        has_in_place
    }

    fn transmit(&mut self, now: Instant) -> bool {
        let mut sent = 0;
        while sent < TRANSMIT_BUDGET {
            let before = sent;
            if self.port.is_main() {
                sent += self.forward(now);
            }
            sent += self.fill(now);
            if let Some(member_rings) = &mut self.state.member_rings {
                member_rings.publish();
            }
            if !self.outgoing.is_empty() {
                self.transmit_burst(now);
            }
            if sent == before || !self.outgoing.is_empty() {
                break;
            }
        }
        // Nothing signals that the port or its pool has room again, so the core must not sleep.
        let waits = !self.outgoing.is_empty() || self.waits_for_ring() || self.state.endpoint.may_transmit();
        self.stalled_turns = if sent == 0 && waits { self.stalled_turns.saturating_add(1) } else { 0 };
        sent > 0 || (waits && self.stalled_turns < MAX_STALLED_TURNS)
    }

    /// Returns true if a frame is queued for a ring to another core or process that has no room.
    const fn waits_for_ring(&self) -> bool {
        self.deferred.is_some() || !self.pending.is_empty()
    }

    #[inline]
    fn transmit_burst(&mut self, now: Instant) {
        if self.state.delayed_ack.leaves(now, &self.outgoing) {
            self.send_burst(now);
        }
    }

    #[cold]
    fn send_delayed(&mut self, now: Instant) {
        self.state.delayed_ack.stop_waiting();
        self.send_burst(now);
    }

    #[inline]
    fn send_burst(&mut self, now: Instant) {
        let waiting = self.outgoing.len();
        if self.state.is_unplugged {
            self.state.counters.unplugged += waiting as u64;
            self.outgoing.clear();
            return;
        }
        self.port.transmit(&mut self.outgoing);
        if self.outgoing.len() < waiting {
            self.stalled_since = None;
        } else if now.saturating_since(*self.stalled_since.get_or_insert(now)) >= MAX_STALL {
            self.state.counters.port_held += waiting as u64;
            self.outgoing.clear();
        }
    }

    fn fill(&mut self, now: Instant) -> usize {
        if !self.waits_for_ring() && !self.state.may_transmit() {
            self.no_buffer_since = None;
            return 0;
        }
        let (filled, no_buffer) = self.fill_by(now, |state, burst| state.transmit(now, burst));
        self.no_buffer_since = no_buffer.then(|| self.no_buffer_since.unwrap_or(now));
        filled
    }

    /// Adds frames of worker cores: at most half a burst, so that core 0's own have room.
    #[inline(never)]
    fn forward(&mut self, now: Instant) -> usize {
        if !self.port.has_outgoing() {
            return 0;
        }
        self.port.select_next();
        self.fill_by(now, |_, burst| burst.forward(BURST / 2)).0
    }

    /// Receives frames as one of several cores. Returns whether this core has frames, whether frames were forwarded to other cores, and
    /// whether other cores have frames to send.
    #[inline(never)]
    fn receive_in_group(&mut self) -> (bool, bool, bool) {
        self.pending.set_full(self.port.share_full(self.pending.full()));
        let mut any = self.port.receive(&mut self.received);
        let distributed =
            self.port.is_main() && !self.received.is_empty() && self.port.distribute(&mut self.received);
        if distributed || self.port.may_misdirect() {
            let (forwarded, counters) = (self.port.forwarded(), &mut self.state.counters);
            (counters.handed_over, counters.hand_over_full) = (forwarded.frames, forwarded.dropped);
        }
        if distributed {
            any = !self.received.is_empty() || self.port.has_in_place();
        }
        (any, distributed, self.port.has_outgoing())
    }

    /// Adds the frames that `write` writes. Returns their number, with those that were dropped, and whether a frame lacked a buffer.
    #[inline(always)]
    fn fill_by(
        &mut self,
        now: Instant,
        write: impl FnOnce(&mut CoreState, &mut BurstBuilder<'_, P>),
    ) -> (usize, bool) {
        // Moved out of the state, which `write` borrows.
        let (mut member_rings, mut tap) = (self.state.member_rings.take(), self.state.tap.take());
        // A port that a fault holds down sends nothing to other processes of its interface, either.
        let mut no_rings = None;
        let rings = if self.state.is_unplugged { &mut no_rings } else { &mut member_rings };
        let is_unplugged = self.state.is_unplugged;
        let lacks_buffers =
            self.no_buffer_since.is_some_and(|since| now.saturating_since(since) >= MAX_STALL);
        let waits_for_ring = self.waits_for_ring();
        let Self { port, mac, outgoing, hairpin, deferred, pending, spare_buffer, discard_buffer, .. } = self;
        let is_backed_up = is_unplugged || outgoing.len() > usize::from(self.state.delayed_ack.is_waiting());
        if is_unplugged {
            *spare_buffer = None;
        }
        let mut burst = BurstBuilder {
            now,
            port,
            mac,
            outgoing,
            hairpin,
            deferred,
            pending,
            spare_buffer,
            member_rings: rings,
            tap: &mut tap,
            allocates: !is_unplugged,
            discard_buffer: (is_unplugged || lacks_buffers).then_some(&mut **discard_buffer),
            discarded: 0,
            filled: 0,
            no_buffer: false,
            is_backed_up,
            is_blocked: false,
        };
        if waits_for_ring {
            burst.retry_pending();
        }
        let sent_before = self.state.endpoint.counters().tx_frames;
        write(&mut self.state, &mut burst);
        let BurstBuilder { filled, discarded, no_buffer, .. } = burst;
        (self.state.member_rings, self.state.tap) = (member_rings, tap);
        self.state.counters.pool_dry += u64::from(no_buffer);
        if discarded > 0 {
            self.state.on_discarded(discarded as u64, sent_before);
        }
        (filled + discarded, no_buffer)
    }
}

impl<P: PacketIo> Turn for Core<P> {
    fn turn(&mut self) -> bool {
        if let Some(member_rings) = &mut self.state.member_rings {
            member_rings.receive(&mut self.received, || self.port.alloc());
        }
        let (any, distributed, outgoing) = match &mut self.port {
            PortAccess::Single(port) => (port.poll_receive(&mut self.received), false, false),
            PortAccess::Main(_) | PortAccess::Worker(_) => self.receive_in_group(),
        };
        let work = if !any && !outgoing && self.is_idle() {
            self.stalled_turns = 0;
            distributed
        } else {
            self.work() || distributed
        };
        let counters = &mut self.state.counters;
        let turns = if work { &mut counters.busy_turns } else { &mut counters.idle_turns };
        *turns += 1;
        work
    }

    fn fail_all(&mut self, reason: &str) {
        let first = self.port.fail(reason);
        self.state.fail_all(self.clock.now(), reason, first);
    }

    fn idle_time(&self) -> Option<Duration> {
        self.next_timer.map(|at| at.saturating_since(self.clock.now()))
    }

    fn waits_for_port(&self) -> bool {
        self.stalled_turns > 0
    }

    fn delays_ack(&self) -> bool {
        self.state.delayed_ack.is_waiting()
    }

    fn listen(&mut self, on: bool) {
        // Also when the state does not change, because the peer of the port may have changed.
        if on || self.listens {
            self.port.listen(on);
        }
        if let Some(member_rings) = &self.state.member_rings {
            member_rings.listen(on);
        }
        self.listens = on;
    }

    fn descriptor(&self) -> Option<WakeDescriptor> {
        self.port.descriptor()
    }
}

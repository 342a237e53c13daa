//! A core: a port, the core's state, and the turns that move packets between them.

use super::control::Inbox;
use super::filling::Filling;
use super::held::Held;
use super::station::Station;
use super::team::Way;
use crate::clock::Clock;
use crate::host_memory::faults;
use crate::io::{BURST, Bell, Burst, PacketIo};
use crate::prefetch;
use cc::Instant;
use roce::wire::Mac;
use std::time::Duration;

/// Number of frames from which on a turn sends no more.
const TRANSMIT_BUDGET: usize = 2 * BURST;

/// Turns without progress of the port after which waiting frames no longer keep the thread awake: the peer may be gone for good.
const PATIENCE: u32 = 4096;

/// Longest time for which the port may accept no frame, or have no free buffer. After that, waiting frames are dropped, as on an unplugged
/// cable, so that retry timers run: these start when a frame is sent. Linux never gives up a frame that a veth dropped because its peer's
/// MTU decreased, and sends none behind it.
const LONGEST_HOLD: Duration = Duration::from_millis(500);

/// Bytes of the longest frame.
const SINK: usize = 16 << 10;

const NEVER: Instant = Instant::from_nanos(u64::MAX);

pub(super) struct Core<P: PacketIo> {
    clock: Clock,
    mac: Mac,
    station: Station,
    inbox: Inbox,
    received: Burst<P::Buf>,
    leaving: Burst<P::Buf>,
    /// Frames to the port's own address, which the port itself does not loop back.
    hairpin: Burst<P::Buf>,
    /// A frame for another core whose ring is full. Later frames wait behind it.
    aside: Option<P::Buf>,
    /// Frames for other processes on the interface whose rings are full.
    held: Held<P::Buf>,
    /// An allocated buffer that no frame has used yet.
    spare: Option<P::Buf>,
    /// The next timer after the last turn that had work.
    next_timer: Option<Instant>,
    /// Time until which turns are idle unless frames, posts or commands arrive. 0 if the last turn left work.
    rests_until: Instant,
    /// Consecutive turns in which a frame waited for the port and none was sent.
    stuck: u32,
    /// When the port began to accept no frames.
    held_since: Option<Instant>,
    /// When the port's pool ran out of buffers while a frame waited for one.
    dry_since: Option<Instant>,
    /// Frames that waited too long for a buffer are written here and dropped.
    sink: Box<[u8]>,
    listens: bool,
    look: Instant,
    /// The last field, so that it outlives the buffers above.
    port: Way<P>,
}

pub(super) trait Turn: Send {
    /// Does the current work in bounded time. Returns true if there was any.
    fn turn(&mut self) -> bool;
    /// Called after a panic with message `reason`: fails all queue pairs and delivers their completions.
    fn give_up(&mut self, reason: &str);
    /// Returns the time until the next timer.
    fn idle_time(&self) -> Option<Duration>;
    /// Returns true if a frame waits for the port, which neither a descriptor nor a timer reports.
    fn waits_for_port(&self) -> bool;
    /// Sets whether the port's descriptor reports frames.
    fn listen(&mut self, on: bool);
    /// Returns a descriptor that becomes readable when a frame arrives while the port listens, if the port has one.
    fn descriptor(&self) -> Option<Bell>;
}

impl<P: PacketIo> Core<P> {
    pub(super) fn new(port: Way<P>, clock: Clock, mac: Mac, station: Station, inbox: Inbox) -> Self {
        Self {
            clock,
            mac,
            station,
            inbox,
            received: Burst::new(),
            leaving: Burst::new(),
            hairpin: Burst::new(),
            aside: None,
            held: Held::new(),
            spare: None,
            next_timer: None,
            rests_until: Instant::ZERO,
            stuck: 0,
            held_since: None,
            dry_since: None,
            sink: vec![0; SINK].into_boxed_slice(),
            listens: false,
            look: Instant::ZERO,
            port,
        }
    }

    fn control(&mut self, now: Instant) -> bool {
        let Some(command) = self.inbox.take() else { return false };
        // Only commands read these counters.
        self.station.counters.port = self.port.counters();
        // The command must see what its caller posted before.
        self.station.take_posts(now);
        command(&mut self.station, now);
        true
    }

    /// Returns true if only frames can have arrived since the last turn. An idle turn then ends after a few loads.
    #[inline]
    fn is_idle(&self) -> bool {
        !self.station.has_posts() && !self.inbox.is_filled() && self.clock.now() < self.rests_until
    }

    #[inline(never)]
    fn work(&mut self) -> bool {
        faults::hear();
        // Any thread may run this turn. Its cache of the port's pool makes turns twice as fast.
        self.port.attach();
        let now = self.clock.now();
        let mut work = self.inbox.is_filled() && self.control(now);
        if work || now >= self.look {
            faults::renew();
            self.look = now + faults::PERIOD;
        }
        work |= self.station.take_posts(now);
        work |= self.take_in(now);
        // A timer that this turn starts is not due yet.
        if self.next_timer.is_some_and(|at| at <= now) {
            work |= self.station.on_timeout(now);
        }
        work |= self.transmit(now);
        work |= self.station.deliver(now);
        self.next_timer = self.station.poll_timeout();
        let nothing_waits = self.hairpin.is_empty() && self.leaving.is_empty() && !self.waits_for_ring();
        let rests = nothing_waits && !self.station.has_more();
        self.rests_until = if rests { self.next_timer.unwrap_or(NEVER) } else { Instant::ZERO };
        work
    }

    fn take_in(&mut self, now: Instant) -> bool {
        let any = !self.received.is_empty() || !self.hairpin.is_empty();
        for frame in &self.hairpin {
            self.station.on_frame(now, frame);
        }
        for (at, frame) in self.received.iter().enumerate() {
            if let Some(next) = self.received.get(at + 1) {
                prefetch::begin_of(next);
            }
            self.station.on_frame(now, frame);
        }
        self.hairpin.clear();
        if !self.received.is_empty() {
            self.port.recycle(&mut self.received);
        }
        any | self.take_lent(now)
    }

    /// Handles the frames that the port lends, which arrived after those in `received`.
    #[inline]
    fn take_lent(&mut self, now: Instant) -> bool {
        let Self { port, station, received, .. } = self;
        let lends = port.lends();
        if lends {
            port.lend(received, |frame| station.on_lent(now, frame));
        }
        lends
    }

    fn transmit(&mut self, now: Instant) -> bool {
        let mut sent = 0;
        while sent < TRANSMIT_BUDGET {
            let before = sent;
            if self.port.is_lead() {
                sent += self.forward(now);
            }
            sent += self.fill(now);
            if let Some(lanes) = &mut self.station.lanes {
                lanes.publish();
            }
            if !self.leaving.is_empty() {
                self.hand_over(now);
            }
            if sent == before || !self.leaving.is_empty() {
                break;
            }
        }
        // Nothing reports that the port or its pool has room again, so the core must not sleep.
        let waits = !self.leaving.is_empty() || self.waits_for_ring() || self.station.endpoint.may_transmit();
        self.stuck = if sent == 0 && waits { self.stuck.saturating_add(1) } else { 0 };
        sent > 0 || (waits && self.stuck < PATIENCE)
    }

    /// Returns true if a frame waits for room in a ring to another core or process.
    const fn waits_for_ring(&self) -> bool {
        self.aside.is_some() || !self.held.is_empty()
    }

    #[inline]
    fn hand_over(&mut self, now: Instant) {
        let waiting = self.leaving.len();
        self.port.transmit(&mut self.leaving);
        if self.leaving.len() < waiting {
            self.held_since = None;
        } else if now.saturating_since(*self.held_since.get_or_insert(now)) >= LONGEST_HOLD {
            self.station.counters.port_held += waiting as u64;
            self.leaving.clear();
        }
    }

    fn fill(&mut self, now: Instant) -> usize {
        if !self.waits_for_ring() && !self.station.may_transmit() {
            self.dry_since = None;
            return 0;
        }
        let (filled, is_dry) = self.fill_by(now, |station, filling| station.transmit(now, filling));
        self.dry_since = is_dry.then(|| self.dry_since.unwrap_or(now));
        filled
    }

    /// Adds frames of other cores: at most half a burst, so that core 0's own have room.
    #[inline(never)]
    fn forward(&mut self, now: Instant) -> usize {
        if !self.port.has_leaving() {
            return 0;
        }
        self.port.turn_to_next();
        self.fill_by(now, |_, filling| filling.forward(BURST / 2)).0
    }

    /// Receives frames as one of several cores. Returns whether this core has frames, whether frames were passed to other cores, and
    /// whether frames of other cores wait to be sent.
    #[inline(never)]
    fn receive_in_team(&mut self) -> (bool, bool, bool) {
        self.held.set_full(self.port.share_full(self.held.full()));
        let mut any = self.port.receive(&mut self.received);
        let dealt = self.port.is_lead() && !self.received.is_empty() && self.port.deal(&mut self.received);
        if dealt || self.port.strays_come() {
            let (handed, counters) = (self.port.handed(), &mut self.station.counters);
            (counters.handed_over, counters.hand_over_full) = (handed.over, handed.full);
        }
        if dealt {
            any = !self.received.is_empty() || self.port.lends();
        }
        (any, dealt, self.port.has_leaving())
    }

    /// Adds the frames that `write` writes. Returns their number, and whether a frame lacked a buffer.
    #[inline(always)]
    fn fill_by(
        &mut self,
        now: Instant,
        write: impl FnOnce(&mut Station, &mut Filling<'_, P>),
    ) -> (usize, bool) {
        // Taken out of the station, which writes the frames.
        let (mut lanes, mut tap) = (self.station.lanes.take(), self.station.tap.take());
        let is_lost = self.dry_since.is_some_and(|since| now.saturating_since(since) >= LONGEST_HOLD);
        let waits_for_ring = self.waits_for_ring();
        let Self { port, mac, leaving, hairpin, aside, held, spare, sink, .. } = self;
        let is_backed_up = !leaving.is_empty();
        let mut filling = Filling {
            now,
            port,
            mac,
            leaving,
            hairpin,
            aside,
            held,
            spare,
            lanes: &mut lanes,
            tap: &mut tap,
            sink: is_lost.then_some(&mut **sink),
            sunk: 0,
            filled: 0,
            is_dry: false,
            is_backed_up,
            is_held: false,
        };
        if waits_for_ring {
            filling.send_waiting();
        }
        write(&mut self.station, &mut filling);
        let Filling { filled, sunk, is_dry, .. } = filling;
        (self.station.lanes, self.station.tap) = (lanes, tap);
        self.station.counters.pool_dry += u64::from(is_dry);
        self.station.counters.port_held += sunk as u64;
        (filled, is_dry)
    }
}

impl<P: PacketIo> Turn for Core<P> {
    fn turn(&mut self) -> bool {
        if let Some(lanes) = &mut self.station.lanes {
            lanes.receive(&mut self.received, || self.port.alloc());
        }
        let (any, dealt, leaving) = match &mut self.port {
            Way::Alone(port) => (port.receive_or_lend(&mut self.received), false, false),
            Way::Lead(_) | Way::Member(_) => self.receive_in_team(),
        };
        let work = if !any && !leaving && self.is_idle() {
            self.stuck = 0;
            dealt
        } else {
            self.work() || dealt
        };
        let counters = &mut self.station.counters;
        let turns = if work { &mut counters.busy_turns } else { &mut counters.idle_turns };
        *turns += 1;
        work
    }

    fn give_up(&mut self, reason: &str) {
        let first = self.port.fail(reason);
        self.station.give_up(self.clock.now(), reason, first);
    }

    fn idle_time(&self) -> Option<Duration> {
        self.next_timer.map(|at| at.saturating_since(self.clock.now()))
    }

    fn waits_for_port(&self) -> bool {
        self.stuck > 0
    }

    fn listen(&mut self, on: bool) {
        // Repeated, because the peer may have changed.
        if on || self.listens {
            self.port.listen(on);
        }
        if let Some(lanes) = &self.station.lanes {
            lanes.listen(on);
        }
        self.listens = on;
    }

    fn descriptor(&self) -> Option<Bell> {
        self.port.descriptor()
    }
}

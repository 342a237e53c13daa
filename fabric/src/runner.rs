//! The poll loop of a switch.

use crate::{PortId, Switch};
use cc::Instant;
use datapath::io::{Burst, PacketIo};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Idle turns that yield the core before the first sleep, with [`Rest::Awake`].
const YIELDS: u32 = 64;
/// Sleep of an idle switch. It delays the first frame after a silence.
const SLEEP: Duration = Duration::from_micros(50);
/// The switch does not sleep before a departure nearer than this, because the kernel's timers are no finer.
const WAKE: Duration = Duration::from_micros(100);
/// With [`Rest::Asleep`]: idle turns before a sleep, and the distance of a departure before which the switch does not sleep.
const TURNS_BEFORE_SLEEP: u32 = 4;
const NEAR: Duration = Duration::from_micros(10);

/// The behaviour of a switch while no frame moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rest {
    /// Polls for 64 turns, then sleeps for 50 µs at a time unless a departure is within 100 µs: for a dedicated core.
    #[default]
    Awake,
    /// Sleeps after 4 idle turns, until the next departure or for at most this time: for a shared core. Frames that arrive during the sleep
    /// are delayed, and departures are as late as the kernel's timers.
    Asleep(Duration),
}

/// A switch on real ports, run by one thread.
pub struct Runner<P: PacketIo> {
    switch: Switch<P::Buf>,
    ports: Vec<Attached<P>>,
    received: Burst<P::Buf>,
    rest: Rest,
}

struct Attached<P: PacketIo> {
    port: P,
    /// Frames that the port has not accepted yet.
    leaving: Burst<P::Buf>,
}

impl<P: PacketIo> Runner<P> {
    /// Attaches `switch` to `ports`, in the order of its configuration.
    ///
    /// # Panics
    /// Panics if the numbers of ports differ.
    #[must_use]
    pub fn new(switch: Switch<P::Buf>, ports: Vec<P>) -> Self {
        assert_eq!(switch.ports().count(), ports.len(), "the switch has another number of ports");
        let ports = ports.into_iter().map(|port| Attached { port, leaving: Burst::new() }).collect();
        Self { switch, ports, received: Burst::new(), rest: Rest::default() }
    }

    /// Sets the behaviour while no frame moves.
    #[must_use]
    pub fn resting(self, rest: Rest) -> Self {
        Self { rest, ..self }
    }

    /// Returns the switch, for its reports.
    pub fn switch(&mut self) -> &mut Switch<P::Buf> {
        &mut self.switch
    }

    /// Receives a burst from each port, then sends a burst to each. Returns the number of frames that moved.
    pub fn turn(&mut self, now: Instant) -> usize {
        let mut moved = 0;
        for from in self.switch.ports() {
            self.ports[usize::from(from.0)].port.receive(&mut self.received);
            moved += self.received.len();
            for buf in self.received.drain(..) {
                self.switch.on_frame(now, from, buf, |to| alloc(&mut self.ports, to));
            }
        }
        for to in self.switch.ports() {
            moved += self.send(now, to);
        }
        moved
    }

    fn send(&mut self, now: Instant, to: PortId) -> usize {
        let Attached { port, leaving } = &mut self.ports[usize::from(to.0)];
        while !leaving.is_full()
            && let Some(buf) = self.switch.poll_transmit(now, to, |_| port.alloc())
        {
            leaving.push(buf);
        }
        if leaving.is_empty() {
            return 0;
        }
        let before = leaving.len();
        port.transmit(leaving);
        before - leaving.len()
    }

    /// Runs turns until `stop` is set. `clock` must never go back. Calls `each_turn` after every turn.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        mut clock: impl FnMut() -> Instant,
        mut each_turn: impl FnMut(&mut Switch<P::Buf>, Instant),
    ) {
        let mut idle = 0_u32;
        while !stop.load(Ordering::Relaxed) {
            let now = clock();
            let moved = self.turn(now);
            each_turn(&mut self.switch, now);
            idle = if moved == 0 { idle.saturating_add(1) } else { 0 };
            self.rest(idle, now);
        }
    }

    fn rest(&self, idle: u32, now: Instant) {
        let departure = self.switch.poll_timeout();
        let within = |time| departure.is_some_and(|at| at < now + time);
        match (self.rest, idle) {
            (_, 0) => {}
            (Rest::Awake, 1..=YIELDS) | (Rest::Asleep(_), 1..=TURNS_BEFORE_SLEEP) => thread::yield_now(),
            (Rest::Awake, _) if within(WAKE) => thread::yield_now(),
            (Rest::Asleep(_), _) if within(NEAR) => thread::yield_now(),
            (Rest::Awake, _) => thread::sleep(SLEEP),
            (Rest::Asleep(most), _) => {
                thread::sleep(departure.map_or(most, |at| at.saturating_since(now).min(most)));
            }
        }
    }
}

fn alloc<P: PacketIo>(ports: &mut [Attached<P>], to: PortId) -> Option<P::Buf> {
    ports[usize::from(to.0)].port.alloc()
}

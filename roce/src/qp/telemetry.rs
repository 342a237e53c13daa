//! The requester's telemetry: probes and their answers (rtgwg-00 6.2.1, 7.1), INT headers in data packets, and the setup
//! that tells the receiver how to answer.

use super::Congestion;
use crate::wire::{Reverse, Setup, Tells};
use crate::{Discard, Psn};
use cc::{Ack, AlgorithmConfig, HpccConfig, Instant};
use core::num::NonZeroU32;
use core::time::Duration;

/// Hops that a probe leaves room for.
pub(super) const PROBE_ROOM: u8 = 8;

/// How often a setup is sent before the peer counts as one that knows none.
const SETUP_ATTEMPTS: u8 = 20;
/// The shortest time between two of them.
const SETUP_INTERVAL: Duration = Duration::from_micros(500);

/// Between two probes: more of them would leave no room for what they measure.
const SHORTEST_INTERVAL: Duration = Duration::from_micros(1);

/// Probes sent, answers awaited.
#[derive(Debug, Default)]
pub(super) struct Prober {
    interval: Option<Duration>,
    /// The next probe's number. Numbers never wrap here; their low 24 bits travel as a PSN.
    next: u64,
    /// Answers below this number are old.
    awaited: u64,
    last_sent: Option<Instant>,
}

impl Prober {
    /// A probe every so often, but not all the time.
    pub(super) fn new(interval: Option<Duration>) -> Self {
        Self { interval: interval.map(|interval| interval.max(SHORTEST_INTERVAL)), ..Self::default() }
    }

    /// When the next probe may leave while data is in flight. A lost probe doesn't stop the next.
    #[inline]
    pub(super) fn due_at(&self) -> Option<Instant> {
        let interval = self.interval?;
        Some(self.last_sent.map_or(Instant::ZERO, |last| last + interval))
    }

    pub(super) const fn psn(&self) -> Psn {
        Psn::new((self.next & (Psn::CIRCLE as u64 - 1)) as u32)
    }

    /// How many were sent.
    pub(super) const fn sent(&self) -> u64 {
        self.next
    }

    /// The number goes to a probe of another purpose.
    pub(super) const fn skip(&mut self) {
        self.next += 1;
    }

    pub(super) fn on_sent(&mut self, now: Instant) {
        self.next += 1;
        self.last_sent = Some(now);
    }

    /// Takes an answer in: once, and none older than one taken before. Gives it as an acknowledgement that counts probes.
    pub(super) fn on_response(&mut self, now: Instant, psn: Psn) -> Result<Ack, Discard> {
        let number = self
            .next
            .checked_add_signed(i64::from(psn.distance(self.psn())))
            .filter(|number| (self.awaited..self.next).contains(number))
            .ok_or(Discard::Telemetry)?;
        self.awaited = number + 1;
        let newest = number + 1 == self.next;
        let rtt = self.last_sent.filter(|_| newest).map(|sent| now.saturating_since(sent));
        Ok(Ack { now, seq: number + 1, next: self.next, acked_bytes: 0, ce_bytes: 0, rtt })
    }
}

/// Tells the peer how to answer, until it says that it heard.
#[derive(Clone, Copy, Debug)]
struct Handshake {
    setup: Setup,
    is_heard: bool,
    attempts: u8,
    next_at: Instant,
}

/// Which data packets carry an INT header. None does before the peer said that it knows them: to any other they would be
/// damaged packets.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    handshake: Option<Handshake>,
    /// Every how many.
    every: Option<NonZeroU32>,
    /// The others subscribe.
    subscribe: bool,
    /// Data packets until the next that does.
    left: u32,
}

impl Sampler {
    /// Of a queue pair that runs `algorithm`, and was asked for the rest.
    pub(super) fn new(algorithm: &AlgorithmConfig, asked: &Congestion) -> Self {
        let &Congestion { in_band: every, reverse, subscribe, all_hops, .. } = asked;
        let (config, reverse, tells) = match algorithm {
            AlgorithmConfig::HpccFair(config) => (config, reverse, Tells::Flows),
            AlgorithmConfig::Hpcc(config) if all_hops => (config, reverse, Tells::All),
            AlgorithmConfig::Hpcc(config) if every.is_some() || reverse != Reverse::Ack || subscribe => {
                (config, reverse, Tells::Busiest)
            }
            AlgorithmConfig::HpccReceiver(config) => (config, Reverse::Window, Tells::Busiest),
            _ => return Self::default(),
        };
        let setup = setup(config, reverse, tells);
        let handshake = Handshake { setup, is_heard: false, attempts: 0, next_at: Instant::ZERO };
        Self { handshake: Some(handshake), every, subscribe, left: 0 }
    }

    /// When the setup may leave, while data is in flight.
    #[inline]
    pub(super) fn setup_due_at(&self) -> Option<Instant> {
        let waits = |handshake: &&Handshake| !handshake.is_heard && handshake.attempts < SETUP_ATTEMPTS;
        self.handshake.as_ref().filter(waits).map(|handshake| handshake.next_at)
    }

    pub(super) fn setup(&self) -> Option<Setup> {
        self.handshake.map(|handshake| handshake.setup)
    }

    pub(super) fn on_setup_sent(&mut self, now: Instant) {
        if let Some(handshake) = &mut self.handshake {
            handshake.attempts += 1;
            handshake.next_at = now + (2 * handshake.setup.base_rtt).max(SETUP_INTERVAL);
        }
    }

    /// The peer said that it heard.
    pub(super) fn on_ready(&mut self) {
        if let Some(handshake) = &mut self.handshake {
            handshake.is_heard = true;
        }
    }

    /// Whether the next data packet carries an INT header.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.left == 0 && self.every.is_some() && self.handshake.is_some_and(|handshake| handshake.is_heard)
    }

    /// Whether a data packet without one subscribes to direct responses.
    #[inline]
    pub(super) fn subscribes(&self) -> bool {
        self.subscribe && self.handshake.is_some_and(|handshake| handshake.is_heard)
    }

    /// A data packet left; with an INT header where one was due.
    pub(super) fn on_data_sent(&mut self) {
        self.left = match self.left {
            0 if self.is_due() => self.every.map_or(0, |every| every.get() - 1),
            left => left.saturating_sub(1),
        };
    }
}

/// `config` on the wire.
fn setup(config: &HpccConfig, reverse: Reverse, tells: Tells) -> Setup {
    Setup {
        reverse,
        base_rtt: config.base_rtt,
        line_rate: config.line_rate.as_bps(),
        min_rate: config.min_rate.as_bps(),
        additive_increase: config.additive_increase.as_bps(),
        target_utilisation: (config.target_utilisation * ETA_ONE) as u32,
        max_stage: config.max_stage,
        tells,
    }
}

/// An eta of 1 on the wire.
pub(super) const ETA_ONE: f64 = (1u32 << 31) as f64;

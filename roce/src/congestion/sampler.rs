//! Telemetry in data packets, and the setup that asks the receiver for its answers.

use super::prober::later;
use super::settings::Congestion;
use crate::wire::{Format, Reverse, Setup, Tells};
use cc::{AlgorithmConfig, HpccConfig, Instant};
use core::num::NonZeroU32;
use core::time::Duration;

/// The number of setups sent to a peer that gives no sign of knowing any.
const SETUP_ATTEMPTS: u8 = 20;
/// The shortest time between two of them.
const SETUP_INTERVAL: Duration = Duration::from_micros(500);

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
        let &Congestion { in_band: every, reverse, subscribe, all_hops, format, .. } = asked;
        // A wait is a share of T, which the receiver must know.
        let is_delay = matches!(format, Format::Csig | Format::CsigWide);
        let (config, reverse, tells) = match algorithm {
            AlgorithmConfig::HpccFair(config) => (config, reverse, Tells::Flows),
            AlgorithmConfig::Hpcc(config) if all_hops => (config, reverse, Tells::All),
            // The hop of the highest power need not be the busiest, and only the sender compares by power.
            AlgorithmConfig::PowerTcp(config) => (config, reverse, Tells::All),
            AlgorithmConfig::Hpcc(config)
                if every.is_some() || reverse != Reverse::Ack || subscribe || is_delay =>
            {
                (config, reverse, Tells::Busiest)
            }
            AlgorithmConfig::HpccReceiver(config) => (config, Reverse::Window, Tells::Busiest),
            _ => return Self::default(),
        };
        let setup = setup(config, reverse, tells);
        let handshake = Handshake { setup, is_heard: false, attempts: 0, next_at: Instant::ZERO };
        Self { handshake: Some(handshake), every, subscribe, left: 0 }
    }

    /// Returns whether data packets bring telemetry, or ask switches for theirs.
    pub(super) const fn asks_with_data(&self) -> bool {
        self.every.is_some() || self.subscribe
    }

    /// Returns whether it has anything to ask for.
    pub(super) const fn is_used(&self) -> bool {
        self.handshake.is_some()
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
            handshake.attempts = handshake.attempts.saturating_add(1);
            let interval = (2 * handshake.setup.base_rtt).max(SETUP_INTERVAL);
            handshake.next_at = now + later(interval, handshake.attempts.into());
        }
    }

    /// The base round trip was measured anew. The peer, which compares by it, receives it if it knows one of less than half or more than twice.
    pub(super) fn on_base_rtt(&mut self, base_rtt: Duration) {
        if let Some(Handshake { setup, is_heard, attempts, .. }) = &mut self.handshake
            && (base_rtt > setup.base_rtt * 2 || base_rtt < setup.base_rtt / 2)
        {
            setup.base_rtt = base_rtt;
            (*is_heard, *attempts) = (false, 0);
        }
    }

    /// The peer knows telemetry: setups that it did not confirm were lost.
    pub(super) const fn on_answer(&mut self) {
        if let Some(handshake) = &mut self.handshake {
            handshake.attempts = 0;
        }
    }

    /// The peer said that it heard.
    pub(super) fn on_ready(&mut self) {
        if let Some(handshake) = &mut self.handshake {
            handshake.is_heard = true;
        }
    }

    /// Returns true if the next data packet carries an INT header.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.left == 0 && self.every.is_some() && self.handshake.is_some_and(|handshake| handshake.is_heard)
    }

    /// Returns true if a data packet without one subscribes to direct responses.
    #[inline]
    pub(super) fn subscribes(&self) -> bool {
        self.subscribe && self.handshake.is_some_and(|handshake| handshake.is_heard)
    }

    /// A data packet left; with an INT header if one was due and had room.
    #[inline]
    pub(super) fn on_data_sent(&mut self) {
        if let Some(every) = self.every {
            self.left = if self.is_due() { every.get() - 1 } else { self.left.saturating_sub(1) };
        }
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

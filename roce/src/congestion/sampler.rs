//! Telemetry in data packets, and the setup that requests the receiver's answers.

use super::prober::backoff;
use super::settings::Congestion;
use crate::wire::{Format, ReportKind, Reverse, Setup};
use cc::{AlgorithmConfig, Feedback, HpccConfig, Instant, Registration};
use core::num::NonZeroU32;
use core::time::Duration;

/// Limit of setups to a peer that does not respond to them.
const SETUP_ATTEMPTS: u8 = 20;
/// Least time between two setups.
const SETUP_INTERVAL: Duration = Duration::from_micros(500);

/// Setup that is repeated until the peer confirms it.
#[derive(Clone, Copy, Debug)]
struct SetupHandshake {
    setup: Setup,
    is_confirmed: bool,
    attempts: u8,
    next_at: Instant,
}

/// Selects the data packets that carry an INT header. None does until the peer has confirmed a setup, because any other peer would discard
/// the packets as damaged.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    handshake: Option<SetupHandshake>,
    /// One in this many data packets carries telemetry.
    every: Option<NonZeroU32>,
    /// The other data packets subscribe to direct responses.
    subscribe: bool,
    /// Data packets until the next that carries telemetry.
    left: u32,
    /// Data packets carry no telemetry, because the path has more switches than they have room for.
    is_suspended: bool,
}

impl Sampler {
    /// Creates the sampler of a queue pair that runs `algorithm`, with the settings `settings`.
    pub(super) fn new(algorithm: &AlgorithmConfig, settings: &Congestion) -> Self {
        let &Congestion { in_band: every, reverse, subscribe, all_hops, reported_flows, format, .. } =
            settings;
        // A delay is measured as a share of `T`, which the receiver gets from the setup.
        let is_delay = matches!(format, Format::Csig | Format::CsigWide);
        let (config, reverse, reports) = match algorithm {
            AlgorithmConfig::HpccFair(config) => (config, reverse, ReportKind::Flows),
            AlgorithmConfig::Hpcc(config) if all_hops => (config, reverse, ReportKind::All),
            AlgorithmConfig::Hpcc(config) if reported_flows => (config, reverse, ReportKind::Flows),
            // For PowerTCP, the hop of the highest power may not be the busiest, and only the sender computes the power.
            AlgorithmConfig::Registered(Registration { feedback: Feedback::Telemetry, .. }, parameters) => {
                (&parameters.hpcc, reverse, ReportKind::All)
            }
            AlgorithmConfig::Hpcc(config)
                if every.is_some() || reverse != Reverse::Ack || subscribe || is_delay =>
            {
                (config, reverse, ReportKind::Busiest)
            }
            AlgorithmConfig::HpccReceiver(config) => (config, Reverse::Window, ReportKind::Busiest),
            _ => return Self::default(),
        };
        let setup = setup(config, reverse, reports);
        let handshake = SetupHandshake { setup, is_confirmed: false, attempts: 0, next_at: Instant::ZERO };
        Self { handshake: Some(handshake), every, subscribe, left: 0, is_suspended: false }
    }

    /// Stops or resumes telemetry in data packets. Returns whether that is a change.
    pub(super) const fn suspend(&mut self, is_suspended: bool) -> bool {
        let is_change = self.every.is_some() && self.is_suspended != is_suspended;
        self.is_suspended = is_suspended && self.every.is_some();
        is_change
    }

    /// Returns whether data packets would carry telemetry, if they had room for that of the path.
    pub(super) const fn is_suspended(&self) -> bool {
        self.is_suspended
    }

    /// Returns whether data packets carry telemetry, or subscribe to direct responses.
    pub(super) const fn requests_with_data(&self) -> bool {
        self.every.is_some() || self.subscribe
    }

    pub(super) const fn is_needed(&self) -> bool {
        self.handshake.is_some()
    }

    /// Returns when the next setup may be sent, while data is in flight.
    #[inline]
    pub(super) fn setup_due_at(&self) -> Option<Instant> {
        let waits =
            |handshake: &&SetupHandshake| !handshake.is_confirmed && handshake.attempts < SETUP_ATTEMPTS;
        self.handshake.as_ref().filter(waits).map(|handshake| handshake.next_at)
    }

    pub(super) fn setup(&self) -> Option<Setup> {
        self.handshake.map(|handshake| handshake.setup)
    }

    pub(super) fn on_setup_sent(&mut self, now: Instant) {
        if let Some(handshake) = &mut self.handshake {
            handshake.attempts = handshake.attempts.saturating_add(1);
            let interval = (2 * handshake.setup.base_rtt).max(SETUP_INTERVAL);
            handshake.next_at = now + backoff(interval, handshake.attempts.into());
        }
    }

    /// Sends the new base round trip to the peer if the peer's value is less than half or more than twice as long.
    pub(super) fn on_base_rtt(&mut self, base_rtt: Duration) {
        if let Some(SetupHandshake { setup, is_confirmed, attempts, next_at }) = &mut self.handshake
            && (base_rtt > setup.base_rtt * 2 || base_rtt < setup.base_rtt / 2)
        {
            setup.base_rtt = base_rtt;
            // No telemetry is sent until the peer confirms the setup.
            (*is_confirmed, *attempts, *next_at) = (false, 0, Instant::ZERO);
        }
    }

    /// Restarts the attempts: the peer supports telemetry, so the unconfirmed setups were lost.
    pub(super) const fn restart_attempts(&mut self) {
        if let Some(handshake) = &mut self.handshake {
            handshake.attempts = 0;
        }
    }

    pub(super) fn on_ready(&mut self) {
        if let Some(handshake) = &mut self.handshake {
            handshake.is_confirmed = true;
        }
    }

    /// Returns whether the next data packet carries an INT header.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.left == 0
            && self.every.is_some()
            && !self.is_suspended
            && self.handshake.is_some_and(|handshake| handshake.is_confirmed)
    }

    /// Returns whether a data packet without an INT header subscribes to direct responses.
    #[inline]
    pub(super) fn subscribes(&self) -> bool {
        self.subscribe && self.handshake.is_some_and(|handshake| handshake.is_confirmed)
    }

    #[inline]
    pub(super) fn on_data_sent(&mut self) {
        if let Some(every) = self.every {
            self.left = if self.is_due() { every.get() - 1 } else { self.left.saturating_sub(1) };
        }
    }
}

fn setup(config: &HpccConfig, reverse: Reverse, reports: ReportKind) -> Setup {
    Setup {
        reverse,
        base_rtt: config.base_rtt,
        line_rate: config.line_rate.as_bps(),
        min_rate: config.min_rate.as_bps(),
        additive_increase: config.additive_increase.as_bps(),
        target_utilisation: (config.target_utilisation * ETA_ONE) as u32,
        max_stage: config.max_stage,
        reports,
    }
}

/// Target utilisation of 1 on the wire.
pub(super) const ETA_ONE: f64 = (1u32 << 31) as f64;

//! The default congestion control, `cc = "auto"`.

use cc::{HpccConfig, Rate};
use roce::qp::{Congestion, CongestionAlgorithm, Unknown, Upgrade, When};
use std::num::NonZeroU32;

/// The default window in bytes. It fills 40 Gb/s over a round trip of 100 µs.
pub(super) const DEFAULT_WINDOW: u64 = 512 << 10;

/// The default window without a pacing rate.
pub(super) const UNPACED: CongestionAlgorithm =
    CongestionAlgorithm::Fixed { window: DEFAULT_WINDOW, rate: None };

/// The default target utilisation of `auto`: one flow fills 94 % of a link, and sixteen fill 97 % with 3 packets queued
/// (`fabric/tests/auto.rs`).
pub(super) const AUTO_TARGET: f64 = 0.97;

/// With `auto`, one of this many data packets carries telemetry. The overhead is small, and 16 or more flows carry telemetry in each round
/// trip.
pub(super) const AUTO_EVERY: NonZeroU32 = NonZeroU32::MIN.saturating_add(3);

/// The default congestion control, `cc = "auto"` without another setting: a fixed window of 512 KiB until a probe returns telemetry or the
/// peer answers ECN marks.
pub const DEFAULT_CONGESTION: Congestion = {
    let fair = HpccConfig {
        base_rtt: Congestion::FIRST_BASE_RTT,
        line_rate: HpccConfig::MAX_LINE_RATE,
        min_rate: Rate::from_mbps(1),
        target_utilisation: AUTO_TARGET,
        max_stage: 0,
        additive_increase: Rate::from_bps(0),
    };
    Congestion {
        upgrade: Some(Upgrade { when: When::TelemetryAnswered, to: CongestionAlgorithm::HpccFair(fair) }),
        in_band: Some(AUTO_EVERY),
        probe_interval: Some(Congestion::FIRST_BASE_RTT),
        unknown: Unknown { line_rate: true, path_rate: false, base_rtt: true },
        ..Congestion::new(UNPACED)
    }
};

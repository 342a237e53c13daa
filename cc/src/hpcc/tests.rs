//! Tests of HPCC++.

use super::*;
use crate::{AlgorithmConfig, Counter, Hop, MAX_HOPS};
use core::num::NonZeroU32;
use core::time::Duration;
use proptest::prelude::*;

/// `W_init` is 52,000 bytes.
fn config() -> HpccConfig {
    HpccConfig {
        base_rtt: Duration::from_nanos(4160),
        line_rate: Rate::from_gbps(100),
        min_rate: Rate::from_mbps(100),
        target_utilisation: 0.95,
        max_stage: 5,
        additive_increase: Rate::from_mbps(50),
    }
}

fn hop(gbps: u64, time: u64, tx_units: u64, queue: u64) -> Hop {
    Hop {
        bandwidth: Rate::from_gbps(gbps),
        time: Counter::of::<24, 1>(time),
        tx_bytes: Counter::of::<20, 128>(tx_units),
        queue,
    }
}

fn path(id: u16, hops: &[(u8, Hop)]) -> PathTelemetry {
    let mut path = PathTelemetry::new(id);
    for (index, hop) in hops {
        assert!(path.set(*index, *hop));
    }
    path
}

fn ack(now: u64, seq: u64, next: u64) -> Ack {
    Ack { now: Instant::from_nanos(now), seq, next, acked_bytes: 0, ce_bytes: 0, rtt: None }
}

/// Returns a flow with one record, of hop 0 (100 Gb/s) at 10,000 ns with every counter at 0.
fn started() -> Hpcc {
    let mut hpcc = Hpcc::new(config()).unwrap();
    hpcc.on_telemetry(&ack(10_000, 1, 10), &path(7, &[(0, hop(100, 0, 0, 0))]));
    hpcc
}

fn state(hpcc: &Hpcc) -> (f64, Rate, Rate, u32, u64) {
    (hpcc.utilisation(), hpcc.rate(), hpcc.reference_rate(), hpcc.inc_stage(), hpcc.last_update_seq())
}

#[test]
fn a_flow_starts_at_line_rate_and_its_first_telemetry_only_records() {
    let hpcc = started();
    assert_eq!(state(&hpcc), (1.0, Rate::from_gbps(100), Rate::from_gbps(100), 0, 10));
    assert_eq!(hpcc.window(), 52_000);
}

#[test]
fn a_flow_may_start_below_line_rate() {
    let start = |rate| Hpcc::new(config()).unwrap().starting_at(rate);
    let eighth = start(Rate::from_mbps(12_500));
    assert_eq!(
        (eighth.rate(), eighth.reference_rate(), eighth.window()),
        (Rate::from_mbps(12_500), Rate::from_mbps(12_500), 6_500)
    );
    assert_eq!(start(Rate::from_gbps(400)).rate(), Rate::from_gbps(100));
    assert_eq!(start(Rate::from_bps(1)).rate(), Rate::from_mbps(100));
}

/// The first rows of the authors' simulator, for one flow through one switch.
#[test]
fn the_first_acknowledgements_of_a_lone_flow_give_the_authors_rates() {
    let mut hpcc = Hpcc::new(config()).unwrap();
    let rows = [
        (4188, 1000, 49_000, 3_512_383, 0, 1.0, 100_000_000_000),
        (4275, 2000, 50_000, 3_512_470, 8, 0.998_778_846_153_846_2, 95_166_151_454),
        (4362, 3000, 51_000, 3_512_557, 17, 1.000_044_769_323_224_8, 95_045_747_104),
        (4449, 4000, 52_000, 3_512_644, 25, 0.998_822_679_195_551_6, 95_161_977_309),
    ];
    for (now, seq, next, time, tx_units, utilisation, rate) in rows {
        hpcc.on_telemetry(&ack(now, seq, next), &path(0, &[(0, hop(100, time, tx_units, 0))]));
        assert!((hpcc.utilisation() - utilisation).abs() < 1e-12);
        assert_eq!(hpcc.rate(), Rate::from_bps(rate));
        assert_eq!((hpcc.reference_rate(), hpcc.last_update_seq()), (Rate::from_gbps(100), 49_000));
    }
    assert_eq!(hpcc.window(), 52_000 * 95_161_977_309 / 100_000_000_000);
}

/// pan-01 6.3: a switch that is congested in the first window responds directly.
#[test]
fn the_first_share_lowers_the_rate_and_leaves_the_reference() {
    let mut hpcc = Hpcc::new(config()).unwrap();
    hpcc.on_inflight(&ack(4188, 1000, 49_000), &Inflight { utilisation: 4.0, interval: 0 });
    assert_eq!((hpcc.rate(), hpcc.last_update_seq()), (Rate::from_gbps(100), 49_000));
    let mut hpcc = Hpcc::new(config()).unwrap();
    hpcc.on_inflight(&ack(4188, 1000, 49_000), &Inflight { utilisation: 4.0, interval: 4160 });
    assert!(hpcc.rate() < Rate::from_gbps(25), "{:?}", hpcc.rate());
    assert_eq!((hpcc.reference_rate(), hpcc.last_update_seq()), (Rate::from_gbps(100), 49_000));
    hpcc.on_inflight(&ack(8188, 50_000, 99_000), &Inflight { utilisation: 4.0, interval: 0 });
    assert_eq!(
        (hpcc.reference_rate(), hpcc.last_update_seq()),
        (Rate::from_gbps(100), 49_000),
        "a share over 0 ns"
    );
}

#[test]
fn the_reference_moves_only_on_an_acknowledgement_past_the_last_update() {
    let mut hpcc = started();
    // A link that was half used over one base RTT.
    hpcc.on_telemetry(&ack(14_160, 10, 20), &path(7, &[(0, hop(100, 4160, 203, 0))]));
    assert!(hpcc.utilisation() < 0.5);
    assert_eq!(
        (hpcc.reference_rate(), hpcc.inc_stage(), hpcc.last_update_seq()),
        (Rate::from_gbps(100), 0, 10)
    );
    hpcc.on_telemetry(&ack(18_320, 11, 21), &path(7, &[(0, hop(100, 8320, 406, 0))]));
    assert_eq!((hpcc.inc_stage(), hpcc.last_update_seq()), (1, 21));
}

#[test]
fn additive_steps_come_before_a_multiplicative_one() {
    let mut hpcc = started();
    let mut rates = [0; 8];
    // Bytes sent at 9.8 times the link's rate lower the rate once; after that the link is half used.
    hpcc.on_telemetry(&ack(14_160, 11, 11), &path(7, &[(0, hop(100, 4160, 4000, 0))]));
    let low = hpcc.rate().as_bps();
    for (round, rate) in (2u64..).zip(&mut rates) {
        let telemetry = path(7, &[(0, hop(100, round * 4160, 3797 + round * 203, 0))]);
        hpcc.on_telemetry(&ack(10_000 + round * 4160, 10 + round, 10 + round), &telemetry);
        *rate = hpcc.rate().as_bps();
    }
    for (step, rate) in (1..=5).zip(rates) {
        assert_eq!(rate, low + step * 50_000_000);
    }
    assert!(rates[5] > rates[4] * 3 / 2, "the sixth is multiplicative");
    assert_eq!(rates[6], rates[5] + 50_000_000);
}

#[test]
fn the_busiest_hop_counts() {
    let mut hpcc = Hpcc::new(config()).unwrap();
    hpcc.on_telemetry(&ack(0, 1, 1), &path(7, &[(0, hop(100, 0, 0, 0)), (3, hop(25, 500, 0, 9000))]));
    hpcc.on_telemetry(
        &ack(4160, 2, 2),
        &path(7, &[(0, hop(100, 4160, 203, 0)), (3, hop(25, 4660, 101, 8000))]),
    );
    // 8000 bytes are queued, of B * T = 13,000 bytes at 25 Gb/s; 101 * 128 bytes were sent.
    let expected = 8000.0 / 13_000.0 + 101.0 * 128.0 / 13_000.0;
    assert!((hpcc.utilisation() - expected).abs() < 1e-12);
}

#[test]
fn a_response_with_one_hop_is_compared_with_that_hop() {
    let mut hpcc = started();
    let before = state(&hpcc);
    hpcc.on_telemetry(&ack(14_160, 11, 20), &path(7, &[(2, hop(100, 77, 0, 0))]));
    assert_eq!(state(&hpcc), before, "the first reading of hop 2");
    hpcc.on_telemetry(&ack(18_320, 12, 21), &path(7, &[(0, hop(100, 8320, 650, 0))]));
    assert!((hpcc.utilisation() - 650.0 * 128.0 / 104_000.0).abs() < 1e-12);
    assert_eq!(hpcc.last_update_seq(), 21);
}

/// rtgwg-00 6.1.3: the path's identifier changes with the path.
#[test]
fn another_path_only_records() {
    let mut hpcc = started();
    let before = state(&hpcc);
    hpcc.on_telemetry(&ack(14_160, 11, 20), &path(8, &[(0, hop(100, 9, 0, 60_000))]));
    assert_eq!(state(&hpcc), before);
    hpcc.on_telemetry(&ack(18_320, 12, 21), &path(8, &[(0, hop(100, 4169, 406, 60_000))]));
    assert!(hpcc.utilisation() > 1.9);
    // The old path's record must not be used when that path is used again.
    let before = state(&hpcc);
    hpcc.on_telemetry(&ack(22_480, 22, 30), &path(7, &[(0, hop(100, 4160, 0, 0))]));
    assert_eq!(state(&hpcc), before);
}

/// rtgwg-00 9.4: two paths through the same switches have the same pathID, and different counters.
#[test]
fn a_path_change_keeps_the_rate_and_discards_the_records() {
    let mut hpcc = started();
    hpcc.on_telemetry(&ack(14_160, 11, 20), &path(7, &[(0, hop(100, 4160, 406, 60_000))]));
    let before = (hpcc.rate(), hpcc.reference_rate(), hpcc.utilisation());
    hpcc.on_path_change();
    // Compared with the old path's record, the byte counter would appear to have wrapped.
    hpcc.on_telemetry(&ack(18_320, 21, 30), &path(7, &[(0, hop(100, 8320, 100, 0))]));
    assert_eq!((hpcc.rate(), hpcc.reference_rate(), hpcc.utilisation()), before);
    hpcc.on_telemetry(&ack(22_480, 22, 40), &path(7, &[(0, hop(100, 12_480, 303, 0))]));
    assert!((hpcc.utilisation() - 203.0 * 128.0 / 52_000.0).abs() < 1e-12);
}

#[test]
fn indistinguishable_readings_only_replace_the_record() {
    let half = 1 << 23;
    let mut hpcc = started();
    let at = 10_000 + half + 1;
    hpcc.on_telemetry(&ack(at, 11, 20), &path(7, &[(0, hop(100, half + 1, 0, 0))]));
    let before = state(&hpcc);
    hpcc.on_telemetry(&ack(at + 4160, 11, 20), &path(7, &[(0, hop(100, half + 1, 0, 0))]));
    assert_eq!(state(&hpcc), before, "no time has passed at the switch");
    hpcc.on_telemetry(&ack(at + 8320, 11, 20), &path(7, &[(0, hop(0, half + 4161, 9, 0))]));
    assert_eq!(state(&hpcc), before, "a link without capacity");
    hpcc.on_telemetry(&ack(at + 8320, 11, 20), &path(7, &[(0, hop(100, half + 8321, 9, 0))]));
    assert_ne!(state(&hpcc), before);
}

/// If half of the byte counter's period may have passed, `txRate` is not known, but the queue is.
#[test]
fn a_link_whose_counter_may_have_wrapped_is_taken_to_be_half_full() {
    // 128 bytes * 2^20 take 10.7 ms at 100 Gb/s and 2.7 ms at 400 Gb/s.
    for (gbps, passed) in [(100, 5_400_000), (400, 1_400_000)] {
        for (waiting, utilisation) in [(0, 0.5), (52_000, 0.5 + 52_000.0 / (4160.0 * gbps as f64 / 8.0))] {
            let mut hpcc = started();
            hpcc.on_telemetry(&ack(10_100, 11, 20), &path(7, &[(0, hop(gbps, 100, 0, waiting))]));
            let at = 10_100 + passed;
            hpcc.on_telemetry(&ack(at, 12, 20), &path(7, &[(0, hop(gbps, 100 + passed, 0, waiting))]));
            assert!((hpcc.utilisation() - utilisation).abs() < 1e-12, "{gbps} Gb/s: {}", hpcc.utilisation());
        }
    }
}

/// The interval between the telemetry of a slow flow exceeds the period of 24 bits of ns. If that telemetry were ignored, the flow would
/// stay slow.
#[test]
fn the_clocks_periods_between_slow_readings_are_counted_by_our_own() {
    const PERIOD: u64 = 1 << 24;
    for (passed, jitter) in [
        (9_000_000, 0),
        (PERIOD - 1, 500_000),
        (PERIOD, -700_000),
        (40_000_000, 8_000_000),
        (90_000_000, -8_000_000),
    ] {
        let mut hpcc = started();
        let arrival = 10_000 + passed;
        let stamp = passed.checked_add_signed(jitter).unwrap();
        // Half of the capacity of 100 Mb/s: 6.25 bytes per µs.
        let slow = Hop { bandwidth: Rate::from_mbps(100), ..hop(1, stamp, stamp * 625 / 100_000 / 128, 0) };
        hpcc.on_telemetry(&ack(arrival, 11, 20), &path(7, &[(0, slow)]));
        assert!((hpcc.utilisation() - 0.5).abs() < 0.01, "{passed} ns: {}", hpcc.utilisation());
    }
    // A rate above the link's shows that the periods were miscounted.
    let mut hpcc = started();
    let before = state(&hpcc);
    let slow = Hop { bandwidth: Rate::from_mbps(100), ..hop(1, PERIOD + 1_000_000, 1000, 0) };
    hpcc.on_telemetry(&ack(10_000 + PERIOD / 2 + 1, 11, 20), &path(7, &[(0, slow)]));
    assert_eq!(state(&hpcc), before);
}

#[test]
fn a_reordered_stamp_changes_nothing() {
    let mut hpcc = started();
    hpcc.on_telemetry(&ack(14_160, 11, 20), &path(7, &[(0, hop(100, 4160, 406, 0))]));
    let before = state(&hpcc);
    hpcc.on_telemetry(&ack(14_200, 21, 30), &path(7, &[(0, hop(100, 4000, 400, 0))]));
    assert_eq!(state(&hpcc), before);
    hpcc.on_telemetry(&ack(18_320, 21, 30), &path(7, &[(0, hop(100, 8320, 812, 0))]));
    assert!((hpcc.utilisation() - 406.0 * 128.0 / 52_000.0).abs() < 1e-12);
}

#[test]
fn both_counters_may_wrap_between_two_readings() {
    let mut hpcc = Hpcc::new(config()).unwrap();
    hpcc.on_telemetry(&ack(0, 1, 1), &path(7, &[(0, hop(100, (1 << 24) - 160, (1 << 20) - 6, 0))]));
    hpcc.on_telemetry(&ack(4160, 2, 2), &path(7, &[(0, hop(100, 4000, 400, 0))]));
    assert!((hpcc.utilisation() - 406.0 * 128.0 / 52_000.0).abs() < 1e-12);
}

#[test]
fn loss_and_plain_acknowledgements_leave_the_state() {
    let mut hpcc = started();
    let before = state(&hpcc);
    hpcc.on_loss(Instant::ZERO);
    hpcc.on_ack(&ack(20_000, 99, 99));
    hpcc.on_congestion_notification(Instant::ZERO);
    assert_eq!(state(&hpcc), before);
}

/// rtgwg-00 5: the parameters.
#[test]
fn a_parameter_out_of_its_limits_is_refused_by_name() {
    let good = config();
    let refused = |config: HpccConfig| AlgorithmConfig::Hpcc(config).build().map(|_| ()).unwrap_err();
    let long = Duration::from_secs(2);
    assert_eq!(refused(HpccConfig { base_rtt: long, ..good }), ConfigError::BaseRtt(long));
    let none = Rate::default();
    assert_eq!(refused(HpccConfig { line_rate: none, ..good }), ConfigError::LineRate(none));
    assert!(matches!(refused(HpccConfig { min_rate: none, ..good }), ConfigError::MinRate { .. }));
    for eta in [0.0, -1.0, 1.01, f64::NAN, f64::INFINITY] {
        let error = refused(HpccConfig { target_utilisation: eta, ..good });
        assert!(matches!(error, ConfigError::TargetUtilisation(_)), "{eta}");
    }
    let above = Rate::from_gbps(101);
    assert!(matches!(
        refused(HpccConfig { additive_increase: above, ..good }),
        ConfigError::AdditiveIncrease { .. }
    ));
}

/// rtgwg-00 5: the rule of thumb for the additive increase.
#[test]
fn the_increase_shares_the_headroom_among_the_flows() {
    let config =
        HpccConfig::new(Rate::from_gbps(100), Duration::from_micros(5), NonZeroU32::new(100).unwrap());
    assert_eq!(config.validate(), Ok(()));
    assert!(config.additive_increase.as_bps().abs_diff(50_000_000) <= 1);
}

/// rtgwg-00 5: N is "the receiver reported maximum number of flows". It applies to the receiver's own link, at that link's rate.
#[test]
fn the_increase_shares_the_headroom_among_the_reported_flows() {
    let increase = |reported: Option<(HopIndex, u32)>| {
        let mut hpcc = started().starting_at(Rate::from_gbps(1));
        hpcc.on_telemetry(&ack(10_000, 1, 10), &path(7, &[(0, hop(10, 0, 0, 0))]));
        if let Some((hop, flows)) = reported {
            hpcc.on_receiver_link(ReceiverLink { hop, flows: NonZeroU32::new(flows).unwrap() });
        }
        // A tenth of the link is in use, so the rate increases by W_ai alone.
        hpcc.utilisation = 0.1;
        hpcc.on_telemetry(&ack(14_160, 11, 20), &path(7, &[(0, hop(10, 4160, 4, 0))]));
        hpcc.rate().as_bps() - 1_000_000_000
    };
    assert_eq!(increase(None), 50_000_000, "as configured");
    assert!(increase(Some((0, 20))).abs_diff(25_000_000) <= 1, "5 % of 10 Gb/s for 20 flows");
    assert_eq!(increase(Some((1, 20))), 50_000_000, "another hop is the receiver's");
    assert!(increase(Some((0, 1))).abs_diff(500_000_000) <= 1);
    assert_eq!(increase(Some((0, u32::MAX))), 0, "a false number stops the increase only");
}

fn any_config() -> impl Strategy<Value = HpccConfig> {
    (1u64..=1_000_000_000, 1u64..=10_000_000_000_000, any::<u64>(), 1e-9f64..=1.0, 0u32..7, any::<u64>())
        .prop_map(|(rtt, line, min, target_utilisation, max_stage, increase)| HpccConfig {
            base_rtt: Duration::from_nanos(rtt),
            line_rate: Rate::from_bps(line),
            min_rate: Rate::from_bps(min % line + 1),
            target_utilisation,
            max_stage,
            additive_increase: Rate::from_bps(increase % (line + 1)),
        })
}

/// The bound on `u'` limits the effect of a forged pair of readings, here with a report every hundredth of a round trip.
#[test]
fn the_effect_of_one_forged_pair_of_readings_ends_in_ten_round_trips() {
    let forged = |time: u64, sent: u64| Hop {
        bandwidth: Rate::from_bps(1),
        time: Counter::of::<64, 1>(time),
        tx_bytes: Counter::of::<64, { u32::MAX }>(sent),
        queue: u64::MAX,
    };
    let mut hpcc = Hpcc::new(config()).unwrap();
    hpcc.on_telemetry(&ack(10_000, 1, 10), &path(7, &[(0, forged(0, 0))]));
    hpcc.on_telemetry(&ack(14_160, 2, 10), &path(7, &[(0, forged(4160, u64::MAX))]));
    assert_eq!((hpcc.utilisation(), hpcc.rate()), (Inflight::MAX, Rate::from_mbps(100)));
    hpcc.on_path_change();
    let mut reports = 0;
    while hpcc.rate() < Rate::from_gbps(100) {
        let now = 20_000 + 41 * reports;
        hpcc.on_telemetry(&ack(now, reports, reports), &path(7, &[(0, hop(100, now, 0, 0))]));
        reports += 1;
        assert!(reports < 1000, "U is still {}", hpcc.utilisation());
    }
}

/// Numbers of every magnitude.
fn number() -> impl Strategy<Value = u64> {
    (0u32..=64, any::<u64>()).prop_map(|(bits, any)| any.checked_shr(64 - bits).unwrap_or(0))
}

fn any_hop() -> impl Strategy<Value = Hop> {
    let counter = || (number(), 1u8..=64, prop_oneof![Just(1u32), Just(128), Just(u32::MAX), 1u32..]);
    (number(), counter(), counter(), number()).prop_map(|(bps, time, bytes, queue)| Hop {
        bandwidth: Rate::from_bps(bps),
        time: Counter::new(time.0, time.1, time.2).unwrap(),
        tx_bytes: Counter::new(bytes.0, bytes.1, bytes.2).unwrap(),
        queue,
    })
}

proptest! {
    #[test]
    fn rates_and_windows_stay_in_bounds_for_any_telemetry(
        config in any_config(),
        telemetry in prop::collection::vec(
            (number(), number(), number(), 0u16..2, prop::collection::vec((0u8..MAX_HOPS as u8, any_hop()), 0..4)),
            0..60,
        ),
    ) {
        let mut hpcc = Hpcc::new(config).unwrap();
        let mut now = 0u64;
        for (after, seq, next, id, hops) in telemetry {
            now = now.saturating_add(after);
            hpcc.on_telemetry(&ack(now, seq, next), &path(id, &hops));
            prop_assert!(hpcc.utilisation().is_finite() && hpcc.utilisation() >= 0.0);
            for rate in [hpcc.rate(), hpcc.reference_rate()] {
                prop_assert!(rate >= config.min_rate && rate <= config.line_rate);
            }
            prop_assert!(hpcc.window() >= 1 && hpcc.window() <= config.initial_window());
            prop_assert!(hpcc.inc_stage() <= config.max_stage);
        }
    }
}

/// `hpcc-fair`: with `U` above eta the draft lowers the rate in every step. Two flows share the receiver's own link, so neither is reduced
/// below eta of half of it.
#[test]
fn a_flow_keeps_its_share_of_the_receivers_link() {
    let rate = |is_fair: bool, hop: u8| {
        let config = HpccConfig::new(Rate::from_gbps(100), Duration::from_micros(4), NonZeroU32::MIN);
        let config = HpccConfig { max_stage: 0, ..config };
        let config = if is_fair { AlgorithmConfig::HpccFair(config) } else { AlgorithmConfig::Hpcc(config) };
        let mut algorithm = config.build().unwrap();
        assert_eq!(algorithm.name(), config.name());
        for number in 1..=20_u64 {
            let mut path = PathTelemetry::new(0);
            let stamped = Hop {
                bandwidth: Rate::from_gbps(100),
                time: Counter::of::<24, 1>(number * 4000),
                tx_bytes: Counter::of::<20, 128>(number * 390),
                queue: 50_000,
            };
            assert!(path.set(0, stamped));
            let now = Instant::from_nanos(number * 4000);
            let ack = Ack { now, seq: number, next: number + 1, acked_bytes: 1000, ce_bytes: 0, rtt: None };
            algorithm.on_receiver_link(ReceiverLink { hop, flows: NonZeroU32::new(2).unwrap() });
            algorithm.on_telemetry(&ack, &path);
        }
        algorithm.pacing_rate().unwrap()
    };
    let share = Rate::from_mbps(47_500);
    assert!(rate(false, 0) < share, "the draft defines no share");
    assert_eq!(rate(true, 0), share);
    assert!(rate(true, 1) < share, "another hop is the receiver's");
}

/// `hpcc-fair` on a full link whose flows are not counted. In 20 round trips the rate of a flow at a thousandth of the link increases
/// fivefold, and that of a flow at the link's rate decreases.
#[test]
fn a_slow_flow_grows_on_a_full_link_between_switches() {
    let after_20 = |start: Rate| {
        let config = HpccConfig { max_stage: 0, additive_increase: Rate::from_bps(0), ..config() };
        let mut hpcc = Hpcc::fair(config).unwrap().starting_at(start);
        for number in 1..=20_u64 {
            // 99.8 % of the link, and no queue.
            let stamped = hop(100, number * 4160, number * 405, 0);
            hpcc.on_telemetry(&ack(number * 4160, number, number + 1), &path(7, &[(0, stamped)]));
        }
        hpcc.rate()
    };
    assert!(after_20(Rate::from_mbps(100)) > Rate::from_mbps(500));
    assert!(after_20(Rate::from_gbps(100)) < Rate::from_gbps(60));
}

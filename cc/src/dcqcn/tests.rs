//! Tests of DCQCN.

use super::*;

/// The paper's parameters at 40 Gb/s, with intervals that are easy to count.
fn config() -> DcqcnConfig {
    DcqcnConfig {
        alpha_interval: Duration::from_micros(55),
        decrease_interval: Duration::from_micros(50),
        increase_interval: Duration::from_micros(100),
        byte_counter: None,
        additive_increase: Rate::from_mbps(40),
        hyper_increase: Rate::from_mbps(400),
        ..DcqcnConfig::new(Rate::from_gbps(40), None)
    }
}

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

fn gbps(rate: Rate) -> f64 {
    rate.as_bps() as f64 / 1e9
}

#[test]
fn a_flow_without_notifications_stays_at_line_rate() {
    let mut dcqcn = Dcqcn::new(config()).unwrap();
    dcqcn.on_send(at(1), 0, 4096);
    dcqcn.on_timeout(at(10_000));
    assert_eq!((dcqcn.rate(), dcqcn.window()), (Rate::from_gbps(40), u64::MAX));
    assert_eq!(dcqcn.poll_timeout(), None);
}

/// Equation 1: R_T = R_C, R_C = R_C (1 - alpha / 2). Alpha starts at 1.
#[test]
fn the_first_notification_halves_the_rate() {
    let mut dcqcn = Dcqcn::new(config()).unwrap();
    dcqcn.on_congestion_notification(at(0));
    assert_eq!(dcqcn.poll_timeout(), Some(at(50)));
    dcqcn.on_timeout(at(50));
    assert_eq!((dcqcn.rate(), dcqcn.target_rate()), (Rate::from_gbps(20), Rate::from_gbps(40)));
}

#[test]
fn notifications_between_two_cuts_count_once() {
    let mut dcqcn = Dcqcn::new(config()).unwrap();
    for micros in 0..50 {
        dcqcn.on_congestion_notification(at(micros));
    }
    dcqcn.on_timeout(at(50));
    assert_eq!(dcqcn.rate(), Rate::from_gbps(20));
    dcqcn.on_congestion_notification(at(60));
    dcqcn.on_timeout(at(99));
    assert_eq!(dcqcn.rate(), Rate::from_gbps(20), "not before the interval ends");
    dcqcn.on_timeout(at(100));
    assert!((gbps(dcqcn.rate()) - 10.0).abs() < 0.1);
}

/// Equations 1 and 2: alpha = (1 - g) alpha + g for an interval with a CNP, (1 - g) alpha for one without.
#[test]
fn alpha_falls_while_nothing_is_reported() {
    let mut dcqcn = Dcqcn::new(config()).unwrap();
    dcqcn.on_congestion_notification(at(0));
    dcqcn.on_timeout(at(50));
    assert_eq!(dcqcn.alpha(), 1.0);
    // Ten intervals without a CNP end at 55, 110, ..., 550 µs.
    dcqcn.on_congestion_notification(at(560));
    let kept: f64 = 255.0 / 256.0;
    assert!((dcqcn.alpha() - power(kept, 10)).abs() < 1e-15);
    dcqcn.on_timeout(at(600));
    dcqcn.on_congestion_notification(at(610));
    assert!((dcqcn.alpha() - (power(kept, 11) + 1.0 / 256.0)).abs() < 1e-15);
}

/// Equations 3 and 4: five raises by fast recovery, then additive increase; with the timer alone, hyper increase follows.
#[test]
fn the_timer_recovers_then_adds_then_adds_more() {
    let mut dcqcn = Dcqcn::new(config()).unwrap();
    dcqcn.on_congestion_notification(at(0));
    dcqcn.on_timeout(at(50));
    dcqcn.on_congestion_notification(at(51));
    dcqcn.on_timeout(at(100));
    let (mut rate, target) = (gbps(dcqcn.rate()), gbps(dcqcn.target_rate()));
    assert!((target - 20.0).abs() < 1e-9);
    for round in 1..=5 {
        dcqcn.on_timeout(at(100 + round * 100));
        rate = (rate + target) / 2.0;
        assert!((gbps(dcqcn.rate()) - rate).abs() < 1e-6, "fast recovery {round}");
        assert_eq!(gbps(dcqcn.target_rate()), target);
    }
    dcqcn.on_timeout(at(700));
    assert!((gbps(dcqcn.target_rate()) - target - 0.04).abs() < 1e-9, "additive");
    dcqcn.on_timeout(at(800));
    assert!((gbps(dcqcn.target_rate()) - target - 0.44).abs() < 1e-9, "hyper");
    dcqcn.on_timeout(at(50_000));
    assert_eq!((dcqcn.rate(), dcqcn.poll_timeout()), (Rate::from_gbps(40), None));
}

/// Figure 7: hyper increase if both timer and byte counter exceed F, additive increase if one does.
#[test]
fn the_byte_counter_raises_too() {
    let config = DcqcnConfig { byte_counter: Some(10_000), fast_recovery: 2, ..config() };
    let mut dcqcn = Dcqcn::new(config).unwrap();
    dcqcn.on_congestion_notification(at(0));
    dcqcn.on_timeout(at(50));
    dcqcn.on_congestion_notification(at(51));
    dcqcn.on_timeout(at(100));
    let target = gbps(dcqcn.target_rate());
    let send = |dcqcn: &mut Dcqcn, times: u64| {
        for _ in 0..times * 10 {
            dcqcn.on_send(at(101), 0, 1000);
        }
        ((gbps(dcqcn.target_rate()) - target) * 1000.0).round()
    };
    assert_eq!(send(&mut dcqcn, 2), 0.0, "fast recovery");
    assert_eq!(send(&mut dcqcn, 3), 120.0, "additive: the timer has not fired");
    dcqcn.on_timeout(at(400));
    assert_eq!(send(&mut dcqcn, 1), 120.0 + 3.0 * 40.0 + 400.0, "three by the timer, then hyper");
}

/// The authors' simulator keeps the target if the timer has not raised the rate between two cuts.
#[test]
fn a_second_cut_may_keep_the_target() {
    let mut dcqcn = Dcqcn::new(DcqcnConfig { clamp_target: false, ..config() }).unwrap();
    dcqcn.on_congestion_notification(at(0));
    dcqcn.on_congestion_notification(at(51));
    dcqcn.on_timeout(at(100));
    assert_eq!(dcqcn.target_rate(), Rate::from_gbps(40));
    dcqcn.on_timeout(at(201));
    dcqcn.on_congestion_notification(at(202));
    dcqcn.on_timeout(at(250));
    assert!(dcqcn.target_rate() < Rate::from_gbps(40));
}

#[test]
fn a_window_follows_the_rate_where_a_round_trip_is_known() {
    let config = DcqcnConfig { base_rtt: Some(Duration::from_micros(10)), ..config() };
    let mut dcqcn = Dcqcn::new(config).unwrap();
    assert_eq!(dcqcn.window(), 50_000);
    dcqcn.on_congestion_notification(at(0));
    dcqcn.on_timeout(at(50));
    assert_eq!(dcqcn.window(), 25_000);
}

#[test]
fn parameters_are_checked() {
    assert_eq!(config().validate(), Ok(()));
    assert_eq!(DcqcnConfig::simulator(None).validate(), Ok(()));
    let slow = DcqcnConfig::new(Rate::from_bps(1), Some(Duration::from_secs(1)));
    assert_eq!(slow.validate(), Ok(()));
    let refused = |config| Dcqcn::new(config).unwrap_err();
    let none = Duration::ZERO;
    let what = "increase interval";
    assert_eq!(
        refused(DcqcnConfig { increase_interval: none, ..config() }),
        ConfigError::Interval { what, interval: none }
    );
    assert_eq!(refused(DcqcnConfig { byte_counter: Some(0), ..config() }), ConfigError::ByteCounter);
    assert!(matches!(refused(DcqcnConfig { gain: f64::NAN, ..config() }), ConfigError::Gain(_)));
    let above = Rate::from_gbps(41);
    assert!(matches!(
        refused(DcqcnConfig { hyper_increase: above, ..config() }),
        ConfigError::AdditiveIncrease { .. }
    ));
}

#[test]
fn dcqcn_continues_at_the_previous_rate_within_its_limits() {
    let (line, least) = (Rate::from_gbps(10), Rate::from_mbps(10));
    let mut dcqcn = Dcqcn::new(DcqcnConfig { min_rate: least, ..DcqcnConfig::new(line, None) }).unwrap();
    for (before, from) in [(1, least), (700, Rate::from_mbps(700)), (20_000, line)] {
        dcqcn.continue_at(Rate::from_mbps(before));
        assert_eq!(dcqcn.rate(), from);
    }
}

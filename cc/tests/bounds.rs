//! Windows and rates stay within their bounds for any input.

extern crate ferroce_cc as cc;

use cc::{
    Ack, AlgorithmConfig, CongestionController, Counter, DcqcnConfig, DctcpConfig, Hop, HpccConfig, Inflight,
    Instant, MAX_HOPS, POWERTCP, Parameters, PathTelemetry, Rate, ReceiverLink, RxHpcc, SWIFT,
};
use core::num::NonZeroU32;
use core::time::Duration;
use proptest::prelude::*;

/// Numbers of every magnitude.
fn number() -> impl Strategy<Value = u64> {
    (0u32..=64, any::<u64>()).prop_map(|(bits, any)| any.checked_shr(64 - bits).unwrap_or(0))
}

fn small(any: u64) -> u32 {
    (any & u64::from(u32::MAX)) as u32
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    line_rate: Rate,
    min_rate: Rate,
    base_rtt: Duration,
}

fn bounds() -> impl Strategy<Value = Bounds> {
    (1u64..=10_000_000_000_000, any::<u64>(), 1u64..=1_000_000_000).prop_map(|(line, min, rtt)| Bounds {
        line_rate: Rate::from_bps(line),
        min_rate: Rate::from_bps(min % line + 1),
        base_rtt: Duration::from_nanos(rtt),
    })
}

fn interval() -> impl Strategy<Value = Duration> {
    (1u64..=1_000_000_000).prop_map(Duration::from_nanos)
}

fn hpcc() -> impl Strategy<Value = (Bounds, HpccConfig)> {
    (bounds(), 1e-9f64..=1.0, 0u32..7, any::<u64>()).prop_map(|(at, target_utilisation, max_stage, any)| {
        let additive_increase = Rate::from_bps(any % (at.line_rate.as_bps() + 1));
        let Bounds { line_rate, min_rate, base_rtt } = at;
        (at, HpccConfig { base_rtt, line_rate, min_rate, target_utilisation, max_stage, additive_increase })
    })
}

fn swift() -> impl Strategy<Value = (Bounds, AlgorithmConfig)> {
    let delay = || (0u64..=1_000_000_000).prop_map(Duration::from_nanos);
    (hpcc(), 1e-9f64..=1.0, delay(), delay(), any::<u64>()).prop_map(
        |((at, hpcc), gain, hop_delay, flow_delay, any)| {
            let config = Parameters {
                hpcc,
                additive_increase: Some(Rate::from_bps(any % (at.line_rate.as_bps() + 1))),
                gain: Some(gain),
                hop_delay: Some(hop_delay),
                flow_delay: Some(flow_delay),
            };
            (at, AlgorithmConfig::Registered(&SWIFT, config))
        },
    )
}

fn dctcp() -> impl Strategy<Value = (Bounds, AlgorithmConfig)> {
    (bounds(), 1e-9f64..=1.0, any::<u64>()).prop_map(|(at, gain, any)| {
        let Bounds { line_rate, min_rate, base_rtt } = at;
        let additive_increase = Rate::from_bps(any % (line_rate.as_bps() + 1));
        (at, AlgorithmConfig::Dctcp(DctcpConfig { base_rtt, line_rate, min_rate, gain, additive_increase }))
    })
}

fn dcqcn() -> impl Strategy<Value = (Bounds, AlgorithmConfig)> {
    let intervals = (interval(), interval(), interval());
    let increases = (any::<u64>(), any::<u64>());
    let rest = (prop::option::of(1u64..100_000), 0u32..7, any::<bool>(), any::<bool>());
    (bounds(), 1e-9f64..=1.0, intervals, increases, rest).prop_map(|(at, gain, intervals, any, rest)| {
        let Bounds { line_rate, min_rate, base_rtt } = at;
        let increase = |any: u64| Rate::from_bps(any % (line_rate.as_bps() + 1));
        let config = DcqcnConfig {
            line_rate,
            min_rate,
            base_rtt: rest.2.then_some(base_rtt),
            gain,
            alpha_interval: intervals.0,
            decrease_interval: intervals.1,
            increase_interval: intervals.2,
            byte_counter: rest.0,
            fast_recovery: rest.1,
            additive_increase: increase(any.0),
            hyper_increase: increase(any.1),
            clamp_target: rest.3,
        };
        (at, AlgorithmConfig::Dcqcn(config))
    })
}

fn any_controller() -> impl Strategy<Value = (Bounds, AlgorithmConfig)> {
    prop_oneof![
        hpcc().prop_map(|(at, config)| (at, AlgorithmConfig::Hpcc(config))),
        hpcc().prop_map(|(at, config)| (at, AlgorithmConfig::HpccFair(config))),
        hpcc().prop_map(|(at, config)| (at, AlgorithmConfig::HpccReceiver(config))),
        hpcc().prop_map(|(at, config)| (at, AlgorithmConfig::Registered(&POWERTCP, config.into()))),
        swift(),
        dctcp(),
        dcqcn(),
    ]
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

fn any_path() -> impl Strategy<Value = PathTelemetry> {
    (0u16..2, prop::collection::vec((0u8..MAX_HOPS as u8, any_hop()), 0..4)).prop_map(|(id, hops)| {
        let mut path = PathTelemetry::new(id);
        for (index, hop) in hops {
            path.set(index, hop);
        }
        path
    })
}

#[derive(Clone, Debug)]
enum Event {
    Send(u64, u32),
    Telemetry(u64, u64, Box<PathTelemetry>),
    Ack(u64, u64, u32, u32),
    Notification,
    /// The interval may be 0.
    Inflight(u64, u32, u32),
    PathChange,
    Window(u64),
    ReceiverLink(u8, NonZeroU32),
    Loss,
    Timeout,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (number(), number()).prop_map(|(pn, bytes)| Event::Send(pn, small(bytes))),
        (number(), number(), any_path()).prop_map(|(seq, next, path)| Event::Telemetry(
            seq,
            next,
            Box::new(path)
        )),
        (number(), number(), number(), number()).prop_map(|(seq, next, acked, ce)| Event::Ack(
            seq,
            next,
            small(acked),
            small(ce)
        )),
        Just(Event::Notification),
        (number(), any::<u32>(), prop_oneof![Just(0), any::<u32>()])
            .prop_map(|(seq, share, interval)| Event::Inflight(seq, share, interval)),
        Just(Event::PathChange),
        number().prop_map(Event::Window),
        (0u8..MAX_HOPS as u8, any::<NonZeroU32>()).prop_map(|(hop, flows)| Event::ReceiverLink(hop, flows)),
        Just(Event::Loss),
        Just(Event::Timeout),
    ]
}

proptest! {
    #[test]
    fn rates_and_windows_stay_in_bounds_for_any_telemetry(
        (at, config) in any_controller(),
        events in prop::collection::vec((number(), event()), 0..80),
    ) {
        let mut controller = config.build().unwrap();
        let largest = at.line_rate.bytes_in(at.base_rtt).max(1);
        let is_windowed = !matches!(config, AlgorithmConfig::Dcqcn(DcqcnConfig { base_rtt: None, .. }));
        let mut now = Instant::ZERO;
        for (after, event) in events {
            now = now + Duration::from_nanos(after);
            let ack = |seq, next, acked_bytes, ce_bytes| Ack { now, seq, next, acked_bytes, ce_bytes, rtt: seq.is_multiple_of(2).then(|| Duration::from_nanos(seq)) };
            match event {
                Event::Send(pn, bytes) => controller.on_send(now, pn, bytes),
                Event::Telemetry(seq, next, path) => controller.on_telemetry(&ack(seq, next, 0, 0), &path),
                Event::Ack(seq, next, acked, ce) => controller.on_ack(&ack(seq, next, acked, ce)),
                Event::Inflight(seq, share, interval) => {
                    let utilisation = f64::from(share) / f64::from(1u32 << 20);
                    controller.on_inflight(&ack(seq, seq, 0, 0), &Inflight { utilisation, interval: interval.into() });
                }
                Event::PathChange => controller.on_path_change(),
                Event::Notification => controller.on_congestion_notification(now),
                Event::Window(window) => controller.on_window(window),
                Event::ReceiverLink(hop, flows) => controller.on_receiver_link(ReceiverLink { hop, flows }),
                Event::Loss => controller.on_loss(now),
                Event::Timeout => controller.on_timeout(now),
            }
            let rate = controller.pacing_rate().unwrap();
            prop_assert!((at.min_rate..=at.line_rate).contains(&rate), "{rate}");
            let window = controller.window();
            prop_assert!(window >= 1 && (window <= largest || !is_windowed), "{window} of {largest}");
        }
    }

    #[test]
    fn a_receiver_computes_windows_in_bounds_for_any_telemetry(
        (at, config) in hpcc(),
        events in prop::collection::vec((number(), any_path(), 1u32..), 0..60),
    ) {
        let mut receiver = RxHpcc::new(config).unwrap();
        let largest = at.line_rate.bytes_in(at.base_rtt).max(1);
        let mut now = Instant::ZERO;
        for (after, path, flows) in events {
            now = now + Duration::from_nanos(after);
            let window = receiver.on_telemetry(now, &path, NonZeroU32::new(flows).unwrap());
            prop_assert!(window.is_none_or(|window| (1..=largest).contains(&window)));
        }
    }
}

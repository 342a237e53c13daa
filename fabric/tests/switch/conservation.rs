//! Every frame that enters the switch leaves it, is counted as dropped, or is inside.

use crate::script::{BROADCAST, Buf, Script, frame, station};
use cc::{Instant, Rate};
use ferroce_fabric::{FaultConfig, PortConfig, PortId, Probability};
use proptest::prelude::*;
use std::time::Duration;

#[derive(Clone, Debug)]
struct Step {
    after_ns: u64,
    from: u16,
    to: u8,
    len: usize,
    dry: bool,
    poll: Option<u16>,
}

fn step() -> impl Strategy<Value = Step> {
    (0..200_000_u64, 0..4_u16, 0..8_u8, 0..2000_usize, prop::bool::weighted(0.1), prop::option::of(0..4_u16))
        .prop_map(|(after_ns, from, to, len, dry, poll)| Step { after_ns, from, to, len, dry, poll })
}

fn port() -> impl Strategy<Value = PortConfig> {
    let rate = prop::option::of(1_u64..1000);
    (rate, 1600..20_000_u64, 1..40_usize, 0..4_u32, any::<u64>(), 0..3_u64).prop_map(
        |(rate, queue_bytes, queue_frames, faulty, seed, millis)| {
            let chance = Probability::new(f64::from(faulty) * 0.1).unwrap();
            let faults = FaultConfig {
                loss: chance,
                duplicate: chance,
                reorder: chance,
                flip: chance,
                delay: Duration::from_millis(millis),
                capacity: 16,
                seed,
                ..FaultConfig::default()
            };
            let rate = rate.map(Rate::from_mbps);
            let catch_up = Duration::from_millis(millis);
            PortConfig {
                rate,
                catch_up,
                queue_bytes,
                queue_frames,
                ecn_threshold: Some(3000),
                faults,
                ..PortConfig::default()
            }
        },
    )
}

/// Checks that the frames received, copied and duplicated equal the frames sent, dropped, lost and inside.
fn balance(script: &mut Script, now: Instant) -> Result<(), TestCaseError> {
    let inside = script.switch.frames_inside() as u64;
    let report = script.switch.report(now);
    let sum = |of: fn(&ferroce_fabric::PortReport) -> u64| report.ports.iter().map(of).sum::<u64>();
    let made = sum(|port| port.counters.rx_frames + port.counters.copies + port.faults.duplicated);
    let gone = sum(|port| port.counters.tx_frames + port.counters.drops.total() + port.faults.lost);
    prop_assert_eq!(made, gone + inside, "{:?}", report);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_frame_is_forwarded_dropped_or_held(
        ports in prop::collection::vec(port(), 4),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut script = Script::new(&ports);
        let mut now = Instant::ZERO;
        for step in steps {
            now = now + Duration::from_nanos(step.after_ns);
            let to = if step.to == 7 { BROADCAST } else { station(step.to) };
            let sent = frame(to, station(step.from as u8), step.len, 0);
            let buf = Buf::of(&sent[..step.len.min(sent.len())]);
            script.switch.on_frame(now, PortId(step.from), buf, |_| (!step.dry).then(Buf::empty));
            if let Some(port) = step.poll {
                script.leaving(now, port);
            }
            balance(&mut script, now)?;
            for (port, config) in script.switch.report(now).ports.iter().zip(&ports) {
                prop_assert!(port.queue.max <= config.queue_bytes);
            }
        }
        // Everything inside leaves at the times that the switch returns.
        while let Some(then) = script.switch.poll_timeout() {
            now = now.max(then);
            for port in 0..4 {
                script.leaving(now, port);
            }
        }
        prop_assert_eq!(script.switch.frames_inside(), 0);
        balance(&mut script, now)?;
    }
}

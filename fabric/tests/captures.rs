//! Captured ports report their frames to the observer.

use cc::{AlgorithmConfig, HpccConfig, Rate};
use ferroce_fabric::sim::{Flow, Hosts, Observer, PortFrame, Setup, SetupError, Topology, run, run_on};
use roce::qp::Congestion;
use roce::wire;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);
const DELAY: Duration = Duration::from_micros(1);

/// Host 0 sends 200 KiB over switch 2 to host 1.
fn setup(captured: Vec<[usize; 2]>) -> Setup {
    let hpcc = AlgorithmConfig::Hpcc(HpccConfig {
        base_rtt: Duration::from_nanos(4160),
        line_rate: LINE,
        min_rate: Rate::from_mbps(100),
        target_utilisation: 0.95,
        max_stage: 0,
        additive_increase: Rate::from_mbps(50),
    });
    let congestion = Congestion { in_band: Some(NonZero::<u32>::MIN), ..Congestion::new(hpcc) };
    let flow = Flow { source: 0, destination: 1, bytes: 200 << 10, start: DELAY, is_incast: false, dscp: 0 };
    Setup { captured, ..Setup::new(Topology::star(2, LINE, DELAY), vec![flow], congestion) }
}

/// Collects frames: port, whether it sent the frame, time, bytes. Ends the run when it has `most` frames.
#[derive(Default, Debug, PartialEq, Eq)]
struct Frames {
    all: Vec<(usize, bool, Duration, Vec<u8>)>,
    most: Option<usize>,
}

impl Observer for Frames {
    fn frame(&mut self, frame: &PortFrame<'_>) -> ControlFlow<()> {
        let &PortFrame { port, is_sent, time, bytes } = frame;
        self.all.push((port, is_sent, time, bytes.to_vec()));
        if self.most == Some(self.all.len()) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn captured_ports_report_whole_frames_in_the_order_of_time() {
    let setup = setup(vec![[0, 2], [2, 1]]);
    let mut frames = Frames::default();
    let outcome = run(&setup, &mut frames).unwrap();
    let Frames { all, .. } = &frames;
    assert!(all.is_sorted_by_key(|frame| frame.2) && all[0].2 == DELAY);
    let of = |port, sent| all.iter().filter(move |frame| (frame.0, frame.1) == (port, sent));
    let parsed = |frame: &(usize, bool, Duration, Vec<u8>)| {
        let parsed = wire::parse(&frame.3).unwrap();
        assert!(
            parsed.payload.len() < 1024 || parsed.payload.iter().all(|byte| *byte == 0),
            "data are zeros"
        );
        (parsed.payload.len(), parsed.in_band.map(|in_band| in_band.records().count()))
    };
    // The host sends 200 packets, which the switch stamps.
    for (port, hops) in [(0, 0), (1, 1)] {
        let data: Vec<_> = of(port, true).map(parsed).filter(|(payload, _)| *payload == 1024).collect();
        assert_eq!(data.len(), 200);
        assert_eq!(data.iter().filter_map(|data| data.1).max(), Some(hops));
    }
    assert!(of(0, false).map(parsed).count() > 0 && of(1, false).map(parsed).count() > 0, "acknowledgements");
    // The switch is idle: a frame leaves it when its last bit has arrived.
    let (first, next) = (of(0, true).next().unwrap(), of(1, true).next().unwrap());
    assert_eq!(next.2, first.2 + DELAY + Duration::from_nanos(first.3.len() as u64 * 8 / 100));

    let mut again = Frames::default();
    assert_eq!(run_on(3, &setup, &mut again).unwrap(), outcome);
    assert_eq!(again, frames);
    let not = run(&Setup { captured: Vec::new(), ..setup }, &mut ()).unwrap();
    assert_eq!((not.trace, not.events), (outcome.trace, outcome.events), "captures do not change the run");
}

#[test]
fn an_observer_ends_the_run_at_a_frame() {
    let mut frames = Frames { most: Some(3), ..Frames::default() };
    assert_eq!(run(&setup(vec![[0, 2]]), &mut frames), Err(SetupError::Observer));
    assert_eq!(frames.all.len(), 3);
}

#[test]
fn captures_need_endpoints_and_a_link() {
    let model = Setup { hosts: Hosts::Model, ..setup(vec![[0, 2]]) };
    assert_eq!(model.check(), Err(SetupError::Model { what: "captures" }));
    let error = SetupError::Port { what: "captured", port: 1, from: 0, to: 1 };
    assert_eq!(setup(vec![[0, 2], [0, 1]]).check(), Err(error));
}

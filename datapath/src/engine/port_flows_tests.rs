//! Tests of the count of flows that the cores and processes of a port share. Their times are an hour after those of the engine's turns.

use super::config::CoreConfig;
use super::pending_frames_tests::{Joined, connect};
use super::port_flows::PortFlows;
use super::*;
use crate::clock::Clock;
use crate::io;
use crate::siblings::Delivery;
use cc::{Instant, PublishedFlows};
use roce::wire::telemetry::IntHeader;
use roce::wire::{Bth, Header, Path};
use roce::{Psn, Qpn, wire};
use std::sync::mpsc::channel;

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn at(micros: u64) -> Instant {
    Instant::from_nanos((3_600_000_000 + micros) * 1000)
}

fn start(cores: u8) -> Engine {
    let config = CoreConfig { cores, ..super::tests::config(Progress::Inline) };
    // SAFETY: these tests register no memory.
    unsafe { Engine::start(io::pair(256, 2048).0, &config).unwrap() }
}

/// Delivers a probe to a new queue pair, which is then an active flow. Turns of the engine exchange no numbers from then on.
fn add_flow(state: &mut CoreState, now: Instant) {
    state.next_count = now;
    let qpn = connect(state, now, PEER, Qpn::new(9));
    let [ours, theirs] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
    let probe = Header::TelemetryRequest { bth: Bth::new(qpn, Psn::new(0)), int: IntHeader::with_room(0) };
    let mut frame = [0; 200];
    let path = Path::new((PEER, theirs), (OWN, ours));
    let length = wire::emit(&path, 0, &probe, 0, &mut frame).unwrap().seal();
    state.on_frame(now, &frame[..length]);
}

#[test]
fn a_core_reports_the_flows_of_all_cores() {
    let engine = start(2);
    for (core, flows) in [(0, 1), (1, 3)] {
        engine.call_on(core, move |state, _| (0..flows).for_each(|_| add_flow(state, at(0)))).unwrap();
    }
    let count = |core, now| {
        let count = move |state: &mut CoreState, _| {
            state.count_flows(now);
            state.endpoint.flow_count().get()
        };
        engine.call_on(core, count).unwrap()
    };
    assert_eq!(count(0, at(10)), 1, "core 1 has published nothing");
    assert_eq!(count(1, at(10)), 4);
    assert_eq!(count(0, at(12)), 1, "the numbers of others are read every 10 µs");
    assert_eq!(count(0, at(20)), 4);
    engine.call_on(0, |state, _| add_flow(state, at(290))).unwrap();
    assert_eq!(count(0, at(300)), 1, "core 1 has received nothing for 200 µs");
}

#[test]
fn a_process_reports_the_flows_of_all_processes() {
    let interface = 0x1000_0000 | std::process::id();
    let join = || {
        let mut siblings = Siblings::join(interface, Delivery::ToAll).unwrap();
        let (joined, members) = channel();
        siblings.watch(Box::new(Joined(joined))).unwrap();
        (siblings, members)
    };
    let ((own, members), (other, _others)) = (join(), join());
    let (slot, member) = members.recv().unwrap();
    let flows = Arc::new(own.member_flows());
    member.join_flows(slot, &flows);
    let port = Arc::new(PortFlows::new(1, Some(flows.clone())));
    let theirs = other.member_flows();
    let now = Clock::new().since_boot(at(10));
    theirs.publish(PublishedFlows::new(7, now + Duration::from_micros(200)));
    let engine = start(1);
    let count = |now| {
        let port = port.clone();
        let count = move |state: &mut CoreState, _| {
            state.flows = Some(port);
            add_flow(state, now);
            state.count_flows(now);
            state.endpoint.flow_count().get()
        };
        engine.call(count).unwrap()
    };
    assert_eq!(count(at(10)), 8);
    flows.remove(slot);
    assert_eq!(count(at(20)), 2, "the other process has ended");
}

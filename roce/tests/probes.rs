//! State that a peer's telemetry creates in a queue pair: it is small, and is freed when telemetry ends.

use crate::harness::script::{PSN, SEND, Script};
use crate::harness::{Options, telemetry_setup};
use core::time::Duration;
use roce::qp::RecvRequest;
use roce::wire::telemetry::IntHeader;
use roce::wire::{Header, Reverse};

/// The time without telemetry after which its memory is freed.
const IDLE: Duration = Duration::from_secs(2);
/// An upper bound in bytes on the state of a peer with telemetry on one path.
const ONE_PATH: i64 = 2560;

/// Delivers a probe from this UDP port, and checks its response.
fn probe(script: &mut Script, number: u32, port: u16) {
    script.path.udp_source = port;
    let int = IntHeader::with_room(0);
    let header = Header::TelemetryRequest { bth: script.bth(number), int };
    script.send_header(&header, &[]).unwrap();
    assert!(matches!(script.next_header(), Some((Header::TelemetryResponse { .. }, _))));
}

/// Delivers a message from this port, and checks its acknowledgement.
fn message(script: &mut Script, number: u32, port: u16) {
    let (qpn, into) = (script.host.qpn, script.host.sge(0, 64));
    script.host.endpoint.post_recv(qpn, RecvRequest::new(1, into)).unwrap();
    script.path.udp_source = port;
    script.send(PSN + number, SEND, &[1]).unwrap();
    assert_eq!(script.drain().len(), 1);
    assert_eq!(script.host.received().len(), 1);
}

fn held(work: impl FnOnce()) -> i64 {
    allocation_counter::measure(work).bytes_current
}

#[test]
fn probes_of_one_path_cost_one_path() {
    let mut script = Script::new(Options::default());
    message(&mut script, 0, 1);
    let one = held(|| probe(&mut script, 0, 1));
    assert!((1..=ONE_PATH).contains(&one), "{one} bytes for a path");
    let more = held(|| (1..100).for_each(|number| probe(&mut script, number, 1)));
    assert_eq!(more, 0, "for the same path");
    message(&mut script, 1, 1);
    let second = held(|| probe(&mut script, 100, 2));
    assert!((1..=ONE_PATH).contains(&second), "{second} bytes for one path more");
}

#[test]
fn memory_for_telemetry_is_freed_when_telemetry_stops() {
    let mut script = Script::new(Options::default());
    message(&mut script, 0, 1);
    let left = held(|| {
        probe(&mut script, 0, 1);
        message(&mut script, 1, 1);
        (2..40).for_each(|port| probe(&mut script, port.into(), port));
        script.wait(IDLE);
        // Any frame triggers the search for unused memory.
        message(&mut script, 2, 1);
    });
    // The list of queue pairs with such state keeps its capacity.
    assert!(left <= 64, "{left} bytes are left");
    // The state is created again.
    probe(&mut script, 40, 1);
}

/// Destroying a queue pair with such state frees all of it.
#[test]
fn a_destroyed_queue_pair_has_no_probe_state() {
    let mut script = Script::new(Options::default());
    probe(&mut script, 0, 1);
    let (now, old) = (script.now, script.host.qpn);
    let init = script.host.init(&Options::default());
    script.host.endpoint.destroy_qp(now, old).unwrap();
    script.host.qpn = script.host.endpoint.create_qp(now, init).unwrap();
    let options = Options::default();
    script.host.ready_to_receive(
        crate::harness::path(2, 1),
        roce::Qpn::new(crate::harness::script::PEER),
        PSN,
        &options,
    );
    probe(&mut script, 1, 1);
    script.wait(IDLE);
    message(&mut script, 0, 1);
    probe(&mut script, 2, 1);
}

/// The agreement persists: a peer that has set up telemetry sends no second setup.
#[test]
fn a_telemetry_agreement_persists_while_idle() {
    let mut script = Script::new(Options::default());
    let setup = telemetry_setup(Reverse::Notification);
    let header = Header::TelemetrySetup { bth: script.bth(0), setup, seal: None };
    script.send_header(&header, &[]).unwrap();
    assert!(matches!(script.next_header(), Some((Header::TelemetryNotification { .. }, _))));
    probe(&mut script, 0, 1);
    script.wait(IDLE);
    let after = held(|| {
        message(&mut script, 0, 1);
        probe(&mut script, 1, 1);
    });
    assert_eq!(after, 0, "nothing was made anew");
}

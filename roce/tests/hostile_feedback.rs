//! Arbitrary bytes as a peer's feedback, telemetry and setup, on queue pairs of every algorithm.

use crate::congestion_reports;
use crate::harness::Options;
use crate::harness::raw::Raw;
use crate::harness::script::{PSN, Script};
use cc::{HpccConfig, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use proptest::prelude::*;
use roce::qp::{CongestionAlgorithm, Remote, SendRequest, State};
use roce::wire::Opcode;
use roce::{Discard, Rkey};

/// Returns a report of kind 4 with one hop: 10 Gb/s, both counters at 0 and 64 bits wide, an empty queue, counts in units of 1 ns and
/// `unit` bytes.
fn hop(unit: u32) -> Vec<u8> {
    let mut bytes = vec![0x40, 1, 1, 0];
    for value in [10_000_000_000u64, 0, 0, 0] {
        bytes.extend(value.to_be_bytes());
    }
    bytes.extend([64, 64, 0, 0, 0, 0, 0, 1]);
    bytes.extend(unit.to_be_bytes());
    bytes
}

/// A unit of 0 makes the period of a counter 0, by which HPCC++ of the sender would divide.
#[test]
fn a_counter_of_unit_zero_is_counted_and_refused() {
    let config = HpccConfig::new(Rate::from_gbps(10), Duration::from_micros(10), NonZeroU32::MIN);
    let mut script =
        Script::new(Options { congestion: CongestionAlgorithm::Hpcc(config), ..Options::default() });
    let (qpn, from) = (script.host.qpn, script.host.sge(0, 4096));
    let remote = Remote { address: 0x1000, rkey: Rkey::new(5) };
    script.host.endpoint.post_send(script.now, qpn, SendRequest::write(1, from, remote)).unwrap();
    while script.next_header().is_some() {}
    for (unit, taken) in
        [(0, Err(Discard::Telemetry)), (0, Err(Discard::Telemetry)), (1, Ok(())), (1, Ok(()))]
    {
        let opcode = Opcode::TELEMETRY_NOTIFICATION.0;
        let raw =
            Raw { opcode, flags: 0, partition_key: 0xffff, ack_request: false, psn: PSN, rest: hop(unit) };
        let frame = raw.frame(qpn);
        assert_eq!(script.host.endpoint.on_frame(script.now, &mut script.host.ram, &frame), taken);
        script.now = script.now + Duration::from_micros(3);
    }
    assert_eq!(script.discarded(Discard::Telemetry), 2);
    assert_eq!(script.state(), State::ReadyToSend);
}

proptest! {
    /// This test fails without either bound on a peer's values: the unit of a counter and the share of a link.
    #[test]
    fn any_telemetry_leaves_a_queue_pair_running(bytes in proptest::collection::vec(any::<u8>(), 0..6000)) {
        congestion_reports::run(&bytes);
    }
}

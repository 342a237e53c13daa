//! Data without acknowledgements (READ responses and packets of unreliable connections): probes measure its congestion.

use crate::harness::{BASE, Host, Options, Pair};
use cc::{HpccConfig, Instant, Rate};
use core::cell::Cell;
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{CompletionStatus, CongestionAlgorithm, Modify, QpInit, QpReport, Remote, SendRequest};
use roce::wire::telemetry::{HopRecord, Speed, stamp};
use roce::wire::{Header, Service, parse};
use std::rc::Rc;

const BASE_RTT: Duration = Duration::from_micros(10);
const LENGTH: u32 = 200_000;

fn hpcc() -> Options {
    let config = HpccConfig::new(Rate::from_gbps(10), BASE_RTT, NonZeroU32::new(4).unwrap());
    Options {
        congestion: CongestionAlgorithm::Hpcc(config),
        probe_interval: Some(BASE_RTT),
        ack_timeout: 14,
        ..Options::default()
    }
}

/// Routes packets of `sender` through a switch whose 1 Gb/s link is always busy, with 100 kB queued. Returns the count of the sender's
/// probes.
fn full_link(pair: &mut Pair, sender: usize) -> Rc<Cell<u64>> {
    let speed = Speed::from_rate(Rate::from_gbps(1)).unwrap();
    let probes = Rc::new(Cell::new(0));
    let count = Rc::clone(&probes);
    pair.filter = Some(Box::new(move |from, frame| {
        let is_probe = matches!(parse(frame).unwrap().header, Header::TelemetryRequest { .. });
        if from == sender && is_probe {
            let time = count.get() * BASE_RTT.as_nanos() as u64;
            assert!(stamp(frame, 3, HopRecord::new(speed, time, time / 8, 100_000)));
            count.set(count.get() + 1);
        }
        true
    }));
    probes
}

fn is_slowed([before, after]: [&QpReport; 2]) -> bool {
    let [before, after] = [before, after].map(|report| report.rate.unwrap().as_bps());
    after * 4 < before
}

fn read(mut pair: Pair) -> (Pair, u64) {
    let probes = full_link(&mut pair, 1);
    let before = pair.reports();
    let into = pair.hosts[0].sge(0, LENGTH);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.post(0, SendRequest::read(1, into, remote));
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success);
    let after = pair.reports();
    assert!(is_slowed([&before[1].unwrap(), &after[1].unwrap()]), "{after:?}");
    (pair, probes.get())
}

#[test]
fn a_full_link_slows_the_responses_of_a_read() {
    let (pair, probes) = read(Pair::connect(hpcc()));
    // At most one probe for each round trip, and one after the last response: probing ends.
    let took = pair.now.saturating_since(Instant::ZERO);
    assert!(u128::from(probes) <= took.as_nanos() / BASE_RTT.as_nanos() + 1, "{probes} in {took:?}");
}

/// READ responses carry no telemetry, because no acknowledgement could return it: probes replace it.
#[test]
fn responses_are_probed_where_requests_carry_telemetry() {
    let adjust: fn(&mut _) =
        |congestion: &mut roce::qp::Congestion| congestion.in_band = Some(NonZeroU32::MIN);
    let options = Options { probe_interval: None, adjust, ..hpcc() };
    let (mut pair, probes) = read(Pair::connect(options));
    assert!(probes > 2);
    // In the other direction, where all data is acknowledged, no probe follows the first window.
    let sent = |pair: &Pair| pair.hosts[0].endpoint.counters().probes_sent;
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    let from = pair.hosts[0].sge(0, LENGTH);
    pair.post(0, SendRequest::write(2, from, remote));
    pair.run(Duration::from_secs(1));
    assert!((1..=16).contains(&sent(&pair)), "{}", sent(&pair));
}

/// Creates a host whose queue pair is an unreliable connection.
fn unreliable(core: u8, options: &Options) -> Host {
    let mut host = Host::new(core, options);
    let init = QpInit { service: Service::Uc, ..host.init(options) };
    host.qpn = host.endpoint.create_qp(Instant::ZERO, init).unwrap();
    host
}

#[test]
fn a_full_link_slows_an_unreliable_connection() {
    let options = hpcc();
    let mut pair = Pair::of([1, 2].map(|core| unreliable(core, &options)), options);
    let probes = full_link(&mut pair, 0);
    let before = pair.reports();
    let from = pair.hosts[0].sge(0, LENGTH);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.post(0, SendRequest::write(1, from, remote));
    pair.run(Duration::from_secs(1));
    assert!(probes.get() > 2);
    assert!(is_slowed([&before[0].unwrap(), &pair.reports()[0].unwrap()]), "{:?}", pair.reports());
    assert_eq!(pair.hosts[1].endpoint.counters().rx_payload_bytes, u64::from(LENGTH));
}

/// Nothing is acknowledged. Probes that return without telemetry, and lost probes, show that HPCC++ receives none.
#[test]
fn an_unreliable_connection_without_telemetry_uses_marks() {
    for answers in [true, false] {
        let options = hpcc();
        let mut pair = Pair::of([1, 2].map(|core| unreliable(core, &options)), options);
        pair.filter = Some(Box::new(move |_, frame| {
            answers || !matches!(parse(frame).unwrap().header, Header::TelemetryRequest { .. })
        }));
        let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
        for id in 0..8 {
            let from = pair.hosts[0].sge(0, LENGTH);
            pair.post(0, SendRequest::write(id, from, remote));
            pair.run(Duration::from_secs(1));
        }
        assert_eq!(pair.reports()[0].unwrap().algorithm, "dcqcn", "answers: {answers}");
        if !answers {
            assert_eq!(
                pair.hosts[0].endpoint.counters().probes_sent,
                20,
                "no more to a peer that knows none"
            );
        }
    }
}

/// In ERR no probe is pending, and no timer runs.
#[test]
fn an_unreliable_connection_that_failed_keeps_no_timer() {
    let options = hpcc();
    let mut pair = Pair::of([1, 2].map(|core| unreliable(core, &options)), options);
    let from = pair.hosts[0].sge(0, LENGTH);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.post(0, SendRequest::write(1, from, remote));
    pair.step();
    let (now, qpn) = (pair.now, pair.hosts[0].qpn);
    pair.hosts[0].endpoint.modify_qp(now, qpn, Modify::Error).unwrap();
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.hosts[0].endpoint.poll_timeout(), None);
}

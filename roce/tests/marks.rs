//! ECN: marks echoed in acknowledgements (draft-bensley-tcpm-dctcp-01, section 3.2) and by CNPs (IBA annex A17.9.3).

use crate::harness::script::{PSN, Script, ack};
use crate::harness::{BASE, Options, Pair};
use cc::{DcqcnConfig, DctcpConfig, Rate};
use core::time::Duration;
use roce::Discard;
use roce::qp::{CompletionStatus, CongestionAlgorithm, Remote, SendRequest};
use roce::wire::{AtomicEth, Bth, Ecn, FetchAdd, Header, Operation, Reth, Service, ecn, mark_ce};

const REMOTE: Remote = Remote { address: 0x1000, rkey: roce::Rkey::new(5) };

#[derive(Clone, Copy)]
struct Mark {
    ce: bool,
    exact: bool,
    asks: bool,
}

const PLAIN: Mark = Mark { ce: false, exact: true, asks: false };
const MARKED: Mark = Mark { ce: true, ..PLAIN };

fn receive(script: &mut Script, psn: u32, mark: Mark) {
    let operation = match psn {
        PSN => Operation::WriteFirst(Reth { length: 1 << 20, ..script.reth(0, 0) }),
        _ => Operation::WriteMiddle,
    };
    let congestion = if mark.exact { Bth::EXACT_ECHO } else { 0 };
    let bth = Bth { congestion, ack_request: mark.asks, ..script.bth(psn) };
    script.path.traffic_class = if mark.ce { 3 } else { 2 };
    let header = Header::Connected { service: Service::Rc, bth, operation };
    assert_eq!(script.send_header(&header, &[7; 1024]), Ok(()));
}

/// Returns PSN and BECN of every acknowledgement that is sent now.
fn acknowledgements(script: &mut Script) -> Vec<(u32, bool)> {
    core::iter::from_fn(|| script.next_header())
        .map(|(header, _)| match header {
            Header::Connected { bth, operation: Operation::Acknowledge(_), .. } => {
                (bth.psn.get(), bth.congestion & Bth::BECN != 0)
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

/// Section 3.2: rule 1 (CE set, state false), rule 2 (CE not set, state true), rule 3 (else nothing).
#[test]
fn a_change_of_the_mark_acknowledges_the_packets_before_it() {
    let mut script = Script::new(Options::default());
    receive(&mut script, PSN, PLAIN);
    receive(&mut script, PSN + 1, PLAIN);
    assert_eq!(acknowledgements(&mut script), [], "rule 3");
    receive(&mut script, PSN + 2, MARKED);
    assert_eq!(acknowledgements(&mut script), [(PSN + 1, false)], "rule 1");
    receive(&mut script, PSN + 3, MARKED);
    assert_eq!(acknowledgements(&mut script), [], "rule 3");
    receive(&mut script, PSN + 4, Mark { asks: true, ..MARKED });
    assert_eq!(acknowledgements(&mut script), [(PSN + 4, true)], "coalesced, ECE as the state is");
    receive(&mut script, PSN + 5, PLAIN);
    assert_eq!(acknowledgements(&mut script), [], "rule 2, but nothing is unacknowledged");
    receive(&mut script, PSN + 6, MARKED);
    receive(&mut script, PSN + 7, Mark { asks: true, ..PLAIN });
    assert_eq!(
        acknowledgements(&mut script),
        [(PSN + 5, false), (PSN + 6, true), (PSN + 7, false)],
        "two changes in one burst"
    );
}

/// Returns the name, PSN and BECN of every answer that is sent now.
fn answers(script: &mut Script) -> Vec<(&'static str, u32, bool)> {
    core::iter::from_fn(|| script.next_header())
        .map(|(header, _)| {
            let Header::Connected { bth, operation, .. } = header else { panic!("{header:?}") };
            let name = match operation {
                Operation::Acknowledge(_) => "ack",
                Operation::AtomicAcknowledge { .. } => "atomic",
                Operation::ReadResponseFirst(_) => "first",
                Operation::ReadResponseLast(_) => "last",
                other => panic!("{other:?}"),
            };
            (name, bth.psn.get(), bth.congestion & Bth::BECN != 0)
        })
        .collect()
}

/// Delivers a WRITE, a READ of two packets or an atomic, which requests an exact echo.
fn request(script: &mut Script, psn: u32, name: &str, ce: bool) -> Result<(), Discard> {
    let (address, rkey) = (BASE, script.rkey());
    let operation = match name {
        "write" => Operation::WriteOnly(script.reth(0, 1024), None),
        "read" => Operation::ReadRequest(script.reth(0, 2000)),
        _ => Operation::FetchAdd(AtomicEth { address, rkey, operands: FetchAdd { add: 1 } }),
    };
    let bth = Bth { congestion: Bth::EXACT_ECHO, ..script.bth(psn) };
    script.path.traffic_class = if ce { 3 } else { 2 };
    let header = Header::Connected { service: Service::Rc, bth, operation };
    script.send_header(&header, if name == "write" { &[7; 1024] } else { &[] })
}

/// The response to a READ or an atomic acknowledges the packets before it, so it carries the mark. A change of the mark is acknowledged
/// before it.
#[test]
fn responses_carry_the_mark_of_the_packets_that_they_acknowledge() {
    for (name, packets) in [("read", 2), ("atomic", 1)] {
        let mut script = Script::new(Options::default());
        let response = |psn, marked| match name {
            "read" => vec![("first", psn, marked), ("last", psn + 1, false)],
            _ => vec![("atomic", psn, marked)],
        };
        assert_eq!(request(&mut script, PSN, "write", true), Ok(()));
        assert_eq!(request(&mut script, PSN + 1, name, true), Ok(()));
        assert_eq!(answers(&mut script), response(PSN + 1, true), "marked");
        assert_eq!(request(&mut script, PSN + 1, name, true), Err(Discard::Duplicate));
        assert_eq!(answers(&mut script), response(PSN + 1, true), "requested again");

        let psn = PSN + 1 + packets;
        assert_eq!(request(&mut script, psn, "write", false), Ok(()));
        assert_eq!(request(&mut script, psn + 1, "write", true), Ok(()));
        assert_eq!(request(&mut script, psn + 2, name, true), Ok(()));
        let change = [vec![("ack", psn, false)], response(psn + 2, true)].concat();
        assert_eq!(answers(&mut script), change, "the mark changes before the last WRITE");

        let psn = psn + 2 + packets;
        assert_eq!(request(&mut script, psn, "write", true), Ok(()));
        assert_eq!(request(&mut script, psn + 1, name, false), Ok(()));
        assert_eq!(request(&mut script, psn + 1 + packets, "write", true), Ok(()));
        let changes =
            [vec![("ack", psn, true)], response(psn + 1, false), vec![("ack", psn + 1 + packets, true)]];
        assert_eq!(answers(&mut script), changes.concat(), "the mark changes at the request");
    }
}

#[test]
fn a_sender_without_exact_echo_gets_plain_acknowledgements_and_cnps() {
    let mut script = Script::new(Options::default());
    let foreign = Mark { exact: false, ..MARKED };
    receive(&mut script, PSN, foreign);
    let (header, _) = script.next_header().unwrap();
    let Header::CongestionNotification { bth } = header else { panic!("{header:?}") };
    assert_eq!((bth.congestion, bth.psn.get(), bth.ack_request), (Bth::BECN, 0, false));
    receive(&mut script, PSN + 1, Mark { asks: true, ..foreign });
    assert_eq!(acknowledgements(&mut script), [(PSN + 1, false)], "one notification in 50 µs");
    script.wait(Duration::from_micros(50));
    receive(&mut script, PSN + 2, foreign);
    assert!(matches!(script.next_header(), Some((Header::CongestionNotification { .. }, _))));
    assert_eq!(script.host.endpoint.counters().notifications_sent, 2);
    assert_eq!(script.host.endpoint.counters().rx_marked, 3);
}

#[test]
fn an_exact_echo_gets_no_notifications() {
    let mut script = Script::new(Options::default());
    receive(&mut script, PSN, MARKED);
    assert!(script.next_header().is_none());
}

fn dctcp() -> Options {
    let congestion =
        CongestionAlgorithm::Dctcp(DctcpConfig::new(Rate::from_gbps(1), Duration::from_micros(100)));
    Options { congestion, ..Options::default() }
}

fn dcqcn() -> Options {
    let congestion = CongestionAlgorithm::Dcqcn(DcqcnConfig::new(Rate::from_gbps(1), None));
    Options { congestion, ack_timeout: 14, ..Options::default() }
}

fn post_write(script: &mut Script, length: u32) {
    let (qpn, from) = (script.host.qpn, script.host.sge(0, length));
    script.host.endpoint.post_send(script.now, qpn, SendRequest::write(1, from, REMOTE)).unwrap();
}

#[test]
fn an_echo_lowers_dctcps_window_and_a_plain_acknowledgement_does_not() {
    let mut script = Script::new(dctcp());
    let window = |script: &Script| script.host.endpoint.report(script.host.qpn).unwrap().window;
    post_write(&mut script, 100_000);
    let (header, _) = script.next_header().unwrap();
    assert_eq!(header.bth().congestion, Bth::EXACT_ECHO);
    script.wait(Duration::from_micros(20));
    assert!(script.next_header().is_some());
    let whole = window(&script);
    let acknowledge = |script: &mut Script, psn, congestion| {
        let bth = Bth { congestion, ..script.bth(psn) };
        let header = Header::Connected { service: Service::Rc, bth, operation: ack(0) };
        assert_eq!(script.send_header(&header, &[]), Ok(()));
    };
    acknowledge(&mut script, PSN, 0);
    assert_eq!(window(&script), whole);
    acknowledge(&mut script, PSN + 1, Bth::BECN);
    assert!(window(&script) < whole * 6 / 10);
}

#[test]
fn a_notification_lowers_dcqcns_rate() {
    let mut script = Script::new(dcqcn());
    let rate = |script: &Script| script.host.endpoint.report(script.host.qpn).unwrap().rate.unwrap();
    let header = Header::CongestionNotification { bth: script.bth(0) };
    assert_eq!(script.send_header(&header, &[]), Ok(()));
    assert_eq!(rate(&script), Rate::from_gbps(1));
    assert!(script.next_header().is_none());
    script.wait(Duration::from_micros(51));
    assert_eq!(rate(&script), Rate::from_mbps(500));
    assert_eq!(script.host.endpoint.counters().notifications_received, 1);
    script.partition_key = 0x8001;
    let foreign = Header::CongestionNotification { bth: script.bth(0) };
    assert_eq!(script.send_header(&foreign, &[]), Err(Discard::PartitionKey));
}

/// Over a link that marks every packet while it carries more than half a gigabit per second, both algorithms lower their rates, and all
/// data arrives. Packets are ECN-capable only if their sender reacts to marks.
#[test]
fn marks_bring_both_algorithms_down() {
    for options in [dctcp(), dcqcn()] {
        let mut pair = Pair::connect(options);
        pair.filter = Some(Box::new(|from, frame| {
            assert_eq!(ecn(frame), Some(Ecn::Ect0));
            if from == 0 {
                assert!(mark_ce(frame));
            }
            true
        }));
        let before = pair.reports()[0].unwrap().rate.unwrap();
        let from = pair.hosts[0].sge(0, 500_000);
        let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
        pair.post(0, SendRequest::write(1, from, remote));
        while pair.hosts[1].endpoint.counters().rx_payload_bytes < 500_000 {
            assert!(pair.step());
        }
        let after = pair.reports()[0].unwrap().rate.unwrap();
        assert!(after.as_bps() * 2 < before.as_bps(), "{before} then {after}");
        pair.run(Duration::from_secs(10));
        assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success);
    }
}

/// "cwnd = cwnd * (1 - Alpha / 2)" once a window (DCTCP 3.3), even if a response acknowledges each marked WRITE.
#[test]
fn marks_lower_dctcps_rate_behind_reads_and_atomics() {
    let rates = ["write", "read", "atomic"].map(|behind| {
        let mut pair = Pair::connect(dctcp());
        pair.filter = Some(Box::new(|from, frame| from != 0 || mark_ce(frame)));
        let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
        let (data, word) = (pair.hosts[0].sge(0, 4000), pair.hosts[0].sge(8000, 8));
        for _ in 0..40 {
            for _ in 0..4 {
                pair.post(0, SendRequest::write(1, data, remote));
                match behind {
                    "read" => pair.post(0, SendRequest::read(1, word, remote)),
                    "atomic" => pair.post(0, SendRequest::fetch_add(1, word, remote, 1)),
                    _ => {}
                }
            }
            pair.run(Duration::from_secs(10));
            assert!(pair.hosts[0].sent().iter().all(|sent| sent.status == CompletionStatus::Success));
        }
        pair.reports()[0].unwrap().rate.unwrap().as_bps()
    });
    let [write, read, atomic] = rates;
    assert!(read <= 2 * write && atomic <= 2 * write, "{rates:?}");
}

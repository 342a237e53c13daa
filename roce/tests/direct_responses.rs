//! Direct responses (pan-01 6.3): a switch reports congestion to a sender immediately, and has only the destination of its packet.

use crate::harness::script::{PEER, PSN, Script};
use crate::harness::{Options, path};
use cc::{HpccConfig, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{Congestion, CongestionAlgorithm, FeedbackKey, Modify, Remote, SendRequest};
use roce::wire::{Bth, Feedback, Header, MAX_FEEDBACK, Report, Seal};
use roce::{Discard, Qpn};

const KEY: FeedbackKey = FeedbackKey([9; 16]);

fn options(adjust: fn(&mut Congestion)) -> Options {
    let config = HpccConfig::new(Rate::from_gbps(10), Duration::from_micros(10), NonZeroU32::MIN);
    let congestion = CongestionAlgorithm::Hpcc(config);
    Options { congestion, adjust, ..Options::default() }
}

fn script(adjust: fn(&mut Congestion)) -> Script {
    let mut script = Script::new(options(adjust));
    let remote = Remote { address: 0x1000, rkey: roce::Rkey::new(5) };
    let (qpn, from) = (script.host.qpn, script.host.sge(0, 4096));
    script.host.endpoint.post_send(script.now, qpn, SendRequest::write(1, from, remote)).unwrap();
    while script.next_header().is_some() {}
    script
}

/// Delivers a report of a threefold overload, about the packet `PSN`.
fn send_report(script: &mut Script, seal: Option<u64>) -> Result<(), Discard> {
    script.wait(Duration::from_micros(50));
    let bth = Bth { destination: Qpn::new(PEER), ..script.bth(PSN) };
    let report = Report::Ratio { path_id: 0, utilisation: 3 << 20, interval: 10_000 };
    let mut content = [0; MAX_FEEDBACK];
    let length = Feedback { report, seal: None }.write(&mut content);
    let seal = seal.map(|counter| KEY.seal_direct(&bth, &content[..length], counter));
    script.send_header(&Header::DirectResponse { bth, feedback: Feedback { report, seal } }, &[])
}

/// Delivers a report about a packet to the peer's queue pair `destination`.
fn send_report_about(script: &mut Script, destination: u32) -> Result<(), Discard> {
    let bth = Bth { destination: Qpn::new(destination), ..script.bth(PSN) };
    let report = Report::Ratio { path_id: 0, utilisation: 1, interval: 1 };
    script.send_header(&Header::DirectResponse { bth, feedback: Feedback { report, seal: None } }, &[])
}

fn rate(script: &Script) -> Rate {
    script.host.endpoint.report(script.host.qpn).unwrap().rate.unwrap()
}

#[test]
fn a_direct_response_reaches_the_queue_pair_of_the_destination() {
    let mut script = script(|_| {});
    assert_eq!(rate(&script), Rate::from_gbps(10));
    // The first telemetry of a flow is only recorded.
    assert_eq!([send_report(&mut script, None), send_report(&mut script, None)], [Ok(()), Ok(())]);
    assert!(rate(&script) < Rate::from_gbps(5), "{}", rate(&script));
}

#[test]
fn direct_responses_without_a_queue_pair_do_not_delay_others() {
    let mut script = script(|_| {});
    for _ in 0..3 {
        assert_eq!(send_report_about(&mut script, 0x55), Err(Discard::UnknownQp));
        assert_eq!(send_report_about(&mut script, PEER), Ok(()));
    }
    script.path.source = "10.0.0.9".parse().unwrap();
    assert_eq!(send_report_about(&mut script, PEER), Err(Discard::UnknownQp), "from another address");
}

/// Only queue pairs whose algorithm uses in-flight shares receive direct responses.
#[test]
fn a_fixed_window_ignores_direct_responses() {
    let mut script = Script::new(Options::default());
    assert_eq!(send_report_about(&mut script, PEER), Err(Discard::UnknownQp));
}

/// A response affects only a queue pair that has this peer now.
#[test]
fn a_direct_response_finds_only_the_queue_pair_that_has_the_peer_now() {
    let mut script = script(|_| {});
    let (now, qpn) = (script.now, script.host.qpn);
    let modify = |script: &mut Script, modify| {
        script.host.endpoint.modify_qp(now, qpn, modify).unwrap();
    };
    modify(&mut script, Modify::Reset);
    assert_eq!(send_report_about(&mut script, PEER), Err(Discard::UnknownQp));
    let options = options(|_| {});
    script.host.ready_to_receive(path(2, 1), Qpn::new(0x55), PSN, &options);
    assert_eq!(send_report_about(&mut script, 0x55), Err(Discard::UnknownQp), "it sends nothing yet");
    script.host.ready_to_send(&options);
    assert_eq!(send_report_about(&mut script, PEER), Err(Discard::UnknownQp), "the peer before");
    assert_eq!(
        send_report_about(&mut script, 0x55),
        Err(Discard::Telemetry),
        "found: it sent no such packet"
    );
    script.host.endpoint.destroy_qp(now, qpn).unwrap();
    assert_eq!(send_report_about(&mut script, 0x55), Err(Discard::UnknownQp));
}

/// With a key, a queue pair accepts authenticated responses only, each once.
#[test]
fn forged_and_replayed_responses_are_counted_and_ignored() {
    let mut script = script(|congestion| congestion.feedback_key = Some(KEY));
    let before = rate(&script);
    assert_eq!(send_report(&mut script, None), Err(Discard::ForgedFeedback));
    let bth = Bth { destination: Qpn::new(PEER), ..script.bth(PSN) };
    let report = Report::Ratio { path_id: 0, utilisation: 3 << 20, interval: 10_000 };
    let forged = Feedback { report, seal: Some(Seal { counter: 9, tag: [7; 16] }) };
    script.wait(Duration::from_micros(50));
    let header = Header::DirectResponse { bth, feedback: forged };
    assert_eq!(script.send_header(&header, &[]), Err(Discard::ForgedFeedback));
    assert_eq!(rate(&script), before);
    assert_eq!([send_report(&mut script, Some(6)), send_report(&mut script, Some(7))], [Ok(()), Ok(())]);
    let after = rate(&script);
    assert!(after < before);
    assert_eq!(send_report(&mut script, Some(7)), Err(Discard::StaleFeedback));
    assert_eq!((rate(&script), script.discarded(Discard::ForgedFeedback)), (after, 2));
    assert_eq!(send_report(&mut script, Some(8)), Ok(()));
}

/// A switch reports ratios: a direct response of any other kind is invalid.
#[test]
fn a_window_in_a_direct_response_is_refused() {
    let mut script = script(|_| {});
    let bth = Bth { destination: Qpn::new(PEER), ..script.bth(PSN) };
    let feedback = Feedback { report: Report::Window(1), seal: None };
    script.wait(Duration::from_micros(50));
    assert_eq!(script.send_header(&Header::DirectResponse { bth, feedback }, &[]), Err(Discard::Telemetry));
}

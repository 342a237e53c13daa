//! Faults by script.

use crate::script::{Buf, Script, at, station};
use ferroce_fabric::{
    FaultAction, FaultConfig, FaultCounters, FaultLine, FaultRule, Opcodes, PortConfig, PortId, Switch,
    SwitchConfig,
};
use roce::wire::{Bth, Header, Mac, Opcode, Operation, Path, Service, emit, parse};
use roce::{Discard, Psn, Qpn};
use std::time::Duration;

/// Returns a WRITE Middle packet of 8 bytes.
fn write(qp: u32, psn: u32) -> Vec<u8> {
    let end = |n: u8| (Mac(station(n)), [10, 0, 0, n].into());
    let bth = Bth::new(Qpn::new(qp), Psn::new(psn));
    let header = Header::Connected { service: Service::Rc, bth, operation: Operation::WriteMiddle };
    let mut frame = vec![0; 200];
    let mut draft = emit(&Path::new(end(0), end(1)), 0, &header, 8, &mut frame).unwrap();
    draft.payload().copy_from_slice(b"payload!");
    let length = draft.seal();
    frame.truncate(length);
    frame
}

fn psn(frame: &[u8]) -> u32 {
    roce::wire::parse_unverified(frame).unwrap().header.bth().psn.get()
}

/// Sends `frames`, one per microsecond; returns each frame that leaves with its time in µs, and the counters.
fn through(rules: &[FaultRule], frames: &[Vec<u8>]) -> (Vec<(u64, Vec<u8>)>, FaultCounters) {
    let mut line = FaultLine::new(FaultConfig::default()).with_rules(rules.iter().cloned());
    let mut out = Vec::new();
    let mut take = |line: &mut FaultLine<Buf>, now| {
        while let Some(buf) = line.poll(now) {
            out.push((now.as_nanos() / 1000, buf.to_vec()));
        }
    };
    for (n, frame) in frames.iter().enumerate() {
        while let Some(then) = line.poll_timeout().filter(|then| *then < at(n as u64)) {
            take(&mut line, then);
        }
        line.push(at(n as u64), Buf::of(frame), || Some(Buf::empty()));
        take(&mut line, at(n as u64));
    }
    while let Some(then) = line.poll_timeout() {
        take(&mut line, then);
    }
    (out, line.counters())
}

/// Sends PSNs 0 to 9 to queue pair 7. Returns times (µs) and PSNs of the frames that leave.
fn of_ten(rule: FaultRule) -> Vec<(u64, u32)> {
    let frames: Vec<_> = (0..10).map(|psn| write(7, psn)).collect();
    through(&[rule], &frames).0.iter().map(|(time, frame)| (*time, psn(frame))).collect()
}

fn psns_of_ten(rule: FaultRule) -> Vec<u32> {
    of_ten(rule).into_iter().map(|(_, psn)| psn).collect()
}

fn drop_rule() -> FaultRule {
    FaultRule::of(FaultAction::Drop)
}

#[test]
fn a_rule_fits_by_each_of_its_keys() {
    let write_middle = Opcodes::of(|code| code == Opcode(7));
    let micros = Duration::from_micros;
    for (rule, left) in [
        (drop_rule(), vec![]),
        (FaultRule { psns: Some(3..=4), ..drop_rule() }, vec![0, 1, 2, 5, 6, 7, 8, 9]),
        (FaultRule { count: Some(2), ..drop_rule() }, vec![2, 3, 4, 5, 6, 7, 8, 9]),
        (FaultRule { after: micros(2), until: Some(micros(9)), ..drop_rule() }, vec![0, 1, 9]),
        (FaultRule { qp: Some(7), opcodes: Some(write_middle), ..drop_rule() }, vec![]),
        (FaultRule { source: Some([10, 0, 0, 0].into()), ..drop_rule() }, vec![]),
        (FaultRule { destination: Some([10, 0, 0, 1].into()), ..drop_rule() }, vec![]),
        (FaultRule { longer_than: Some(write(7, 0).len() - 1), ..drop_rule() }, vec![]),
    ] {
        assert_eq!(psns_of_ten(rule.clone()), left, "{rule:?}");
    }
    let all: Vec<_> = (0..10).collect();
    for rule in [
        FaultRule { qp: Some(8), ..drop_rule() },
        FaultRule { opcodes: Some(Opcodes::of(|code| code == Opcode(17))), ..drop_rule() },
        FaultRule { source: Some([10, 0, 0, 1].into()), ..drop_rule() },
        FaultRule { udp_source: Some(1), ..drop_rule() },
        FaultRule { longer_than: Some(write(7, 0).len()), ..drop_rule() },
        FaultRule { probability: ferroce_fabric::Probability::NEVER, ..drop_rule() },
    ] {
        assert_eq!(psns_of_ten(rule.clone()), all, "{rule:?}");
    }
}

#[test]
fn other_frames_do_not_match_rules_about_roce() {
    let arp = crate::script::frame(station(1), station(0), 64, 1);
    let out = |rule| through(&[rule], std::slice::from_ref(&arp)).0.len();
    assert_eq!(out(FaultRule { qp: Some(0), ..drop_rule() }), 1);
    assert_eq!(out(drop_rule()), 0);
}

#[test]
fn a_flipped_bit_is_detected_unless_the_icrc_is_recomputed() {
    let sent = write(7, 5);
    for (good_icrc, verdict) in [(false, Err(Discard::Icrc)), (true, Ok(()))] {
        let rule = FaultRule::of(FaultAction::Corrupt { good_icrc });
        let (out, counters) = through(&[rule], std::slice::from_ref(&sent));
        let (_, frame) = &out[0];
        assert_ne!(frame, &sent);
        assert_eq!(parse(frame).map(drop), verdict);
        assert_eq!((counters.flipped, counters.resealed), (1, u64::from(good_icrc)));
    }
}

#[test]
fn later_frames_overtake_a_delayed_one() {
    let delay = FaultAction::Delay(Duration::from_micros(4));
    let rule = FaultRule { psns: Some(2..=2), ..FaultRule::of(delay) };
    let out = of_ten(rule);
    assert!(out.contains(&(6, 2)), "{out:?}");
    let order: Vec<_> = out.iter().map(|(_, psn)| *psn).collect();
    assert_eq!(order, [0, 1, 3, 4, 5, 2, 6, 7, 8, 9]);
}

#[test]
fn a_pause_ends_with_its_rule_and_keeps_the_order() {
    let (after, until) = (Duration::from_micros(2), Some(Duration::from_micros(6)));
    let out = of_ten(FaultRule { after, until, ..FaultRule::of(FaultAction::Pause) });
    assert_eq!(out.iter().map(|(_, psn)| *psn).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert_eq!(out.iter().map(|(time, _)| *time).collect::<Vec<_>>(), [0, 1, 6, 6, 6, 6, 6, 7, 8, 9]);
}

#[test]
fn a_rate_spaces_the_frames_that_fit() {
    let bytes = write(7, 0).len() as u64;
    // At 8 Mb/s, a byte takes a microsecond.
    let out = of_ten(FaultRule::of(FaultAction::Rate(cc::Rate::from_mbps(8))));
    let expected: Vec<_> = (0..10).map(|n| (bytes * (u64::from(n) + 1), n)).collect();
    assert_eq!(out, expected);
}

#[test]
fn duplicates_and_overtaken_frames_are_those_that_fit() {
    let of = |action| psns_of_ten(FaultRule { psns: Some(3..=3), ..FaultRule::of(action) });
    assert_eq!(of(FaultAction::Duplicate), [0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(of(FaultAction::Reorder(2)), [0, 1, 2, 4, 5, 3, 6, 7, 8, 9]);
}

#[test]
fn a_rule_of_a_port_does_not_affect_the_other_direction() {
    let rules = vec![FaultRule { port: Some(PortId(1)), ..drop_rule() }];
    let ports = vec![PortConfig::default(); 2];
    let config = SwitchConfig { ports, rules, ..SwitchConfig::default() };
    let mut script = Script { switch: Switch::new(&config).unwrap() };
    script.send(at(0), 0, &write(7, 1));
    assert_eq!(script.leaving(at(1), 1).len(), 0);
    script.send(at(2), 1, &write(7, 2));
    assert_eq!(script.leaving(at(3), 0).len(), 1);
    let report = script.switch.report(at(4));
    assert_eq!(report.ports.iter().map(|port| port.faults.lost).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn rules_change_between_two_frames_and_those_that_stay_keep_their_counts() {
    let named = |name: &str, rule: FaultRule| FaultRule { name: name.into(), ..rule };
    let of_7 = named("seven", FaultRule { qp: Some(7), count: Some(2), ..drop_rule() });
    let of_8 = named("eight", FaultRule { qp: Some(8), port: Some(PortId(1)), ..drop_rule() });
    let ports = vec![PortConfig::default(); 2];
    let config = SwitchConfig { ports, ..SwitchConfig::default() };
    let mut script = Script { switch: Switch::new(&config).unwrap() };
    let passes = |script: &mut Script, time, qp| {
        script.send(at(time), 0, &write(qp, 1));
        script.leaving(at(time), 1).len()
    };
    assert_eq!(passes(&mut script, 1, 7), 1);
    script.switch.change_rules(std::slice::from_ref(&of_7));
    assert_eq!((passes(&mut script, 2, 7), passes(&mut script, 3, 8)), (0, 1));
    script.switch.change_rules(&[of_8, of_7.clone()]);
    let lost_again: Vec<_> = (4..7).map(|time| passes(&mut script, time, 7)).collect();
    assert_eq!(lost_again, [0, 1, 1], "of the two frames that the rule loses one was lost before");
    assert_eq!(passes(&mut script, 8, 8), 0);
    let counts = |script: &Script| -> Vec<(String, u64, u64)> {
        let reports = script.switch.rule_reports();
        reports.into_iter().map(|rule| (rule.name, rule.fitted, rule.happened)).collect()
    };
    let mut both = counts(&script);
    both.sort();
    assert_eq!(both, [("eight".into(), 1, 1), ("seven".into(), 4, 2)]);
    script.switch.change_rules(&[]);
    assert_eq!((passes(&mut script, 9, 7), passes(&mut script, 10, 8)), (1, 1));
    assert_eq!(counts(&script), []);
}

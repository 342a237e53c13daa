//! Window, pacing, probes, and the longest message.

use crate::harness::script::{PSN, Script, ack};
use crate::harness::{BASE, Host, Options, Pair, open_window, paced, path};
use cc::{HpccConfig, Instant, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{CompletionStatus, CongestionAlgorithm, Remote, SendRequest, Sge};
use roce::wire::telemetry::{HopRecord, Speed, stamp};
use roce::wire::{Feedback, Header, MAX_OVERHEAD, Mac, Mtu, Report, parse};
use roce::{Access, AccessError, Discard, Memory, Outbox, Qpn, Slice};

const REMOTE: Remote = Remote { address: 0x1000, rkey: roce::Rkey::new(5) };

fn post_write(script: &mut Script, id: u64, length: u32) {
    let (qpn, from) = (script.host.qpn, script.host.sge(0, length));
    script.host.endpoint.post_send(script.now, qpn, SendRequest::write(id, from, REMOTE)).unwrap();
}

#[test]
fn acks_are_requested_sixteen_times_a_window_and_when_it_is_full() {
    let congestion = CongestionAlgorithm::Fixed { window: 34_000, rate: None };
    let mut script = Script::new(Options { congestion, ..Options::default() });
    post_write(&mut script, 1, 100_000);
    let asks = |script: &mut Script| -> Vec<(u32, bool)> {
        core::iter::from_fn(|| script.next_header())
            .map(|(header, _)| (header.bth().psn.get(), header.bth().ack_request))
            .collect()
    };
    // A sixteenth of the window is more than two packets; the last packet fills the window.
    let expected: Vec<_> = (0..34).map(|n| (PSN + n, n % 3 == 2 || n == 33)).collect();
    assert_eq!(asks(&mut script), expected);
    assert_eq!(script.send(PSN + 1, ack(0), &[]), Ok(()));
    assert_eq!(asks(&mut script), [(PSN + 34, false), (PSN + 35, true)]);
    let report = script.host.endpoint.report(script.host.qpn).unwrap();
    assert_eq!((report.in_flight, report.acknowledged_bytes, report.mtu), (34 * 1024, 2 * 1024, 1024));
}

#[test]
fn pacing_holds_the_rate_and_sends_no_earlier() {
    let rate = Rate::from_mbps(800);
    let options = Options { congestion: paced(1 << 30, rate), ack_timeout: 14, ..Options::default() };
    let mut pair = Pair::connect(options);
    let from = pair.hosts[0].sge(0, 500_000);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.post(0, SendRequest::write(1, from, remote));
    while pair.hosts[0].sent().is_empty() {
        assert!(pair.step());
    }
    let wire = 500_000 + 489 * 58;
    let shortest = rate.time_for(wire - 16 * 1024 - 1100);
    let longest = rate.time_for(wire) + Duration::from_micros(150);
    let took = pair.now.saturating_since(Instant::ZERO);
    assert!((shortest..=longest).contains(&took), "{took:?} is not in {shortest:?}..{longest:?}");
    assert_eq!(pair.hosts[0].endpoint.counters().timeouts, 0);
}

#[test]
fn a_slow_flow_does_not_time_out_between_acknowledgements() {
    // One packet takes 1 ms, and the timeout is 131 µs: it starts at a packet that requests an acknowledgement.
    let congestion = paced(1 << 30, Rate::from_mbps(9));
    let mut pair = Pair::connect(Options { congestion, ..Options::default() });
    let from = pair.hosts[0].sge(0, 100_000);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.post(0, SendRequest::write(1, from, remote));
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success);
    assert_eq!(pair.hosts[0].endpoint.counters().timeouts, 0);
}

/// Creates a second queue pair on the script's host, with 5 as its first PSN.
fn second(script: &mut Script, options: &Options) -> Qpn {
    second_to(Qpn::new(0x4711), script, options)
}

/// As [`second`], connected to `peer`.
fn second_to(peer: Qpn, script: &mut Script, options: &Options) -> Qpn {
    let host = &mut script.host;
    let init = host.init(options);
    let first = host.qpn;
    host.qpn = host.endpoint.create_qp(Instant::ZERO, init).unwrap();
    host.ready_to_receive(path(2, 1), peer, PSN, options);
    host.ready_to_send(&Options { send_psn: 5, ..*options });
    core::mem::replace(&mut host.qpn, first)
}

/// Round robin: a long message does not delay a short one of another queue pair.
#[test]
fn queue_pairs_are_served_round_robin() {
    let options = Options { congestion: open_window(), ..Options::default() };
    let mut script = Script::new(options);
    let second = second(&mut script, &options);
    post_write(&mut script, 1, 5000);
    let from = script.host.sge(0, 1024);
    script.host.endpoint.post_send(script.now, second, SendRequest::write(1, from, REMOTE)).unwrap();
    let psns: Vec<_> = script.drain().iter().map(|(psn, _)| *psn).collect();
    assert_eq!(psns, [PSN, 5, PSN + 1, PSN + 2, PSN + 3, PSN + 4]);
}

/// A burst buffer for a limited number of frames.
struct Frames {
    room: Vec<u8>,
    left: usize,
    written: Vec<Vec<u8>>,
}

impl Outbox for Frames {
    fn room(&mut self) -> Option<&mut [u8]> {
        (self.left > 0).then_some(&mut self.room[..])
    }

    fn commit(&mut self, length: usize) {
        self.left -= 1;
        self.written.push(self.room[..length].to_vec());
    }
}

/// In a burst, a turn is 8 KiB of frames, here eight frames; frames that do not fit into one burst are sent in the next.
#[test]
fn a_turn_in_a_burst_is_some_packets_long() {
    let options = Options { congestion: open_window(), ..Options::default() };
    let mut script = Script::new(options);
    let second = second(&mut script, &options);
    post_write(&mut script, 1, 20 * 1024);
    let from = script.host.sge(0, 20 * 1024);
    script.host.endpoint.post_send(script.now, second, SendRequest::write(1, from, REMOTE)).unwrap();
    let mut burst = |left| {
        let mut frames = Frames { room: vec![0; 1024 + MAX_OVERHEAD], left, written: Vec::new() };
        script.host.endpoint.transmit(script.now, &script.host.ram, &mut frames);
        let psn = |frame: &Vec<u8>| parse(frame).unwrap().header.bth().psn.get();
        frames.written.iter().map(psn).collect::<Vec<_>>()
    };
    let of = |first: u32, numbers: core::ops::Range<u32>| numbers.map(move |n| first + n);
    let first: Vec<_> = of(PSN, 0..8).chain(of(5, 0..8)).chain(of(PSN, 8..12)).collect();
    assert_eq!(burst(20), first);
    let rest: Vec<_> = of(5, 8..16).chain(of(PSN, 12..20)).chain(of(5, 16..20)).collect();
    assert_eq!(burst(100), rest);
    assert_eq!(burst(100), []);
}

/// A burst buffer with room for only one frame at a time to the queue pair `full`.
struct OneFull {
    frames: Frames,
    full: Qpn,
    is_full: bool,
    ends_turn: bool,
}

impl Outbox for OneFull {
    fn room(&mut self) -> Option<&mut [u8]> {
        if self.ends_turn { None } else { self.frames.room() }
    }

    fn commit(&mut self, length: usize) {
        self.frames.commit(length);
        let last = self.frames.written.last().unwrap();
        self.ends_turn = parse(last).unwrap().header.bth().destination == self.full;
        self.is_full |= self.ends_turn;
    }

    fn begin_turn(&mut self) -> bool {
        self.ends_turn = false;
        self.is_full
    }

    fn has_room_to(&self, _: Mac, qpn: Qpn) -> bool {
        !self.is_full || qpn != self.full
    }
}

#[test]
fn a_peer_without_room_does_not_delay_queue_pairs_of_other_peers() {
    let options = Options { congestion: open_window(), ..Options::default() };
    let mut script = Script::new(options);
    let full = Qpn::new(0x4712);
    let second = second_to(full, &mut script, &options);
    let from = script.host.sge(0, 4 * 1024);
    script.host.endpoint.post_send(script.now, second, SendRequest::write(1, from, REMOTE)).unwrap();
    post_write(&mut script, 1, 20 * 1024);
    let mut burst = || {
        let frames = Frames { room: vec![0; 1024 + MAX_OVERHEAD], left: 100, written: Vec::new() };
        let mut out = OneFull { frames, full, is_full: false, ends_turn: false };
        script.host.endpoint.transmit(script.now, &script.host.ram, &mut out);
        let psn = |frame: &Vec<u8>| parse(frame).unwrap().header.bth().psn.get();
        out.frames.written.iter().map(psn).collect::<Vec<_>>()
    };
    let first: Vec<_> = (0..20).map(|n| PSN + n).collect();
    assert_eq!(burst(), [&first[..8], &[5], &first[8..]].concat());
    for psn in 6..9 {
        assert_eq!(burst(), [psn], "the second goes on in order");
    }
    assert_eq!(burst(), []);
}

const BASE_RTT: Duration = Duration::from_micros(10);

fn hpcc() -> Options {
    let config = HpccConfig::new(Rate::from_gbps(10), BASE_RTT, NonZeroU32::new(4).unwrap());
    Options {
        congestion: CongestionAlgorithm::Hpcc(config),
        probe_interval: Some(BASE_RTT),
        ack_timeout: 10,
        ..Options::default()
    }
}

/// rtgwg-00 6.2.1: requests for telemetry, once a round trip after the 16 of the first window.
#[test]
fn probes_run_only_while_data_is_in_flight_and_survive_loss() {
    let mut pair = Pair::connect(hpcc());
    let mut probes = 0;
    // Every other probe is lost.
    pair.filter = Some(Box::new(move |_, frame| {
        let is_probe = stamp(&mut frame.clone(), 1, HopRecord::new(Speed::from_code(0).unwrap(), 0, 0, 0));
        probes += u32::from(is_probe);
        !is_probe || probes % 2 == 0
    }));
    let from = pair.hosts[0].sge(0, 500_000);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.post(0, SendRequest::write(1, from, remote));
    pair.run(Duration::from_millis(20));
    let counters = pair.hosts[0].endpoint.counters();
    let rounds = pair.now.as_nanos() / BASE_RTT.as_nanos() as u64;
    let most = rounds + 1 + 16;
    assert!(counters.probes_sent <= most, "{} probes in {rounds} rounds", counters.probes_sent);
    assert!(counters.probes_sent >= rounds / 2);
    assert!(counters.probe_responses >= counters.probes_sent / 2 - 1);
    let probes = counters.probes_sent;
    let later = pair.now + Duration::from_millis(5);
    pair.run_until(later);
    assert_eq!(pair.hosts[0].endpoint.counters().probes_sent, probes);
    assert_eq!(pair.hosts[0].endpoint.poll_timeout(), None);
}

#[test]
fn a_full_link_lowers_the_rate() {
    let mut pair = Pair::connect(hpcc());
    // The switch has a 1 Gb/s link that is always busy, with 100 kB queued.
    let speed = Speed::from_rate(Rate::from_gbps(1)).unwrap();
    let mut probes = 0;
    pair.filter = Some(Box::new(move |from, frame| {
        if from == 0 {
            let time = probes * BASE_RTT.as_nanos() as u64;
            if stamp(frame, 3, HopRecord::new(speed, time, time / 8, 100_000)) {
                probes += 1;
            }
        }
        true
    }));
    let before = pair.reports()[0].unwrap();
    let from = pair.hosts[0].sge(0, 200_000);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.post(0, SendRequest::write(1, from, remote));
    pair.run(Duration::from_secs(1));
    let after = pair.reports()[0].unwrap();
    assert!(after.window * 4 < before.window, "{} then {}", before.window, after.window);
    assert!(after.rate.unwrap().as_bps() * 4 < before.rate.unwrap().as_bps());
    assert_eq!(before.utilisation, Some(1.0), "nothing was heard yet");
    assert!(after.utilisation.unwrap() > 1.0, "{after:?}");
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success);
}

/// rtgwg-00 7.1.
#[test]
fn an_unsolicited_telemetry_response_is_refused() {
    let mut script = Script::new(hpcc());
    let response = |script: &Script, number| Header::TelemetryResponse {
        bth: script.bth(number),
        feedback: Feedback { report: Report::Busiest { path_id: 0, hops: 0, busiest: None }, seal: None },
    };
    let before = response(&script, 0);
    assert_eq!(script.send_header(&before, &[]), Err(Discard::Telemetry));
    post_write(&mut script, 1, 100);
    let sent: Vec<_> = core::iter::from_fn(|| script.next_header()).collect();
    assert!(matches!(sent[1].0, Header::TelemetryRequest { bth, .. } if bth.psn.get() == 0));
    let [wrong, right] = [1, 0].map(|number| response(&script, number));
    assert_eq!(script.send_header(&wrong, &[]), Err(Discard::Telemetry));
    assert_eq!(script.send_header(&right, &[]), Ok(()));
    assert_eq!(script.send_header(&right, &[]), Err(Discard::Telemetry), "once is enough");
    assert_eq!(script.discarded(Discard::Telemetry), 3);
}

/// Memory without contents, which checks that bytes arrive in order.
#[derive(Default)]
struct Counting {
    placed: u64,
}

impl Memory for Counting {
    fn place(&mut self, to: Slice, bytes: &[u8]) -> Result<(), AccessError> {
        assert_eq!(to.address(), BASE + self.placed);
        self.placed += bytes.len() as u64;
        Ok(())
    }

    fn gather(&self, _from: Slice, _into: &mut [u8]) -> Result<(), AccessError> {
        Ok(())
    }

    fn fetch_add(&mut self, _at: Slice, _add: u64) -> Result<u64, AccessError> {
        unreachable!()
    }

    fn compare_swap(&mut self, _at: Slice, _compare: u64, _swap: u64) -> Result<u64, AccessError> {
        unreachable!()
    }
}

#[test]
fn a_message_of_two_gibibytes_arrives() {
    let length = 1 << 31;
    let options = Options { mtu: Mtu::M4096, send_psn: 0xff_fff0, memory: 8, ..Options::default() };
    let mut hosts = [Host::new(1, &options), Host::new(2, &options)];
    let qpns = [hosts[0].qpn, hosts[1].qpn];
    let mut regions = Vec::new();
    for (i, host) in hosts.iter_mut().enumerate() {
        let (from, to) = if i == 0 { (1, 2) } else { (2, 1) };
        host.ready_to_receive(path(from, to), qpns[1 - i], options.send_psn, &options);
        host.ready_to_send(&options);
        let region = host.endpoint.register(host.pd, BASE, u64::from(length), Access::ALL);
        regions.push(region.unwrap());
    }
    let from = Sge { address: BASE, length, lkey: regions[0].lkey };
    let remote = Remote { address: BASE, rkey: regions[1].rkey };
    let mut now = Instant::ZERO;
    hosts[0].endpoint.post_send(now, qpns[0], SendRequest::write(1, from, remote)).unwrap();
    let mut memory = [Counting::default(), Counting::default()];
    let mut frame = vec![0; 4096 + MAX_OVERHEAD];
    let mut busy = true;
    while busy {
        busy = false;
        for host in 0..2 {
            while let Some(sent) = hosts[host].endpoint.poll_transmit(now, &memory[host], &mut frame) {
                busy = true;
                let peer = 1 - host;
                hosts[peer].endpoint.on_frame(now, &mut memory[peer], &frame[..sent]).unwrap();
            }
        }
        now = now + Duration::from_micros(1);
    }
    assert_eq!(memory[1].placed, u64::from(length));
    assert_eq!(hosts[0].sent()[0].status, CompletionStatus::Success);
    let expected = roce::Psn::new(options.send_psn).plus(length / 4096);
    assert_eq!(hosts[1].endpoint.report(qpns[1]).unwrap().expected_psn, expected);
}

/// A port without its own link rate can be assigned one, at which its frames are then sent.
#[test]
fn frames_keep_to_the_links_rate() {
    let rate = Rate::from_gbps(1);
    let mut script = Script::new(Options::default());
    script.host.endpoint.set_link_rate(Some(rate));
    post_write(&mut script, 1, 3 * 1024);
    // Payload and 58 bytes of headers and ICRC. The first packet has 16 bytes more.
    for bytes in [1098, 1082, 1082] {
        assert!(script.next().is_some());
        assert!(script.next().is_none(), "the link is busy");
        assert!(!script.host.endpoint.may_transmit(), "a timer tells of the rest");
        let end = script.now + rate.time_for(bytes);
        assert!(script.host.endpoint.poll_timeout().is_some_and(|at| at <= end));
        script.wait(rate.time_for(bytes - 1));
        assert!(script.next().is_none(), "{bytes} bytes end later");
        script.wait(rate.time_for(1));
    }
    assert!(script.next().is_none());
}

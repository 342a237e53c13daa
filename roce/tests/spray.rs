//! Spraying: the packets of one queue pair use several paths, each of which preserves their order.

use crate::harness::{BASE, Host, Options, Pair, path};
use cc::{HpccConfig, Instant, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{
    CompletionStatus, Congestion, CongestionAlgorithm, Modify, PathChoice, QpInit, Remote, RtsSettings,
    SendRequest,
};
use roce::wire::{Header, Reverse, Service, parse};
use roce::{ControlError, Discard};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const MICROSECOND: Duration = Duration::from_micros(1);
/// The one-way delay of the shortest path, which is also that of the responses.
const DELAY: Duration = Duration::from_micros(5);
const LENGTH: u32 = 2_000_000;

const fn spray(count: u8) -> Option<PathChoice> {
    Some(PathChoice { count, interval: Duration::from_micros(100), spray: true })
}

fn options() -> Options {
    Options {
        congestion: CongestionAlgorithm::Fixed { window: 128 << 10, rate: Some(Rate::from_gbps(10)) },
        adjust: |congestion| congestion.paths = spray(4),
        selective_repeat: true,
        delay: DELAY,
        memory: LENGTH as usize,
        ack_timeout: 14,
        ..Options::default()
    }
}

/// The network's treatment of requests, and its observations.
#[derive(Default)]
struct Network {
    now: Instant,
    /// Ports of requests, in the order of their first packets.
    ports: Vec<u16>,
    /// The additional delay of each path, relative to the first.
    detours: [Duration; 8],
    /// The indices of paths that drop everything.
    dark: Vec<usize>,
    /// The port of the first response, and whether packets on it are dropped.
    answers: Option<u16>,
    is_mute: bool,
    /// The times at which data was sent on each path.
    sent: BTreeMap<usize, Vec<Instant>>,
    /// The additional delay of the current frame.
    late: Duration,
}

type Shared = Rc<RefCell<Network>>;

fn connect(options: Options, detours: &[u64]) -> (Pair, Shared) {
    let mut pair = Pair::connect(options);
    let network = Shared::default();
    for (detour, micros) in network.borrow_mut().detours.iter_mut().zip(detours) {
        *detour = MICROSECOND * *micros as u32;
    }
    let shared = network.clone();
    pair.filter = Some(Box::new(move |from, frame| {
        let packet = parse(frame).unwrap();
        let mut network = shared.borrow_mut();
        network.late = Duration::ZERO;
        let port = packet.network.udp_source();
        if from == 1 {
            let first = *network.answers.get_or_insert(port);
            return !network.is_mute || port != first;
        }
        let at = network.ports.iter().position(|known| *known == port).unwrap_or_else(|| {
            network.ports.push(port);
            network.ports.len() - 1
        });
        if let Header::Connected { .. } = packet.header {
            let now = network.now;
            network.sent.entry(at).or_default().push(now);
        }
        network.late = network.detours[at];
        !network.dark.contains(&at)
    }));
    let late = network.clone();
    pair.late = Some(Box::new(move || late.borrow().late));
    (pair, network)
}

fn run(pair: &mut Pair, network: &Shared, end: Instant) {
    while pair.now < end {
        network.borrow_mut().now = pair.now;
        if !pair.step() {
            break;
        }
    }
}

fn write(pair: &mut Pair, id: u64) {
    let from = pair.hosts[0].sge(0, LENGTH);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.post(0, SendRequest::write(id, from, remote));
}

fn end_well(pair: &mut Pair, writes: usize) {
    let sent = pair.hosts[0].sent();
    assert_eq!(sent.len(), writes);
    assert!(sent.iter().all(|completion| completion.status == CompletionStatus::Success), "{sent:?}");
}

#[test]
fn paths_of_unequal_delay_cause_no_retransmission() {
    for detours in [[0, 0, 0, 0], [0, 1, 2, 3], [0, 3, 7, 10], [0, 0, 0, 40], [0, 40, 41, 90]] {
        let (mut pair, network) = connect(options(), &detours);
        pair.hosts[0].ram.0.fill(7);
        write(&mut pair, 1);
        write(&mut pair, 2);
        run(&mut pair, &network, Instant::ZERO + Duration::from_secs(1));
        end_well(&mut pair, 2);
        assert!(pair.hosts[1].bytes(0, LENGTH as usize).iter().all(|byte| *byte == 7));
        let [ours, theirs] = [0, 1].map(|host: usize| pair.hosts[host].endpoint.counters());
        assert_eq!((ours.retransmitted, theirs.discarded(Discard::Duplicate)), (0, 0), "{detours:?}");
        let network = network.borrow();
        let counts: Vec<usize> = network.sent.values().map(Vec::len).collect();
        assert!(counts.len() == 4 && counts.iter().all(|count| *count > 600), "{detours:?}: {counts:?}");
    }
}

/// The longest round trip is 20 µs: 5 and 10 µs forward, 5 µs back.
#[test]
fn a_failed_path_is_avoided_within_two_round_trips_and_used_again_later() {
    let round = Duration::from_micros(20);
    for dark in 0..4 {
        let (mut pair, network) = connect(options(), &[0, 10, 10, 10]);
        (0..4).for_each(|id| write(&mut pair, id));
        let end = Instant::ZERO + Duration::from_millis(1);
        run(&mut pair, &network, end);
        let began = pair.now;
        network.borrow_mut().dark.push(dark);
        run(&mut pair, &network, end + Duration::from_millis(2));
        let ended = pair.now;
        network.borrow_mut().dark.clear();
        run(&mut pair, &network, end + Duration::from_secs(1));
        end_well(&mut pair, 4);
        let network = network.borrow();
        let sent = &network.sent[&dark];
        let first = *sent.iter().find(|at| **at >= began).unwrap();
        let late: Vec<_> = sent.iter().filter(|at| **at > first + round * 2 && **at < ended).collect();
        assert!(late.len() <= 6, "path {dark} is tried {} times in 2 ms", late.len());
        let gap = late.first().map(|at| at.saturating_since(first));
        assert!(gap.is_none_or(|gap| gap > round * 4), "path {dark} is not used for {gap:?}");
        assert!(sent.iter().filter(|at| **at > ended).count() > 200, "path {dark} is used again");
        let lost = sent.iter().filter(|at| **at >= began && **at < ended).count() as u64;
        assert_eq!(pair.hosts[0].endpoint.counters().retransmitted, lost, "only what was lost");
        assert_eq!(pair.hosts[0].endpoint.counters().timeouts, 0);
    }
}

/// The path of the peer's responses drops all packets from now on. Retransmitted requests make the peer use another path.
#[test]
fn responses_leave_a_failed_path() {
    let (mut pair, network) = connect(options(), &[0, 1, 2, 3]);
    (0..4).for_each(|id| write(&mut pair, id));
    run(&mut pair, &network, Instant::ZERO + Duration::from_millis(1));
    network.borrow_mut().is_mute = true;
    // 8 MB at 10 Gb/s.
    run(&mut pair, &network, Instant::ZERO + Duration::from_millis(9));
    end_well(&mut pair, 4);
    assert_eq!(pair.hosts[0].endpoint.counters().timeouts, 0);
    assert!(pair.hosts[0].endpoint.counters().retransmitted < 20);
}

#[test]
fn settings_that_cannot_spray_are_refused_with_the_reason() {
    let refused_with = |service, options: Options, count, adjust: fn(&mut Congestion)| {
        let mut host = Host::new(1, &options);
        let init = QpInit { service, ..host.init(&options) };
        host.qpn = host.endpoint.create_qp(Instant::ZERO, init).unwrap();
        host.ready_to_receive(path(1, 2), host.qpn, 0, &options);
        let mut congestion = Congestion { paths: spray(count), ..Congestion::new(options.congestion) };
        adjust(&mut congestion);
        let settings = RtsSettings::new(congestion);
        let qpn = host.qpn;
        host.endpoint.modify_qp(Instant::ZERO, qpn, Modify::ReadyToSend(settings))
    };
    let refused_as = |service, options, count| refused_with(service, options, count, |_| ());
    let refused = |options, count| refused_as(Service::Rc, options, count);
    let reason = |outcome| match outcome {
        Err(ControlError::Spray { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    for count in [0, 1, 9] {
        assert!(reason(refused(options(), count)).contains("2 to 8"));
    }
    let alone = Options { selective_repeat: false, ..options() };
    assert!(reason(refused(alone, 4)).contains("selective repeat"));
    let unreliable = Options { selective_repeat: false, ..options() };
    assert!(reason(refused_as(Service::Uc, unreliable, 4)).contains("leave spray out for UC and UD"));
    assert_eq!(refused(options(), 8), Ok(()));
    let hpcc = || HpccConfig::new(Rate::from_gbps(10), 4 * DELAY, NonZeroU32::MIN);
    let told = |adjust: fn(&mut Congestion)| {
        let options = Options { congestion: CongestionAlgorithm::Hpcc(hpcc()), ..options() };
        refused_with(Service::Rc, options, 4, adjust)
    };
    let receiver = Options { congestion: CongestionAlgorithm::HpccReceiver(hpcc()), ..options() };
    assert!(reason(refused(receiver, 4)).contains("the receiver computes"));
    assert!(reason(told(|with| with.reverse = Reverse::Window)).contains("the receiver computes"));
    assert!(
        reason(told(|with| with.in_band = Some(NonZeroU32::MIN))).contains("choose Reverse::Notification")
    );
    let notified = told(|with| {
        (with.in_band, with.reverse) = (Some(NonZeroU32::MIN), Reverse::Notification);
    });
    assert_eq!(notified, Ok(()));
}

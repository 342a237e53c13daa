//! Packet scripts of datagrams under congestion control: each destination has its own pacing, by probes that its host answers.

use crate::harness::{Host, Options, path, path_over};
use cc::{HpccConfig, Instant, Rate};
use core::cell::Cell;
use core::num::NonZeroU32;
use core::time::Duration;

use roce::qp::{
    Congestion, CongestionAlgorithm, Datagram, Modify, QpInit, SendRequest, Unknown, Upgrade, When,
};
use roce::wire::format::{Format, Numbers, PortState, Request, aecn};
use roce::wire::telemetry::{HopRecord, Speed, stamp};
use roce::wire::{Header, MAX_OVERHEAD, Mtu, Path, Service, parse};
use roce::{AddressId, CongestionNotice, ControlError, Psn};
use std::collections::BTreeMap;
use std::rc::Rc;

pub const KEY: u32 = 0x1234;
const T: Duration = Duration::from_micros(100);
const DELAY: Duration = Duration::from_micros(50);
const LENGTH: u32 = 1000;

fn config() -> HpccConfig {
    HpccConfig::new(Rate::from_gbps(10), T, NonZeroU32::new(32).unwrap())
}

pub fn hpcc() -> Congestion {
    Congestion::new(CongestionAlgorithm::Hpcc(config())).probing(Some(T))
}

fn auto() -> Congestion {
    let fair = HpccConfig { max_stage: 0, additive_increase: Rate::from_bps(0), ..config() };
    let upgrade = Upgrade { when: When::TelemetryAnswered, to: CongestionAlgorithm::HpccFair(fair) };
    let fixed = CongestionAlgorithm::Fixed { window: 512 << 10, rate: None };
    let upgrade = Some(upgrade);
    Congestion { upgrade, in_band: NonZeroU32::new(4), ..Congestion::new(fixed).probing(Some(T)) }
}

fn open(host: &mut Host, congestion: Congestion) -> Result<(), ControlError> {
    for modify in [
        Modify::InitDatagram { queue_key: KEY, partition_key: 0xffff },
        Modify::ReadyToReceiveDatagrams { mtu: Mtu::M1024, feedback_key: None },
        Modify::ReadyToSendDatagrams { send_psn: Psn::new(7), congestion },
    ] {
        host.endpoint.modify_qp(Instant::ZERO, host.qpn, modify)?;
    }
    Ok(())
}

pub fn closed(core: u8) -> Host {
    let options = Options::default();
    let mut host = Host::new(core, &options);
    let init = QpInit { service: Service::Ud, ..host.init(&options) };
    host.qpn = host.endpoint.create_qp(Instant::ZERO, init).unwrap();
    host
}

pub fn host(core: u8, congestion: Congestion) -> Host {
    let mut host = closed(core);
    open(&mut host, congestion).unwrap();
    host
}

/// The network between the first host and the others; `false` drops the frame.
type Wire = Box<dyn FnMut(usize, &mut Vec<u8>, Instant) -> bool>;

/// A sending host and several receiving hosts, over virtual time.
pub struct Network {
    pub hosts: Vec<Host>,
    ways: Vec<AddressId>,
    pub now: Instant,
    pub wire: Wire,
    on_the_way: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    frames: u64,
    /// The time and the destination of each datagram and each probe of the first host.
    data: Vec<(Instant, usize)>,
    probes: Vec<(Instant, usize)>,
}

/// Returns the index of the host with the frame's destination address; the last byte is the core's number.
fn place(frame: &[u8]) -> usize {
    match parse(frame).unwrap().network.destination() {
        core::net::IpAddr::V4(address) => usize::from(address.octets()[3]) - 1,
        core::net::IpAddr::V6(address) => usize::from(address.octets()[15]) - 1,
    }
}

impl Network {
    pub fn new(congestion: Congestion, receivers: u8) -> Self {
        let hosts: Vec<_> = (1..=receivers + 1).map(|core| host(core, congestion)).collect();
        let mut network = Self {
            hosts,
            ways: Vec::new(),
            now: Instant::ZERO,
            wire: Box::new(|_, _, _| true),
            on_the_way: BTreeMap::new(),
            frames: 0,
            data: Vec::new(),
            probes: Vec::new(),
        };
        for core in 2..=receivers + 1 {
            network.way(&path(1, core));
        }
        network
    }

    fn way(&mut self, path: &Path) {
        let pd = self.hosts[0].pd;
        self.ways.push(self.hosts[0].endpoint.create_address(pd, path).unwrap());
    }

    /// Posts a datagram of the first host to each of `to`.
    pub fn post(&mut self, to: &[usize]) {
        for &place in to {
            let (address, qpn) = (self.ways[place - 1], self.hosts[place].qpn);
            let host = &mut self.hosts[0];
            let request =
                SendRequest::send_to(1, host.sge(0, LENGTH), Datagram { address, qpn, queue_key: KEY });
            host.endpoint.post_send(self.now, host.qpn, request.unsignalled()).unwrap();
        }
    }

    fn transmit(&mut self) {
        for from in 0..self.hosts.len() {
            let mut frame = vec![0; 1024 + 2 * MAX_OVERHEAD];
            while let Some(length) = {
                let host = &mut self.hosts[from];
                host.endpoint.poll_transmit(self.now, &host.ram, &mut frame)
            } {
                let mut frame = frame[..length].to_vec();
                let to = place(&frame);
                if from == 0 {
                    let is_probe =
                        matches!(parse(&frame).unwrap().header, Header::DatagramTelemetryRequest { .. });
                    let list = if is_probe { &mut self.probes } else { &mut self.data };
                    list.push((self.now, to));
                    if !(self.wire)(to, &mut frame, self.now) {
                        continue;
                    }
                }
                self.frames += 1;
                self.on_the_way.insert((self.now + DELAY, self.frames), (to, frame));
            }
        }
    }

    pub fn run(&mut self, end: Instant) {
        loop {
            self.transmit();
            let arrival = self.on_the_way.keys().next().map(|&(at, _)| at);
            let timers = self.hosts.iter().filter_map(|host| host.endpoint.poll_timeout());
            let Some(next) = timers.chain(arrival).min().filter(|&next| next <= end) else { break };
            self.now = self.now.max(next);
            while let Some((&key, _)) = self.on_the_way.iter().next().filter(|((at, _), _)| *at <= self.now) {
                let (to, frame) = self.on_the_way.remove(&key).unwrap();
                let host = &mut self.hosts[to];
                // No receive is posted: the endpoint drops the datagrams after congestion control has processed their headers.
                let _ = host.endpoint.on_frame(self.now, &mut host.ram, &frame);
            }
            for host in &mut self.hosts {
                host.endpoint.on_timeout(self.now);
            }
        }
    }

    /// Keeps datagrams posted on the first host until `end`, to all of `to` in turn.
    pub fn load(&mut self, to: &[usize], end: Instant) {
        while self.now < end {
            while self.hosts[0].endpoint.report(self.hosts[0].qpn).unwrap().outstanding < 16 {
                self.post(to);
            }
            let next = self.now + Duration::from_micros(5);
            self.run(next);
            self.now = next;
        }
    }

    /// Returns the payload rate to a host between two times, in b/s.
    fn rate(&self, to: usize, from: Instant, until: Instant) -> f64 {
        let packets =
            self.data.iter().filter(|&&(at, place)| place == to && at >= from && at < until).count();
        packets as f64 * f64::from(LENGTH) * 8.0 / until.saturating_since(from).as_secs_f64()
    }

    fn changes(&mut self) -> Vec<CongestionNotice> {
        core::iter::from_fn(|| self.hosts[0].endpoint.poll_congestion_change())
            .map(|change| change.notice)
            .collect()
    }

    fn algorithm(&self) -> &'static str {
        self.hosts[0].endpoint.report(self.hosts[0].qpn).unwrap().algorithm
    }
}

/// Returns the time at `tenths` / 10 of T.
pub fn at(tenths: u64) -> Instant {
    Instant::from_nanos(tenths * 10_000)
}

/// A link that queues frames, according to its telemetry.
struct Link {
    rate: Rate,
    free_at: Instant,
    sent: u64,
    /// The longest queue since the last reset, in bytes.
    longest: Rc<Cell<u64>>,
}

impl Link {
    fn new(rate: Rate) -> Self {
        Self { rate, free_at: Instant::ZERO, sent: 0, longest: Rc::default() }
    }

    fn carry(&mut self, frame: &mut [u8], now: Instant) {
        let queue = self.rate.bytes_in(self.free_at.saturating_since(now));
        self.longest.set(self.longest.get().max(queue));
        self.free_at = self.free_at.max(now) + self.rate.time_for(frame.len() as u64);
        self.sent += frame.len() as u64;
        let time = self.free_at.saturating_since(Instant::ZERO).as_nanos() as u64;
        stamp(frame, 3, HopRecord::new(Speed::from_rate(self.rate).unwrap(), time, self.sent, queue));
    }
}

/// Stamps the record of an idle link.
pub fn idle(frame: &mut [u8], now: Instant) {
    let nanos = now.saturating_since(Instant::ZERO).as_nanos() as u64;
    stamp(frame, 4, HopRecord::new(Speed::from_rate(Rate::from_gbps(10)).unwrap(), nanos, 0, 0));
}

#[test]
fn a_congested_hop_slows_its_own_destination_alone() {
    for congestion in [hpcc(), auto()] {
        let mut network = Network::new(congestion, 2);
        let mut links = [1, 10].map(|gbps| Link::new(Rate::from_gbps(gbps)));
        let longest = Rc::clone(&links[0].longest);
        network.wire = Box::new(move |to, frame, now| {
            links[to - 1].carry(frame, now);
            true
        });
        network.load(&[1], at(4000));
        longest.set(0);
        network.load(&[1], at(6000));
        let slow = network.rate(1, at(4000), at(6000));
        assert!((0.7e9..1e9).contains(&slow), "held by the hop: {slow}");
        assert!(
            longest.get() <= 4 * 1100,
            "{} bytes wait at the hop of {}",
            longest.get(),
            network.algorithm()
        );
        // The send queue is in order: pending datagrams are sent first.
        network.run(at(6500));
        network.now = at(6500);
        network.load(&[2], at(7000));
        let fast = network.rate(2, at(6500), at(7000));
        assert!(fast > 8e9, "the other destination has a rate of its own: {fast}");
        network.run(at(7200));
        network.now = at(7200);
        network.load(&[1], at(7400));
        let again = network.rate(1, at(7200), at(7400));
        // The rate does not start at the 10 Gb/s of the line. The hop's flows are not counted, so a pause of the others lets this flow
        // increase.
        assert!(again < 1.5e9, "what was learnt of the first is kept: {again}");
        assert!(network.changes().is_empty());
    }
}

#[test]
fn auto_upgrades_destinations_with_telemetry_only() {
    let mut network = Network::new(auto(), 2);
    network.wire = Box::new(|to, frame, now| {
        if to == 1 {
            idle(frame, now);
        }
        true
    });
    network.load(&[1], at(500));
    assert_eq!(network.algorithm(), "hpcc-fair");
    network.load(&[2], at(1500));
    assert_eq!(network.algorithm(), "fixed");
    let asked = network.probes.iter().filter(|&&(_, to)| to == 2).count();
    assert_eq!(asked, 20, "no more where no switch writes");
}

/// One probe follows the last datagram, and no timer runs.
#[test]
fn probes_end_with_the_data() {
    let mut network = Network::new(hpcc(), 1);
    network.wire = Box::new(|_, frame, now| {
        idle(frame, now);
        true
    });
    network.post(&[1, 1, 1]);
    network.run(at(1_000_000));
    assert!((1..=2).contains(&network.probes.len()), "{:?}", network.probes);
    assert!(network.on_the_way.is_empty());
    assert_eq!(network.hosts[0].endpoint.poll_timeout(), None);
    let counters = network.hosts[0].endpoint.counters();
    assert_eq!(counters.probe_responses, network.probes.len() as u64);
}

#[test]
fn a_host_that_answers_no_probe_gets_twenty_and_data_at_line_rate() {
    let mut network = Network::new(hpcc(), 1);
    network.wire = Box::new(|_, frame, _| {
        !matches!(parse(frame).unwrap().header, Header::DatagramTelemetryRequest { .. })
    });
    network.load(&[1], at(1000));
    assert_eq!(network.probes.len(), 20);
    assert_eq!(network.changes(), [CongestionNotice::TelemetryMissing("fixed")], "reported once");
    assert_eq!(network.algorithm(), "fixed");
    let rate = network.rate(1, at(800), at(1000));
    assert!((8e9..10e9).contains(&rate), "{rate}");
}

#[test]
fn missing_and_restored_telemetry_changes_the_algorithm() {
    let mut network = Network::new(hpcc(), 1);
    network.wire = Box::new(|_, frame, now| {
        if now < at(300) || now > at(800) {
            idle(frame, now);
        }
        true
    });
    network.load(&[1], at(1200));
    assert_eq!(
        network.changes(),
        [CongestionNotice::TelemetryMissing("fixed"), CongestionNotice::TelemetryRestored("hpcc")]
    );
}

/// The sender receives the records that a switch stamps in each layout.
#[test]
fn every_layout_of_records_is_answered() {
    for (format, v6) in
        [(Format::Hpcc, false), (Format::IntMd, false), (Format::Ifa, false), (Format::Ioam, true)]
    {
        let mut network = Network::new(Congestion { format, ..hpcc() }, 1);
        if v6 {
            network.ways.clear();
            network.way(&path_over(true, 1, 2));
        }
        network.wire = Box::new(move |_, frame, now| {
            let nanos = now.saturating_since(Instant::ZERO).as_nanos() as u64;
            let load = aecn::Load { inflight: 0, rate: 0, queue: 0, delay: 0, congested: 0 };
            let rate = Rate::from_gbps(1);
            let tx_bytes = nanos / 8;
            let port = PortState {
                switch: 3,
                port: 1,
                rate,
                time: nanos,
                tx_bytes,
                queue: 20_000,
                sojourn: 0,
                load,
            };
            if let Some(request) = Request::find(frame, Numbers::DEFAULT) {
                let length = frame.len();
                frame.resize(length + 100, 0);
                let length = request.stamp(frame, length, &port).unwrap();
                frame.truncate(length);
            }
            true
        });
        network.load(&[1], at(1000));
        let rate = network.rate(1, at(900), at(1000));
        assert!(rate < 1e9, "{format}: {rate}");
    }
}

#[test]
fn algorithms_that_cannot_control_datagrams_are_refused_by_name() {
    use CongestionAlgorithm::{Dcqcn, Dctcp, HpccReceiver, Registered};
    let (rate, rtt) = (Rate::from_gbps(10), T);
    let refused = [
        HpccReceiver(config()),
        Dctcp(cc::DctcpConfig::new(rate, rtt)),
        Dcqcn(cc::DcqcnConfig::new(rate, Some(rtt))),
        Registered(&cc::SWIFT, config().into()),
    ];
    for algorithm in refused {
        let error = open(&mut closed(1), Congestion::new(algorithm)).unwrap_err().to_string();
        assert!(error.contains(algorithm.name()) && error.contains("choose auto"), "{error}");
    }
    let error = open(&mut closed(1), Congestion { format: Format::Aecn, ..hpcc() }).unwrap_err().to_string();
    assert!(error.contains("choose the format hpcc"), "{error}");
    let unknown = Unknown { line_rate: true, ..Unknown::default() };
    assert_eq!(open(&mut closed(1), Congestion { unknown, ..hpcc() }), Err(ControlError::LineRate));
}

/// A destination beyond the limit replaces the one with the longest idle time.
#[test]
fn destinations_are_limited() {
    let mut network = Network::new(hpcc(), 1);
    network.wire = Box::new(|_, frame, now| {
        idle(frame, now);
        true
    });
    network.post(&[1]);
    network.run(at(100));
    let first = network.hosts[0].endpoint.counters().probe_responses;
    assert!(first > 0);
    let (qpn, peer) = (network.hosts[0].qpn, network.hosts[1].qpn);
    for last in 3..=131 {
        let pd = network.hosts[0].pd;
        let address = network.hosts[0].endpoint.create_address(pd, &path(1, last)).unwrap();
        let host = &mut network.hosts[0];
        let to = Datagram { address, qpn: peer, queue_key: KEY };
        host.endpoint
            .post_send(network.now, qpn, SendRequest::send_to(1, host.sge(0, 1), to).unsignalled())
            .unwrap();
        let mut frame = vec![0; 1500];
        while host.endpoint.poll_transmit(network.now, &host.ram, &mut frame).is_some() {}
        network.now = network.now + Duration::from_micros(200);
        host.endpoint.on_timeout(network.now);
    }
    // The first destination starts with new state: its probe numbers start from 0.
    let numbers = Rc::new(core::cell::RefCell::new(Vec::new()));
    let seen = Rc::clone(&numbers);
    network.wire = Box::new(move |to, frame, _| {
        let header = parse(frame).unwrap().header;
        if to == 1 && matches!(header, Header::DatagramTelemetryRequest { .. }) {
            seen.borrow_mut().push(header.bth().psn);
        }
        to == 1
    });
    network.post(&[1]);
    network.transmit();
    assert_eq!(*numbers.borrow(), [Psn::new(0)]);
}

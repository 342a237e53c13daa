//! Flows of unacknowledged data that start and stop at one bottleneck: only probes measure congestion.

use crate::harness::{BASE, Host, Options, path};
use cc::{HpccConfig, Instant, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{Congestion, CongestionAlgorithm, Datagram, Modify, QpInit, Remote, SendRequest};
use roce::wire::telemetry::{HopRecord, Speed, stamp};
use roce::wire::{MAX_OVERHEAD, Mtu, Path, Service};
use roce::{AddressId, Psn, Qpn};
use std::collections::{BTreeMap, VecDeque};

const KEY: u32 = 0x1234;
/// The bytes of a full frame.
const PACKET: u64 = 4190;
const LENGTH: u32 = 4096;
const FLOWS: usize = 8;
/// Requests of a flow that are posted in advance.
const DEPTH: usize = 8;

/// A switch's port: its queue and its link.
struct Port {
    rate: Rate,
    queue: VecDeque<Vec<u8>>,
    waiting: u64,
    free_at: Instant,
    sent: u64,
    /// The time since which the queue has had its length.
    since: Instant,
    /// The time that the queue had each length in bytes, and that the link was busy, since [`Self::reset`].
    lengths: BTreeMap<u64, Duration>,
    busy: Duration,
}

impl Port {
    fn new(rate: Rate) -> Self {
        let at = Instant::ZERO;
        Self {
            rate,
            queue: VecDeque::new(),
            waiting: 0,
            free_at: at,
            sent: 0,
            since: at,
            lengths: BTreeMap::new(),
            busy: Duration::ZERO,
        }
    }

    fn reset(&mut self) {
        self.lengths.clear();
        self.busy = Duration::ZERO;
    }

    fn account(&mut self, now: Instant) {
        *self.lengths.entry(self.waiting).or_default() += now.saturating_since(self.since);
        self.since = now;
    }

    fn come(&mut self, now: Instant, frame: Vec<u8>) {
        self.account(now);
        self.waiting += frame.len() as u64;
        self.queue.push_back(frame);
    }

    /// Returns the frame that is sent now, and the time at which its transmission ends.
    fn leave(&mut self, now: Instant) -> Option<(Instant, Vec<u8>)> {
        if self.free_at > now {
            return None;
        }
        let mut frame = self.queue.pop_front()?;
        self.account(now);
        self.waiting -= frame.len() as u64;
        let time = self.rate.time_for(frame.len() as u64);
        self.free_at = now + time;
        self.busy += time;
        self.sent += frame.len() as u64;
        let nanos = now.saturating_since(Instant::ZERO).as_nanos() as u64;
        let speed = Speed::from_rate(self.rate).unwrap();
        stamp(&mut frame, 3, HopRecord::new(speed, nanos, self.sent, self.waiting));
        Some((self.free_at, frame))
    }

    /// Returns the 99th percentile of the queue's length over time, in packets.
    fn p99(&self) -> f64 {
        let enough = self.lengths.values().sum::<Duration>() * 99 / 100;
        let mut sum = Duration::ZERO;
        let reached = self.lengths.iter().find(|(_, time)| {
            sum += **time;
            sum >= enough
        });
        reached.map_or(0.0, |(length, _)| *length as f64 / PACKET as f64)
    }
}

/// A host whose flows all are sent to another host through a switch's port.
struct Bottleneck {
    hosts: [Host; 2],
    flows: [Vec<Qpn>; 2],
    address: AddressId,
    service: Service,
    base_rtt: Duration,
    port: Port,
    now: Instant,
    frames: u64,
    on_the_way: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
}

impl Bottleneck {
    /// Creates a port of `mbps` Mb/s and hosts whose links have `tenths` tenths of its rate.
    fn new(
        service: Service,
        (mbps, tenths): (u64, u64),
        algorithm: fn(HpccConfig) -> CongestionAlgorithm,
    ) -> Self {
        let base_rtt = Duration::from_millis(800 / mbps);
        let (rate, carries) = (Rate::from_mbps(mbps), Rate::from_mbps(mbps * tenths / 10));
        let config = HpccConfig::new(carries, base_rtt, NonZeroU32::new(32).unwrap());
        let options = Options {
            mtu: Mtu::M4096,
            congestion: algorithm(HpccConfig { min_rate: Rate::from_mbps(1), ..config }),
            probe_interval: Some(base_rtt),
            max_qps: 2 * FLOWS as u32,
            ..Options::default()
        };
        let mut hosts = [1, 2].map(|core| Host::new(core, &options));
        let flows = hosts.each_mut().map(|host| {
            let init = QpInit { service, ..host.init(&options) };
            (0..FLOWS).map(|_| host.endpoint.create_qp(Instant::ZERO, init).unwrap()).collect::<Vec<_>>()
        });
        for (one, other) in flows[0].iter().zip(&flows[1]) {
            for (core, place, peer) in [(1, one, other), (2, other, one)] {
                let host = &mut hosts[core - 1];
                host.qpn = *place;
                ready(host, service, path(core as u8, 3 - core as u8), *peer, &options);
            }
        }
        hosts[0].endpoint.set_link_rate(Some(carries));
        let pd = hosts[0].pd;
        let address = hosts[0].endpoint.create_address(pd, &path(1, 2)).unwrap();
        let (now, on_the_way) = (Instant::ZERO, BTreeMap::new());
        Self { hosts, flows, address, service, base_rtt, port: Port::new(rate), now, frames: 0, on_the_way }
    }

    fn post(&mut self, flow: usize) {
        let [host, peer] = &mut self.hosts;
        let qpn = self.flows[0][flow];
        while (host.endpoint.report(qpn).unwrap().outstanding as usize) < DEPTH {
            let from = host.sge(0, LENGTH);
            let request = if self.service == Service::Ud {
                let to = Datagram { address: self.address, qpn: self.flows[1][flow], queue_key: KEY };
                SendRequest::send_to(1, from, to)
            } else {
                SendRequest::write(1, from, Remote { address: BASE, rkey: peer.region.rkey })
            };
            host.endpoint.post_send(self.now, qpn, request.unsignalled()).unwrap();
        }
    }

    fn transmit(&mut self) {
        let mut frame = vec![0; LENGTH as usize + MAX_OVERHEAD];
        for from in 0..2 {
            while let Some(length) = {
                let host = &mut self.hosts[from];
                host.endpoint.poll_transmit(self.now, &host.ram, &mut frame)
            } {
                let frame = frame[..length].to_vec();
                match from {
                    0 => self.port.come(self.now, frame),
                    _ => self.carry(self.now, 0, frame),
                }
            }
        }
        if let Some((at, frame)) = self.port.leave(self.now) {
            self.carry(at, 1, frame);
        }
    }

    fn carry(&mut self, at: Instant, to: usize, frame: Vec<u8>) {
        self.frames += 1;
        let delay = (self.base_rtt - self.port.rate.time_for(2 * PACKET)) / 2;
        self.on_the_way.insert((at + delay, self.frames), (to, frame));
    }

    /// Keeps the first `flows` flows busy until `end`.
    fn run(&mut self, flows: usize, end: Instant) {
        while self.now < end {
            (0..flows).for_each(|flow| self.post(flow));
            self.transmit();
            let arrival = self.on_the_way.keys().next().map(|&(at, _)| at);
            let timers = self.hosts.iter().filter_map(|host| host.endpoint.poll_timeout());
            let link = (!self.port.queue.is_empty()).then_some(self.port.free_at);
            let next = timers.chain(arrival).chain(link).min().expect("flows have something to send");
            self.now = self.now.max(next);
            while let Some(entry) = self.on_the_way.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (to, frame) = entry.remove();
                let host = &mut self.hosts[to];
                // No receive is posted: the endpoint drops the datagrams after congestion control has processed their headers.
                let _ = host.endpoint.on_frame(self.now, &mut host.ram, &frame);
            }
            for host in &mut self.hosts {
                host.endpoint.on_timeout(self.now);
            }
        }
        self.port.account(self.now);
    }

    /// Runs `flows` flows for 63 round trips. Returns the port's busy share and its queue in the last 42.
    fn phase(&mut self, flows: usize) -> (f64, f64) {
        let (joined, round) = (self.now, self.base_rtt);
        self.run(flows, joined + round * 21);
        self.port.reset();
        self.run(flows, joined + round * 63);
        (self.port.busy.as_secs_f64() / (round * 42).as_secs_f64(), self.port.p99())
    }
}

fn ready(host: &mut Host, service: Service, way: Path, peer: Qpn, options: &Options) {
    if service != Service::Ud {
        host.ready_to_receive(way, peer, options.send_psn, options);
        host.ready_to_send(options);
        return;
    }
    let congestion = Congestion::new(options.congestion).probing(options.probe_interval);
    for modify in [
        Modify::InitDatagram { queue_key: KEY, partition_key: 0xffff },
        Modify::ReadyToReceiveDatagrams { mtu: options.mtu, feedback_key: None },
        Modify::ReadyToSendDatagrams { send_psn: Psn::new(7), congestion },
    ] {
        host.endpoint.modify_qp(Instant::ZERO, host.qpn, modify).unwrap();
    }
}

/// The settings are those of ci/congestion. At a slower port the minimum rate of eight flows is a larger share of the link, here 8 in 10.
/// Only their pace per round trip drains the queue from before their first responses.
#[test]
fn joins_and_leaves_settle_within_21_round_trips() {
    for service in [Service::Uc, Service::Ud] {
        for (mbps, algorithm) in [
            (10, CongestionAlgorithm::Hpcc as fn(_) -> _),
            (100, CongestionAlgorithm::Hpcc),
            (10, CongestionAlgorithm::HpccFair),
            (100, CongestionAlgorithm::HpccFair),
        ] {
            let mut bottleneck = Bottleneck::new(service, (mbps, 15), algorithm);
            for flows in [1, 2, 8, 2] {
                let (busy, queue) = bottleneck.phase(flows);
                let case =
                    format!("{service:?}, {mbps} Mb/s, {flows} flows: {busy:.3} busy, {queue:.1} packets");
                assert!(busy > 0.8 && queue <= 6.0, "{case}");
            }
        }
    }
}

/// A response about data that was partly sent before the last update of the reference would update it again for the same queue. The queue
/// would then oscillate by 12 packets. By itself PowerTCP oscillates by 4 (UC) and 5 packets (UD).
#[test]
fn powertcp_on_unreliable_services_keeps_the_queue_at_few_packets() {
    for (service, most) in [(Service::Uc, 4.1), (Service::Ud, 5.1)] {
        let powertcp = |config: HpccConfig| CongestionAlgorithm::Registered(&cc::POWERTCP, config.into());
        let (busy, queue) = Bottleneck::new(service, (10, 15), powertcp).phase(1);
        assert!(busy > 0.9 && queue <= most, "{service:?}: {busy:.3} busy, {queue:.1} packets");
    }
}

/// Each probe returns after the data that was sent before it. At line rate the amount of this data would increase with each probe, without
/// limit.
#[test]
fn a_host_ten_times_faster_than_its_path_slows_before_the_first_report() {
    for service in [Service::Uc, Service::Ud] {
        let mut bottleneck = Bottleneck::new(service, (10, 100), CongestionAlgorithm::Hpcc);
        let first = bottleneck.phase(1).1;
        let (busy, queue) = bottleneck.phase(1);
        let case = format!("{service:?}: {first:.0} packets, then {queue:.1}, {busy:.3} busy");
        assert!(first < 1000.0 && busy > 0.9 && queue <= 4.0, "{case}");
    }
}

//! Two endpoints over virtual time and a link with seeded faults.

pub mod capture;
pub mod linux;
pub mod raw;
pub mod script;
pub mod window;
pub mod xrc;

use cc::{Instant, Rate};
use core::net::IpAddr;
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{
    AckTimeout, Capabilities, Completion, Congestion, CongestionAlgorithm, FeedbackKey, LossRecovery, Modify,
    QpInit, RtrSettings, RtsSettings, Sge,
};
use roce::wire::{Format, Mac, Mtu, Path, ReportKind, Reverse, RnrTimer, Service, Setup};
use roce::{
    Access, AccessError, CqId, Endpoint, EndpointConfig, Lkey, Memory, PdId, Psn, Qpn, Region, Slice,
};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// The first address of a host's memory.
pub const BASE: u64 = 0x7000_0000_0000;

/// A host's memory. An access beyond a truncated end fails as vanished.
pub struct Ram(pub Vec<u8>);

impl Ram {
    #[inline]
    fn range(at: Slice) -> core::ops::Range<usize> {
        let from = (at.address() - BASE) as usize;
        from..from + at.len() as usize
    }

    fn word(&mut self, at: Slice, change: impl FnOnce(u64) -> u64) -> Result<u64, AccessError> {
        let word = self.0.get_mut(Self::range(at)).ok_or(AccessError::Vanished)?;
        let before = u64::from_ne_bytes((&*word).try_into().unwrap());
        word.copy_from_slice(&change(before).to_ne_bytes());
        Ok(before)
    }
}

impl Memory for Ram {
    #[inline]
    fn place(&mut self, to: Slice, bytes: &[u8]) -> Result<(), AccessError> {
        self.0.get_mut(Self::range(to)).ok_or(AccessError::Vanished)?.copy_from_slice(bytes);
        Ok(())
    }

    #[inline]
    fn gather(&self, from: Slice, into: &mut [u8]) -> Result<(), AccessError> {
        into.copy_from_slice(self.0.get(Self::range(from)).ok_or(AccessError::Vanished)?);
        Ok(())
    }

    #[inline]
    fn fetch_add(&mut self, at: Slice, add: u64) -> Result<u64, AccessError> {
        self.word(at, |word| word.wrapping_add(add))
    }

    #[inline]
    fn compare_swap(&mut self, at: Slice, compare: u64, swap: u64) -> Result<u64, AccessError> {
        self.word(at, |word| if word == compare { swap } else { word })
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub mtu: Mtu,
    pub send_psn: u32,
    pub access: Access,
    pub ack_timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub selective_repeat: bool,
    /// Whether both sides offer selective repeat after a loss, if `selective_repeat` is false.
    pub offered: bool,
    pub congestion: CongestionAlgorithm,
    pub probe_interval: Option<Duration>,
    pub format: Format,
    /// One in this many data packets carries telemetry.
    pub in_band: Option<NonZeroU32>,
    /// The feedback key of the transition to RTR.
    pub feedback_key: Option<FeedbackKey>,
    /// Changes other settings of congestion control.
    pub adjust: fn(&mut Congestion),
    pub capabilities: Capabilities,
    pub cq_depth: u32,
    /// The limit on the endpoint's queue pairs.
    pub max_qps: u32,
    pub memory: usize,
    /// One-way delay of the link.
    pub delay: Duration,
    /// Whether the connection uses IPv6.
    pub v6: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mtu: Mtu::M1024,
            send_psn: 0x12_3456,
            access: Access::ALL,
            // 131 µs, compared with a round trip of about 10 µs.
            ack_timeout: 5,
            retry_count: 7,
            rnr_retry: 7,
            rnr_timer: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            selective_repeat: false,
            offered: false,
            congestion: CongestionAlgorithm::Fixed { window: 64 * 1024, rate: None },
            probe_interval: None,
            format: Format::Hpcc,
            in_band: None,
            feedback_key: None,
            adjust: |_| {},
            capabilities: Capabilities::default(),
            cq_depth: 1024,
            max_qps: 8,
            memory: 1 << 20,
            delay: Duration::from_micros(5),
            v6: false,
        }
    }
}

impl Options {
    pub const fn loss_recovery(&self) -> LossRecovery {
        match (self.selective_repeat, self.offered) {
            (true, _) => LossRecovery::SelectiveRepeat,
            (false, true) => LossRecovery::Offered,
            (false, false) => LossRecovery::GoBackN,
        }
    }
}

/// One side of a connection.
pub struct Host {
    pub endpoint: Endpoint,
    pub ram: Ram,
    pub pd: PdId,
    pub send_cq: CqId,
    pub recv_cq: CqId,
    pub qpn: Qpn,
    pub region: Region,
}

impl Host {
    pub fn new(core: u8, options: &Options) -> Self {
        let mut endpoint = Endpoint::new(EndpointConfig {
            max_qps: options.max_qps,
            max_cqs: 4,
            max_regions: 16,
            seed: [core; 32],
            process: core,
            numbers: roce::wire::Numbers::DEFAULT,
        });
        let pd = endpoint.create_pd();
        let send_cq = endpoint.create_cq(options.cq_depth).unwrap();
        let recv_cq = endpoint.create_cq(options.cq_depth).unwrap();
        let length = options.memory as u64;
        let region = endpoint.register(pd, BASE, length, Access::ALL).unwrap();
        let ram = Ram(vec![0; options.memory]);
        let mut host = Self { endpoint, ram, pd, send_cq, recv_cq, qpn: Qpn::new(0), region };
        host.qpn = host.endpoint.create_qp(Instant::ZERO, host.init(options)).unwrap();
        host
    }

    pub fn init(&self, options: &Options) -> QpInit {
        QpInit {
            service: Service::Rc,
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            capabilities: options.capabilities,
            signal_all: false,
            srq: None,
        }
    }

    /// Returns the settings of another queue pair, of any service, with at most four requests in each queue.
    pub fn init_of(&self, service: Service) -> QpInit {
        let capabilities = Capabilities { max_send: 4, max_recv: 4, ..Capabilities::default() };
        QpInit { service, capabilities, ..self.init(&Options::default()) }
    }

    pub fn ready_to_receive(&mut self, path: Path, peer: Qpn, receive_psn: u32, options: &Options) {
        let now = Instant::ZERO;
        let init = Modify::Init { access: options.access, partition_key: 0xffff };
        self.endpoint.modify_qp(now, self.qpn, init).unwrap();
        let settings = RtrSettings {
            path,
            destination: peer,
            mtu: options.mtu,
            receive_psn: Psn::new(receive_psn),
            max_dest_rd_atomic: options.max_dest_rd_atomic,
            min_rnr_timer: RnrTimer::new(options.rnr_timer),
            loss_recovery: options.loss_recovery(),
            feedback_key: options.feedback_key,
        };
        self.endpoint.modify_qp(now, self.qpn, Modify::ReadyToReceive(settings)).unwrap();
    }

    pub fn ready_to_send(&mut self, options: &Options) {
        let mut congestion = Congestion::new(options.congestion).probing(options.probe_interval);
        (congestion.format, congestion.in_band) = (options.format, options.in_band);
        (options.adjust)(&mut congestion);
        let settings = RtsSettings {
            send_psn: Psn::new(options.send_psn),
            ack_timeout: AckTimeout::new(options.ack_timeout),
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: options.max_rd_atomic,
            congestion,
        };
        self.endpoint.modify_qp(Instant::ZERO, self.qpn, Modify::ReadyToSend(settings)).unwrap();
    }

    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { address: BASE + offset, length, lkey: self.region.lkey }
    }

    pub fn sge_with(&self, offset: u64, length: u32, lkey: Lkey) -> Sge {
        Sge { address: BASE + offset, length, lkey }
    }

    pub fn sent(&mut self) -> Vec<Completion> {
        self.poll(self.send_cq)
    }

    pub fn received(&mut self) -> Vec<Completion> {
        self.poll(self.recv_cq)
    }

    pub fn poll(&mut self, cq: CqId) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.endpoint.poll_cq(cq, &mut |completion| {
            completions.push(*completion);
            true
        });
        completions
    }

    pub fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        &self.ram.0[offset..offset + length]
    }
}

/// Returns the path from host `from` (1 or 2) to host `to`, over IPv4.
pub fn path(from: u8, to: u8) -> Path {
    path_over(false, from, to)
}

pub fn path_over(v6: bool, from: u8, to: u8) -> Path {
    let address = |host: u8| match v6 {
        true => IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, host.into()]),
        false => IpAddr::from([10, 0, 0, host]),
    };
    Path {
        udp_source: 0xc123,
        ..Path::new((Mac([2, 0, 0, 0, 0, from]), address(from)), (Mac([2, 0, 0, 0, 0, to]), address(to)))
    }
}

/// The faults of a link, in packets per thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u64,
    pub duplicate: u64,
    pub reorder: u64,
    pub flip: u64,
}

/// A frame filter for packet scripts: it may change a frame in flight, and drops the frame by returning `false`.
pub type Filter = Box<dyn FnMut(usize, &mut Vec<u8>) -> bool>;

/// Limit of the bytes that a sender inserts, in any format.
const TELEMETRY_ROOM: usize = 256;

/// Two hosts and the link between them.
pub struct Pair {
    pub hosts: [Host; 2],
    pub now: Instant,
    pub faults: Faults,
    pub random: Random,
    pub filter: Option<Filter>,
    /// The additional delay of the frame that the filter has just passed.
    pub late: Option<Box<dyn FnMut() -> Duration>>,
    pub frames: u64,
    pub options: Options,
    on_the_way: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
}

impl Pair {
    pub fn connect(options: Options) -> Self {
        Self::of([Host::new(1, &options), Host::new(2, &options)], options)
    }

    /// Connects the hosts' existing queue pairs.
    pub fn of(hosts: [Host; 2], options: Options) -> Self {
        let mut pair = Self::one_way(hosts, options);
        pair.hosts[1].ready_to_send(&pair.options);
        pair
    }

    /// As [`of`](Self::of), but the second host stays in RTR.
    pub fn one_way(mut hosts: [Host; 2], options: Options) -> Self {
        let [qpn0, qpn1] = [hosts[0].qpn, hosts[1].qpn];
        let psn = options.send_psn;
        hosts[0].ready_to_receive(path_over(options.v6, 1, 2), qpn1, psn, &options);
        hosts[1].ready_to_receive(path_over(options.v6, 2, 1), qpn0, psn, &options);
        hosts[0].ready_to_send(&options);
        Self {
            hosts,
            now: Instant::ZERO,
            faults: Faults::default(),
            random: Random(1),
            filter: None,
            late: None,
            frames: 0,
            options,
            on_the_way: BTreeMap::new(),
        }
    }

    pub fn post(&mut self, host: usize, request: roce::qp::SendRequest) {
        let qpn = self.hosts[host].qpn;
        self.hosts[host].endpoint.post_send(self.now, qpn, request).unwrap();
    }

    pub fn receive(&mut self, host: usize, id: u64, sge: Sge) {
        let qpn = self.hosts[host].qpn;
        self.hosts[host].endpoint.post_recv(qpn, roce::qp::RecvRequest::new(id, sge)).unwrap();
    }

    /// Runs until no event is left; panics if the virtual time exceeds `limit`.
    pub fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        while self.step() {
            assert!(self.now <= end, "still busy after {limit:?}: {:?}", self.reports());
        }
    }

    pub fn run_until(&mut self, end: Instant) {
        while self.next().is_some_and(|next| next <= end) {
            self.step();
        }
        self.now = end;
    }

    pub fn reports(&self) -> [Option<roce::qp::QpReport>; 2] {
        [0, 1].map(|host: usize| self.hosts[host].endpoint.report(self.hosts[host].qpn))
    }

    /// Sends all frames that may be sent, then advances to the next event. Returns `false` if there is none.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let Some(next) = self.next() else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.on_the_way.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, frame) = entry.remove();
            let host = &mut self.hosts[to];
            // Dropped frames are counted, and the tests check the counts.
            let _ = host.endpoint.on_frame(self.now, &mut host.ram, &frame);
        }
        for host in &mut self.hosts {
            host.endpoint.on_timeout(self.now);
        }
        true
    }

    fn next(&self) -> Option<Instant> {
        let arrival = self.on_the_way.keys().next().map(|(at, _)| *at);
        let timers = self.hosts.iter().filter_map(|host| host.endpoint.poll_timeout());
        arrival.into_iter().chain(timers).min()
    }

    fn transmit(&mut self) {
        let mut frame =
            vec![0; self.options.mtu.bytes() as usize + roce::wire::MAX_OVERHEAD + TELEMETRY_ROOM];
        for from in 0..2 {
            loop {
                let before = self.reports()[from];
                let host = &mut self.hosts[from];
                let Some(length) = host.endpoint.poll_transmit(self.now, &host.ram, &mut frame) else {
                    break;
                };
                if let Some(before) = before {
                    self.check_window(from, &before);
                }
                self.carry(from, frame[..length].to_vec());
            }
        }
    }

    /// Checks that data is sent only while the bytes in flight are below the window.
    fn check_window(&self, host: usize, before: &roce::qp::QpReport) {
        let Some(after) = self.reports()[host] else { return };
        let sent = after.in_flight > before.in_flight;
        let (in_flight, window) = (before.in_flight, before.window);
        assert!(!sent || in_flight < window, "sent with {in_flight} bytes in flight, window {window}");
    }

    fn carry(&mut self, from: usize, mut frame: Vec<u8>) {
        self.frames += 1;
        let kept = self.filter.as_mut().is_none_or(|filter| filter(from, &mut frame));
        if !kept || self.random.chance(self.faults.loss) {
            return;
        }
        if self.random.chance(self.faults.flip) {
            let at = 14 + self.random.below(frame.len() as u64 - 14) as usize;
            frame[at] ^= 1 << self.random.below(8);
        }
        let detour = self.late.as_mut().map_or(Duration::ZERO, |late| late());
        let copies = 1 + u64::from(self.random.chance(self.faults.duplicate));
        for copy in 0..copies {
            let late = if self.random.chance(self.faults.reorder) { self.random.below(20_000) } else { 0 };
            let at = self.now + self.options.delay + detour + Duration::from_nanos(late);
            self.on_the_way.insert((at, self.frames * 2 + copy), (1 - from, frame.clone()));
        }
    }
}

/// Faults of single frames in flight. `index` selects one, modulo their number; a fault returns `false` if there is none.
impl Pair {
    fn on_the_way(&self, index: usize) -> Option<(Instant, u64)> {
        let count = self.on_the_way.len();
        if count == 0 { None } else { self.on_the_way.keys().nth(index % count).copied() }
    }

    pub fn lose(&mut self, index: usize) -> bool {
        self.on_the_way(index).is_some_and(|key| self.on_the_way.remove(&key).is_some())
    }

    pub fn delay(&mut self, index: usize, late: Duration) -> bool {
        let Some(key) = self.on_the_way(index) else { return false };
        let entry = self.on_the_way.remove(&key).unwrap();
        self.put_on_the_way(key.0 + late, entry);
        true
    }

    /// Duplicates the frame; the copy arrives `late` after the original.
    pub fn duplicate(&mut self, index: usize, late: Duration) -> bool {
        let Some(key) = self.on_the_way(index) else { return false };
        let entry = self.on_the_way[&key].clone();
        self.put_on_the_way(key.0 + late, entry);
        true
    }

    /// Flips one bit after the Ethernet header of the frame.
    pub fn flip(&mut self, index: usize, bit: usize) -> bool {
        let Some(key) = self.on_the_way(index) else { return false };
        let (_, frame) = self.on_the_way.get_mut(&key).unwrap();
        let bit = bit % ((frame.len() - 14) * 8);
        frame[14 + bit / 8] ^= 1 << (bit % 8);
        true
    }

    /// Sends a frame of the test to host `to`.
    pub fn inject(&mut self, to: usize, frame: Vec<u8>) {
        self.put_on_the_way(self.now + self.options.delay, (to, frame));
    }

    fn put_on_the_way(&mut self, at: Instant, entry: (usize, Vec<u8>)) {
        self.frames += 1;
        self.on_the_way.insert((at, self.frames * 2), entry);
    }
}

/// Returns a window that never limits the sender, without pacing.
pub const fn open_window() -> CongestionAlgorithm {
    CongestionAlgorithm::Fixed { window: 1 << 40, rate: None }
}

pub const fn paced(window: u64, rate: Rate) -> CongestionAlgorithm {
    CongestionAlgorithm::Fixed { window, rate: Some(rate) }
}

/// Returns the telemetry setup of a peer at 10 Gb/s.
pub fn telemetry_setup(reverse: Reverse) -> Setup {
    Setup {
        reverse,
        base_rtt: Duration::from_micros(10),
        line_rate: 10_000_000_000,
        min_rate: 1_000_000,
        additive_increase: 1_000_000,
        target_utilisation: 1 << 30,
        max_stage: 5,
        reports: ReportKind::Busiest,
    }
}

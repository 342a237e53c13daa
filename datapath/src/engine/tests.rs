//! Tests of the engine on a pair of in-process ports.

use super::*;
use crate::io::{self, Burst, Caps, Loopback, LoopbackBuf, PacketIo, QueueError};
use crate::neighbour::Address;
use crate::steering::Steering;
use roce::EndpointConfig;
use roce::wire::Vlan;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const MODES: [Progress; 4] = [
    Progress::Inline,
    Progress::Dedicated { core: None },
    Progress::Dedicated { core: Some(usize::MAX) },
    Progress::Adaptive,
];

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

pub(super) fn config(progress: Progress) -> CoreConfig {
    let progress = match progress {
        Progress::Dedicated { core: Some(usize::MAX) } => {
            Progress::Dedicated { core: core_affinity::get_core_ids().map(|cores| cores[0].id) }
        }
        other => other,
    };
    CoreConfig {
        name: "test".into(),
        mac: MAC,
        vlan: None,
        interface: None,
        peer_mac: None,
        addresses: vec!["10.0.0.1/24".parse::<Address>().unwrap()],
        addresses_chosen: false,
        gateway: None,
        progress,
        delays_acks: true,
        cores: 1,
        idle: Idle::default(),
        endpoint: EndpointConfig {
            max_qps: 4,
            max_cqs: 4,
            max_regions: 4,
            seed: [7; 32],
            process: 0,
            numbers: roce::wire::Numbers::DEFAULT,
        },
    }
}

fn start<P: PacketIo + 'static>(port: P, progress: Progress) -> Engine {
    // SAFETY: these tests register no memory.
    unsafe { Engine::start(port, &config(progress)).unwrap() }
}

#[test]
fn progress_parses_and_prints() {
    for (text, progress) in ["inline", "dedicated", "dedicated:3", "adaptive"].into_iter().zip([
        Progress::Inline,
        Progress::Dedicated { core: None },
        Progress::Dedicated { core: Some(3) },
        Progress::Adaptive,
    ]) {
        assert_eq!(text.parse(), Ok(progress));
    }
    for wrong in ["", "inline:1", "dedicated:", "dedicated:x", "adapted"] {
        assert_eq!(wrong.parse::<Progress>(), Err(ProgressError(wrong.to_owned())));
    }
}

/// A port that panics on request and counts how often it is dropped. It may have a second queue, which may receive frames of all cores, and
/// may deliver frames in place.
pub(super) struct TestPort {
    port: Loopback,
    pub(super) second: Option<Loopback>,
    misdirects: bool,
    pub(super) has_in_place: bool,
    /// The peers that were reported to the port, and whether to its second queue.
    pub(super) suspected: Arc<Mutex<Vec<(IpAddr, bool)>>>,
    broken: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
}

impl TestPort {
    pub(super) fn new(port: Loopback) -> Self {
        Self {
            port,
            second: None,
            misdirects: false,
            has_in_place: false,
            suspected: Arc::default(),
            broken: Arc::default(),
            closed: Arc::default(),
        }
    }
}

impl Drop for TestPort {
    fn drop(&mut self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

impl PacketIo for TestPort {
    type Buf = LoopbackBuf;

    fn open_queues(&mut self, _: &Steering) -> Result<Vec<Self>, QueueError> {
        let Some(port) = self.second.take() else { return Ok(Vec::new()) };
        let mut queue = Self::new(port);
        (queue.misdirects, queue.has_in_place) = (true, self.has_in_place);
        queue.suspected = self.suspected.clone();
        Ok(vec![queue])
    }

    fn misdirects(&self) -> bool {
        self.misdirects
    }

    fn receive(&mut self, into: &mut Burst<LoopbackBuf>) {
        assert!(!self.has_in_place, "a port with frames in place is not asked for buffers");
        assert_eq!(self.broken.load(Ordering::Relaxed), 0, "the port broke");
        self.port.receive(into);
    }

    fn has_in_place(&self) -> bool {
        self.has_in_place
    }

    fn receive_in_place(&mut self, others: &mut Burst<LoopbackBuf>, mut take: impl FnMut(&[u8]) -> bool) {
        let mut received = Burst::new();
        self.port.receive(&mut received);
        others.extend(received.into_iter().filter(|frame| !take(frame)));
    }

    fn alloc(&mut self) -> Option<LoopbackBuf> {
        self.port.alloc()
    }

    fn transmit(&mut self, from: &mut Burst<LoopbackBuf>) {
        self.port.transmit(from);
    }

    fn suspect(&mut self, peer: IpAddr) {
        self.suspected.lock().unwrap().push((peer, self.misdirects));
    }

    fn caps(&self) -> Caps {
        self.port.caps()
    }
}

#[test]
fn a_call_runs_on_the_core_and_returns_its_result() {
    for mode in MODES {
        let (port, _other) = io::pair(64, 2048);
        let engine = start(port, mode);
        let name = engine.call(|_, _| thread::current().name().map(str::to_owned)).unwrap();
        // Either thread may run an adaptive core.
        assert!(name.as_deref() == Some("ferroce-core") || !matches!(mode, Progress::Dedicated { .. }));
        assert!(name.as_deref() != Some("ferroce-core") || mode != Progress::Inline);
        let times: Vec<_> = (0..3).map(|_| engine.call(|_, now| now).unwrap()).collect();
        assert!(times.is_sorted());
    }
}

#[test]
fn calls_from_many_threads_are_all_answered() {
    for mode in MODES {
        let (port, _other) = io::pair(64, 2048);
        let engine = start(port, mode);
        thread::scope(|scope| {
            for n in 0..4 {
                let engine = &engine;
                scope.spawn(move || {
                    for m in 0..50 {
                        assert_eq!(engine.call(move |_, _| n * m), Ok(n * m));
                    }
                });
            }
        });
    }
}

#[test]
fn a_panic_of_the_core_is_an_error_of_each_later_call() {
    for mode in MODES {
        let (port, other) = io::pair(64, 2048);
        let port = TestPort::new(port);
        let broken = port.broken.clone();
        let engine = start(port, mode);
        assert_eq!(engine.check(), Ok(()));
        broken.store(1, Ordering::Relaxed);
        let stopped = loop {
            if let Err(stopped) = engine.call(|_, _| ()) {
                break stopped;
            }
        };
        assert!(stopped.reason.contains("the port broke"), "{stopped}");
        assert_eq!(engine.check(), Err(stopped.clone()));
        assert_eq!(engine.resolve("10.0.0.2".parse().unwrap()), Err(ResolveError::Stopped(stopped)));
        assert!(!engine.progress());
        drop(engine);
        assert_eq!(other.free_buffers(), 64);
    }
}

#[test]
fn a_panic_in_a_call_is_an_error_to_its_caller() {
    for mode in MODES {
        let (port, _other) = io::pair(64, 2048);
        let engine = start(port, mode);
        let result: Result<(), Stopped> = engine.call(|_, _| panic!("a bad call"));
        assert!(result.unwrap_err().reason.contains("a bad call"));
    }
}

#[test]
fn a_port_is_free_once_its_engine_is_dropped() {
    for mode in MODES {
        let (port, _other) = io::pair(64, 2048);
        let port = TestPort::new(port);
        let closed = port.closed.clone();
        let engine = start(port, mode);
        assert_eq!(closed.load(Ordering::Relaxed), 0);
        drop(engine);
        assert_eq!(closed.load(Ordering::Relaxed), 1, "{mode:?}");
    }
}

#[test]
fn frames_to_other_addresses_are_counted_and_dropped() {
    let (port, mut other) = io::pair(64, 2048);
    let engine = start(port, Progress::Inline);
    let mut burst = Burst::new();
    for to in [[2, 0, 0, 0, 0, 9], MAC.0] {
        let mut frame = other.alloc().unwrap();
        crate::io::PacketBuf::set_len(&mut frame, 64);
        frame.fill(0);
        frame[..6].copy_from_slice(&to);
        burst.push(frame);
    }
    other.transmit(&mut burst);
    engine.progress();
    let (ours, theirs) =
        engine.call(|state, _| (state.endpoint.counters().rx_frames, state.counters.not_for_us)).unwrap();
    assert_eq!((ours, theirs), (1, 1));
}

#[test]
fn a_core_of_a_vlan_sends_and_receives_its_vlan_alone() {
    let (port, other) = io::pair(64, 2048);
    let config = |address: &str, mac| CoreConfig {
        vlan: Some(Vlan(5)),
        // Not used: on a VLAN the kernel does not resolve addresses.
        interface: Some(1),
        mac,
        addresses: vec![address.parse::<Address>().unwrap()],
        ..config(Progress::Inline)
    };
    // SAFETY: no memory is registered.
    let one = unsafe { Engine::start(port, &config("10.0.0.1/24", MAC)).unwrap() };
    let (tap, wire) = io::pair(64, 2048);
    // SAFETY: no memory is registered.
    let two = unsafe { Engine::start(tap, &config("10.0.0.2/24", Mac([2, 0, 0, 0, 0, 2]))).unwrap() };
    let mut cable = Cable { ends: [other, wire], frames: Vec::new() };
    let asked = one.call(|state, now| state.neighbours.resolve(now, "10.0.0.2".parse().unwrap()));
    assert_eq!(asked, Ok(Ok(Resolution::Pending)));
    for _ in 0..4 {
        one.progress();
        two.progress();
        cable.carry(|frame| assert_eq!(frame[12..18], [0x81, 0, 0, 5, 0x08, 0x06], "tagged ARP"));
    }
    let asked = one.call(|state, now| state.neighbours.resolve(now, "10.0.0.2".parse().unwrap()));
    assert_eq!(asked, Ok(Ok(Resolution::Resolved(Mac([2, 0, 0, 0, 0, 2])))));

    let arp = cable.frames[0].clone();
    let untagged = [&arp[..12], &arp[16..]].concat();
    let elsewhere = [&arp[..15], &[6], &arp[16..]].concat();
    let urgent = [&arp[..14], &[0xe0], &arp[15..]].concat();
    let count = |engine: &Engine| {
        engine.progress();
        engine.call(|state, _| (state.counters.other_vlan, state.counters.neighbour_packets)).unwrap()
    };
    let before = count(&two);
    for frame in [untagged, elsewhere, urgent] {
        cable.put(1, &frame);
    }
    assert_eq!(count(&two), (before.0 + 2, before.1 + 1), "its own VLAN's, at any priority");
}

struct Cable {
    ends: [Loopback; 2],
    frames: Vec<Vec<u8>>,
}

impl Cable {
    fn carry(&mut self, see: impl Fn(&[u8])) {
        for from in [0, 1] {
            let mut burst = Burst::new();
            self.ends[from].receive(&mut burst);
            let frames: Vec<_> = burst.drain(..).map(|frame| frame.to_vec()).collect();
            for frame in frames {
                see(&frame);
                self.put(1 - from, &frame);
                self.frames.push(frame);
            }
        }
    }

    fn put(&mut self, to: usize, frame: &[u8]) {
        let mut buffer = self.ends[to].alloc().unwrap();
        crate::io::PacketBuf::set_len(&mut buffer, frame.len());
        buffer.copy_from_slice(frame);
        let mut burst = Burst::new();
        burst.push(buffer);
        self.ends[to].transmit(&mut burst);
    }
}

#[test]
fn more_queue_pairs_than_doorbells_are_refused() {
    let (port, _other) = io::pair(64, 2048);
    let mut config = config(Progress::Inline);
    config.endpoint.max_qps = 300_000;
    // SAFETY: no memory is registered.
    let error = unsafe { Engine::start(port, &config) }.unwrap_err();
    assert!(error.to_string().contains("300000"), "{error}");
}

/// A port that accepts no frames for a number of turns.
struct StalledPort {
    port: Loopback,
    /// Further calls of `transmit` that send nothing.
    turns: u32,
}

impl PacketIo for StalledPort {
    type Buf = LoopbackBuf;

    fn receive(&mut self, into: &mut Burst<LoopbackBuf>) {
        self.port.receive(into);
    }

    fn alloc(&mut self) -> Option<LoopbackBuf> {
        self.port.alloc()
    }

    fn transmit(&mut self, from: &mut Burst<LoopbackBuf>) {
        match self.turns.checked_sub(1) {
            Some(left) => self.turns = left,
            None => self.port.transmit(from),
        }
    }

    fn caps(&self) -> Caps {
        self.port.caps()
    }
}

#[test]
fn a_core_with_frames_that_the_port_has_not_accepted_is_not_idle() {
    let (port, mut other) = io::pair(64, 2048);
    let engine = start(StalledPort { port, turns: 5 }, Progress::Inline);
    // The first frame announces the core's own address.
    let busy = (0..5).filter(|_| engine.progress()).count();
    assert_eq!(busy, 5, "it waits for the port, awake");
    engine.progress();
    let mut came = Burst::new();
    other.receive(&mut came);
    assert!(!came.is_empty());
    assert!(!engine.progress(), "now it has nothing to do");
}

//! Two devices connected by an in-process cable, with a connected queue pair on each.
#![allow(dead_code, reason = "each test file uses its part")]

use ferroce_verbs::port::{Mac, OwnPort, pair};
use ferroce_verbs::{
    Access, Capabilities, Completion, CompletionQueue, CompletionStatus, ConnectOptions, Device,
    DeviceConfig, MemoryRegion, Progress, ProtectionDomain, QueuePair,
};
use std::io::Write;
use std::sync::{Arc, Mutex};

/// Collects the log lines of the process after [`start`](Self::start).
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn start(level: tracing::Level) -> Self {
        let log = Self::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
        let lines = lines.with_writer(move || writer.clone()).finish();
        tracing::subscriber::set_global_default(lines).unwrap();
        log
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub const FRAME: usize = 4500;

pub const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];

/// A device with the objects that a program creates.
pub struct Side {
    pub qp: QueuePair,
    pub send_cq: CompletionQueue,
    pub recv_cq: CompletionQueue,
    pub region: MemoryRegion,
    pub pd: ProtectionDomain,
    pub device: Device,
}

/// Opens devices 10.0.0.1 and 10.0.0.2. Each has a neighbour entry for the other, so that one thread can run both.
pub fn devices(progress: Progress) -> [Device; 2] {
    devices_with(DeviceConfig::new().progress(progress))
}

/// Opens the same devices with these settings.
pub fn devices_with(config: DeviceConfig) -> [Device; 2] {
    devices_by(|_| config.clone())
}

/// Opens the same devices with `cores` cores on each side.
pub fn devices_of(cores: [u8; 2], progress: Progress) -> [Device; 2] {
    devices_by(|side| DeviceConfig::new().progress(progress).cores(cores[side]).unwrap())
}

fn devices_by(config: impl Fn(usize) -> DeviceConfig) -> [Device; 2] {
    let (left, right) = pair(4096, FRAME);
    let open = |port, side: usize| {
        let address = format!("10.0.0.{}/24", side + 1).parse().unwrap();
        let config = config(side).address(address);
        let own = OwnPort { name: format!("pair{side}"), mac: MACS[side] };
        let device = Device::open_on(port, own, &config).unwrap();
        device.set_neighbour(format!("10.0.0.{}", 2 - side).parse().unwrap(), MACS[1 - side]).unwrap();
        device
    };
    [open(left, 0), open(right, 1)]
}

pub fn side(device: &Device, region: usize, capabilities: Capabilities, cq_depth: u32) -> Side {
    let pd = device.allocate_pd().unwrap();
    let send_cq = device.create_cq(cq_depth).unwrap();
    let recv_cq = device.create_cq(cq_depth).unwrap();
    let region = MemoryRegion::alloc(&pd, region, Access::ALL).unwrap();
    let qp = pd.queue_pair(&send_cq, &recv_cq).capabilities(capabilities).build().unwrap();
    Side { qp, send_cq, recv_cq, region, pd, device: device.clone() }
}

pub fn connect(a: &mut Side, b: &mut Side, options: &ConnectOptions) {
    let (to_a, to_b) = (a.qp.endpoint(), b.qp.endpoint());
    a.qp.connect(&to_b, options).unwrap();
    b.qp.connect(&to_a, options).unwrap();
}

/// Returns two connected sides with regions of `region` bytes.
pub fn connected(progress: Progress, region: usize) -> (Side, Side) {
    let [a, b] = devices(progress);
    let make = |device: &Device| side(device, region, Capabilities::default(), 1024);
    let (mut a, mut b) = (make(&a), make(&b));
    connect(&mut a, &mut b, &ConnectOptions::default());
    (a, b)
}

/// Runs both devices until `cq` has a completion. Returns the completion.
pub fn next(cq: &mut CompletionQueue, peer: &Device) -> Completion {
    loop {
        if let Some(completion) = cq.poll_one().unwrap() {
            return completion;
        }
        if !peer.progress() {
            std::thread::yield_now();
        }
    }
}

/// Returns the next completion as [`next`] does, and checks that the request succeeded.
pub fn success(cq: &mut CompletionQueue, peer: &Device) -> Completion {
    let completion = next(cq, peer);
    assert_eq!(completion.status, CompletionStatus::Success, "{completion:?}");
    completion
}

/// Returns bytes that depend on their position and on `seed`.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|n| (n * 31 + n / 251) as u8 ^ seed).collect()
}

pub fn contents(region: &MemoryRegion, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.read(offset, &mut bytes).unwrap();
    bytes
}

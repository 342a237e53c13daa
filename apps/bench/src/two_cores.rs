//! Two cores compared with one: the work of two threads, each on its own CPU, per second of CPU time, which other load on the machine does
//! not increase.

use crate::cpu;
use crate::one_core::{OneCore, Traffic};
use crate::ring::{LIST, hpcc};
use crate::tool;
use clap::ValueEnum;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use verbs::congestion::{Congestion, CongestionAlgorithm};
use verbs::port::Mac;
use verbs::service::{Request, Uc};
use verbs::{
    Access, Capabilities, CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, Mtu, Progress,
    QueuePair, Remote, Rkey,
};

const WARM_UP: Duration = Duration::from_millis(100);
const MEASURED: Duration = Duration::from_millis(1000);
/// Lists of messages between two reads of the clock.
const LISTS: usize = 64;

/// The address of the peer of queue pairs on port `null`.
const PEER: [u8; 4] = [10, 0, 0, 2];

/// The work of each thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// A connection of its own, both ends: WRITEs of 64 B in lists of 32.
    Pair64,
    /// The same with WRITEs of 4 KiB.
    Pair4k,
    /// WRITEs of 64 B in lists of 32, into port `null`, by an unreliable queue pair. With two threads, one device with two cores has both
    /// queue pairs.
    Null64,
    /// The same with WRITEs of 4 KiB.
    Null4k,
}

/// A queue pair that sends into port `null`.
pub struct Sender {
    qp: QueuePair<Uc>,
    cq: CompletionQueue,
    request: Request<Uc>,
    _region: MemoryRegion,
}

/// Opens a device on port `null`, with the Ethernet address of its peer.
fn device(cores: u8) -> Result<Device, verbs::Error> {
    let address = "10.0.0.1/24".parse().expect("an address");
    let config = DeviceConfig::on("null").address(address).progress(Progress::Inline).cores(cores)?;
    let device = Device::open(&config)?;
    device.set_neighbour(PEER.into(), Mac([2, 0, 0, 0, 0, 2]))?;
    Ok(device)
}

impl Sender {
    /// Opens a device with `cores` cores on port `null`, and a sender of messages of `size` bytes on each core.
    ///
    /// # Errors
    /// Returns the error of the library if the device, a queue pair or the connection fails.
    pub fn open(cores: u8, size: u32) -> Result<Vec<Self>, String> {
        let device = device(cores).map_err(|error| error.to_string())?;
        (0..cores).map(|_| Self::on(&device, size).map_err(|error| error.to_string())).collect()
    }

    fn on(device: &Device, size: u32) -> Result<Self, verbs::Error> {
        let pd = device.allocate_pd()?;
        let cq = device.create_cq(64)?;
        let region = MemoryRegion::alloc(&pd, size as usize, Access::ALL)?;
        let capabilities = Capabilities { max_send: 2 * LIST as u32, ..Capabilities::default() };
        let mut qp = pd.queue_pair(&cq, &cq).unreliable().capabilities(capabilities).build()?;
        let mut peer = qp.endpoint();
        peer.ip = PEER.into();
        let fixed = Congestion::new(CongestionAlgorithm::Fixed { window: 1 << 30, rate: None });
        qp.connect(&peer, &ConnectOptions::new().mtu(Mtu::M4096).congestion(Some(fixed)))?;
        let remote = Remote { address: 0, rkey: Rkey::new(1) };
        let request = Request::write(0, region.sge(0, size)?, remote);
        Ok(Self { qp, cq, request, _region: region })
    }

    /// Posts one list and waits until it has been sent. Polling runs the queue pair's core, and core 0.
    ///
    /// # Errors
    /// Returns the error of the library if a request is refused, or the core stops.
    pub fn exchange(&mut self) -> Result<(), String> {
        let request = &self.request;
        let list = (1..=LIST).map(|n| {
            let request = request.clone();
            if n == LIST { request } else { request.unsignalled() }
        });
        self.qp.post_send_list(list).map_err(|refused| refused.error.to_string())?;
        while self.cq.poll_one().map_err(|error| error.to_string())?.is_none() {}
        Ok(())
    }
}

type Body = Box<dyn FnMut() -> Result<(), String> + Send>;

fn bodies(work: Work, threads: u8) -> Result<Vec<Body>, String> {
    let pair = |traffic| {
        let mut pair = OneCore::open(traffic, Some(hpcc()))?;
        Ok::<_, String>(Box::new(move || pair.exchange()) as Body)
    };
    let senders = |size| {
        let senders = Sender::open(threads, size)?.into_iter();
        Ok(senders.map(|mut sender| Box::new(move || sender.exchange()) as Body).collect())
    };
    match work {
        Work::Pair64 => (0..threads).map(|_| pair(Traffic::Write64)).collect(),
        Work::Pair4k => (0..threads).map(|_| pair(Traffic::Write4k)).collect(),
        Work::Null64 => senders(64),
        Work::Null4k => senders(4096),
    }
}

/// Returns the sum over `threads` concurrent threads of their messages per second of CPU time.
///
/// # Errors
/// As [`OneCore::open`], [`OneCore::exchange`], [`Sender::open`] and [`Sender::exchange`].
pub fn run(work: Work, threads: u8) -> Result<f64, String> {
    let ready = Barrier::new(threads.into());
    let measure = |place: usize, mut body: Body| {
        cpu::pin(place);
        ready.wait();
        let mut messages_in = |time: Duration| {
            let (begin, mut lists) = (Instant::now(), 0);
            while begin.elapsed() < time {
                (0..LISTS).try_for_each(|_| body())?;
                lists += LISTS;
            }
            Ok::<_, String>((lists * LIST) as f64)
        };
        let warm = messages_in(WARM_UP);
        ready.wait();
        let begin = cpu::time();
        let messages = warm.and_then(|_| messages_in(MEASURED));
        let time = cpu::time() - begin;
        // The other thread may still need this one's core.
        ready.wait();
        Ok(messages? / time.as_secs_f64())
    };
    let bodies = bodies(work, threads)?;
    std::thread::scope(|scope| {
        let measure = &measure;
        let running: Vec<_> =
            (0..).zip(bodies).map(|(place, body)| scope.spawn(move || measure(place, body))).collect();
        let died = |_| "a thread panicked".to_owned();
        running.into_iter().map(|thread| thread.join().map_err(died)?).sum()
    })
}

/// Does the same as [`run`] in a new process.
///
/// # Errors
/// Returns the output of the process if it failed.
pub fn run_afresh(work: Work, threads: u8) -> Result<f64, String> {
    let name = work.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    tool::afresh(&["two-cores", &name, &threads.to_string()])
}

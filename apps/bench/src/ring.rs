//! The two ends of a connection in one process, over DPDK rings, whose cost is negligible. Each end has its own pinned core and runs inline
//! on one thread.

use crate::cpu;
use crate::echo;
use crate::host::Side;
use crate::tool;
use clap::ValueEnum;
use datapath::dpdk::{Eal, EalConfig, Port, PortConfig};
use datapath::io::{BURST, Burst, PacketBuf, PacketIo};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use verbs::congestion::{Congestion, CongestionAlgorithm};
use verbs::state::AckTimeout;
use verbs::{
    Access, Capabilities, CompletionOpcode, CompletionQueue, CompletionStatus, ConnectOptions, Data, Device,
    DeviceConfig, MemoryRegion, Mtu, Progress, QueuePair, RecvRequest, Remote, SendRequest, Sge,
};

const DEPTH: u32 = 256;
/// Small requests per post.
pub(crate) const LIST: usize = 32;
const LONGEST: usize = 1 << 16;

const WARM_UP: Duration = Duration::from_millis(100);
const MEASURED: Duration = Duration::from_millis(500);
/// The number of round trips, and the number of initial round trips that are not used.
const ROUNDS: usize = 20_000;
const FIRST: usize = 2000;

fn fresh_ring() -> [String; 2] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    [format!("ring:bench{number},a"), format!("ring:bench{number},b")]
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) device: Device,
    pub(crate) cq: CompletionQueue,
    pub(crate) region: MemoryRegion,
    pub(crate) qp: QueuePair,
}

impl End {
    /// Opens a device with `cores` cores, 1 or 2. The queue pair is on the last core.
    fn open(port: &str, address: &str, cores: u8) -> Result<Self, verbs::Error> {
        let address = address.parse().expect("an address");
        let config = DeviceConfig::on(port).address(address).progress(Progress::Inline).cores(cores)?;
        let device = Device::open(&config)?;
        let pd = device.allocate_pd()?;
        let cq = device.create_cq(2 * DEPTH)?;
        let region = MemoryRegion::alloc(&pd, LONGEST, Access::ALL)?;
        let capabilities = Capabilities { max_send: DEPTH, ..Capabilities::default() };
        // The first queue pair of a device is on core 0.
        let first = if cores > 1 { Some(pd.queue_pair(&cq, &cq).build()?) } else { None };
        let qp = pd.queue_pair(&cq, &cq).capabilities(capabilities).build()?;
        drop(first);
        Ok(Self { device, cq, region, qp })
    }

    /// Polls completions. Returns the numbers of receives and of others.
    pub(crate) fn poll(&mut self) -> Result<(u64, u64), String> {
        let (mut arrived, mut done, mut failed) = (0, 0, None);
        let take = |completion: &verbs::Completion| match (completion.status, completion.opcode) {
            (CompletionStatus::Success, CompletionOpcode::Recv) => arrived += 1,
            (CompletionStatus::Success, _) => done += 1,
            (status, _) => failed = failed.or(Some(status)),
        };
        self.cq.poll_each(LIST, take).map_err(|error| error.to_string())?;
        failed.map_or(Ok((arrived, done)), |status| Err(status.to_string()))
    }
}

/// Returns HPCC++, which does not reduce the rate here, because no switch reports a queue.
pub(crate) fn hpcc() -> Congestion {
    let (rate, rtt) = (cc::Rate::from_gbps(400), Duration::from_micros(20));
    Congestion::new(CongestionAlgorithm::Hpcc(cc::HpccConfig::new(rate, rtt, NonZeroU32::MIN)))
}

/// Returns two connected ends. Each runs when its thread calls `progress`.
pub(crate) fn connected(mtu: Mtu, congestion: Option<Congestion>) -> Result<(End, End), String> {
    connected_to(mtu, congestion, 1)
}

/// Like [`connected`], but the second end has `cores` cores, and its queue pair is on the last core.
pub(crate) fn connected_to(
    mtu: Mtu,
    congestion: Option<Congestion>,
    cores: u8,
) -> Result<(End, End), String> {
    let text = |error: verbs::Error| error.to_string();
    let [a, b] = fresh_ring();
    let (mut a, mut b) =
        (End::open(&a, "10.0.0.1/24", 1).map_err(text)?, End::open(&b, "10.0.0.2/24", cores).map_err(text)?);
    let mac = |end: &End| end.device.query().map(|info| info.mac).map_err(text);
    let (mac_a, mac_b) = (mac(&a)?, mac(&b)?);
    a.device.set_neighbour("10.0.0.2".parse().expect("an address"), mac_b).map_err(text)?;
    b.device.set_neighbour("10.0.0.1".parse().expect("an address"), mac_a).map_err(text)?;
    let (to_a, to_b) = (a.qp.endpoint(), b.qp.endpoint());
    // An ACK timeout of 1.1 s is longer than pauses of a busy machine.
    let options = ConnectOptions::new().mtu(mtu).congestion(congestion).ack_timeout(AckTimeout::new(18));
    a.qp.connect(&to_b, &options).map_err(text)?;
    b.qp.connect(&to_a, &options).map_err(text)?;
    Ok((a, b))
}

/// Runs `server` repeatedly on one CPU while `client` runs on the other. Returns the client's result.
fn side_by_side<R: Send>(
    mut server: impl FnMut() -> Result<(), String> + Send,
    client: impl FnOnce() -> Result<R, String> + Send,
) -> Result<R, String> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            cpu::pin(Side::Server.cpu());
            let mut outcome = Ok(());
            while outcome.is_ok() && !over.load(Ordering::Relaxed) {
                outcome = server();
            }
            outcome
        });
        let measuring = scope.spawn(|| {
            cpu::pin(Side::Client.cpu());
            let outcome = client();
            over.store(true, Ordering::Relaxed);
            outcome
        });
        let died = |_| "a side panicked".to_owned();
        let measured = measuring.join().map_err(died);
        over.store(true, Ordering::Relaxed);
        serving.join().map_err(died)??;
        measured?
    })
}

/// Returns the rate of `work` per second. Each call of `work` returns the amount of work that it did.
fn steady(mut work: impl FnMut() -> Result<u64, String>) -> Result<f64, String> {
    let (mut begin, mut done, mut is_warm) = (Instant::now(), 0, false);
    loop {
        // Reads the clock every 16 calls.
        for _ in 0..16 {
            done += work()?;
        }
        let time = begin.elapsed();
        if is_warm && time >= MEASURED {
            return Ok(done as f64 / time.as_secs_f64());
        }
        if !is_warm && time >= WARM_UP {
            (begin, done, is_warm) = (Instant::now(), 0, true);
        }
    }
}

/// A run over a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Run {
    /// The client's WRITEs, messages a second.
    Write,
    /// The client's READs, messages a second.
    Read,
    /// SENDs there and back, µs of half a round trip.
    Send,
    /// Raw frames a second.
    Frames,
    /// Raw frames there and back, µs of half a round trip.
    Echo,
}

/// Does the same as [`run`] in a new process, because ports do not free their pools if frames are still in a ring.
///
/// # Errors
/// Returns the output of the process if it failed.
pub fn run_afresh(what: Run, size: u32, mtu: u32) -> Result<f64, String> {
    let name = what.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    tool::afresh(&["ring", &name, "--size", &size.to_string(), "--mtu", &mtu.to_string()])
}

/// Measures once, with messages or frames of `size` bytes.
///
/// # Errors
/// Returns an error if there is no such MTU, a port or a queue pair cannot be created, or a request fails.
pub fn run(what: Run, size: u32, mtu: u32) -> Result<f64, String> {
    let mtu = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096]
        .into_iter()
        .find(|known| known.bytes() == mtu)
        .ok_or_else(|| format!("there is no path MTU of {mtu}"))?;
    match what {
        Run::Write => messages_per_second(size, mtu, SendRequest::write),
        Run::Read => messages_per_second(size, mtu, SendRequest::read),
        Run::Send => half_round_trip(size as usize),
        Run::Frames => frames_per_second(size as usize),
        Run::Echo => raw_half_round_trip(size as usize),
    }
}

fn messages_per_second(
    size: u32,
    mtu: Mtu,
    request: fn(u64, Sge, Remote) -> SendRequest,
) -> Result<f64, String> {
    let (mut a, b) = connected(mtu, Some(hpcc()))?;
    let remote = b.region.remote().at(0);
    let sge = a.region.sge(0, size).map_err(|error| error.to_string())?;
    let request = request(0, sge, remote);
    let list = if size <= 4096 { LIST } else { 4 };
    let serve = || {
        b.device.progress();
        Ok(())
    };
    side_by_side(serve, move || {
        let mut outstanding = 0_u64;
        steady(|| {
            while outstanding + list as u64 <= u64::from(DEPTH) {
                let requests = (1..=list).map(|n| SendRequest { signalled: n == list, ..request.clone() });
                match a.qp.post_send_list(requests) {
                    Ok(taken) => outstanding += taken as u64,
                    Err(refused) => return Err(refused.error.to_string()),
                }
            }
            let done = a.poll()?.1 * list as u64;
            outstanding -= done;
            Ok(done)
        })
    })
}

/// Returns half the round trip of SENDs of `size` bytes: the median, µs.
fn half_round_trip(size: usize) -> Result<f64, String> {
    let (mut a, mut b) = connected(Mtu::M4096, Some(hpcc()))?;
    let message = vec![0x5a; size];
    let receive = |end: &mut End| {
        let into = end.region.sge(0, size as u32).map_err(|error| error.to_string())?;
        end.qp.post_recv(RecvRequest::new(0, into)).map_err(|error| error.to_string())
    };
    let send = |end: &mut End| {
        end.qp.post_send(SendRequest::send(0, Data::inline(&message))).map_err(|error| error.to_string())
    };
    for end in [&mut a, &mut b] {
        (0..4).try_for_each(|_| receive(end))?;
    }
    let serve = || {
        for _ in 0..b.poll()?.0 {
            send(&mut b)?;
            receive(&mut b)?;
        }
        Ok(())
    };
    side_by_side(serve, || {
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            send(&mut a)?;
            while a.poll()?.0 == 0 {}
            times.push(start.elapsed());
            receive(&mut a)?;
        }
        let counted = &mut times[FIRST..];
        counted.sort();
        Ok(counted[counted.len() / 2].as_secs_f64() * 1e6 / 2.0)
    })
}

fn ports() -> Result<[Port; 2], String> {
    let eal = Eal::start(&EalConfig::default()).map_err(|error| error.to_string())?;
    let open = |name: &String| {
        let spec = name.parse().map_err(|error| format!("{name}: {error}"))?;
        Port::open(eal, &spec, &PortConfig::default()).map_err(|error| error.to_string())
    };
    let [a, b] = fresh_ring();
    Ok([open(&a)?, open(&b)?])
}

/// Returns the baseline of rates, frames per second. One side allocates and sends frames, the other receives and frees them. Neither side
/// accesses their bytes.
fn frames_per_second(length: usize) -> Result<f64, String> {
    let [mut a, mut b] = ports()?;
    let mut out: Burst<_> = Burst::new();
    let send = || {
        a.attach();
        while out.len() < BURST {
            let Some(mut frame) = a.alloc() else { break };
            frame.set_len(length);
            out.push(frame);
        }
        a.transmit(&mut out);
        Ok(())
    };
    side_by_side(send, || {
        b.attach();
        let mut came: Burst<_> = Burst::new();
        steady(|| {
            b.receive(&mut came);
            let received = came.len() as u64;
            came.clear();
            Ok(received)
        })
    })
}

/// Returns the baseline of latency, half the round trip of a raw frame: the median, µs.
fn raw_half_round_trip(length: usize) -> Result<f64, String> {
    let [mut a, mut b] = ports()?;
    let serve = || {
        b.attach();
        echo::echo(&mut b);
        Ok(())
    };
    side_by_side(serve, || {
        a.attach();
        echo::median_half(&mut a, length)
    })
}

//! Slows down the queue pair between two devices of one process on an in-process cable. `ferroce why` can then find the cause.
//!
//! ```sh
//! cargo run -p ferroce-testkit --bin injured -- window 5  # the cause, and how many seconds
//! ferroce why
//! ```

use datapath::io::{Burst, Caps};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use verbs::congestion::{Congestion, CongestionAlgorithm};
use verbs::errors::BoundsError;
use verbs::port::{Mac, OwnPort, PacketIo, pair};
use verbs::state::AckTimeout;
use verbs::{
    Access, ConnectOptions, Device, DeviceConfig, MemoryRegion, Progress, Remote, Rkey, SendRequest,
};

const CAUSES: &str = "idle, pacing, window, receiver-not-ready, loss-recovery, silence, read-limit, fence, completions-unpolled, cpu-starved, slow-receiver, black-hole, path-mtu, pool-dry, port-full, failed, wrong-key";

/// The limit on outstanding requests, and the size of each, bytes.
const DEPTH: u64 = 32;
const BYTES: u32 = 64 << 10;

/// The interval between polls of a slow receiver.
const PAUSE: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct Injury {
    /// The port loses one out of this number of sent frames; 0 for no loss.
    one_of: AtomicU32,
    /// The port loses longer frames, bytes; 0 for no limit.
    longest: AtomicUsize,
    /// The port returns a buffer once per this number of calls; 0 for every call.
    buffer_of: AtomicU32,
    /// The port accepts frames once per this number of calls; 0 for every call.
    takes_of: AtomicU32,
}

struct Injured<P> {
    port: P,
    injury: Arc<Injury>,
    sent: u32,
    asked: u32,
    offered: u32,
}

/// Counts a call. Returns true once per `every` calls; always if `every` is 0.
fn is_one_of(count: &mut u32, every: &AtomicU32) -> bool {
    *count = count.wrapping_add(1);
    match every.load(Ordering::Relaxed) {
        0 => true,
        every => count.is_multiple_of(every),
    }
}

impl<P: PacketIo> PacketIo for Injured<P> {
    type Buf = P::Buf;

    fn attach(&mut self) {
        self.port.attach();
    }

    fn receive(&mut self, into: &mut Burst<Self::Buf>) {
        self.port.receive(into);
    }

    fn alloc(&mut self) -> Option<Self::Buf> {
        is_one_of(&mut self.asked, &self.injury.buffer_of).then(|| self.port.alloc())?
    }

    fn transmit(&mut self, from: &mut Burst<Self::Buf>) {
        if !is_one_of(&mut self.offered, &self.injury.takes_of) {
            return;
        }
        let Injury { one_of, longest, .. } = &*self.injury;
        let longest = longest.load(Ordering::Relaxed);
        from.retain(|frame| {
            let is_lost = one_of.load(Ordering::Relaxed) > 0 && is_one_of(&mut self.sent, one_of);
            !is_lost && (longest == 0 || frame.len() <= longest)
        });
        self.port.transmit(from);
    }

    fn recycle(&mut self, from: &mut Burst<Self::Buf>) {
        self.port.recycle(from);
    }

    fn caps(&self) -> Caps {
        self.port.caps()
    }
}

impl Injury {
    /// Sets the faults for `cause`. `since` is the time since the first request.
    fn apply(&self, cause: &str, since: Duration) {
        let one_of = match cause {
            "loss-recovery" => 100,
            "silence" | "failed" => 1,
            "black-hole" if since > Duration::from_millis(100) => 1,
            _ => 0,
        };
        self.one_of.store(one_of, Ordering::Relaxed);
        self.longest.store(if cause == "path-mtu" { 1500 } else { 0 }, Ordering::Relaxed);
        self.buffer_of.store(if cause == "pool-dry" { 1000 } else { 0 }, Ordering::Relaxed);
        self.takes_of.store(if cause == "port-full" { 1000 } else { 0 }, Ordering::Relaxed);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let cause = words.next().ok_or("name a cause: ".to_string() + CAUSES)?;
    let seconds: u64 = words.next().map_or(Ok(5), |word| word.parse())?;
    if !CAUSES.split(", ").any(|one| one == cause) {
        return Err(format!("cause {cause}: there is none of that name; choose one of {CAUSES}").into());
    }
    if cause == "cpu-starved" {
        // On one CPU, these threads leave a fifth of it to the others.
        (0..4).for_each(|_| {
            _ = std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop()
                }
            })
        });
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    run(&cause, end)
}

fn options(cause: &str) -> ConnectOptions {
    let congestion = match cause {
        "pacing" => CongestionAlgorithm::Fixed { window: 1 << 20, rate: Some(cc::Rate::from_mbps(20)) },
        "window" => CongestionAlgorithm::Fixed { window: 1024, rate: None },
        _ => CongestionAlgorithm::Fixed { window: 1 << 20, rate: None },
    };
    ConnectOptions::new()
        .congestion(Congestion::new(congestion))
        .max_rd_atomic(if cause == "read-limit" { 1 } else { 16 })
        // 0.27 s for silences, so that these begin soon and last.
        .ack_timeout(AckTimeout::new(
            if ["silence", "black-hole", "path-mtu", "slow-receiver"].contains(&cause) { 16 } else { 12 },
        ))
        .retry_count(if cause == "failed" { 1 } else { 7 })
}

/// Runs both cores on one thread, so that the load of the machine has little effect.
fn run(cause: &str, end: Instant) -> Result<(), Box<dyn Error>> {
    let (left, right) = pair(1024, 4500);
    let injury = Arc::new(Injury::default());
    let start = |port, injury: &Arc<Injury>, name: &str, last: u8| {
        let address = format!("10.0.0.{last}/24").parse()?;
        let config = DeviceConfig::new().address(address).progress(Progress::Inline);
        let own = OwnPort { name: name.into(), mac: Mac([2, 0, 0, 0, 0, last]) };
        let port = Injured { port, injury: injury.clone(), sent: 0, asked: 0, offered: 0 };
        Ok::<_, Box<dyn Error>>(Device::open_on(port, own, &config)?)
    };
    let (here, there) = (start(left, &injury, "here", 1)?, start(right, &Arc::default(), "there", 2)?);
    let far = there.allocate_pd()?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let memory = MemoryRegion::alloc(&far, BYTES as usize, rights)?;
    let mut far_cq = there.create_cq(64)?;
    let mut responder = far.queue_pair(&far_cq, &far_cq).build()?;
    let near = here.allocate_pd()?;
    let buffer = MemoryRegion::alloc(&near, BYTES as usize, Access::LOCAL_WRITE)?;
    let (mut completions, mut driver) = (here.create_cq(256)?, here.create_cq(1)?);
    let mut requester = near.queue_pair(&completions, &completions).build()?;
    let options = options(cause);
    let (ours, theirs) = (requester.endpoint(), responder.endpoint());
    std::thread::scope(|scope| {
        // Each device answers ARP only while its core runs, so both connect at the same time.
        let answers = scope.spawn(|| responder.connect(&ours, &options));
        let asked = requester.connect(&theirs, &options);
        answers.join().map_err(|_| "the responder's thread panicked")??;
        Ok::<_, Box<dyn Error>>(asked?)
    })?;
    let request = |id: u64| {
        let (all, few) = (buffer.sge(0, BYTES)?, buffer.sge(0, 64)?);
        Ok::<_, BoundsError>(match cause {
            "receiver-not-ready" => SendRequest::send(id, few),
            // The first messages are short, so that they arrive.
            "path-mtu" if id < 9 => SendRequest::write(id, few, memory.remote().at(0)),
            "wrong-key" => {
                let remote = memory.remote().at(0);
                SendRequest::write(id, all, Remote { rkey: Rkey::new(!remote.rkey.get()), ..remote })
            }
            "read-limit" => SendRequest::read(id, few, memory.remote().at(0)),
            "fence" if id.is_multiple_of(2) => SendRequest::read(id, all, memory.remote().at(0)),
            "fence" => SendRequest::write(id, few, memory.remote().at(0)).fenced(),
            _ => SendRequest::write(id, all, memory.remote().at(0)),
        })
    };
    let begin = Instant::now();
    let (mut posted, mut done, mut answered) = (0, 0, begin);
    while Instant::now() < end {
        injury.apply(cause, begin.elapsed());
        let most = match cause {
            "idle" => 0,
            "completions-unpolled" => 1,
            // One at a time, so that each message is sent in the same packets.
            "path-mtu" if posted < 9 => 1,
            // Fewer bytes than the window.
            "cpu-starved" => 8,
            "slow-receiver" => 1,
            _ => DEPTH,
        };
        while posted < done + most {
            requester.post_send(request(posted)?)?;
            posted += 1;
        }
        let polled = if cause == "completions-unpolled" { &mut driver } else { &mut completions };
        done += polled.poll_each(16, |_| {})? as u64;
        // The core of the responder runs when its program polls.
        if cause != "slow-receiver" || answered.elapsed() > PAUSE {
            // Enough turns for all packets in flight.
            for _ in 0..if cause == "slow-receiver" { 8 } else { 1 } {
                far_cq.poll_each(16, |_| {})?;
            }
            answered = Instant::now();
        }
    }
    Ok(())
}

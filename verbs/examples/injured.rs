//! Two devices of one process on an in-process cable, and something that slows their queue pair down, for `ferroce why` to find.
//!
//! ```sh
//! cargo run -p ferroce-verbs --example injured -- window 5   # the cause, and how many seconds
//! ferroce why
//! ```

use datapath::io::{Burst, Caps};
use ferroce_verbs::{
    Access, AckTimeout, BoundsError, Congestion, CongestionAlgorithm, ConnectOptions, Device, DeviceConfig,
    Loopback, Mac, MemoryRegion, OwnPort, PacketIo, Progress, SendRequest, pair,
};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const CAUSES: &str = "idle, pacing, window, receiver-not-ready, loss-recovery, silence, read-limit, fence, completions-unpolled, cpu-starved, failed";

/// Requests that are outstanding at a time, and bytes of each.
const DEPTH: u64 = 32;
const BYTES: u32 = 64 << 10;

/// A port that loses one of so many frames that it sends; 0 loses none.
struct Lossy {
    port: Loopback,
    one_of: Arc<AtomicU32>,
    sent: u32,
}

impl PacketIo for Lossy {
    type Buf = <Loopback as PacketIo>::Buf;

    fn receive(&mut self, into: &mut Burst<Self::Buf>) {
        self.port.receive(into);
    }

    fn alloc(&mut self) -> Option<Self::Buf> {
        self.port.alloc()
    }

    fn transmit(&mut self, from: &mut Burst<Self::Buf>) {
        let one_of = self.one_of.load(Ordering::Relaxed);
        from.retain(|_| {
            self.sent = self.sent.wrapping_add(1);
            one_of == 0 || !self.sent.is_multiple_of(one_of)
        });
        self.port.transmit(from);
    }

    fn caps(&self) -> Caps {
        self.port.caps()
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
        // On one CPU they leave the others a fifth of it.
        (0..4).for_each(|_| {
            _ = std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop()
                }
            })
        });
    }
    run(&cause, Instant::now() + Duration::from_secs(seconds))
}

fn options(cause: &str) -> ConnectOptions {
    let congestion = match cause {
        "pacing" => CongestionAlgorithm::Fixed { window: 1 << 20, rate: Some(cc::Rate::from_mbps(20)) },
        "window" => CongestionAlgorithm::Fixed { window: 1024, rate: None },
        _ => CongestionAlgorithm::Fixed { window: 1 << 20, rate: None },
    };
    ConnectOptions {
        congestion: Some(Congestion::new(congestion)),
        max_rd_atomic: if cause == "read-limit" { 1 } else { 16 },
        // 0.27 s: silence begins soon, and lasts.
        ack_timeout: AckTimeout::new(if cause == "silence" { 16 } else { 12 }),
        retry_count: if cause == "failed" { 1 } else { 7 },
        ..ConnectOptions::default()
    }
}

/// One thread runs both cores: the machine's load changes little.
fn run(cause: &str, end: Instant) -> Result<(), Box<dyn Error>> {
    let loss = Arc::new(AtomicU32::new(0));
    let open = |port, loss: &Arc<AtomicU32>, name: &str, last: u8| {
        let address = format!("10.0.0.{last}/24").parse()?;
        let config = DeviceConfig::new().address(address).progress(Progress::Inline);
        let own = OwnPort { name: name.into(), mac: Mac([2, 0, 0, 0, 0, last]) };
        Ok::<_, Box<dyn Error>>(Device::open_on(Lossy { port, one_of: loss.clone(), sent: 0 }, own, &config)?)
    };
    let (left, right) = pair(1024, 4500);
    let (here, there) = (open(left, &loss, "here", 1)?, open(right, &Arc::default(), "there", 2)?);
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
        // Each finds the other's Ethernet address while the other runs its core.
        let answers = scope.spawn(|| responder.connect(&ours, &options));
        let asked = requester.connect(&theirs, &options);
        answers.join().map_err(|_| "the responder's thread panicked")??;
        Ok::<_, Box<dyn Error>>(asked?)
    })?;
    loss.store(
        match cause {
            "loss-recovery" => 20,
            "silence" | "failed" => 1,
            _ => 0,
        },
        Ordering::Relaxed,
    );
    let request = |id: u64| {
        let (all, few) = (buffer.sge(0, BYTES)?, buffer.sge(0, 64)?);
        Ok::<_, BoundsError>(match cause {
            "receiver-not-ready" => SendRequest::send(id, few),
            "read-limit" => SendRequest::read(id, few, memory.remote().at(0)),
            "fence" if id.is_multiple_of(2) => SendRequest::read(id, all, memory.remote().at(0)),
            "fence" => SendRequest::write(id, few, memory.remote().at(0)).fenced(),
            _ => SendRequest::write(id, all, memory.remote().at(0)),
        })
    };
    let (mut posted, mut done) = (0, 0);
    while Instant::now() < end {
        let most = match cause {
            "idle" => 0,
            "completions-unpolled" => 1,
            // Less than the window.
            "cpu-starved" => 8,
            _ => DEPTH,
        };
        while posted < done + most {
            requester.post_send(request(posted)?)?;
            posted += 1;
        }
        let polled = if cause == "completions-unpolled" { &mut driver } else { &mut completions };
        done += polled.poll_each(16, |_| {})? as u64;
        far_cq.poll_each(16, |_| {})?;
    }
    Ok(())
}

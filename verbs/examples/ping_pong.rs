//! SEND and receive: two threads, each with a device, exchange 1000 messages in each direction.
//!
//! ```sh
//! cargo run --release -p ferroce-verbs --example ping_pong
//! ```

mod cable;

use ferroce_verbs::{Access, CompletionQueue, Device, MemoryRegion, QueuePair, RecvRequest, SendRequest};
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ROUNDS: u64 = 1000;
const BYTES: u32 = 64;

struct Player {
    qp: QueuePair,
    sent: CompletionQueue,
    received: CompletionQueue,
    buffer: MemoryRegion,
}

impl Player {
    fn new(device: &Device) -> Outcome<Self> {
        let domain = device.allocate_pd()?;
        let (sent, received) = (device.create_cq(16)?, device.create_cq(16)?);
        let buffer = MemoryRegion::alloc(&domain, BYTES as usize, Access::LOCAL_WRITE)?;
        let mut qp = domain.queue_pair(&sent, &received).build()?;
        // Posted before the first message can arrive.
        qp.post_recv(RecvRequest::new(0, buffer.sge(0, BYTES)?))?;
        Ok(Self { qp, sent, received, buffer })
    }

    fn send(&mut self, round: u64) -> Outcome<()> {
        self.qp.post_send(SendRequest::send(round, self.buffer.sge(0, BYTES)?))?;
        self.sent.wait()?.ok()?;
        Ok(())
    }

    fn receive(&mut self, round: u64) -> Outcome<()> {
        let completion = self.received.wait()?.ok()?;
        assert_eq!(completion.length, BYTES);
        self.qp.post_recv(RecvRequest::new(round, self.buffer.sge(0, BYTES)?))?;
        Ok(())
    }
}

fn main() -> Outcome<()> {
    let [left, right] = cable::devices()?;
    let (mut ping, mut pong) = (Player::new(&left)?, Player::new(&right)?);
    cable::connect(&mut ping.qp, &mut pong.qp)?;
    let other = std::thread::spawn(move || -> Outcome<()> {
        for round in 1..=ROUNDS {
            pong.receive(round)?;
            pong.send(round)?;
        }
        Ok(())
    });
    let start = Instant::now();
    for round in 1..=ROUNDS {
        ping.send(round)?;
        ping.receive(round)?;
    }
    let each = start.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64;
    other.join().map_err(|_| "the other player panicked")??;
    println!("{ROUNDS} round trips of {BYTES} bytes, {each:.1} us each");
    Ok(())
}

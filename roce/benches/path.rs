//! ns per message through both ends of a connection, each step apart: `cargo bench -p ferroce-roce --bench path`.
//!
//! Two endpoints in one thread, frames in arrays, everything in cache, HPCC++ on: what remains is our own cost.

#[path = "../tests/harness/mod.rs"]
mod harness;

extern crate ferroce_roce as roce;

use cc::HpccConfig;
use harness::{BASE, Options, Pair};
use roce::qp::{Capabilities, CongestionAlgorithm, Remote, SendRequest};
use roce::wire::{MAX_OVERHEAD, Mtu};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

const BATCH: usize = 32;
const ROUNDS: u32 = 20_000;
/// Virtual time between batches: pacing never holds a packet back.
const TURN: Duration = Duration::from_micros(100);

/// What each step of one message costs.
#[derive(Default)]
struct Cost {
    post: Duration,
    transmit: Duration,
    receive: Duration,
    acknowledge: Duration,
    complete: Duration,
}

fn timed(into: &mut Duration, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    *into += start.elapsed();
}

struct Bench {
    pair: Pair,
    frames: Vec<Vec<u8>>,
    lengths: Vec<usize>,
}

impl Bench {
    fn new(mtu: Mtu) -> Self {
        let rate = cc::Rate::from_gbps(400);
        let congestion =
            CongestionAlgorithm::Hpcc(HpccConfig::new(rate, Duration::from_micros(10), NonZeroU32::MIN));
        let capabilities = Capabilities { max_send: 256, ..Capabilities::default() };
        let options = Options { mtu, congestion, capabilities, ack_timeout: 14, ..Options::default() };
        let frames = vec![vec![0; mtu.bytes() as usize + MAX_OVERHEAD]; BATCH];
        Self { pair: Pair::connect(options), frames, lengths: Vec::new() }
    }

    /// Frames that `from` has now; gives how many.
    fn transmit(&mut self, from: usize) {
        let host = &mut self.pair.hosts[from];
        self.lengths.clear();
        for frame in &mut self.frames {
            let Some(length) = host.endpoint.poll_transmit(self.pair.now, &host.ram, frame) else { break };
            self.lengths.push(length);
        }
    }

    fn receive(&mut self, to: usize) {
        let host = &mut self.pair.hosts[to];
        for (frame, &length) in self.frames.iter().zip(&self.lengths) {
            host.endpoint.on_frame(self.pair.now, &mut host.ram, &frame[..length]).expect("a good frame");
        }
    }

    fn turn(&mut self, request: &SendRequest, cost: &mut Cost) {
        self.pair.now = self.pair.now + TURN;
        for host in &mut self.pair.hosts {
            host.endpoint.on_timeout(self.pair.now);
        }
        let qpn = self.pair.hosts[0].qpn;
        timed(&mut cost.post, || {
            for n in 0..BATCH {
                let request = SendRequest { signalled: n + 1 == BATCH, ..request.clone() };
                self.pair.hosts[0].endpoint.post_send(self.pair.now, qpn, request).expect("room");
            }
        });
        timed(&mut cost.transmit, || self.transmit(0));
        assert_eq!(self.lengths.len(), BATCH);
        timed(&mut cost.receive, || self.receive(1));
        timed(&mut cost.acknowledge, || self.transmit(1));
        assert_eq!(self.lengths.len(), 1, "one coalesced ACK");
        timed(&mut cost.complete, || {
            self.receive(0);
            let host = &mut self.pair.hosts[0];
            assert_eq!(host.endpoint.poll_cq(host.send_cq, &mut |_| true), 1);
        });
        self.transmit(0);
        assert!(self.lengths.is_empty());
    }
}

fn main() {
    println!("WRITE, HPCC++ on, ns a message");
    println!("bytes   mtu    post  transmit  receive     ACK  complete   total");
    for (bytes, mtu) in [(64, Mtu::M1024), (1024, Mtu::M1024), (4096, Mtu::M4096)] {
        let mut bench = Bench::new(mtu);
        let (sge, rkey) = (bench.pair.hosts[0].sge(0, bytes), bench.pair.hosts[1].region.rkey);
        let request = SendRequest::write(1, sge, Remote { address: BASE + 8192, rkey });
        bench.turn(&request, &mut Cost::default());
        let mut cost = Cost::default();
        (0..ROUNDS).for_each(|_| bench.turn(&request, &mut cost));
        let Cost { post, transmit, receive, acknowledge, complete } = cost;
        let each = |time: Duration| time.as_nanos() as f64 / f64::from(ROUNDS) / BATCH as f64;
        let steps = [post, transmit, receive, acknowledge, complete].map(each);
        let [post, transmit, receive, acknowledge, complete] = steps;
        let total: f64 = steps.iter().sum();
        println!(
            "{bytes:5}  {:4}  {post:6.1}  {transmit:8.1}  {receive:7.1}  {acknowledge:6.1}  {complete:8.1}  {total:6.1}",
            mtu.bytes()
        );
    }
}

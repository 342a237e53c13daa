//! Measures ns per message through both ends of a connection, step by step: `cargo bench -p ferroce-roce --bench path`.
//!
//! Two endpoints in one thread, frames in arrays, everything in cache, HPCC++ on: the rest is the cost of this crate.

extern crate ferroce_roce as roce;

use cc::HpccConfig;
use roce::qp::{Capabilities, CongestionAlgorithm, Remote, SendRequest};
use roce::wire::{MAX_OVERHEAD, Mtu};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};
use testkit::harness::{BASE, Options, Pair};

const BATCH: usize = 32;
const ROUNDS: u32 = 20_000;
/// Virtual time between batches, long enough that pacing never delays a packet.
const TURN: Duration = Duration::from_micros(100);

#[derive(Default)]
struct Cost {
    post: Duration,
    transmit: Duration,
    receive: Duration,
    acknowledge: Duration,
    complete: Duration,
}

/// Runs one step and adds its time. Each step is a separate function, so that callgrind counts it separately.
fn timed<T>(into: &mut Duration, step: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = step();
    *into += start.elapsed();
    result
}

struct Bench {
    pair: Pair,
    frames: Vec<Vec<u8>>,
    lengths: Vec<usize>,
}

impl Bench {
    fn new(mtu: Mtu) -> Self {
        let rate = cc::Rate::from_gbps(400);
        let hpcc = HpccConfig::new(rate, Duration::from_micros(10), NonZeroU32::MIN);
        let congestion = CongestionAlgorithm::Hpcc(hpcc);
        let capabilities = Capabilities { max_send: 256, ..Capabilities::default() };
        let options = Options { mtu, congestion, capabilities, ack_timeout: 14, ..Options::default() };
        let frames = vec![vec![0; mtu.bytes() as usize + MAX_OVERHEAD]; BATCH];
        Self { pair: Pair::connect(options), frames, lengths: Vec::new() }
    }

    /// Polls the frames that `from` sends now.
    fn take(&mut self, from: usize) {
        let host = &mut self.pair.hosts[from];
        self.lengths.clear();
        for frame in &mut self.frames {
            let Some(length) = host.endpoint.poll_transmit(self.pair.now, &host.ram, frame) else { break };
            self.lengths.push(length);
        }
    }

    fn give(&mut self, to: usize) {
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
        timed(&mut cost.post, || post(self, request));
        timed(&mut cost.transmit, || transmit(self));
        assert_eq!(self.lengths.len(), BATCH);
        timed(&mut cost.receive, || receive(self));
        timed(&mut cost.acknowledge, || acknowledge(self));
        assert_eq!(self.lengths.len(), 1, "one coalesced ACK");
        assert_eq!(timed(&mut cost.complete, || complete(self)), 1);
        self.take(0);
        assert!(self.lengths.is_empty());
    }
}

#[inline(never)]
fn post(bench: &mut Bench, request: &SendRequest) {
    let qpn = bench.pair.hosts[0].qpn;
    for n in 0..BATCH {
        let request = SendRequest { signalled: n + 1 == BATCH, ..request.clone() };
        bench.pair.hosts[0].endpoint.post_send(bench.pair.now, qpn, request).expect("room");
    }
}

#[inline(never)]
fn transmit(bench: &mut Bench) {
    bench.take(0);
}

#[inline(never)]
fn receive(bench: &mut Bench) {
    bench.give(1);
}

#[inline(never)]
fn acknowledge(bench: &mut Bench) {
    bench.take(1);
}

#[inline(never)]
fn complete(bench: &mut Bench) -> usize {
    bench.give(0);
    let host = &mut bench.pair.hosts[0];
    host.endpoint.poll_cq(host.send_cq, &mut |_| true)
}

fn main() {
    // For an instruction counter: one size, 100 turns.
    let counting = std::env::args().any(|argument| argument == "--count");
    let sizes = [(64, Mtu::M1024), (1024, Mtu::M1024), (4096, Mtu::M4096)];
    let (sizes, rounds) = if counting { (&sizes[..1], 99) } else { (&sizes[..], ROUNDS) };
    println!("WRITE, HPCC++ on, ns a message");
    println!("bytes   mtu    post  transmit  receive     ACK  complete   total");
    for &(bytes, mtu) in sizes {
        let mut bench = Bench::new(mtu);
        let (sge, rkey) = (bench.pair.hosts[0].sge(0, bytes), bench.pair.hosts[1].region.rkey);
        let request = SendRequest::write(1, sge, Remote { address: BASE + 8192, rkey });
        bench.turn(&request, &mut Cost::default());
        let mut cost = Cost::default();
        (0..rounds).for_each(|_| bench.turn(&request, &mut cost));
        let Cost { post, transmit, receive, acknowledge, complete } = cost;
        let each = |time: Duration| time.as_nanos() as f64 / f64::from(rounds) / BATCH as f64;
        let steps = [post, transmit, receive, acknowledge, complete].map(each);
        let [post, transmit, receive, acknowledge, complete] = steps;
        let total: f64 = steps.iter().sum();
        println!(
            "{bytes:5}  {:4}  {post:6.1}  {transmit:8.1}  {receive:7.1}  {acknowledge:6.1}  {complete:8.1}  {total:6.1}",
            mtu.bytes()
        );
    }
}

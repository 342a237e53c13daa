//! One packet through requester and responder, and its ACK, between two endpoints in memory. HPCC++ is on.

use super::{Meter, Step};
use crate::scale::Host;
use cc::Instant;
use roce::qp::{CheckedSend, LossRecovery, SendRequest};
use roce::wire::{MAX_OVERHEAD, Mtu};
use std::time::Duration;

pub const STEPS: &[Step] = &[
    Step {
        name: "post",
        what: "a request taken by the endpoint, of 32",
        budget: 130,
        run: |meter| run(meter, Case::new(64, Part::Post)),
    },
    Step {
        name: "requester-64",
        what: "a 64 B WRITE built",
        budget: 1400,
        run: |meter| run(meter, Case::new(64, Part::Requester)),
    },
    Step {
        name: "responder-64",
        what: "a 64 B WRITE taken in",
        budget: 910,
        run: |meter| run(meter, Case::new(64, Part::Responder)),
    },
    Step {
        name: "requester-4k",
        what: "a 4 KiB WRITE built",
        budget: 3940,
        run: |meter| run(meter, Case::new(4096, Part::Requester)),
    },
    Step {
        name: "responder-4k",
        what: "a 4 KiB WRITE taken in",
        budget: 3550,
        run: |meter| run(meter, Case::new(4096, Part::Responder)),
    },
    Step {
        name: "ack-make",
        what: "an ACK built, for 32 WRITEs",
        budget: 1655,
        run: |meter| run(meter, Case::new(64, Part::Acknowledge)),
    },
    Step {
        name: "ack-take",
        what: "an ACK of 32 WRITEs taken in",
        budget: 1750,
        run: |meter| run(meter, Case::new(64, Part::Complete)),
    },
    Step {
        name: "packet-64",
        what: "a 64 B WRITE, both ends, ACK of 32",
        budget: 2550,
        run: |meter| run(meter, Case::new(64, Part::All)),
    },
    Step {
        name: "packet-64-selective",
        what: "the same with selective repeat: at most 2 % more",
        budget: 2550,
        run: |meter| {
            run(meter, Case { loss_recovery: LossRecovery::SelectiveRepeat, ..Case::new(64, Part::All) })
        },
    },
];

const BATCH: usize = 32;
/// The time between batches, long enough that pacing does not delay packets.
const TURN: Duration = Duration::from_micros(100);

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Post,
    Requester,
    Responder,
    Acknowledge,
    Complete,
    /// From the post of a request to the receipt of its ACK.
    All,
}

#[derive(Clone, Copy)]
struct Case {
    /// Payload of a WRITE, bytes.
    size: u32,
    part: Part,
    loss_recovery: LossRecovery,
}

impl Case {
    const fn new(size: u32, part: Part) -> Self {
        Self { size, part, loss_recovery: LossRecovery::Offered }
    }
}

struct Bench {
    a: Host,
    b: Host,
    now: Instant,
    frames: Vec<Vec<u8>>,
    lengths: Vec<usize>,
}

impl Bench {
    fn new(Case { size, loss_recovery, .. }: Case) -> Result<Self, String> {
        let mtu = if size > 1024 { Mtu::M4096 } else { Mtu::M1024 };
        let [mut a, mut b] = [Host::new(0, 1, size, 64)?, Host::new(1, 1, size, 64)?];
        a.connect(1, 2, &b.qps.clone(), mtu, loss_recovery)?;
        b.connect(2, 1, &a.qps.clone(), mtu, loss_recovery)?;
        let frames = vec![vec![0; mtu.bytes() as usize + MAX_OVERHEAD]; BATCH];
        Ok(Self { a, b, now: Instant::ZERO, frames, lengths: Vec::with_capacity(BATCH) })
    }

    /// Returns the list as the application's thread checks it.
    fn checked(&self, request: &SendRequest) -> Vec<CheckedSend> {
        let rules = self.a.endpoint.post_rules(self.a.qps[0]).expect("it is there").send;
        let list = (1..=BATCH).map(|n| SendRequest { signalled: n == BATCH, ..request.clone() });
        list.map(|request| rules.check(request).expect("within the limits")).collect()
    }

    fn post(&mut self, list: &mut [CheckedSend]) {
        let Host { endpoint, qps, .. } = &mut self.a;
        endpoint.take_sends(self.now, qps[0], [list, &mut []]);
    }
}

fn take(from: &mut Host, now: Instant, frames: &mut [Vec<u8>], lengths: &mut Vec<usize>) {
    lengths.clear();
    for frame in frames {
        let Some(length) = from.endpoint.poll_transmit(now, &from.ram, frame) else { break };
        lengths.push(length);
    }
}

fn give(to: &mut Host, now: Instant, frames: &[Vec<u8>], lengths: &[usize]) {
    for (frame, &length) in frames.iter().zip(lengths) {
        to.endpoint.on_frame(now, &mut to.ram, &frame[..length]).expect("a good frame");
    }
}

fn run(meter: &mut Meter, case: Case) {
    let mut bench = Bench::new(case).expect("defaults are in their limits");
    let request = bench.a.write_to(&bench.b, case.size);
    let mut part = |of: Part, units: usize, work: &mut dyn FnMut()| {
        match case.part {
            // Counts each packet once, when the requester builds it.
            Part::All => meter.part(if of == Part::Requester { units } else { 0 }, work),
            part if part == of => meter.part(units, work),
            _ => work(),
        }
        meter.rounds
    };
    for round in 0.. {
        bench.now = bench.now + TURN;
        let now = bench.now;
        bench.a.endpoint.on_timeout(now);
        bench.b.endpoint.on_timeout(now);
        let mut list = bench.checked(&request);
        let rounds = part(Part::Post, BATCH, &mut || bench.post(&mut list));
        let Bench { a, b, frames, lengths, .. } = &mut bench;
        part(Part::Requester, BATCH, &mut || take(a, now, frames, lengths));
        assert_eq!(lengths.len(), BATCH);
        part(Part::Responder, BATCH, &mut || give(b, now, frames, lengths));
        part(Part::Acknowledge, 1, &mut || take(b, now, frames, lengths));
        assert_eq!(lengths.len(), 1, "one ACK for all");
        part(Part::Complete, 1, &mut || give(a, now, frames, lengths));
        assert_eq!(a.endpoint.poll_cq(a.cq, &mut |_| true), 1);
        if round == rounds {
            return;
        }
    }
}

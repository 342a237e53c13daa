//! Both ends on one core, a whole message from its post to its completion: the loops that `scripts/bench` times.

use super::{Meter, Step};
use crate::instructions::Cost;
use crate::one_core::{OneCore, Traffic};
use crate::ring::hpcc;
use std::time::Duration;
use verbs::congestion::{Congestion, CongestionAlgorithm};

pub const STEPS: &[Step] = &[
    Step {
        name: "one-core-64",
        what: "a 64 B WRITE, both ends, of 32",
        budget: 3200,
        run: |meter| run(meter, Traffic::Write64),
    },
    Step {
        name: "one-core-4k",
        what: "a 4 KiB WRITE, both ends, of 32",
        budget: 8370,
        run: |meter| run(meter, Traffic::Write4k),
    },
    Step {
        name: "one-core-64k",
        what: "a 64 KiB WRITE, both ends, MTU 4096, of 4",
        budget: 125_500,
        run: |meter| run(meter, Traffic::Write64k),
    },
    Step {
        name: "one-core-single",
        what: "a 64 B WRITE at a time, both ends",
        budget: 11_800,
        run: |meter| run(meter, Traffic::Single64),
    },
    Step {
        name: "window-64",
        what: "a 64 B WRITE, both ends, of 32, with a fixed window",
        budget: 3200,
        run: |meter| run_settled(meter, Traffic::Write64, Some(fixed())),
    },
    Step {
        name: "window-64-default",
        what: "the same with nothing configured: at most 3 % more",
        budget: 3200,
        run: |meter| run_settled(meter, Traffic::Write64, None),
    },
    Step {
        name: "window-64k",
        what: "a 64 KiB WRITE, both ends, of 4, with a fixed window",
        budget: 125_500,
        run: |meter| run_settled(meter, Traffic::Write64k, Some(fixed())),
    },
    Step {
        name: "window-64k-default",
        what: "the same with nothing configured: at most 3 % more",
        budget: 125_500,
        run: |meter| run_settled(meter, Traffic::Write64k, None),
    },
    Step {
        name: "window-single",
        what: "a 64 B WRITE at a time, both ends, with a fixed window",
        budget: 11_750,
        run: |meter| run_settled(meter, Traffic::Single64, Some(fixed())),
    },
    Step {
        name: "window-single-default",
        what: "the same with nothing configured: at most 3 % more",
        budget: 11_750,
        run: |meter| run_settled(meter, Traffic::Single64, None),
    },
];

/// The number of lists exchanged before the measurement, which exceeds the number of probes, and the pause after which a receiver of probes
/// frees its memory for them.
const SETTLING: u32 = 256;
const PAUSE: Duration = Duration::from_millis(2100);

/// The number of single messages that count as one list.
const BURSTS: u32 = 32;

fn fixed() -> Congestion {
    Congestion::new(CongestionAlgorithm::Fixed { window: 512 << 10, rate: None })
}

/// Returns the limit of a step, given the costs of earlier steps. After the end of probing, the default costs as much as a fixed window.
pub fn budget(step: &Step, before: &[Cost]) -> u64 {
    let fixed = step.name.strip_suffix("-default");
    let fixed = fixed.and_then(|fixed| before.iter().find(|cost| cost.name == fixed));
    fixed.map_or(step.budget, |fixed| step.budget.min(fixed.instructions * 103 / 100))
}

fn run(meter: &mut Meter, traffic: Traffic) {
    measure(meter, traffic, OneCore::open(traffic, Some(hpcc())).expect("rings need nothing"));
}

/// Runs with a fixed window, or with the default after it has become one.
fn run_settled(meter: &mut Meter, traffic: Traffic, congestion: Option<Congestion>) {
    let mut ends = OneCore::open(traffic, congestion).expect("rings need nothing");
    for _ in 0..SETTLING {
        ends.exchange().expect("nothing fails between two rings");
    }
    std::thread::sleep(PAUSE);
    measure(meter, traffic, ends);
}

fn measure(meter: &mut Meter, traffic: Traffic, mut ends: OneCore) {
    // The port allocates buffers from the pool in bursts. There are enough single messages for each count to contain the same number of
    // bursts.
    let lists = if traffic.list() == 1 { BURSTS * meter.rounds } else { meter.rounds };
    for round in 0..=lists {
        let mut exchange = || ends.exchange().expect("nothing fails between two rings");
        // The first list sets up telemetry and warms the buffers.
        if round == 0 { exchange() } else { meter.part(traffic.list(), &mut exchange) }
    }
}

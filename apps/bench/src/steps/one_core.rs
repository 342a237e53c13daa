//! Both ends on one core, a whole message from its post to its completion: the loops that `scripts/bench` times.

use super::{Meter, Step};
use crate::one_core::{OneCore, Traffic};

pub const STEPS: &[Step] = &[
    Step {
        name: "one-core-64",
        what: "a 64 B WRITE, both ends, of 32",
        budget: 3110,
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
        budget: 11_140,
        run: |meter| run(meter, Traffic::Single64),
    },
];

fn run(meter: &mut Meter, traffic: Traffic) {
    let mut ends = OneCore::open(traffic).expect("rings need nothing");
    for round in 0..=meter.rounds {
        let mut exchange = || ends.exchange().expect("nothing fails between two rings");
        // The first sets up telemetry and warms the buffers.
        if round == 0 { exchange() } else { meter.part(traffic.list(), &mut exchange) }
    }
}

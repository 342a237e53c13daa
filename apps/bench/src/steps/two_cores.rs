//! Sends into port `null` by one device with one core, and by one with two cores. The difference is the work of core 0 for the other core,
//! which determines the gain of a second core.

use super::{Meter, Step};
use crate::instructions::Cost;
use crate::ring::LIST;
use crate::two_cores::Sender;

pub const STEPS: &[Step] = &[
    Step {
        name: "null-64",
        what: "a 64 B WRITE into `null`, UC, of 32",
        budget: 1960,
        run: |meter| run(meter, 1, 64),
    },
    Step {
        name: "null-64-two",
        what: "the same, on either of two cores: at most 2/1.9",
        budget: 1975,
        run: |meter| run(meter, 2, 64),
    },
    Step {
        name: "null-4k",
        what: "a 4 KiB WRITE into `null`, UC, of 32",
        budget: 4560,
        run: |meter| run(meter, 1, 4096),
    },
    Step {
        name: "null-4k-two",
        what: "the same, on either of two cores: at most 2/1.9",
        budget: 4560,
        run: |meter| run(meter, 2, 4096),
    },
];

/// Returns the limit of a step, given the costs of earlier steps: two cores do at least 1.9 times the work of one.
pub fn budget(step: &Step, before: &[Cost]) -> Option<u64> {
    let one = step.name.strip_suffix("-two")?;
    let one = before.iter().find(|cost| cost.name == one)?;
    Some(step.budget.min(one.instructions * 20 / 19))
}

fn run(meter: &mut Meter, cores: u8, size: u32) {
    let mut senders = Sender::open(cores, size).expect("port null needs nothing");
    for round in 0..=meter.rounds {
        for sender in &mut senders {
            let mut exchange = || sender.exchange().expect("port null takes all");
            // The first list warms the buffers.
            if round == 0 { exchange() } else { meter.part(LIST, &mut exchange) }
        }
    }
}

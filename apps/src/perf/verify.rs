//! Verifies the results of atomics.

use super::args::AtomicType;
use super::link::Link;
use super::plan::{Amount, Plan};
use crate::failure::Failure;

/// Checks the counters after a run of atomics that began at zero: the sums at the target, and the values that the last atomics returned to
/// the initiator.
///
/// # Errors
/// Returns a failure that identifies the queue pair whose counter is wrong.
pub fn atomics(link: &Link, plan: &Plan) -> Result<(), Failure> {
    let Amount::Messages(count) = plan.amount else {
        return Err(Failure::usage("--verify counts atomics: give -n in place of -D"));
    };
    for qp in 0..link.qps.len() {
        if plan.bidirectional || !link.sends {
            check(link, link.inbound(qp), after(plan.atomic, count), qp)?;
        }
        if plan.bidirectional || link.sends {
            check(link, link.outbound(qp), after(plan.atomic, count - 1), qp)?;
        }
    }
    outln!(" verified: {count} atomics on each of {} QPs", link.qps.len())
}

/// Returns the counter after `count` atomics: FETCH_ADD adds 1; CMP_SWAP replaces 0 by 1, and then has no effect.
fn after(atomic: AtomicType, count: u64) -> u64 {
    match atomic {
        AtomicType::FetchAndAdd => count,
        AtomicType::CmpAndSwap => count.min(1),
    }
}

fn check(link: &Link, at: usize, expected: u64, qp: usize) -> Result<(), Failure> {
    let mut bytes = [0; 8];
    link.memory.read(at, &mut bytes).map_err(|error| Failure::run(error.to_string()))?;
    match u64::from_ne_bytes(bytes) {
        found if found == expected => Ok(()),
        found => Err(Failure::run(format!(
            "verify: the counter of queue pair {qp} is {found} instead of {expected}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_final_counter_follows_from_the_number_of_atomics() {
        assert_eq!(after(AtomicType::FetchAndAdd, 200), 200);
        assert_eq!(after(AtomicType::CmpAndSwap, 200), 1);
        assert_eq!(after(AtomicType::CmpAndSwap, 0), 0);
    }
}

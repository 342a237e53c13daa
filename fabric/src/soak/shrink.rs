//! Reduces a failing run while it still fails.

use super::plan::{Core, Faults, Plan};
use super::{Captured, attempt};

/// Limit on the runs of a search.
const ATTEMPTS: usize = 300;

const FAULTS: [fn(&mut Faults) -> &mut u64; 4] =
    [|f| &mut f.loss, |f| &mut f.duplicate, |f| &mut f.late, |f| &mut f.flip];
const AILS: [fn(&mut Core) -> &mut u64; 2] = [|c| &mut c.pauses, |c| &mut c.dry];

pub(super) fn smallest(plan: &Plan) -> (Plan, Vec<Captured>) {
    let mut best = plan.clone();
    let mut left = ATTEMPTS;
    'again: loop {
        for candidate in smaller(&best) {
            if left == 0 {
                break 'again;
            }
            left -= 1;
            if attempt(&candidate, false).0.is_err() {
                best = candidate;
                continue 'again;
            }
        }
        break;
    }
    let (_, frames) = attempt(&best, true);
    (best, frames)
}

/// Returns plans that are one step smaller, in descending order of the step.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut offer = |change: &dyn Fn(&mut Plan) -> bool| {
        let mut smaller = plan.clone();
        if change(&mut smaller) {
            plans.push(smaller);
        }
    };
    for index in 0..plan.talks.len() {
        offer(&|plan| plan.talks.len() > 1 && !plan.talks.remove(index).requests.is_empty());
    }
    offer(&|plan| std::mem::replace(&mut plan.cores_per_host, 1) > 1);
    for fault in FAULTS {
        offer(&|plan| std::mem::take(fault(&mut plan.faults)) > 0);
    }
    for host in 0..plan.cores.len() {
        for ail in AILS {
            offer(&|plan| std::mem::take(ail(&mut plan.cores[host])) > 0);
        }
    }
    for index in 0..plan.talks.len() {
        offer(&|plan| plan.talks[index].fate.take().is_some());
        for side in 0..2 {
            offer(&|plan| {
                let requests = &mut plan.talks[index].requests[side];
                let some = *requests > 0;
                *requests /= 2;
                some
            });
        }
    }
    plans
}

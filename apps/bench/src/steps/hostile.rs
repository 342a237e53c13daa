//! Frames that no honest peer sends, and good ones that come too often: what each costs, whatever else the endpoint has.

use super::{Meter, Step};
use crate::hostile::crowd::Crowd;
use crate::instructions::Cost;

/// Instructions of any frame on average, with its answer. What matters is that they don't grow with the queue pairs: see [`budget`].
const BUDGET: u64 = 2820;
/// The steps that others are compared with whose names begin the same.
const FEW: [&str; 2] = ["hostile-10", "lost-256"];

pub const STEPS: &[Step] = &[
    Step {
        name: "hostile-10",
        what: "a hostile frame, among 10 queue pairs",
        budget: BUDGET,
        run: |meter| run(meter, 10),
    },
    Step {
        name: "hostile-1k",
        what: "a hostile frame, among 1,000 queue pairs",
        budget: BUDGET,
        run: |meter| run(meter, 1000),
    },
    Step {
        name: "hostile-100k",
        what: "a hostile frame, among 100,000 queue pairs",
        budget: BUDGET,
        run: |meter| run(meter, 100_000),
    },
];

/// Returns what a step may take, given what those before it took. A frame among many queue pairs, or many missing packets, may take one and
/// a half times what it takes among a few: whatever looks at all of them takes more.
pub fn budget(step: &Step, before: &[Cost]) -> u64 {
    let kind = |name: &'static str| name.split('-').next();
    let few = before.iter().find(|cost| FEW.contains(&cost.name) && kind(cost.name) == kind(step.name));
    few.map_or(step.budget, |few| step.budget.min(few.instructions * 3 / 2))
}

/// Each frame once: how many rounds there are changes nothing.
fn run(meter: &mut Meter, others: u32) {
    Crowd::new(others).each(&mut |_, take| meter.part(1, take));
}

#[cfg(test)]
mod tests {
    use super::{Cost, STEPS, budget};

    #[test]
    fn many_queue_pairs_may_cost_half_as_much_again() {
        let cost = |name, instructions| Cost { name, what: "", nanos: 0.0, instructions, budget: 9000 };
        let [few, many, most] = STEPS else { panic!("three numbers of queue pairs") };
        assert_eq!(budget(few, &[]), few.budget);
        let before = [cost("post", 100), cost(few.name, 1000)];
        assert_eq!([budget(many, &before), budget(most, &before)], [1500; 2]);
        assert_eq!(budget(most, &before[..1]), most.budget, "measured alone");
    }
}

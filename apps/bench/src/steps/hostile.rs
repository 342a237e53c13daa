//! The cost of hostile frames, and of valid frames that arrive too often, in endpoints with few and many queue pairs.

use super::{Meter, Step};
use crate::instructions::Cost;
use testkit::hostile_requests::many_queue_pairs::ManyQueuePairs;

/// The limit on the average instructions of a frame with its answer. They must not grow with the number of queue pairs: see [`budget`].
const BUDGET: u64 = 2820;
/// The steps with which the other steps of the same prefix are compared.
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

/// Returns the limit of a step, given the costs of earlier steps. A frame among many queue pairs or many missing packets may cost 1.5 times
/// as much as among few. Code that visits all of them costs more.
pub fn budget(step: &Step, before: &[Cost]) -> u64 {
    let kind = |name: &'static str| name.split('-').next();
    let few = before.iter().find(|cost| FEW.contains(&cost.name) && kind(cost.name) == kind(step.name));
    few.map_or(step.budget, |few| step.budget.min(few.instructions * 3 / 2))
}

/// Sends each frame once, regardless of the number of rounds.
fn run(meter: &mut Meter, others: u32) {
    ManyQueuePairs::new(others).each(&mut |_, take| meter.part(1, take));
}

#[cfg(test)]
mod tests {
    use super::{Cost, STEPS, budget};

    #[test]
    fn the_budget_of_many_queue_pairs_is_1_5_times_the_cost_of_few() {
        let cost = |name, instructions| Cost { name, what: "", nanos: 0.0, instructions, budget: 9000 };
        let [few, many, most] = STEPS else { panic!("three numbers of queue pairs") };
        assert_eq!(budget(few, &[]), few.budget);
        let before = [cost("post", 100), cost(few.name, 1000)];
        assert_eq!([budget(many, &before), budget(most, &before)], [1500; 2]);
        assert_eq!(budget(most, &before[..1]), most.budget, "measured alone");
    }
}

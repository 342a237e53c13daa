//! The soak with assertions and overflow checks on; `ferroce soak` runs thousands of seeds.

use ferroce_fabric::soak::{Reached, run};

#[test]
fn seeds_break_no_rule() {
    let mut reached = Reached::default();
    for seed in 0..300 {
        let paths = run(seed).unwrap_or_else(|broken| panic!("seed {seed}: {}", broken.why));
        reached.add(&paths);
    }
    let most: Vec<_> = reached.iter().filter(|(_, count)| *count > 0).collect();
    assert!(most.len() > 40, "{most:?}");
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in [1, 7, 13_400, 60_968] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

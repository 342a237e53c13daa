//! The soak test with assertions and overflow checks. `ferroce soak` runs thousands of seeds.

use ferroce_fabric::soak::{Reached, run};

#[test]
fn no_seed_breaks_an_invariant() {
    let mut reached = Reached::default();
    for (seed, cores) in
        (0..300).map(|seed| (seed, 1)).chain((0..100).flat_map(|seed| [(seed, 2), (seed, 4)]))
    {
        let paths = run(seed, cores);
        let paths = paths.unwrap_or_else(|broken| panic!("seed {seed}, {cores} cores: {}", broken.why));
        reached.add(&paths);
    }
    let most: Vec<_> = reached.iter().filter(|(_, count)| *count > 0).collect();
    assert!(most.len() > 40, "{most:?}");
    let count = |path| reached.iter().find(|&(name, _)| name == path).map_or(0, |(_, count)| count);
    for path in ["host: handed over", "host: a core's own queue", "host: a stray in a core's own queue"] {
        assert!(count(path) > 1000, "{most:?}");
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for (seed, cores) in [(1, 1), (7, 2), (13_400, 4), (60_968, 16)] {
        assert_eq!(run(seed, cores), run(seed, cores), "seed {seed}, {cores} cores");
    }
}

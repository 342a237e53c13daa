//! Arbitrary operations on two queue pairs, compared with the model of `model/`.

use crate::model::{LONGEST, Operation, Setting, With, run};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use roce::Discard;

fn with() -> impl Strategy<Value = With> {
    (prop::bool::weighted(0.8), prop::bool::weighted(0.2), any::<bool>())
        .prop_map(|(signalled, fence, solicited)| With { signalled, fence, solicited })
}

fn length() -> impl Strategy<Value = u16> {
    prop_oneof![1 => 0..3u16, 2 => Just(256), 2 => Just(1024), 5 => 0..=LONGEST as u16]
}

fn request() -> impl Strategy<Value = Operation> {
    let host = any::<bool>;
    prop_oneof![
        3 => (host(), length(), with()).prop_map(|(host, length, with)| Operation::Send { host, length, with }),
        4 => (host(), length(), any::<bool>(), any::<bool>(), with()).prop_map(
            |(host, length, immediate, by_window, with)| Operation::Write { host, length, immediate, by_window, with },
        ),
        1 => (host(), with()).prop_map(|(host, with)| Operation::AtomicWrite { host, with }),
        1 => (host(), any::<bool>(), with())
            .prop_map(|(host, whole_region, with)| Operation::Flush { host, whole_region, with }),
        2 => (host(), with()).prop_map(|(host, with)| Operation::Bind { host, with }),
        1 => (host(), with()).prop_map(|(host, with)| Operation::Invalidate { host, with }),
        2 => (host(), length(), with())
            .prop_map(|(host, length, with)| Operation::SendInvalidate { host, length, with }),
        3 => (host(), length(), with()).prop_map(|(host, length, with)| Operation::Read { host, length, with }),
        2 => (host(), any::<u8>(), with()).prop_map(|(host, add, with)| Operation::FetchAdd { host, add, with }),
        6 => (host(), 1..8u8).prop_map(|(host, count)| Operation::Receive { host, count }),
    ]
}

fn fault() -> impl Strategy<Value = Operation> {
    let (host, frame) = (any::<bool>, any::<u8>);
    prop_oneof![
        4 => frame().prop_map(|frame| Operation::Lose { frame }),
        2 => (frame(), 0..50u8).prop_map(|(frame, micros)| Operation::Duplicate { frame, micros }),
        3 => (frame(), 0..50u8).prop_map(|(frame, micros)| Operation::Delay { frame, micros }),
        1 => (frame(), any::<u16>()).prop_map(|(frame, bit)| Operation::Flip { frame, bit }),
        1 => host().prop_map(|host| Operation::Acknowledge { host }),
        1 => host().prop_map(|host| Operation::Gap { host }),
        1 => host().prop_map(|host| Operation::NotReady { host }),
        1 => host().prop_map(|host| Operation::Notify { host }),
    ]
}

fn end() -> impl Strategy<Value = Operation> {
    let host = any::<bool>;
    prop_oneof![
        host().prop_map(|host| Operation::Deregister { host }),
        host().prop_map(|host| Operation::Fail { host }),
        host().prop_map(|host| Operation::Destroy { host }),
    ]
}

fn time() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (1..6u8).prop_map(|count| Operation::Step { count }),
        2 => (0..300u16).prop_map(|micros| Operation::Pass { micros }),
        2 => any::<bool>().prop_map(|host| Operation::Poll { host }),
    ]
}

fn setting() -> impl Strategy<Value = Setting> {
    let window = prop_oneof![Just(0u8), 1..8u8, Just(255)];
    let completions = prop_oneof![4 => Just(255u8), 1 => 0..8u8];
    let hasty = prop::bool::weighted(0.1);
    let xrc = prop::bool::weighted(0.25);
    let network = (any::<u8>(), any::<u8>(), any::<bool>(), any::<u8>(), any::<u8>());
    (any::<bool>(), window, any::<u8>(), 0..4u8, hasty, any::<bool>(), completions, xrc, network).prop_map(
        |(small_packets, window, psn, reads, hasty, selective_repeat, completions, xrc, network)| Setting {
            small_packets,
            window,
            psn,
            reads,
            hasty,
            selective_repeat,
            xrc,
            completions,
            algorithm: network.0,
            format: network.1,
            in_band: network.2,
            load: network.3,
            queue: network.4,
        },
    )
}

fn case() -> impl Strategy<Value = (Setting, Vec<Operation>)> {
    let setting = setting().prop_map(|setting| Setting { completions: 255, ..setting });
    (setting, prop::collection::vec(prop_oneof![4 => request(), 3 => fault(), 5 => time()], 1..150))
}

/// Runs the number of cases in `PROPTEST_CASES`, or 256. Failed cases are stored in `proptest-regressions/`.
fn config() -> ProptestConfig {
    ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Without an operation that ends a queue pair, all requests must succeed, unless faults used all retries.
    #[test]
    fn all_requests_succeed_despite_faults((setting, operations) in case()) {
        run(setting, &operations);
    }

    #[test]
    fn each_request_ends_when_a_side_fails(
        setting in setting(),
        operations in prop::collection::vec(
            prop_oneof![40 => request(), 30 => fault(), 50 => time(), 1 => end()],
            1..150,
        ),
    ) {
        run(setting, &operations);
    }
}

/// The rare cases occur: a run without them would prove little.
#[test]
fn every_kind_of_recovery_and_of_request_is_reached() {
    let mut runner = TestRunner::deterministic();
    let (mut reached, mut kinds) = ([0; 9], [0; 9]);
    for _ in 0..400 {
        let (setting, operations) = case().new_tree(&mut runner).unwrap().current();
        let (counters, found) = run(setting, &operations);
        kinds.iter_mut().zip(found.all()).for_each(|(sum, count)| *sum += count);
        for counters in counters {
            let found = [
                counters.retransmitted,
                counters.timeouts,
                counters.naks_sent,
                counters.naks_received,
                counters.rnr_naks_received,
                counters.discarded(Discard::Duplicate),
                counters.discarded(Discard::PsnGap),
                counters.discarded(Discard::StaleAcknowledge),
                counters.discarded(Discard::Icrc),
            ];
            reached.iter_mut().zip(found).for_each(|(sum, count)| *sum += count);
        }
    }
    assert!(reached.iter().all(|&count| count > 5), "{reached:?}");
    // ATOMIC WRITEs, FLUSHes; windows used in WRITEs, invalidated by their host, and by the peer; XRC connections; gaps of selective
    // repeat; telemetry; and sprayed packets.
    assert!(kinds.iter().all(|&count| count > 20), "{kinds:?}");
}

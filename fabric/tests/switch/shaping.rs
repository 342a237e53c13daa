//! Ports with a rate: the frames that they send, and the contents of their queues.

use crate::script::{SECOND, Script, at, byte_a_microsecond};
use cc::{Instant, Rate};
use ferroce_fabric::PortConfig;
use std::time::Duration;

/// Keeps station 1's queue full for a second of virtual time and polls every `turn`; returns the bytes sent.
fn saturate(rate: Rate, len: usize, turn: Duration) -> u64 {
    let shaped = PortConfig { rate: Some(rate), queue_bytes: 20_000_000, ..PortConfig::default() };
    let mut script = Script::new(&[PortConfig::default(), shaped]);
    let per_turn = rate.bytes_in(turn) as usize / len + 2;
    let (mut now, mut bytes) = (Instant::ZERO, 0);
    while now < Instant::ZERO + SECOND {
        for _ in 0..per_turn {
            script.send_tagged(now, len, 0);
        }
        while let Some(frame) = script.next(now, 1) {
            bytes += frame.len() as u64;
        }
        now = now + turn;
    }
    let report = script.switch.report(now);
    assert!(report.ports[1].utilisation > 0.98, "{report:?}");
    bytes
}

#[test]
fn the_rate_is_exact_over_a_second_however_late_the_poller() {
    for (rate, len, turn) in [
        (Rate::from_mbps(200), 1087, Duration::from_micros(50)),
        (Rate::from_mbps(200), 1500, Duration::from_millis(7)),
        (Rate::from_mbps(333), 64, Duration::from_micros(10)),
        (Rate::from_gbps(1), 777, Duration::from_micros(993)),
    ] {
        let sent = saturate(rate, len, turn);
        let exact = rate.bytes_in(SECOND);
        // The first turn starts at 0, and the last one ends before the end of the second.
        let slack = rate.bytes_in(turn) + 2 * len as u64;
        assert!(sent <= exact + len as u64 && sent + slack >= exact, "{rate} {turn:?}: {sent} of {exact}");
    }
}

#[test]
fn fractions_of_a_nanosecond_add_up() {
    // 64 bytes at 10 Gb/s take 51.2 ns: frame 999 starts at 51148.8 ns, rounded to whole ns.
    let shaped = PortConfig { rate: Some(Rate::from_gbps(10)), queue_bytes: 64_000, ..PortConfig::default() };
    let mut script = Script::new(&[PortConfig::default(), shaped]);
    for tag in 0..1000 {
        script.send_tagged(Instant::ZERO, 64, tag);
    }
    assert_eq!(script.tags(Instant::from_nanos(51_147), 1).len(), 999);
    assert_eq!(script.tags(Instant::from_nanos(51_148), 1), [999]);
}

#[test]
fn the_queue_is_bounded_in_bytes_and_the_tail_drops() {
    let port = PortConfig { queue_bytes: 3000, ..byte_a_microsecond() };
    let mut script = Script::new(&[PortConfig::default(), port]);
    for tag in 0..6 {
        script.send_tagged(at(0), 1000, tag);
    }
    // Frame 0 is in transmission; frames 1 to 3 are queued.
    let report = script.switch.report(at(0));
    assert_eq!(report.ports[1].counters.drops.queue_full, 2);
    assert_eq!(report.ports[1].queue.bytes_now, 3000);
    script.send_tagged(at(1000), 1000, 6);
    assert_eq!(script.tags(at(10_000), 1), [0, 1, 2, 3, 6]);
}

#[test]
fn a_blocked_port_queues_a_bounded_number_of_bytes() {
    let port = PortConfig { queue_bytes: 3000, ..PortConfig::default() };
    let mut script = Script::new(&[PortConfig::default(), port]);
    for n in 0..100 {
        script.send_tagged(at(n), 1000, n as u32);
    }
    let drops = script.switch.report(at(100)).ports[1].counters.drops;
    assert_eq!((drops.port_blocked, drops.queue_full), (94, 0));
    assert_eq!(script.tags(at(100), 1), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn the_queue_is_measured_over_virtual_time() {
    let mut script = Script::new(&[PortConfig::default(), byte_a_microsecond()]);
    for tag in 0..4 {
        script.send_tagged(at(0), 1000, tag);
    }
    // After frame 0, the queue has 3000, 2000, 1000 and 0 bytes for 1 ms each. A single late poll records all of this.
    assert_eq!(script.tags(at(4000), 1), [0, 1, 2, 3]);
    script.send_tagged(at(4000), 1000, 4);
    let port = script.switch.report(at(4000)).ports[1];
    assert!((port.queue.mean - 1500.0).abs() < 1.0, "{port:?}");
    assert_eq!((port.queue.max, port.queue.p99), (3000, 3000));
    assert!((port.busy_seconds - 0.005).abs() < 1e-9 && port.utilisation > 0.99, "{port:?}");
}

#[test]
fn after_a_pause_of_the_switch_the_catch_up_burst_is_bounded() {
    let port = PortConfig { catch_up: Duration::from_millis(2), ..byte_a_microsecond() };
    let mut script = Script::new(&[PortConfig::default(), port]);
    assert_eq!(script.next(at(10_000), 1), None);
    // The switch did not run for 10 ms, and five frames of 1 ms have arrived. It makes up for 2 ms: the first frame started 2 ms ago, and
    // the third starts now.
    assert_eq!(script.next(at(20_000), 1), None);
    for tag in 0..5 {
        script.send_tagged(at(20_000), 1000, tag);
    }
    assert_eq!(script.tags(at(20_000), 1), [0, 1, 2]);
    assert_eq!(script.tags(at(20_999), 1), []);
    assert_eq!(script.switch.poll_timeout(), Some(at(21_000)));
    assert_eq!(script.tags(at(21_000), 1), [3]);
}

#[test]
fn frequent_polling_of_an_idle_port_earns_no_burst() {
    let port = PortConfig { catch_up: Duration::from_millis(2), ..byte_a_microsecond() };
    let mut script = Script::new(&[PortConfig::default(), port]);
    for micros in 0..10_000 {
        assert_eq!(script.next(at(micros), 1), None);
    }
    script.send_tagged(at(10_000), 1000, 0);
    script.send_tagged(at(10_000), 1000, 1);
    assert_eq!(script.tags(at(10_000), 1), [0]);
    assert_eq!(script.switch.poll_timeout(), Some(at(10_999)));
}

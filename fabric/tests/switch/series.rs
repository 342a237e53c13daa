//! Statistics per interval.

use crate::script::{Script, at, byte_a_microsecond};
use cc::Rate;
use ferroce_fabric::{PortConfig, Series};

/// A frame of 1000 bytes takes 1 ms. Three frames arrive at once, and then none for 10 ms.
#[test]
fn intervals_report_queue_lengths_and_do_not_change_the_statistics() {
    let mut script = Script::new(&[PortConfig::default(), byte_a_microsecond()]);
    let mut series = Series::start(&mut script.switch, at(0));
    for tag in 0..3 {
        script.send_tagged(at(1000), 1000, tag);
    }
    assert_eq!(script.leaving(at(1000), 1).len(), 1);
    assert_eq!(script.leaving(at(2500), 1).len(), 1);
    let first = series.take(&mut script.switch, at(2500));
    assert_eq!((first[0].rx_bytes, first[1].tx_bytes, first[1].busy), (3000, 2000, 2_000_000));
    // Two frames were queued until 2000 µs, and then one.
    let millis = |times: &[(u64, u64)]| {
        let rounded = times.iter().map(|(bytes, nanos)| (bytes / 100 * 100, nanos / 1000));
        rounded.collect::<Vec<_>>()
    };
    assert_eq!(millis(&first[1].queue), [(0, 1000), (1000, 500), (2000, 1000)]);
    script.leaving(at(4000), 1);
    let second = series.take(&mut script.switch, at(10_000));
    assert_eq!((second[0].rx_bytes, second[1].tx_bytes, second[1].busy), (0, 1000, 1_000_000));
    assert_eq!(millis(&second[1].queue), [(0, 7000), (1000, 500)]);
    assert_eq!(millis(&second[0].queue), [(0, 7500)]);
    // The statistics exclude long silences, however often the series is taken.
    let before = script.switch.report(at(10_000)).ports[1].active_seconds;
    for later in 1..100 {
        series.take(&mut script.switch, at(10_000 + later * 10_000));
    }
    assert!((script.switch.report(at(1_000_000)).ports[1].active_seconds - before).abs() < 1e-9);
}

#[test]
fn an_interval_excludes_counts_from_before_a_reset_of_the_statistics() {
    let rate = Some(Rate::from_mbps(8));
    let mut script = Script::new(&[PortConfig::default(), PortConfig { rate, ..PortConfig::default() }]);
    let mut series = Series::start(&mut script.switch, at(0));
    script.send_tagged(at(10), 500, 1);
    script.leaving(at(20), 1);
    series.take(&mut script.switch, at(20));
    script.switch.reset_statistics(at(2000));
    script.send_tagged(at(3000), 300, 2);
    script.leaving(at(3000), 1);
    let interval = series.take(&mut script.switch, at(4000));
    assert_eq!((interval[0].rx_bytes, interval[1].tx_bytes, interval[1].dropped), (300, 300, 0));
}

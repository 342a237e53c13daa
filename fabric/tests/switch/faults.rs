//! Random faults of a link: loss, duplication, reordering, delay and bit flips.

use crate::script::{Buf, Script, at, frame, station, tag};
use ferroce_fabric::{FaultConfig, FaultCounters, FaultLine, PortConfig, Probability};
use std::time::Duration;

fn often(value: f64) -> Probability {
    Probability::new(value).unwrap()
}

/// Sends `count` tagged frames, one per microsecond; returns the frames that leave, and the counters.
fn through(config: FaultConfig, count: u32) -> (Vec<Vec<u8>>, FaultCounters) {
    let mut line = FaultLine::new(config);
    let mut out = Vec::new();
    for n in 0..count {
        let now = at(u64::from(n));
        line.push(now, Buf::of(&frame(station(1), station(0), 64, n)), || Some(Buf::empty()));
        out.extend(std::iter::from_fn(|| line.poll(now)).map(|buf| buf.to_vec()));
    }
    while let Some(then) = line.poll_timeout() {
        out.extend(std::iter::from_fn(|| line.poll(then)).map(|buf| buf.to_vec()));
    }
    assert!(line.is_empty());
    (out, line.counters())
}

fn all_faults(seed: u64) -> FaultConfig {
    FaultConfig {
        loss: often(0.1),
        duplicate: often(0.1),
        reorder: often(0.1),
        flip: often(0.1),
        delay: Duration::from_micros(20),
        seed,
        ..FaultConfig::default()
    }
}

#[test]
fn the_same_seed_makes_the_same_faults() {
    let (first, counted) = through(all_faults(7), 5000);
    assert_eq!(through(all_faults(7), 5000), (first.clone(), counted));
    assert_ne!(through(all_faults(8), 5000).0, first);
    for (name, count) in [
        ("lost", counted.lost),
        ("duplicated", counted.duplicated),
        ("reordered", counted.reordered),
        ("flipped", counted.flipped),
    ] {
        assert!((250..=650).contains(&count), "{name}: {count} of 5000 at 0.1");
    }
}

#[test]
fn loss_and_duplication_account_for_every_frame() {
    let config = FaultConfig { loss: often(0.3), duplicate: often(0.2), ..FaultConfig::default() };
    let (out, counted) = through(config, 2000);
    assert_eq!(out.len() as u64, 2000 - counted.lost + counted.duplicated);
    let mut tags: Vec<_> = out.iter().map(|frame| tag(frame)).collect();
    assert!(tags.is_sorted(), "neither of them reorders");
    tags.dedup();
    assert_eq!(tags.len() as u64, 2000 - counted.lost);
}

#[test]
fn loss_of_probability_one_drops_all_and_zero_drops_none() {
    let lost = FaultConfig { loss: often(1.0), ..FaultConfig::default() };
    assert_eq!(through(lost, 100).0.len(), 0);
    let (out, counted) = through(FaultConfig::default(), 100);
    assert_eq!((out.len(), counted), (100, FaultCounters::default()));
    assert!([-0.1, 1.1, f64::NAN].into_iter().all(|value| Probability::new(value).is_none()));
}

#[test]
fn a_frame_is_overtaken_by_at_most_the_reorder_span() {
    let config = FaultConfig { reorder: often(0.3), reorder_span: 4, ..FaultConfig::default() };
    let (out, counted) = through(config, 5000);
    assert_eq!(out.len(), 5000);
    let mut overtaken = 0;
    for (place, frame) in out.iter().enumerate() {
        let late = place as i64 - i64::from(tag(frame));
        // An overtaken frame is up to 4 places late; a frame that overtakes is one place early.
        assert!((-1..=4).contains(&late), "frame {} came at {place}", tag(frame));
        overtaken += u64::from(late > 0);
    }
    assert_eq!(overtaken, counted.reordered);
    assert!(overtaken > 500);
}

#[test]
fn a_held_frame_goes_on_by_itself() {
    let config = FaultConfig { reorder: often(1.0), ..FaultConfig::default() };
    let mut line = FaultLine::new(config);
    line.push(at(0), Buf::of(&[0; 64]), || None);
    assert!(line.poll(at(999)).is_none());
    assert_eq!(line.poll_timeout(), Some(at(1000)));
    assert!(line.poll(at(1000)).is_some());
    assert_eq!(line.counters().reordered, 0, "nothing overtook it");
}

#[test]
fn delay_is_exact_and_a_flip_changes_one_bit() {
    let config = FaultConfig { delay: Duration::from_micros(50), flip: often(1.0), ..FaultConfig::default() };
    let mut line = FaultLine::new(config);
    let sent = frame(station(1), station(0), 100, 1);
    line.push(at(10), Buf::of(&sent), || None);
    assert_eq!(line.poll_timeout(), Some(at(60)));
    assert!(line.poll(at(59)).is_none());
    let got = line.poll(at(60)).unwrap();
    let bits: u32 = got.iter().zip(&sent).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!(bits, 1);
}

#[test]
fn a_ports_link_is_bounded_and_its_queue_waits() {
    let faults = FaultConfig { delay: Duration::from_millis(1), capacity: 8, ..FaultConfig::default() };
    let port = PortConfig { faults, ..PortConfig::default() };
    let mut script = Script::new(&[PortConfig::default(), port]);
    for n in 0..20 {
        script.send_tagged(at(0), 100, n);
    }
    let mut tags = Vec::new();
    let mut now = at(0);
    for _ in 0..10 {
        tags.extend(script.tags(now, 1));
        now = now + Duration::from_millis(1);
    }
    assert_eq!(tags, (0..20).collect::<Vec<_>>());
}

//! Tests of the capture ring.

use super::*;
use std::os::fd::AsRawFd;

fn ring(snaplen: u32) -> (Tap, Reader) {
    let (tap, file) = Tap::new(snaplen).unwrap();
    let reader = Reader::new(&file).unwrap();
    (tap, reader)
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

#[test]
fn frames_are_read_unchanged_up_to_the_snapshot_length() {
    let (mut tap, mut reader) = ring(64);
    let mut frame = Vec::new();
    assert_eq!(reader.take(&mut frame).unwrap(), None);
    let long: Vec<u8> = (0..100).collect();
    tap.record(at(5), Direction::In, &long[..61]);
    tap.record(at(7), Direction::Out, &long);
    let first = reader.take(&mut frame).unwrap().unwrap();
    assert_eq!((first.direction, first.length, first.captured, first.dropped), (Direction::In, 61, 61, 0));
    assert_eq!(frame, long[..61]);
    let second = reader.peek().unwrap().unwrap();
    assert_eq!(reader.take(&mut frame).unwrap(), Some(second));
    assert_eq!((second.direction, second.length, second.captured), (Direction::Out, 100, 64));
    assert_eq!((second.time - first.time, frame.as_slice()), (2, &long[..64]));
    assert!(!reader.is_closed());
    drop(tap);
    assert!(reader.is_closed() && reader.peek().unwrap().is_none());
}

/// Writes 60,000 frames of random lengths while the reader drains the ring at random times. The captured ones arrive in order, and each gap
/// is counted at its place.
#[test]
fn frames_without_room_are_counted_and_the_others_stay_in_order() {
    let (mut tap, mut reader) = ring(u32::MAX);
    let (mut frame, mut expected, mut random, mut dropped) = (Vec::new(), 0_u32, 9_u64, 0_u64);
    let mut read = |reader: &mut Reader, most: u64| {
        for _ in 0..most {
            let Some(record) = reader.take(&mut frame).unwrap() else { break };
            dropped += u64::from(record.dropped);
            expected += record.dropped;
            assert_eq!(frame[..4], expected.to_le_bytes());
            assert!(frame[4..].iter().all(|byte| *byte == frame[0]));
            assert_eq!(frame.len(), record.length as usize);
            expected += 1;
        }
        (expected, dropped)
    };
    let all = 60_000_u32;
    for number in 0..all {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut bytes = vec![number as u8; 4 + (random >> 40) as usize % 4096];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        tap.record(at(number.into()), Direction::Out, &bytes);
        if (random >> 20).is_multiple_of(700) {
            read(&mut reader, random >> 54);
        }
    }
    let (_, _) = read(&mut reader, u64::MAX);
    // The count of the last gap is in the next record.
    tap.record(at(0), Direction::Out, &[&all.to_le_bytes()[..], &[all as u8; 9]].concat());
    let (seen, dropped) = read(&mut reader, u64::MAX);
    assert_eq!((seen, dropped), (all + 1, reader.dropped()));
    assert!(dropped > 1000 && dropped < u64::from(all) / 2, "{dropped} of {all} were dropped");
}

#[test]
fn an_observer_with_a_wrong_read_position_only_loses_frames() {
    let (mut tap, mut reader) = ring(u32::MAX);
    let frame = vec![1; 4000];
    let fill = |tap: &mut Tap| (0..3000).for_each(|_| tap.record(at(1), Direction::In, &frame));
    fill(&mut tap);
    let dropped = reader.dropped();
    assert!(dropped > 0);
    for nonsense in [u64::MAX, 1 << 63, tap.write_pos + 1] {
        reader.memory.long(READ_POS).store(nonsense, Ordering::Relaxed);
        tap.record(at(1), Direction::In, &frame);
    }
    assert_eq!(reader.dropped(), dropped + 3);
    let mut room = Vec::new();
    assert!(reader.take(&mut room).unwrap().is_some());
    tap.record(at(1), Direction::In, &frame);
    assert_eq!(reader.dropped(), dropped + 3, "a sane count makes room again");
}

#[test]
fn a_damaged_ring_is_an_error() {
    let (mut tap, mut reader) = ring(u32::MAX);
    tap.record(at(1), Direction::In, &[1; 60]);
    for (captured, length) in [(61_u32, 60_u32), (80, 80), (u32::MAX, u32::MAX), (1 << 17, 1 << 17)] {
        tap.memory.copy_in(RING_AT, &[captured.to_le_bytes(), length.to_le_bytes()].concat());
        assert!(reader.peek().is_err(), "{captured} of {length}");
    }
    for write_pos in [8, RING as u64 + 8, u64::MAX] {
        let mut reader = Reader { write_pos: 0, read_pos: 0, next: None, ..ring(9).1 };
        reader.memory.long(WRITE_POS).store(write_pos, Ordering::Relaxed);
        assert!(reader.peek().is_err(), "{write_pos}");
    }
}

#[test]
fn memory_without_a_ring_is_refused() {
    let other = shared_memory::create(c"x", LENGTH).unwrap();
    assert!(Reader::new(&other).unwrap_err().to_string().contains("sealed"));
    shared_memory::seal(other.as_fd(), 0).unwrap();
    assert!(Reader::new(&other).unwrap_err().to_string().contains("layout"));
    let (_tap, file) = Tap::new(9).unwrap();
    // SAFETY: passes a descriptor of this test and an integer.
    assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), 0) }, -1, "its length is sealed");
}

//! A capture contains every frame of a process, matches the counters, and never delays the process.

mod common;

use common::*;
use ferroce_verbs::observe::{AttachError, Capture, Direction, Record, Waited};
use ferroce_verbs::{Progress, SendRequest};
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

const BYTES: u32 = 100_000;

fn writes(a: &mut Side, b: &Side, count: u64) {
    for id in 0..count {
        let request = SendRequest::write(id, a.region.sge(0, BYTES).unwrap(), b.region.remote().at(0));
        a.qp.post_send(request).unwrap();
        assert_eq!(success(&mut a.send_cq, &b.device).id, id);
    }
}

/// Takes all frames of the capture, each with its port and record.
fn all(capture: &mut Capture) -> Vec<(usize, Record, Vec<u8>)> {
    let mut bytes = Vec::new();
    std::iter::from_fn(|| {
        let (port, record) = capture.take(&mut bytes).unwrap()?;
        Some((port, record, bytes.clone()))
    })
    .collect()
}

fn count(frames: &[(usize, Record, Vec<u8>)], port: usize, direction: Direction) -> u64 {
    frames.iter().filter(|(at, record, _)| *at == port && record.direction == direction).count() as u64
}

fn begin(snap: u32) -> Capture {
    Capture::begin(std::process::id(), snap).unwrap()
}

/// A single test, because the directory of sockets belongs to the process.
#[test]
fn a_capture_has_every_frame_and_delays_no_transfer() {
    let runtime = tempfile::tempdir().unwrap();
    // SAFETY: no other thread reads the environment yet.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", runtime.path()) };
    let pid = std::process::id();
    assert!(matches!(Capture::begin(pid, 9), Err(AttachError::NotFerroce(_))));

    let (mut a, mut b) = connected(Progress::Inline, 1 << 17);
    writes(&mut a, &b, 2);
    let counted = |side: &Side| {
        let counters = side.device.counters().unwrap();
        (counters.rx_frames, counters.tx_frames)
    };
    let (before_a, before_b) = (counted(&a), counted(&b));
    let mut capture = begin(u32::MAX);
    assert_eq!(capture.ports(), ["pair0", "pair1"]);
    let second = Capture::begin(pid, 9).unwrap_err().to_string();
    assert!(second.contains("another capture of it is running"), "{second}");

    writes(&mut a, &b, 5);
    let (after_a, after_b) = (counted(&a), counted(&b));
    let frames = all(&mut capture);
    for (port, before, after) in [(0, before_a, after_a), (1, before_b, after_b)] {
        assert_eq!(count(&frames, port, Direction::In), after.0 - before.0);
        assert_eq!(count(&frames, port, Direction::Out), after.1 - before.1);
        assert!(after.0 > before.0 && after.1 > before.1);
        assert_eq!(capture.dropped(port), 0);
    }
    // Each side receives the bytes that the other sent.
    let bytes = |port, direction| {
        let chosen =
            frames.iter().filter(move |(at, record, _)| *at == port && record.direction == direction);
        chosen.map(|(_, _, bytes)| bytes).collect::<Vec<_>>()
    };
    assert_eq!(bytes(0, Direction::Out), bytes(1, Direction::In));
    assert_eq!(bytes(1, Direction::Out), bytes(0, Direction::In));
    assert!(frames.iter().all(|(_, record, bytes)| record.length as usize == bytes.len()));

    // Without a reader, frames are dropped and counted, and the process continues.
    let before = counted(&a);
    writes(&mut a, &b, 200);
    let after = counted(&a);
    let frames = all(&mut capture);
    let seen = count(&frames, 0, Direction::In) + count(&frames, 0, Direction::Out);
    assert!(capture.dropped(0) > 0);
    assert_eq!(seen + capture.dropped(0), after.0 - before.0 + after.1 - before.1);
    drop(capture);

    // An observer that closes the connection before the answer.
    let socket = runtime.path().join(format!("ferroce/{pid}.sock"));
    UnixStream::connect(&socket).unwrap().write_all(b"capture 64\n").unwrap();
    let mut capture = begin(64);
    writes(&mut a, &b, 1);
    assert!(all(&mut capture).iter().all(|(_, record, bytes)| bytes.len() == 64.min(record.length as usize)));
    let unread = tempfile::tempfile().unwrap();
    let wait = |capture: &Capture| capture.wait(Duration::ZERO, std::os::fd::AsFd::as_fd(&unread));
    assert_eq!(wait(&capture), Waited::Time);

    // Closing the devices ends the capture.
    writes(&mut b, &a, 1);
    drop((a, b));
    assert!(!all(&mut capture).is_empty());
    assert_eq!(wait(&capture), Waited::Ended);
    drop(capture);

    // A process with format 1 sends a report to any process that connects, and reads no request.
    let listener = UnixListener::bind(&socket).unwrap();
    let old = std::thread::spawn(move || {
        let (mut observer, _) = listener.accept().unwrap();
        let command = "x".repeat(100_000);
        write!(observer, r#"{{"format": 1, "version": "0.0.9", "command": "{command}"}}"#).unwrap();
    });
    let refused = Capture::begin(pid, 64).unwrap_err().to_string();
    old.join().unwrap();
    assert!(refused.contains("reports in format 1,") && refused.contains("use ferroce 0.0.9"), "{refused}");
}

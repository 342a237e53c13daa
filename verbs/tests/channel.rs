//! A sleeping thread is notified of completions, once for each request.

mod common;

use common::*;
use ferroce_verbs::{Progress, RecvRequest, SendRequest};
use std::os::fd::AsRawFd;

/// Modes in which the cores run while no thread polls.
const MODES: [Progress; 2] = [Progress::Dedicated { core: None }, Progress::Adaptive];

fn send(a: &mut Side, b: &mut Side, solicited: bool) {
    b.qp.post_recv(RecvRequest::new(1, b.region.sge(0, 64).unwrap())).unwrap();
    let mut request = SendRequest::send(1, a.region.sge(0, 8).unwrap());
    request.solicited = solicited;
    a.qp.post_send(request).unwrap();
    while a.send_cq.poll_one().unwrap().is_none() {
        std::thread::yield_now();
    }
}

#[test]
fn an_armed_queue_wakes_a_sleeping_thread() {
    for mode in MODES {
        let (mut a, mut b) = connected(mode, 4096);
        let channel = b.device.create_channel().unwrap();
        b.recv_cq.bind_channel(&channel).unwrap();
        for _ in 0..20 {
            b.recv_cq.arm(false);
            assert_eq!(b.recv_cq.poll_one().unwrap(), None);
            send(&mut a, &mut b, false);
            channel.wait().unwrap();
            assert!(b.recv_cq.take_event() && !b.recv_cq.take_event());
            let came = success(&mut b.recv_cq, &a.device);
            assert_eq!(came.length, 8);
        }
    }
}

#[test]
fn a_queue_armed_for_solicited_messages_does_not_wake_for_others() {
    let (mut a, mut b) = connected(Progress::Dedicated { core: None }, 4096);
    let channel = b.device.create_channel().unwrap();
    b.recv_cq.bind_channel(&channel).unwrap();
    b.recv_cq.arm(true);
    send(&mut a, &mut b, false);
    success(&mut b.recv_cq, &a.device);
    assert!(!b.recv_cq.take_event());
    send(&mut a, &mut b, true);
    channel.wait().unwrap();
    assert!(b.recv_cq.take_event());
    b.recv_cq.arm(true);
    b.qp.post_recv(RecvRequest::new(2, b.region.sge(0, 64).unwrap())).unwrap();
    b.qp.fail().unwrap();
    channel.wait().unwrap();
    assert!(b.recv_cq.take_event(), "an error counts as solicited");
}

#[test]
fn a_dropped_queues_event_leaves_the_channel() {
    let (mut a, b) = connected(Progress::Dedicated { core: None }, 4096);
    let Side { qp, mut recv_cq, region, device, .. } = b;
    let channel = device.create_channel().unwrap();
    recv_cq.bind_channel(&channel).unwrap();
    recv_cq.arm(false);
    let mut qp = qp;
    qp.post_recv(RecvRequest::new(1, region.sge(0, 64).unwrap())).unwrap();
    a.qp.post_send(SendRequest::send(1, a.region.sge(0, 8).unwrap())).unwrap();
    let readable = |timeout| {
        let mut watched = libc::pollfd { fd: channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: passes one pollfd with an open descriptor.
        unsafe { libc::poll(&mut watched, 1, timeout) > 0 }
    };
    assert!(readable(-1));
    drop(recv_cq);
    assert!(!readable(0));
}

/// No queue is armed, so no completion can wake these threads.
#[test]
fn closing_the_device_ends_the_wait_of_other_threads() {
    for mode in MODES {
        let [device, other] = devices(mode);
        let channel = device.create_channel().unwrap();
        let waits = [0; 2].map(|_| {
            let channel = channel.clone();
            std::thread::spawn(move || channel.wait().unwrap_err().kind())
        });
        drop(device);
        for thread in waits {
            assert_eq!(thread.join().unwrap(), std::io::ErrorKind::BrokenPipe, "{mode:?}");
        }
        assert!(channel.wait().is_err(), "a later wait fails as well");
        drop(other);
    }
}

//! Memory windows between two devices: binding, use and invalidation. ATOMIC WRITE and FLUSH.

use crate::common::*;
use ferroce_verbs::errors::PostError;
use ferroce_verbs::service::Request;
use ferroce_verbs::state::State;
use ferroce_verbs::window::{Binding, MemoryWindow, WindowKind};
use ferroce_verbs::wire::Feth;
use ferroce_verbs::{
    Access, CompletionOpcode, CompletionStatus, ConnectOptions, Data, Device, MemoryRegion, Progress,
    RecvRequest, SendRequest,
};

#[test]
fn a_window_is_shared_by_send_and_revoked_by_send_with_invalidate() {
    for mode in [Progress::Inline, Progress::Dedicated { core: None }, Progress::Adaptive] {
        let (mut a, mut b) = connected(mode, 4096);
        let rights = Access::LOCAL_WRITE | Access::WINDOWS;
        let memory = MemoryRegion::alloc(&b.pd, 8192, rights).unwrap();
        let mut window = b.pd.memory_window(WindowKind::Two).unwrap();
        assert!(window.binding(&memory, 4096, 4097, Access::REMOTE_WRITE).is_err());
        for round in 0..3 {
            let binding = window.binding(&memory, 4096, 64, Access::REMOTE_WRITE).unwrap();
            b.qp.post_send(SendRequest::bind(round, binding)).unwrap();
            let bound = success(&mut b.send_cq, &a.device);
            assert_eq!((bound.id, bound.opcode), (round, CompletionOpcode::Bind));
            assert_eq!(memory.windows().unwrap(), 1, "{mode:?}");
            b.qp.post_recv(RecvRequest { id: 9, buffers: Default::default() }).unwrap();
            a.region.write(0, &[round as u8 + 1; 64]).unwrap();
            let remote = MemoryWindow::remote(&binding);
            a.qp.post_send(SendRequest::write(1, a.region.sge(0, 64).unwrap(), remote.at(0))).unwrap();
            a.qp.post_send(SendRequest::send_invalidate(2, Data::empty(), binding.rkey)).unwrap();
            let came = success(&mut b.recv_cq, &a.device);
            assert_eq!((came.id, came.invalidated), (9, Some(window.rkey())));
            assert_eq!(contents(&memory, 4096, 64), [round as u8 + 1; 64]);
            assert_eq!(memory.windows().unwrap(), 0);
            assert_eq!([1, 2], [0; 2].map(|_| success(&mut a.send_cq, &b.device).id));
        }
    }
}

#[test]
fn a_window_that_was_taken_back_refuses_the_peer() {
    let (mut a, mut b) = connected(Progress::Inline, 4096);
    let memory = MemoryRegion::alloc(&b.pd, 4096, Access::ALL | Access::WINDOWS).unwrap();
    let mut window = b.pd.memory_window(WindowKind::Two).unwrap();
    let binding = window.binding(&memory, 0, 4096, Access::ALL).unwrap();
    b.qp.post_send(SendRequest::bind(1, binding)).unwrap();
    b.qp.post_send(SendRequest::local_invalidate(2, binding.rkey)).unwrap();
    let opcodes = [0; 2].map(|_| success(&mut b.send_cq, &a.device).opcode);
    assert_eq!(opcodes, [CompletionOpcode::Bind, CompletionOpcode::LocalInvalidate]);
    let remote = MemoryWindow::remote(&binding);
    a.qp.post_send(SendRequest::write(1, a.region.sge(0, 8).unwrap(), remote.at(0))).unwrap();
    assert_eq!(next(&mut a.send_cq, &b.device).status, CompletionStatus::RemoteAccess);
}

#[test]
fn unreliable_connections_serve_windows_too() {
    let [left, right] = devices(Progress::Inline);
    let make = |device: &Device| {
        let pd = device.allocate_pd().unwrap();
        let cq = device.create_cq(16).unwrap();
        let qp = pd.queue_pair(&cq, &cq).unreliable().build().unwrap();
        (pd, cq, qp)
    };
    let (pd, mut send_cq, mut a) = make(&left);
    let (there, mut recv_cq, mut b) = make(&right);
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    a.connect(&to_b, &ConnectOptions::default()).unwrap();
    b.connect(&to_a, &ConnectOptions::default()).unwrap();
    let memory = MemoryRegion::alloc(&there, 4096, Access::LOCAL_WRITE | Access::WINDOWS).unwrap();
    let data = MemoryRegion::alloc(&pd, 64, Access::LOCAL_READ).unwrap();
    data.write(0, b"by a window").unwrap();
    let mut window = there.memory_window(WindowKind::One).unwrap();
    let binding = window.binding(&memory, 100, 11, Access::REMOTE_WRITE).unwrap();
    b.post_send(Request::bind(1, binding)).unwrap();
    assert_eq!(success(&mut recv_cq, &left).opcode, CompletionOpcode::Bind);
    let remote = MemoryWindow::remote(&binding).at(0);
    a.post_send(Request::write(2, data.sge(0, 11).unwrap(), remote)).unwrap();
    success(&mut send_cq, &right);
    while right.progress() {}
    assert_eq!(contents(&memory, 100, 11), b"by a window");
    // A failed bind stops the send queue, but not the receive queue.
    let bad = Binding { lkey: data.lkey(), ..window.binding(&memory, 0, 8, Access::ALL).unwrap() };
    b.post_send(Request::bind(3, bad)).unwrap();
    assert_eq!(next(&mut recv_cq, &left).status, CompletionStatus::Bind);
    assert_eq!(b.query().unwrap().state, State::SendQueueError);
}

#[test]
fn a_word_is_written_atomically_and_writes_are_flushed() {
    for mode in [Progress::Inline, Progress::Dedicated { core: None }, Progress::Adaptive] {
        let (mut a, b) = connected(mode, 4096);
        let memory = MemoryRegion::alloc(&b.pd, 4096, Access::ALL | Access::REMOTE_FLUSH).unwrap();
        let remote = memory.remote();
        let word = 0x0123_4567_89ab_cdef_u64.to_ne_bytes();
        a.region.write(0, &word).unwrap();
        for (request, opcode) in [
            (SendRequest::write(1, a.region.sge(0, 8).unwrap(), remote.at(100)), CompletionOpcode::Write),
            (
                SendRequest::flush(2, remote.at(100), 8, Feth::new(true, false, false)),
                CompletionOpcode::Flush,
            ),
            (SendRequest::flush(3, remote.at(0), 0, Feth::new(true, false, true)), CompletionOpcode::Flush),
            (SendRequest::atomic_write(4, Data::inline(&word), remote.at(64)), CompletionOpcode::AtomicWrite),
        ] {
            a.qp.post_send(request).unwrap();
            assert_eq!(success(&mut a.send_cq, &b.device).opcode, opcode, "{mode:?}");
        }
        assert_eq!((contents(&memory, 64, 8), contents(&memory, 100, 8)), (word.to_vec(), word.to_vec()));
        let odd = SendRequest::atomic_write(5, Data::inline(&word), remote.at(65));
        assert_eq!(a.qp.post_send(odd), Err(PostError::BadAtomic));
    }
}

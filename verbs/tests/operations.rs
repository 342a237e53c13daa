//! Every operation between two devices, in every mode of progress.

use crate::common::*;
use ferroce_verbs::errors::PostError;
use ferroce_verbs::{
    Access, Capabilities, CompletionOpcode, ConnectOptions, Data, DeviceConfig, MemoryRegion, Progress,
    RecvRequest, SendRequest,
};

const MODES: [Progress; 3] = [Progress::Inline, Progress::Dedicated { core: None }, Progress::Adaptive];

/// Lengths around the boundaries of packets with a path MTU of 4096.
const LENGTHS: [u32; 8] = [0, 1, 3, 4095, 4096, 4097, 8192, 100_001];

const HALF: usize = 128 << 10;

#[test]
fn send_fills_the_next_receive() {
    for mode in MODES {
        let (mut a, mut b) = connected(mode, 2 * HALF);
        for (id, length) in (0..).zip(LENGTHS) {
            let data = pattern(length as usize, id as u8);
            a.region.write(0, &data).unwrap();
            b.qp.post_recv(RecvRequest::new(100 + id, b.region.sge(HALF, HALF as u32).unwrap())).unwrap();
            let request = SendRequest::send(id, a.region.sge(0, length).unwrap());
            let request = if id % 2 == 0 { request.with_immediate([1, 2, 3, id as u8]) } else { request };
            a.qp.post_send(request).unwrap();
            let sent = success(&mut a.send_cq, &b.device);
            let came = success(&mut b.recv_cq, &a.device);
            assert_eq!((sent.id, sent.opcode), (id, CompletionOpcode::Send));
            assert_eq!((came.id, came.opcode, came.length), (100 + id, CompletionOpcode::Recv, length));
            assert_eq!(came.immediate, (id % 2 == 0).then_some([1, 2, 3, id as u8]));
            assert_eq!(contents(&b.region, HALF, length as usize), data, "{length} bytes, {mode:?}");
        }
    }
}

#[test]
fn a_write_changes_its_destination_alone() {
    for mode in MODES {
        let (mut a, mut b) = connected(mode, 2 * HALF);
        let remote = b.region.remote();
        for (id, length) in (0..).zip(LENGTHS) {
            let data = pattern(length as usize, id as u8);
            a.region.write(5, &data).unwrap();
            let sge = a.region.sge(5, length).unwrap();
            a.qp.post_send(SendRequest::write(id, sge, remote.at(77))).unwrap();
            assert_eq!(success(&mut a.send_cq, &b.device).id, id);
            assert_eq!(contents(&b.region, 77, length as usize), data, "{length} bytes, {mode:?}");
        }
        assert_eq!(b.recv_cq.poll_one().unwrap(), None, "a WRITE makes no completion at its responder");
    }
}

#[test]
fn a_write_with_immediate_completes_a_receive() {
    for mode in MODES {
        let (mut a, mut b) = connected(mode, HALF);
        b.qp.post_recv(RecvRequest { id: 9, buffers: Default::default() }).unwrap();
        a.region.write(0, b"payload").unwrap();
        let write = SendRequest::write(1, a.region.sge(0, 7).unwrap(), b.region.remote().at(0));
        a.qp.post_send(write.with_immediate(*b"imm!")).unwrap();
        let came = success(&mut b.recv_cq, &a.device);
        assert_eq!(
            (came.id, came.opcode, came.immediate),
            (9, CompletionOpcode::RecvWithWrite, Some(*b"imm!"))
        );
        assert_eq!(contents(&b.region, 0, 7), b"payload");
        success(&mut a.send_cq, &b.device);
    }
}

#[test]
fn a_read_returns_the_remote_bytes() {
    for mode in MODES {
        let (mut a, b) = connected(mode, 2 * HALF);
        for (id, length) in (0..).zip(LENGTHS) {
            let data = pattern(length as usize, id as u8);
            b.region.write(3, &data).unwrap();
            let sge = a.region.sge(HALF, length).unwrap();
            a.qp.post_send(SendRequest::read(id, sge, b.region.remote().at(3))).unwrap();
            let done = success(&mut a.send_cq, &b.device);
            assert_eq!((done.id, done.opcode), (id, CompletionOpcode::Read));
            assert_eq!(contents(&a.region, HALF, length as usize), data, "{length} bytes, {mode:?}");
        }
    }
}

#[test]
fn atomics_return_the_previous_value() {
    for mode in MODES {
        let (mut a, b) = connected(mode, 4096);
        b.region.write(64, &7_u64.to_ne_bytes()).unwrap();
        let (result, remote) = (a.region.sge(0, 8).unwrap(), b.region.remote().at(64));
        for (request, before, after) in [
            (SendRequest::fetch_add(1, result, remote, 5), 7, 12),
            (SendRequest::compare_swap(2, result, remote, 12, 100), 12, 100),
            (SendRequest::compare_swap(3, result, remote, 12, 200), 100, 100),
            (SendRequest::fetch_add(4, result, remote, u64::MAX), 100, 99),
        ] {
            a.qp.post_send(request).unwrap();
            success(&mut a.send_cq, &b.device);
            let word = |region, at| u64::from_ne_bytes(contents(region, at, 8).try_into().unwrap());
            assert_eq!((word(&a.region, 0), word(&b.region, 64)), (before, after), "{mode:?}");
        }
    }
}

#[test]
fn inline_data_and_lists_of_buffers() {
    for mode in MODES {
        let (mut a, mut b) = connected(mode, 4096);
        a.region.write(0, b"gathered").unwrap();
        let pieces = [a.region.sge(4, 4).unwrap(), a.region.sge(0, 4).unwrap(), a.region.sge(0, 0).unwrap()];
        let remote = b.region.remote();
        let inline = pattern(236, 1);
        let requests = [
            SendRequest::write(1, &pieces[..], remote.at(0)).unsignalled(),
            SendRequest::write(2, Data::inline(&inline), remote.at(100)),
        ];
        assert_eq!(a.qp.post_send_list(requests), Ok(2));
        assert_eq!(success(&mut a.send_cq, &b.device).id, 2, "the first is not signalled");
        assert_eq!(contents(&b.region, 0, 8), b"eredgath");
        assert_eq!(contents(&b.region, 100, 236), inline);

        let halves = [b.region.sge(1000, 3).unwrap(), b.region.sge(2000, 100).unwrap()];
        b.qp.post_recv(RecvRequest::scatter(5, &halves)).unwrap();
        a.qp.post_send(SendRequest::send(6, Data::inline(b"scattered"))).unwrap();
        assert_eq!(success(&mut b.recv_cq, &a.device).length, 9);
        assert_eq!(
            (contents(&b.region, 1000, 3), contents(&b.region, 2000, 6)),
            (b"sca".into(), b"ttered".into())
        );
        success(&mut a.send_cq, &b.device);
    }
}

#[test]
fn a_device_reaches_itself() {
    let [device, _other] = devices(Progress::Inline);
    let make = || side(&device, HALF, Capabilities::default(), 64);
    let (mut a, mut b) = (make(), make());
    connect(&mut a, &mut b, &ConnectOptions::default());
    let data = pattern(HALF, 3);
    a.region.write(0, &data).unwrap();
    a.qp.post_send(SendRequest::write(1, a.region.sge(0, HALF as u32).unwrap(), b.region.remote().at(0)))
        .unwrap();
    success(&mut a.send_cq, &device);
    assert_eq!(contents(&b.region, 0, HALF), data);
}

/// Posts until the queue is full, polls, and posts again: every request completes once and in order.
#[test]
fn a_queue_accepts_as_many_requests_as_its_depth() {
    for mode in MODES {
        let [a, b] = devices(mode);
        let capabilities = Capabilities { max_send: 8, ..Capabilities::default() };
        let (mut a, mut b) = (side(&a, 4096, capabilities, 8), side(&b, 4096, capabilities, 8));
        connect(&mut a, &mut b, &ConnectOptions::default());
        let (mut posted, mut done) = (0, 0);
        while done < 200 {
            let write = SendRequest::write(posted, a.region.sge(0, 64).unwrap(), b.region.remote().at(0));
            match a.qp.post_send(write) {
                Ok(()) => posted += 1,
                Err(PostError::QueueFull { limit: 8 }) => {
                    assert_eq!(posted - done, 8);
                    assert_eq!(success(&mut a.send_cq, &b.device).id, done);
                    done += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

/// Requests without a completion also free their room.
#[test]
fn unsignalled_requests_free_their_room_in_the_queue() {
    for mode in MODES {
        let [a, b] = devices(mode);
        let capabilities = Capabilities { max_send: 4, ..Capabilities::default() };
        let (mut a, mut b) = (side(&a, 4096, capabilities, 8), side(&b, 4096, capabilities, 8));
        connect(&mut a, &mut b, &ConnectOptions::default());
        let mut posted = 0_u8;
        while posted < 100 {
            let write = SendRequest::write(0, Data::inline(&[posted]), b.region.remote().at(posted.into()));
            match a.qp.post_send(write.unsignalled()) {
                Ok(()) => posted += 1,
                Err(PostError::QueueFull { .. }) => {
                    assert_eq!(a.send_cq.poll_one().unwrap(), None);
                    b.device.progress();
                }
                Err(other) => panic!("{other}"),
            }
        }
        let last = loop {
            if let Ok(()) = a.qp.post_send(SendRequest::write(1, Data::inline(b""), b.region.remote().at(0)))
            {
                break success(&mut a.send_cq, &b.device);
            }
            a.device.progress();
            b.device.progress();
        };
        assert_eq!(last.id, 1);
        assert_eq!(contents(&b.region, 0, 100), (0..100).collect::<Vec<u8>>());
    }
}

#[test]
fn queue_pairs_share_a_receive_queue() {
    let [a, b] = devices(Progress::Inline);
    let capabilities = Capabilities::default();
    let (mut first, mut second) = (side(&a, 8192, capabilities, 64), side(&a, 8192, capabilities, 64));
    let pd = b.allocate_pd().unwrap();
    let mut srq = pd.shared_receive_queue(4, 1).unwrap();
    let (send_cq, mut recv_cq) = (b.create_cq(16).unwrap(), b.create_cq(16).unwrap());
    let region = MemoryRegion::alloc(&pd, 8192, Access::ALL).unwrap();
    let mut receivers: Vec<_> = [&mut first, &mut second]
        .into_iter()
        .map(|sender| {
            let mut qp = pd.queue_pair(&send_cq, &recv_cq).receive_from(&srq).build().unwrap();
            let (here, there) = (qp.endpoint(), sender.qp.endpoint());
            qp.connect(&there, &ConnectOptions::default()).unwrap();
            sender.qp.connect(&here, &ConnectOptions::default()).unwrap();
            qp
        })
        .collect();
    let buffer = |n: u64| RecvRequest::new(n, region.sge(n as usize * 1024, 1024).unwrap());
    (0..4).for_each(|n| srq.post_recv(buffer(n)).unwrap());
    assert_eq!(srq.post_recv(buffer(4)), Err(PostError::QueueFull { limit: 4 }));
    let refused = receivers[0].post_recv(buffer(5));
    assert_eq!(refused, Err(PostError::SharedReceives { qpn: receivers[0].qpn() }));
    for (n, sender) in [&mut first, &mut second].into_iter().enumerate() {
        sender.region.write(0, &pattern(700, n as u8)).unwrap();
        sender.qp.post_send(SendRequest::send(1, sender.region.sge(0, 700).unwrap())).unwrap();
        let completion = success(&mut recv_cq, &a);
        assert_eq!((completion.id, completion.qpn), (n as u64, receivers[n].qpn()));
        assert_eq!(contents(&region, n * 1024, 700), pattern(700, n as u8));
    }
    assert_eq!(srq.query().unwrap().waiting, 2);
    // Polling a completion frees its room.
    b.progress();
    srq.post_recv(buffer(4)).unwrap();
}

#[test]
fn a_request_is_sent_without_a_poll() {
    for mode in MODES {
        let (mut a, b) = connected(mode, 64);
        a.region.write(0, b"last").unwrap();
        a.qp.post_send(SendRequest::write(1, a.region.sge(0, 4).unwrap(), b.region.remote().at(0))).unwrap();
        // Only the responder's core runs from here on.
        while contents(&b.region, 0, 4) != b"last" {
            if !b.device.progress() {
                assert_ne!(
                    (mode, 0),
                    (Progress::Inline, b.device.counters().unwrap().rx_frames),
                    "nothing was sent"
                );
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn a_wait_without_polling_makes_progress_by_default() {
    assert_eq!(DeviceConfig::new().who_runs(), Progress::Adaptive);
    assert_eq!(DeviceConfig::new().progress(Progress::Inline).who_runs(), Progress::Inline);
}

//! Packet scripts of unreliable connections and datagrams: nothing is acknowledged, and missing packets stay missing.

use crate::harness::{BASE, Host, Options, path};
use cc::{Instant, Rate};
use core::net::IpAddr;
use roce::qp::{
    Capabilities, Changes, CompletionOpcode, CompletionStatus, Congestion, CongestionAlgorithm, Data,
    Datagram, Modify, PostError, QpInit, RecvRequest, Remote, SendRequest, State,
};
use roce::wire::{Header, MAX_OVERHEAD, Mtu, Operation, Path, Reth, Service, emit, parse};
use roce::{Access, AddressId, ControlError, Discard, Event, Lkey, Psn, Qpn, Rkey};

const NOW: Instant = Instant::ZERO;
const KEY: u32 = 0x1234;

/// Creates a host whose queue pair has another service.
fn host(core: u8, service: Service, options: &Options) -> Host {
    let mut host = Host::new(core, options);
    let init = QpInit {
        service,
        pd: host.pd,
        send_cq: host.send_cq,
        recv_cq: host.recv_cq,
        capabilities: Capabilities { max_send: 16, max_recv: 16, ..Capabilities::default() },
        signal_all: false,
        srq: None,
    };
    host.qpn = host.endpoint.create_qp(NOW, init).unwrap();
    host
}

/// Connects two unreliable connections with MTU 1024.
fn connections() -> [Host; 2] {
    let options = Options::default();
    let mut hosts = [host(1, Service::Uc, &options), host(2, Service::Uc, &options)];
    let [a, b] = [hosts[0].qpn, hosts[1].qpn];
    hosts[0].ready_to_receive(path(1, 2), b, options.send_psn, &options);
    hosts[1].ready_to_receive(path(2, 1), a, options.send_psn, &options);
    hosts.iter_mut().for_each(|host| host.ready_to_send(&options));
    hosts
}

/// Creates two datagram queue pairs, and an address handle with which the first one sends to the second.
fn datagrams() -> ([Host; 2], AddressId) {
    datagrams_over(path(1, 2))
}

fn datagrams_over(way: Path) -> ([Host; 2], AddressId) {
    datagrams_paced(way, Congestion::new(Options::default().congestion))
}

fn datagrams_paced(way: Path, congestion: Congestion) -> ([Host; 2], AddressId) {
    let options = Options::default();
    let mut hosts = [host(1, Service::Ud, &options), host(2, Service::Ud, &options)];
    for host in &mut hosts {
        for modify in [
            Modify::InitDatagram { queue_key: KEY, partition_key: 0xffff },
            Modify::ReadyToReceiveDatagrams { mtu: Mtu::M1024, feedback_key: None },
            Modify::ReadyToSendDatagrams { send_psn: Psn::new(7), congestion },
        ] {
            host.endpoint.modify_qp(NOW, host.qpn, modify).unwrap();
        }
    }
    let pd = hosts[0].pd;
    let address = hosts[0].endpoint.create_address(pd, &way).unwrap();
    (hosts, address)
}

fn post(host: &mut Host, request: impl FnOnce(&Host) -> SendRequest) {
    let request = request(host);
    host.endpoint.post_send(NOW, host.qpn, request).unwrap();
}

fn receive(host: &mut Host, id: u64, offset: u64, length: u32) {
    let request = RecvRequest::new(id, host.sge(offset, length));
    host.endpoint.post_recv(host.qpn, request).unwrap();
}

fn sent(host: &mut Host) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut frame = vec![0; 1024 + MAX_OVERHEAD];
    while let Some(length) = host.endpoint.poll_transmit(NOW, &host.ram, &mut frame) {
        frames.push(frame[..length].to_vec());
    }
    frames
}

fn arrive(host: &mut Host, frame: &[u8]) -> Result<(), Discard> {
    host.endpoint.on_frame(NOW, &mut host.ram, frame)
}

fn fill(host: &mut Host, offset: usize, length: usize) {
    for (n, byte) in host.ram.0[offset..offset + length].iter_mut().enumerate() {
        *byte = (n * 7 + offset) as u8;
    }
}

#[test]
fn a_message_of_three_packets_arrives_without_an_answer() {
    let [mut a, mut b] = connections();
    fill(&mut a, 0, 3000);
    receive(&mut b, 9, 4096, 4096);
    post(&mut a, |a| SendRequest::send(1, a.sge(0, 3000)).with_immediate([1, 2, 3, 4]));
    let frames = sent(&mut a);
    assert_eq!(frames.len(), 3);
    let done = a.sent();
    assert_eq!((done[0].id, done[0].status), (1, CompletionStatus::Success), "done when it has left");
    for frame in &frames {
        assert_eq!(arrive(&mut b, frame), Ok(()));
    }
    let came = b.received();
    assert_eq!((came[0].id, came[0].length, came[0].immediate), (9, 3000, Some([1, 2, 3, 4])));
    assert_eq!(b.bytes(4096, 3000), a.bytes(0, 3000));
    assert!(sent(&mut b).is_empty());
}

#[test]
fn a_write_arrives_and_a_reader_is_refused() {
    let [mut a, mut b] = connections();
    fill(&mut a, 0, 1500);
    let remote = Remote { address: BASE + 8192, rkey: b.region.rkey };
    post(&mut a, |a| SendRequest::write(1, a.sge(0, 1500), remote));
    for frame in sent(&mut a) {
        assert_eq!(arrive(&mut b, &frame), Ok(()));
    }
    assert_eq!(b.bytes(8192, 1500), a.bytes(0, 1500));
    let read = SendRequest::read(2, a.sge(0, 8), remote);
    let refused = a.endpoint.post_send(NOW, a.qpn, read);
    assert_eq!(refused, Err(PostError::Service { qpn: a.qpn }));
}

/// IBA 9.8.2.2.3: a message with a missing packet is dropped completely.
#[test]
fn a_missing_packet_drops_its_message_and_keeps_the_receive_request() {
    for missing in 0..3 {
        let [mut a, mut b] = connections();
        fill(&mut a, 0, 3000);
        receive(&mut b, 9, 4096, 4096);
        post(&mut a, |a| SendRequest::send(1, a.sge(0, 3000)));
        post(&mut a, |a| SendRequest::send(2, a.sge(100, 50)));
        let frames = sent(&mut a);
        for (n, frame) in frames.iter().enumerate().filter(|&(n, _)| n != missing) {
            let is_lost_message = n < 3 && n > missing;
            let expected = if is_lost_message { Err(Discard::PsnGap) } else { Ok(()) };
            assert_eq!(arrive(&mut b, frame), expected, "packet {n} without {missing}");
        }
        let came = b.received();
        assert_eq!(came.len(), 1);
        assert_eq!((came[0].id, came[0].length), (9, 50), "the second message took the request");
        assert_eq!(b.bytes(4096, 50), a.bytes(100, 50));
    }
}

#[test]
fn a_packet_that_is_not_allowed_is_dropped_without_an_answer() {
    let [mut a, mut b] = connections();
    let wrong = Remote { address: BASE, rkey: Rkey::new(b.region.rkey.get() ^ 1) };
    let outside = Remote { address: BASE + (1 << 20) - 10, rkey: b.region.rkey };
    for (remote, discard) in [(wrong, Discard::RemoteKey), (outside, Discard::RemoteRange)] {
        post(&mut a, |a| SendRequest::write(1, a.sge(0, 100), remote));
        assert_eq!(arrive(&mut b, &sent(&mut a)[0]), Err(discard));
    }
    post(&mut a, |a| SendRequest::send(2, a.sge(0, 100)));
    assert_eq!(arrive(&mut b, &sent(&mut a)[0]), Err(Discard::ReceiverNotReady));
    receive(&mut b, 3, 0, 10);
    post(&mut a, |a| SendRequest::send(3, a.sge(0, 100)));
    assert_eq!(arrive(&mut b, &sent(&mut a)[0]), Err(Discard::LocalProtection), "longer than its buffer");
    assert!(sent(&mut b).is_empty() && b.received().is_empty());
    assert_eq!(b.endpoint.report(b.qpn).unwrap().state, State::ReadyToSend);
    assert!(b.ram.0.iter().all(|&byte| byte == 0));
}

/// IBA 9.7.4.1.6: a message has at most 2 GiB, however large the region is.
#[test]
fn a_write_that_announces_more_than_a_message_may_have_is_dropped() {
    let [mut a, mut b] = connections();
    let large = b.endpoint.register(b.pd, 1 << 32, 3 << 30, Access::ALL).unwrap();
    let remote = Remote { address: large.address, rkey: large.rkey };
    post(&mut a, |a| SendRequest::write(1, a.sge(0, 2000), remote));
    let frame = parse(&sent(&mut a)[0]).map(|first| {
        let Header::Connected { service, bth, operation: Operation::WriteFirst(reth) } = first.header else {
            panic!("{first:?}")
        };
        let operation = Operation::WriteFirst(Reth { length: (1 << 31) + 1, ..reth });
        let mut frame = vec![0; 1024 + MAX_OVERHEAD];
        let header = Header::Connected { service, bth, operation };
        let length = emit(&first.network.path(), 0, &header, first.payload.len(), &mut frame).unwrap().seal();
        frame.truncate(length);
        frame
    });
    assert_eq!(arrive(&mut b, &frame.unwrap()), Err(Discard::Length));
}

/// IBA 10.3.1.6: SQE.
#[test]
fn a_send_with_a_wrong_lkey_stops_sending_but_not_receiving() {
    let [mut a, mut b] = connections();
    let bad = a.sge_with(0, 10, Lkey::new(a.region.lkey.get() ^ 1));
    post(&mut a, |_| SendRequest::send(1, Data::from(bad)).unsignalled());
    post(&mut a, |a| SendRequest::send(2, a.sge(0, 10)));
    assert!(sent(&mut a).is_empty());
    let failed: Vec<_> = a.sent().iter().map(|done| (done.id, done.status)).collect();
    assert_eq!(failed, [(1, CompletionStatus::LocalProtection), (2, CompletionStatus::Flushed)]);
    assert_eq!(a.endpoint.report(a.qpn).unwrap().state, State::SendQueueError);
    receive(&mut a, 5, 0, 100);
    post(&mut b, |b| SendRequest::send(1, b.sge(0, 100)));
    assert_eq!(arrive(&mut a, &sent(&mut b)[0]), Ok(()));
    assert_eq!(a.received().len(), 1);
    a.endpoint.modify_qp(NOW, a.qpn, Modify::Resume).unwrap();
    post(&mut a, |a| SendRequest::send(3, a.sge(0, 10)));
    assert_eq!(sent(&mut a).len(), 1);
}

/// IBA 10.3.1.5: SQD.
#[test]
fn a_draining_queue_completes_the_begun_message() {
    let [mut a, _] = connections();
    post(&mut a, |a| SendRequest::send(1, a.sge(0, 3000)));
    post(&mut a, |a| SendRequest::send(2, a.sge(0, 10)));
    let mut frame = vec![0; 1024 + MAX_OVERHEAD];
    assert!(a.endpoint.poll_transmit(NOW, &a.ram, &mut frame).is_some());
    a.endpoint.modify_qp(NOW, a.qpn, Modify::Drain { notify: true }).unwrap();
    assert_eq!(a.endpoint.poll_event(), None);
    assert_eq!(sent(&mut a).len(), 2, "the rest of the first");
    assert_eq!(a.endpoint.poll_event(), Some(Event::SendQueueDrained(a.qpn)));
    assert_eq!(a.sent().len(), 1);
    a.endpoint.modify_qp(NOW, a.qpn, Modify::Resume).unwrap();
    assert_eq!(sent(&mut a).len(), 1);
}

/// IBA 9.8.3, 11.4.1.2, A17.4.5.1: 40 bytes precede the payload; an IPv4 header is in the last 20 of them.
#[test]
fn a_datagram_has_its_ip_header_and_its_sender() {
    let v6 = |last: u16| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]);
    let over_v6 = Path { source: v6(1), destination: v6(2), flow_label: 0xabcde, ..path(1, 2) };
    for way in [path(1, 2), over_v6] {
        let ([mut a, mut b], address) = datagrams_over(way);
        fill(&mut a, 0, 1024);
        receive(&mut b, 9, 4096, 40 + 1024);
        let to = Datagram { address, qpn: b.qpn, queue_key: KEY };
        post(&mut a, |a| SendRequest::send_to(1, a.sge(0, 1024), to).with_immediate([9; 4]));
        let frames = sent(&mut a);
        assert_eq!((frames.len(), a.sent().len()), (1, 1));
        assert_eq!(arrive(&mut b, &frames[0]), Ok(()));
        let came = b.received()[0];
        assert_eq!((came.id, came.opcode, came.length), (9, CompletionOpcode::Recv, 40 + 1024));
        assert_eq!((came.source, came.immediate), (Some(a.qpn), Some([9; 4])));
        let network = parse(&frames[0]).unwrap().network.ip_header();
        assert_eq!(&b.bytes(4096, 40)[40 - network.len()..], network);
        assert_eq!(b.bytes(4096 + 40, 1024), a.bytes(0, 1024));
    }
}

/// IBA 9.6.1.1.3: the queue key; IBA 10.2.5: a key with its top bit set means the sender's own.
#[test]
fn a_datagram_of_another_key_or_without_room_is_dropped() {
    let ([mut a, mut b], address) = datagrams();
    let to = |queue_key| Datagram { address, qpn: Qpn::new(0), queue_key };
    let qpn = b.qpn;
    let send = |a: &mut Host, queue_key| {
        post(a, |a| SendRequest::send_to(1, a.sge(0, 100), Datagram { qpn, ..to(queue_key) }));
        sent(a).remove(0)
    };
    let frame = send(&mut a, KEY + 1);
    assert_eq!(arrive(&mut b, &frame), Err(Discard::QueueKey));
    let frame = send(&mut a, KEY);
    assert_eq!(arrive(&mut b, &frame), Err(Discard::ReceiverNotReady));
    receive(&mut b, 9, 0, 139);
    assert_eq!(
        arrive(&mut b, &frame),
        Err(Discard::LocalProtection),
        "40 bytes more than the payload are needed"
    );
    let frame = send(&mut a, 1 << 31 | 77);
    receive(&mut b, 10, 0, 140);
    b.endpoint.modify_qp(NOW, b.qpn, Modify::Reset).unwrap();
    for modify in [
        Modify::InitDatagram { queue_key: KEY, partition_key: 0xffff },
        Modify::ReadyToReceiveDatagrams { mtu: Mtu::M1024, feedback_key: None },
    ] {
        b.endpoint.modify_qp(NOW, b.qpn, modify).unwrap();
    }
    receive(&mut b, 11, 0, 140);
    assert_eq!(arrive(&mut b, &frame), Ok(()), "a controlled key stands for the sender's own");
    assert_eq!(b.received()[0].id, 11);
}

/// IBA 10.9.3: two limited members of a partition cannot communicate.
#[test]
fn two_limited_members_of_a_partition_cannot_communicate() {
    let other = Err(Discard::PartitionKey);
    for (ours, theirs, outcome) in
        [(0x7fff, 0x7fff, other), (0x7fff, 0xffff, Ok(())), (0x7fff, 0xfffe, other)]
    {
        let ([mut a, mut b], address) = datagrams();
        for (host, partition_key) in [(&mut a, ours), (&mut b, theirs)] {
            for modify in [
                Modify::Reset,
                Modify::InitDatagram { queue_key: KEY, partition_key },
                Modify::ReadyToReceiveDatagrams { mtu: Mtu::M1024, feedback_key: None },
                Modify::ReadyToSendDatagrams {
                    send_psn: Psn::new(7),
                    congestion: Congestion::new(Options::default().congestion),
                },
            ] {
                host.endpoint.modify_qp(NOW, host.qpn, modify).unwrap();
            }
        }
        receive(&mut b, 1, 0, 140);
        let to = Datagram { address, qpn: b.qpn, queue_key: KEY };
        post(&mut a, |a| SendRequest::send_to(1, a.sge(0, 100), to));
        assert_eq!(arrive(&mut b, &sent(&mut a)[0]), outcome, "{theirs:#x}");
    }
}

#[test]
fn another_key_counts_from_the_next_datagram_on() {
    let ([mut a, mut b], address) = datagrams();
    receive(&mut b, 9, 0, 64);
    for key in [KEY, KEY + 1] {
        let to = Datagram { address, qpn: b.qpn, queue_key: key };
        post(&mut a, |a| SendRequest::send_to(1, a.sge(0, 1), to));
    }
    let frames = sent(&mut a);
    let changes = Changes { queue_key: Some(KEY + 1), ..Changes::default() };
    b.endpoint.modify_qp(NOW, b.qpn, Modify::Change(changes)).unwrap();
    assert_eq!(
        frames.iter().map(|frame| arrive(&mut b, frame)).collect::<Vec<_>>(),
        [Err(Discard::QueueKey), Ok(())]
    );
}

#[test]
fn datagrams_beyond_the_limits_are_refused() {
    let ([mut a, b], address) = datagrams();
    let to = Datagram { address, qpn: b.qpn, queue_key: KEY };
    let mut refused = |request| a.endpoint.post_send(NOW, a.qpn, request).unwrap_err();
    let sge = b.sge(0, 1025);
    assert_eq!(
        refused(SendRequest::send_to(1, sge, to)),
        PostError::DatagramTooLong { given: 1025, limit: 1024 }
    );
    let qpn = a.qpn;
    let mut refused = |request| a.endpoint.post_send(NOW, qpn, request).unwrap_err();
    assert_eq!(refused(SendRequest::send(1, b.sge(0, 1))), PostError::Service { qpn });
    let ([mut c, _], _) = datagrams();
    let unconnected = Modify::Init { access: Access::ALL, partition_key: 0xffff };
    c.endpoint.modify_qp(NOW, c.qpn, Modify::Reset).unwrap();
    let wrong = c.endpoint.modify_qp(NOW, c.qpn, unconnected);
    assert_eq!(wrong, Err(ControlError::Transition { qpn: c.qpn, from: State::Reset, to: "INIT" }));
}

/// One byte per nanosecond for all destinations together.
#[test]
fn datagrams_leave_at_their_queue_pair_s_pace() {
    let pace = CongestionAlgorithm::Fixed { window: 1 << 20, rate: Some(Rate::from_gbps(8)) };
    let ([mut a, b], address) = datagrams_paced(path(1, 2), Congestion::new(pace));
    let elsewhere = a.endpoint.create_address(a.pd, &path(1, 3)).unwrap();
    for id in 0..12 {
        let address = if id % 2 == 0 { address } else { elsewhere };
        post(&mut a, |a| {
            SendRequest::send_to(id, a.sge(0, 1000), Datagram { address, qpn: b.qpn, queue_key: KEY })
        });
    }
    let (mut now, mut left, mut frame) = (NOW, Vec::new(), [0; 1024 + MAX_OVERHEAD]);
    while left.len() < 12 {
        match a.endpoint.poll_transmit(now, &a.ram, &mut frame) {
            Some(length) => left.push((now, length as u64)),
            None => {
                now = a.endpoint.poll_timeout().expect("the pacer says when");
                a.endpoint.on_timeout(now);
            }
        }
    }
    let bytes: u64 = left[..11].iter().map(|&(_, length)| length).sum();
    let took = left[11].0.saturating_since(NOW).as_nanos() as u64;
    assert!(took.abs_diff(bytes) <= 2048, "{bytes} bytes before the last one in {took} ns");
    assert!(left.is_sorted(), "each at its time: {left:?}");
}

#[test]
fn an_address_handle_that_is_gone_stops_the_send_queue() {
    let ([mut a, b], address) = datagrams();
    post(&mut a, |a| SendRequest::send_to(1, a.sge(0, 1), Datagram { address, qpn: b.qpn, queue_key: KEY }));
    a.endpoint.destroy_address(address).unwrap();
    assert_eq!(a.endpoint.destroy_address(address), Err(ControlError::NoAddress));
    assert!(sent(&mut a).is_empty());
    assert_eq!(a.sent()[0].status, CompletionStatus::LocalQpOperation);
    assert_eq!(a.endpoint.report(a.qpn).unwrap().state, State::SendQueueError);
}

//! A connection without faults.

use crate::harness::{BASE, Options, Pair, paced};
use cc::Rate;
use core::time::Duration;
use roce::Psn;
use roce::qp::{CompletionOpcode, CompletionStatus, Data, Remote, SendRequest, Sge};
use roce::wire::Mtu;

const LIMIT: Duration = Duration::from_secs(1);

fn fill(pair: &mut Pair, host: usize, from: usize, length: usize) {
    for (i, byte) in pair.hosts[host].ram.0[from..from + length].iter_mut().enumerate() {
        *byte = (i * 7 + i / 251 + host) as u8;
    }
}

fn remote(pair: &Pair, host: usize, offset: u64) -> Remote {
    Remote { address: BASE + offset, rkey: pair.hosts[host].region.rkey }
}

const LENGTHS: [u32; 9] = [0, 1, 3, 255, 256, 257, 4096, 4097, 100_001];

/// IBA 9.7.4: a message is segmented at the path MTU.
#[test]
fn send_write_and_read_carry_every_length_at_every_mtu() {
    for mtu in Mtu::ALL {
        for length in LENGTHS {
            let mut pair = Pair::connect(Options { mtu, ..Options::default() });
            let bytes = length as usize;
            fill(&mut pair, 0, 0, bytes);
            fill(&mut pair, 1, 600_000, bytes);
            let (from, to) = (pair.hosts[0].sge(0, length), pair.hosts[1].sge(200_000, length));
            pair.receive(1, 77, to);
            pair.post(0, SendRequest::send(1, from).with_immediate([1, 2, 3, 4]).solicited());
            pair.post(0, SendRequest::write(2, from, remote(&pair, 1, 400_000)));
            let into = pair.hosts[0].sge(600_000, length);
            pair.post(0, SendRequest::read(3, into, remote(&pair, 1, 600_000)));
            pair.run(LIMIT);

            let sent = pair.hosts[0].sent();
            let ids: Vec<_> = sent.iter().map(|c| (c.id, c.status, c.length)).collect();
            let ok = CompletionStatus::Success;
            assert_eq!(ids, [(1, ok, 0), (2, ok, 0), (3, ok, length)], "{mtu:?} {length}");
            let received = pair.hosts[1].received();
            assert_eq!(received.len(), 1);
            assert_eq!((received[0].id, received[0].length), (77, length));
            assert_eq!(received[0].opcode, CompletionOpcode::Recv);
            assert_eq!(received[0].immediate, Some([1, 2, 3, 4]));
            assert!(received[0].solicited);
            let message = pair.hosts[0].bytes(0, bytes).to_vec();
            assert_eq!(pair.hosts[1].bytes(200_000, bytes), message);
            assert_eq!(pair.hosts[1].bytes(400_000, bytes), message);
            assert_eq!(pair.hosts[0].bytes(600_000, bytes), pair.hosts[1].bytes(600_000, bytes));
            let counters = pair.hosts[0].endpoint.counters();
            assert_eq!((counters.retransmitted, counters.timeouts), (0, 0));
        }
    }
}

#[test]
fn write_with_immediate_consumes_a_receive() {
    let mut pair = Pair::connect(Options::default());
    fill(&mut pair, 0, 0, 5000);
    let empty = pair.hosts[1].sge(0, 0);
    pair.receive(1, 5, empty);
    let from = pair.hosts[0].sge(0, 5000);
    pair.post(0, SendRequest::write(9, from, remote(&pair, 1, 100)).with_immediate(*b"done"));
    pair.run(LIMIT);
    let received = pair.hosts[1].received();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].opcode, CompletionOpcode::RecvWithWrite);
    assert_eq!((received[0].length, received[0].immediate), (5000, Some(*b"done")));
    assert_eq!(pair.hosts[1].bytes(100, 5000), pair.hosts[0].bytes(0, 5000));
    assert_eq!(pair.hosts[0].sent().len(), 1);
}

#[test]
fn atomics_return_the_original_value() {
    let mut pair = Pair::connect(Options::default());
    pair.hosts[1].ram.0[64..72].copy_from_slice(&40u64.to_ne_bytes());
    let result = |pair: &Pair, at| pair.hosts[0].sge(at, 8);
    pair.post(0, SendRequest::fetch_add(1, result(&pair, 0), remote(&pair, 1, 64), 2));
    pair.post(0, SendRequest::compare_swap(2, result(&pair, 8), remote(&pair, 1, 64), 42, 7));
    pair.post(0, SendRequest::compare_swap(3, result(&pair, 16), remote(&pair, 1, 64), 42, 8));
    pair.run(LIMIT);
    let word = |host: usize, at: usize| u64::from_ne_bytes(pair.hosts[host].bytes(at, 8).try_into().unwrap());
    assert_eq!([word(0, 0), word(0, 8), word(0, 16)], [40, 42, 7]);
    assert_eq!(word(1, 64), 7);
    assert_eq!(pair.hosts[0].sent().iter().map(|c| c.id).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn the_result_of_an_atomic_may_fill_several_buffers() {
    let mut pair = Pair::connect(Options::default());
    let word = 0x0102_0304_0506_0708_u64.to_ne_bytes();
    pair.hosts[1].ram.0[64..72].copy_from_slice(&word);
    let into = [pair.hosts[0].sge(100, 3), pair.hosts[0].sge(0, 0), pair.hosts[0].sge(200, 5)];
    let fetch = SendRequest::fetch_add(1, into[0], remote(&pair, 1, 64), 1);
    pair.post(0, SendRequest { data: Data::from(&into[..]), ..fetch });
    pair.run(LIMIT);
    assert_eq!(pair.hosts[0].sent()[0].length, 8);
    assert_eq!([pair.hosts[0].bytes(100, 3), pair.hosts[0].bytes(200, 5)].concat(), word);
}

#[test]
fn a_receive_may_hold_more_than_the_longest_message() {
    let mut pair = Pair::connect(Options::default());
    fill(&mut pair, 0, 0, 100);
    let rest = Sge { length: u32::MAX, ..pair.hosts[1].sge(0, 0) };
    let into = [pair.hosts[1].sge(0, 100), rest];
    let qpn = pair.hosts[1].qpn;
    pair.hosts[1].endpoint.post_recv(qpn, roce::qp::RecvRequest::scatter(1, &into)).unwrap();
    pair.post(0, SendRequest::send(1, pair.hosts[0].sge(0, 100)));
    pair.run(LIMIT);
    assert_eq!(pair.hosts[1].received()[0].length, 100);
    assert_eq!(pair.hosts[1].bytes(0, 100), pair.hosts[0].bytes(0, 100));
}

#[test]
fn lists_of_buffers_and_inline_data_arrive_as_one_message() {
    let mut pair = Pair::connect(Options::default());
    fill(&mut pair, 0, 0, 9000);
    let pieces = [
        pair.hosts[0].sge(0, 1000),
        pair.hosts[0].sge(2000, 0),
        pair.hosts[0].sge(3000, 3001),
        pair.hosts[0].sge(7000, 5),
    ];
    let into = [pair.hosts[1].sge(10, 7), pair.hosts[1].sge(5000, 4000)];
    let qpn = pair.hosts[1].qpn;
    pair.hosts[1].endpoint.post_recv(qpn, roce::qp::RecvRequest::scatter(1, &into)).unwrap();
    pair.receive(1, 2, pair.hosts[1].sge(20_000, 100));
    pair.post(0, SendRequest::send(1, Data::from(&pieces[..])));
    pair.post(0, SendRequest::send(2, Data::inline(b"inline")));
    pair.run(LIMIT);
    let sender = &pair.hosts[0];
    let message = [sender.bytes(0, 1000), sender.bytes(3000, 3001), sender.bytes(7000, 5)].concat();
    let receiver = &pair.hosts[1];
    assert_eq!([receiver.bytes(10, 7), receiver.bytes(5000, 3999)].concat(), message);
    assert_eq!(receiver.bytes(20_000, 6), b"inline");
    assert_eq!(pair.hosts[1].received().iter().map(|c| c.length).collect::<Vec<_>>(), [4006, 6]);
}

/// IBA 9.7.1: PSNs wrap.
#[test]
fn psns_wrap_within_a_message() {
    let options = Options { mtu: Mtu::M256, send_psn: Psn::CIRCLE - 5, ..Options::default() };
    let mut pair = Pair::connect(options);
    fill(&mut pair, 0, 0, 50_000);
    fill(&mut pair, 1, 200_000, 50_000);
    let from = pair.hosts[0].sge(0, 50_000);
    pair.post(0, SendRequest::write(1, from, remote(&pair, 1, 0)));
    pair.post(0, SendRequest::read(2, pair.hosts[0].sge(200_000, 50_000), remote(&pair, 1, 200_000)));
    pair.run(LIMIT);
    assert_eq!(pair.hosts[0].sent().len(), 2);
    assert_eq!(pair.hosts[1].bytes(0, 50_000), pair.hosts[0].bytes(0, 50_000));
    assert_eq!(pair.hosts[0].bytes(200_000, 50_000), pair.hosts[1].bytes(200_000, 50_000));
    let report = pair.reports()[0].unwrap();
    assert_eq!(report.send_psn, Psn::new(Psn::CIRCLE - 5).plus(2 * 196));
}

#[test]
fn unsignalled_requests_have_no_completion() {
    let mut pair = Pair::connect(Options::default());
    let from = pair.hosts[0].sge(0, 100);
    for id in 0..10 {
        let request = SendRequest::write(id, from, remote(&pair, 1, 0));
        pair.post(0, if id == 9 { request } else { request.unsignalled() });
    }
    pair.run(LIMIT);
    assert_eq!(pair.hosts[0].sent().iter().map(|c| c.id).collect::<Vec<_>>(), [9]);
    assert_eq!(pair.hosts[0].endpoint.send_room(pair.hosts[0].qpn), 128);
}

/// IBA 10.8.3.3: a fence.
#[test]
fn reads_beyond_the_limit_wait_and_a_fence_waits_for_reads() {
    let options = Options { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..Options::default() };
    let mut pair = Pair::connect(options);
    fill(&mut pair, 1, 0, 30_000);
    for id in 0..3 {
        let into = pair.hosts[0].sge(id * 10_000, 10_000);
        pair.post(0, SendRequest::read(id, into, remote(&pair, 1, id * 10_000)));
    }
    // A fenced WRITE returns the result of the READs.
    let all = pair.hosts[0].sge(0, 30_000);
    pair.post(0, SendRequest::write(3, all, remote(&pair, 1, 500_000)).fenced());
    pair.run(LIMIT);
    assert_eq!(pair.hosts[0].sent().len(), 4);
    assert_eq!(pair.hosts[1].bytes(500_000, 30_000), pair.hosts[1].bytes(0, 30_000));
}

#[test]
fn a_long_message_gets_few_acknowledgements() {
    let options = Options { congestion: paced(1 << 40, Rate::from_gbps(10)), ..Options::default() };
    let mut pair = Pair::connect(options);
    let from = pair.hosts[0].sge(0, 512 * 1024);
    pair.post(0, SendRequest::write(1, from, remote(&pair, 1, 0)));
    pair.run(LIMIT);
    let acknowledgements = pair.hosts[1].endpoint.counters().tx_frames;
    assert!((7..=9).contains(&acknowledgements), "{acknowledgements} for 512 packets");
}

#[test]
fn both_sides_write_and_read_at_once() {
    let mut pair = Pair::connect(Options::default());
    fill(&mut pair, 0, 0, 100_000);
    fill(&mut pair, 1, 0, 100_000);
    for host in 0..2 {
        let from = pair.hosts[host].sge(0, 100_000);
        pair.post(host, SendRequest::write(1, from, remote(&pair, 1 - host, 300_000)));
        let into = pair.hosts[host].sge(500_000, 100_000);
        pair.post(host, SendRequest::read(2, into, remote(&pair, 1 - host, 0)));
    }
    pair.run(LIMIT);
    for host in 0..2 {
        assert_eq!(pair.hosts[host].sent().len(), 2);
        let message = pair.hosts[1 - host].bytes(0, 100_000).to_vec();
        assert_eq!(pair.hosts[host].bytes(300_000, 100_000), message);
        assert_eq!(pair.hosts[host].bytes(500_000, 100_000), message);
    }
}

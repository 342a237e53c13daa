//! ATOMIC WRITE and FLUSH (IBA annex A19): execution, exactly once, and responses.

use crate::harness::script::{PSN, Script, nak};
use crate::harness::window::bind;
use crate::harness::{BASE, Options, Pair};
use roce::qp::{CompletionOpcode, CompletionStatus, Data, Remote, SendRequest, State};
use roce::wire::{Aeth, Feth, NakCode, Operation, Reth, Syndrome};
use roce::{Access, Discard, Region, Rkey, WindowKind};
use std::time::Duration;

const VISIBLE: Feth = Feth::new(true, false, false);
const WHOLE: Feth = Feth::new(true, false, true);
const RIGHTS: Access = Access::ALL;

fn options() -> Options {
    let access = RIGHTS | Access::REMOTE_FLUSH;
    Options { memory: 1 << 16, access, max_dest_rd_atomic: 2, ..Options::default() }
}

/// Creates a script with a region that permits FLUSH.
fn script() -> (Script, Region) {
    let mut script = Script::new(options());
    let region = script.windowed(RIGHTS | Access::REMOTE_FLUSH);
    (script, region)
}

const fn reth(rkey: Rkey, offset: u64, length: u32) -> Reth {
    Reth { address: BASE + offset, rkey, length }
}

const fn response(msn: u32) -> Operation {
    Operation::ReadResponseOnly(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn })
}

fn post(script: &mut Script, request: SendRequest) {
    script.host.endpoint.post_send(script.now, script.host.qpn, request).unwrap();
}

#[test]
fn an_atomic_write_is_done_once_and_answered_each_time() {
    let (mut script, region) = script();
    let write = Operation::AtomicWrite(reth(region.rkey, 64, 8));
    assert_eq!(script.send(PSN, write, &[1, 2, 3, 4, 5, 6, 7, 8]), Ok(()));
    assert_eq!(script.drain(), [(PSN, response(1))]);
    assert_eq!(script.host.bytes(63, 10), [0, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
    script.host.ram.0[64] = 99;
    assert_eq!(script.send(PSN, write, &[1, 2, 3, 4, 5, 6, 7, 8]), Err(Discard::Duplicate));
    assert_eq!(script.drain(), [(PSN, response(1))]);
    assert_eq!(script.host.bytes(64, 1), [99]);
    assert_eq!(script.host.endpoint.counters().rx_payload_bytes, 8);
}

#[test]
fn a_flush_is_answered_after_the_writes_before_it() {
    let (mut script, region) = script();
    assert_eq!(script.send(PSN, Operation::WriteOnly(reth(region.rkey, 0, 1), None), &[1]), Ok(()));
    assert_eq!(script.send(PSN + 1, Operation::Flush(VISIBLE, reth(region.rkey, 0, 4096)), &[]), Ok(()));
    // For a whole region the range is ignored.
    let whole = Operation::Flush(WHOLE, Reth { address: 5, rkey: region.rkey, length: 0 });
    assert_eq!(script.send(PSN + 2, whole, &[]), Ok(()));
    // The responses acknowledge the WRITE; an ACK after them would have the PSN of the last one, or imply that one was lost.
    assert_eq!(script.drain(), [(PSN + 1, response(2)), (PSN + 2, response(3))]);
    assert_eq!(
        script.send(PSN + 1, Operation::Flush(VISIBLE, reth(region.rkey, 0, 4096)), &[]),
        Err(Discard::Duplicate)
    );
    assert_eq!(script.drain(), [(PSN + 1, response(2))]);
}

#[test]
fn atomic_writes_and_flushes_use_memory_windows() {
    let (mut script, region) = script();
    let rights = Access::REMOTE_WRITE | Access::REMOTE_FLUSH;
    let rkey = script.window(WindowKind::Two, &region, 128, 64, rights);
    assert_eq!(script.send(PSN, Operation::AtomicWrite(reth(rkey, 184, 8)), &[7; 8]), Ok(()));
    assert_eq!(script.host.bytes(184, 8), [7; 8]);
    assert_eq!(script.send(PSN + 1, Operation::Flush(WHOLE, reth(rkey, 0, 0)), &[]), Ok(()));
    assert_eq!(script.drain(), [(PSN, response(1)), (PSN + 1, response(2))]);
    let rebound = bind(rkey, &region, 128, 64, Access::REMOTE_WRITE);
    assert_eq!(script.run_local(SendRequest::local_invalidate(1, rkey)), CompletionStatus::Success);
    assert_eq!(script.run_local(SendRequest::bind(2, rebound)), CompletionStatus::Success);
    let flush = Operation::Flush(WHOLE, reth(rebound.rkey, 0, 0));
    assert_eq!(script.send(PSN + 2, flush, &[]), Err(Discard::RemoteAccess));
    assert_eq!(script.drain(), [(PSN + 2, nak(NakCode::RemoteAccessError, 2))]);
}

#[test]
fn a_queue_pair_that_allows_no_flush_refuses_it_as_invalid() {
    let mut script = Script::new(Options { access: RIGHTS, ..options() });
    let region = script.windowed(RIGHTS | Access::REMOTE_FLUSH);
    let flush = Operation::Flush(VISIBLE, reth(region.rkey, 0, 1));
    assert_eq!(script.send(PSN, flush, &[]), Err(Discard::RemoteAccess));
    assert_eq!(script.drain(), [(PSN, nak(NakCode::InvalidRequest, 0))]);
}

/// The requester sends 8 bytes, and an empty READ response confirms that they are placed; an Acknowledge does not confirm it.
#[test]
fn a_requester_waits_for_the_answer() {
    let (mut script, _) = script();
    let remote = Remote { address: 0x1000, rkey: Rkey::new(5) };
    script.host.ram.0[..8].copy_from_slice(&[9; 8]);
    let sge = script.host.sge(0, 8);
    post(&mut script, SendRequest::atomic_write(1, sge, remote));
    post(&mut script, SendRequest::atomic_write(2, Data::inline(&[4; 8]), remote));
    post(&mut script, SendRequest::flush(3, remote, 4096, WHOLE));
    let at = Reth { address: 0x1000, rkey: Rkey::new(5), length: 8 };
    let (header, payload) = script.next_header().unwrap();
    assert!(
        matches!(header, roce::wire::Header::Connected { operation, .. } if operation == Operation::AtomicWrite(at))
    );
    assert_eq!(payload, [9; 8]);
    assert_eq!(script.next_header().unwrap().1, [4; 8]);
    assert_eq!(script.next(), Some((PSN + 2, Operation::Flush(WHOLE, Reth { length: 4096, ..at }))));
    assert_eq!(script.host.sent(), []);
    assert_eq!(script.send(PSN, response(1), &[]), Ok(()));
    assert_eq!(script.send(PSN + 1, response(2), &[]), Ok(()));
    assert_eq!(script.send(PSN + 2, response(3), &[]), Ok(()));
    use CompletionOpcode::{AtomicWrite, Flush};
    let done: Vec<_> = script.host.sent().iter().map(|c| (c.id, c.opcode, c.status)).collect();
    let ok = CompletionStatus::Success;
    assert_eq!(done, [(1, AtomicWrite, ok), (2, AtomicWrite, ok), (3, Flush, ok)]);
    assert_eq!(script.host.bytes(0, 8), [9; 8], "the response carries no data");
}

#[test]
fn an_answer_with_a_payload_is_a_bad_response() {
    let (mut script, _) = script();
    let remote = Remote { address: 0x1000, rkey: Rkey::new(5) };
    post(&mut script, SendRequest::atomic_write(1, Data::inline(&[4; 8]), remote));
    script.drain();
    assert_eq!(script.send(PSN, response(1), &[1; 8]), Err(Discard::BadResponse));
    assert_eq!(script.state(), State::Error);
    assert_eq!(script.host.sent()[0].status, CompletionStatus::BadResponse);
}

#[test]
fn an_atomic_write_of_other_than_8_aligned_bytes_is_refused() {
    let (mut script, _) = script();
    let remote = |address| Remote { address, rkey: Rkey::new(5) };
    let sge = script.host.sge(0, 4);
    for request in [
        SendRequest::atomic_write(1, sge, remote(8)),
        SendRequest::atomic_write(1, Data::inline(&[0; 9]), remote(8)),
        SendRequest::atomic_write(1, Data::inline(&[0; 8]), remote(4)),
    ] {
        let refused = script.host.endpoint.post_send(script.now, script.host.qpn, request);
        assert_eq!(refused, Err(roce::qp::PostError::BadAtomic));
    }
}

/// Over a lossy link each memory word ends with the last value written.
#[test]
fn words_arrive_in_order_over_a_lossy_link() {
    for selective_repeat in [false, true] {
        let access = RIGHTS | Access::REMOTE_FLUSH;
        let mut pair = Pair::connect(Options { selective_repeat, access, ..Options::default() });
        pair.faults.loss = 100;
        let host = &mut pair.hosts[1];
        let region = host.endpoint.register(host.pd, BASE, 1 << 20, access).unwrap();
        let remote = Remote { address: BASE, rkey: region.rkey };
        for round in 0..40u64 {
            let data = pair.hosts[0].sge(4096, 3000);
            pair.post(0, SendRequest::write(1, data, Remote { address: BASE + 4096, ..remote }));
            pair.post(0, SendRequest::flush(2, remote, 8192, VISIBLE));
            pair.post(0, SendRequest::atomic_write(3, Data::inline(&round.to_ne_bytes()), remote));
        }
        pair.run(Duration::from_secs(5));
        let sent = pair.hosts[0].sent();
        assert_eq!(sent.len(), 120);
        assert!(sent.iter().all(|c| c.status == CompletionStatus::Success));
        assert_eq!(pair.hosts[1].bytes(0, 8), 39u64.to_ne_bytes());
        assert!(pair.hosts[0].endpoint.counters().retransmitted > 0);
    }
}

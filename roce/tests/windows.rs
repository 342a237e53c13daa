//! Memory windows and their invalidation: which queue pair may bind one, and which memory a key gives access to at which time.

use crate::harness::script::{PEER, PSN, Script, ack, nak};
use crate::harness::window::bind;
use crate::harness::{BASE, Options, Pair, path};
use WindowKind::{One, Two};
use roce::qp::{
    Capabilities, CompletionOpcode, CompletionStatus, QpInit, RecvRequest, Remote, SendRequest, State,
};
use roce::wire::{Aeth, AtomicEth, FetchAdd, NakCode, Operation, Reth, SendTail, Service, Syndrome};
use roce::{Access, Binding, ControlError, Discard, Qpn, Region, Rkey, WindowKind};
use std::time::Duration;

const RIGHTS: Access = Access::ALL;

fn script() -> (Script, Region) {
    let mut script = Script::new(Options { memory: 1 << 16, ..Options::default() });
    let region = script.windowed(RIGHTS);
    (script, region)
}

const fn reth(rkey: Rkey, offset: u64, length: u32) -> Reth {
    Reth { address: BASE + offset, rkey, length }
}

const fn write(reth: Reth) -> Operation {
    Operation::WriteOnly(reth, None)
}

const fn send_invalidate(rkey: Rkey) -> Operation {
    Operation::SendOnly(SendTail::Invalidate(rkey))
}

fn receive(script: &mut Script, id: u64) {
    let sge = script.host.sge(0x8000, 64);
    script.host.endpoint.post_recv(script.host.qpn, RecvRequest::new(id, sge)).unwrap();
}

/// Checks that a WRITE with the key is refused.
fn refused(script: &mut Script, psn: u32, rkey: Rkey, discard: Discard) {
    assert_eq!(script.send(psn, write(reth(rkey, 100, 1)), &[1]), Err(discard));
    assert_eq!(script.drain().last(), Some(&(psn, nak(NakCode::RemoteAccessError, psn - PSN))));
    assert_eq!(script.host.bytes(100, 1), [0]);
    assert_eq!(script.state(), State::Error);
}

#[test]
fn a_window_leads_to_its_part_of_the_region() {
    for kind in [One, Two] {
        let (mut script, region) = script();
        let rkey = script.window(kind, &region, 100, 8, RIGHTS);
        script.host.ram.0[104..108].copy_from_slice(&[7; 4]);
        assert_eq!(script.send(PSN, write(reth(rkey, 100, 4)), &[1, 2, 3, 4]), Ok(()));
        assert_eq!(script.host.bytes(98, 6), [0, 0, 1, 2, 3, 4], "{kind:?}");
        assert_eq!(script.send(PSN + 1, Operation::ReadRequest(reth(rkey, 104, 4)), &[]), Ok(()));
        assert_eq!(script.next(), Some((PSN + 1, read_response(2))));
        // The byte before the window and the byte after it are outside.
        assert_eq!(script.send(PSN + 2, write(reth(rkey, 104, 5)), &[1; 5]), Err(Discard::RemoteRange));
        assert_eq!(script.drain(), [(PSN + 2, nak(NakCode::RemoteAccessError, 2))]);
    }
}

fn read_response(msn: u32) -> Operation {
    Operation::ReadResponseOnly(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn })
}

#[test]
fn a_window_grants_only_its_own_rights() {
    let (mut script, region) = script();
    let rkey = script.window(Two, &region, 0, 1 << 16, Access::REMOTE_READ);
    assert_eq!(script.send(PSN, Operation::ReadRequest(reth(rkey, 0, 8)), &[]), Ok(()));
    script.drain();
    let add = AtomicEth { address: BASE, rkey, operands: FetchAdd { add: 1 } };
    assert_eq!(script.send(PSN + 1, Operation::FetchAdd(add), &[]), Err(Discard::RemoteAccess));
}

/// The addresses of a zero-based window start at 0, wherever the window is; an atomic must be aligned in memory.
#[test]
fn a_zero_based_window_counts_from_its_first_byte() {
    let (mut script, region) = script();
    let window = script.host.endpoint.create_window(script.host.pd, Two).unwrap();
    let binding = Binding { zero_based: true, ..bind(window, &region, 100, 50, RIGHTS) };
    assert_eq!(script.run_local(SendRequest::bind(1, binding)), CompletionStatus::Success);
    let at = |address, length| Reth { address, rkey: binding.rkey, length };
    assert_eq!(script.send(PSN, write(at(0, 2)), &[1, 2]), Ok(()));
    assert_eq!(script.send(PSN + 1, write(at(48, 2)), &[3, 4]), Ok(()));
    assert_eq!((script.host.bytes(100, 2), script.host.bytes(148, 2)), (&[1, 2][..], &[3, 4][..]));
    script.drain();
    let add = AtomicEth { address: 8, rkey: binding.rkey, operands: FetchAdd { add: 1 } };
    assert_eq!(script.send(PSN + 2, Operation::FetchAdd(add), &[]), Err(Discard::Misaligned));
    assert_eq!(script.drain(), [(PSN + 2, nak(NakCode::InvalidRequest, 2))]);
}

#[test]
fn the_key_before_a_rebind_is_invalid() {
    let (mut script, region) = script();
    let first = script.window(One, &region, 0, 4096, RIGHTS);
    let again = SendRequest::bind(2, bind(first, &region, 0, 8192, RIGHTS));
    assert_eq!(script.run_local(again), CompletionStatus::Success);
    assert_eq!(script.send(PSN, write(reth(first.next(), 4096, 1)), &[9]), Ok(()));
    refused(&mut script, PSN + 1, first, Discard::RemoteKey);
}

/// IBA 10.6.7.2.5 and 9.4.1.1.3: the peer's last message invalidates the window.
#[test]
fn send_with_invalidate_invalidates_the_window_and_reports_its_key() {
    let (mut script, region) = script();
    let rkey = script.window(Two, &region, 0, 4096, RIGHTS);
    receive(&mut script, 1);
    receive(&mut script, 2);
    assert_eq!(script.send(PSN, write(reth(rkey, 8, 1)), &[1]), Ok(()));
    assert_eq!(script.send(PSN + 1, send_invalidate(rkey), &[5, 6]), Ok(()));
    assert_eq!(script.drain(), [(PSN + 1, ack(2))]);
    let received = script.host.received();
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].id, received[0].length, received[0].opcode), (1, 2, CompletionOpcode::Recv));
    assert_eq!((received[0].invalidated, received[0].immediate), (Some(rkey), None));
    // A duplicate does not invalidate it again.
    assert_eq!(script.send(PSN + 1, send_invalidate(rkey), &[5, 6]), Err(Discard::Duplicate));
    assert_eq!(script.drain(), [(PSN + 1, ack(2))]);
    assert_eq!(script.state(), State::ReadyToSend);
    refused(&mut script, PSN + 2, rkey, Discard::RemoteKey);
}

#[test]
fn only_the_last_packet_of_a_send_invalidates() {
    let (mut script, region) = script();
    let rkey = script.window(Two, &region, 0, 4096, RIGHTS);
    let sge = script.host.sge(0x8000, 2048);
    script.host.endpoint.post_recv(script.host.qpn, RecvRequest::new(1, sge)).unwrap();
    assert_eq!(script.send(PSN, Operation::SendFirst, &[3; 1024]), Ok(()));
    assert_eq!(script.host.endpoint.windows_of(region.lkey), Ok(1));
    assert_eq!(script.send(PSN + 1, Operation::SendLast(SendTail::Invalidate(rkey)), &[4]), Ok(()));
    assert_eq!(script.host.endpoint.windows_of(region.lkey), Ok(0));
    assert_eq!((script.host.received()[0].length, script.host.bytes(0x8400, 1)), (1025, &[4][..]));
}

#[test]
fn an_invalidated_window_may_be_bound_again() {
    let (mut script, region) = script();
    let rkey = script.window(Two, &region, 0, 4096, RIGHTS);
    assert_eq!(script.run_local(SendRequest::local_invalidate(2, rkey)), CompletionStatus::Success);
    let binding = bind(rkey, &region, 4096, 16, RIGHTS);
    assert_eq!(script.run_local(SendRequest::bind(3, binding)), CompletionStatus::Success);
    assert_eq!(script.send(PSN, write(reth(binding.rkey, 4096, 1)), &[9]), Ok(()));
    refused(&mut script, PSN + 1, rkey, Discard::RemoteKey);
}

/// IBA 10.6.7.2.3, 10.6.7.2.5: an invalid bind or invalidation fails the queue pair, and changes nothing.
#[test]
fn an_invalid_bind_fails_the_queue_pair() {
    type Change = fn(Binding, &Script, &Region) -> Binding;
    let cases: [(&str, WindowKind, Change); 11] = [
        ("no such window", Two, |b, _, _| Binding { window: Rkey::new(b.window.get() ^ 0x100), ..b }),
        ("another window's key", Two, |b, _, _| Binding { rkey: Rkey::new(b.rkey.get() ^ 0x100), ..b }),
        ("no such region", Two, |b, s, _| Binding {
            lkey: roce::Lkey::new(s.host.region.lkey.get() ^ 1),
            ..b
        }),
        ("no right to bind", One, |b, s, _| Binding { lkey: s.host.region.lkey, ..b }),
        ("a window's key", One, |b, _, _| Binding { lkey: roce::Lkey::new(b.window.get()), ..b }),
        ("before the region", Two, |b, _, _| Binding { address: BASE - 1, ..b }),
        ("beyond the region", Two, |b, _, r| Binding { length: r.length + 1, address: BASE, ..b }),
        ("round the address space", One, |b, _, _| Binding { length: u64::MAX, ..b }),
        ("type 2 to nothing", Two, |b, _, _| Binding { length: 0, ..b }),
        ("type 1 zero-based", One, |b, _, _| Binding { zero_based: true, ..b }),
        ("a window of another domain", One, |b, _, _| b),
    ];
    for (name, kind, change) in cases {
        let (mut script, region) = script();
        let pd = if name.contains("domain") { script.host.endpoint.create_pd() } else { script.host.pd };
        let window = script.host.endpoint.create_window(pd, kind).unwrap();
        let binding = change(bind(window, &region, 64, 64, RIGHTS), &script, &region);
        assert_eq!(script.run_local(SendRequest::bind(1, binding)), CompletionStatus::Bind, "{name}");
        assert_eq!(script.state(), State::Error, "{name}");
        assert_eq!(script.host.endpoint.windows_of(region.lkey), Ok(0), "{name}");
    }
}

#[test]
fn binding_a_writable_window_requires_a_locally_writable_region() {
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let (mut script, _) = script();
        let region = script.windowed(Access::REMOTE_READ);
        script.window(One, &region, 0, 8, Access::REMOTE_READ);
        let window = script.host.endpoint.create_window(script.host.pd, Two).unwrap();
        let request = SendRequest::bind(1, bind(window, &region, 0, 8, access));
        assert_eq!(script.run_local(request), CompletionStatus::Bind);
    }
}

#[test]
fn an_invalid_invalidation_fails_the_queue_pair() {
    let (mut script, region) = script();
    let one = script.window(One, &region, 0, 8, RIGHTS);
    let unbound = script.host.endpoint.create_window(script.host.pd, Two).unwrap();
    let older = Rkey::new(script.window(Two, &region, 0, 8, RIGHTS).get() ^ 1);
    for rkey in [one, unbound, older, region.rkey] {
        let status = script.run_local(SendRequest::local_invalidate(1, rkey));
        assert_eq!(status, CompletionStatus::LocalQpOperation, "{rkey}");
        assert_eq!(script.state(), State::Error, "{rkey}");
        script = revive(script);
    }
    assert_eq!(script.host.endpoint.windows_of(region.lkey), Ok(2));
}

/// Resets the queue pair and moves it to RTS again.
fn revive(mut script: Script) -> Script {
    let options = Options { send_psn: PSN, ..Options::default() };
    let qpn = script.host.qpn;
    script.host.endpoint.modify_qp(script.now, qpn, roce::qp::Modify::Reset).unwrap();
    script.host.ready_to_receive(path(2, 1), Qpn::new(PEER), PSN, &options);
    script.host.ready_to_send(&options);
    script
}

/// IBA 10.6.7.2.6: a region can be deregistered only after its windows.
#[test]
fn a_region_with_windows_stays_until_they_are_taken_back() {
    let (mut script, region) = script();
    let kept = script.window(One, &region, 0, 8, RIGHTS);
    let rkey = script.window(Two, &region, 0, 8, RIGHTS);
    let busy = |windows| Err(ControlError::RegionBusy { lkey: region.lkey, windows });
    assert_eq!(script.host.endpoint.deregister(region.lkey), busy(2));
    assert_eq!(script.run_local(SendRequest::local_invalidate(1, rkey)), CompletionStatus::Success);
    assert_eq!(script.host.endpoint.deregister(region.lkey), busy(1));
    // A window of type 1 is invalidated by a bind of length 0.
    let nothing = Binding { length: 0, ..bind(kept, &region, 0, 0, Access::LOCAL_READ) };
    assert_eq!(script.run_local(SendRequest::bind(2, nothing)), CompletionStatus::Success);
    let other = script.window(Two, &region, 0, 8, RIGHTS);
    script.host.endpoint.destroy_window(other).unwrap();
    assert_eq!(script.host.endpoint.deregister(region.lkey), Ok(()));
    assert_eq!(script.host.endpoint.destroy_window(other), Err(ControlError::NoWindow(other)));
    refused(&mut script, PSN, kept.next(), Discard::RemoteKey);
}

#[test]
fn a_deregistered_region_invalidates_its_windows() {
    let (mut script, region) = script();
    let rkey = script.window(Two, &region, 0, 4096, RIGHTS);
    script.host.endpoint.deregister_with_windows(region.lkey).unwrap();
    refused(&mut script, PSN, rkey, Discard::RemoteKey);
}

/// Type 2B: another queue pair of the domain can neither use nor invalidate the window; all of them accept a window of type 1.
#[test]
fn a_type_2_window_is_its_queue_pairs_own() {
    let (mut script, region) = script();
    let ours = script.host.qpn;
    let theirs = second_queue_pair(&mut script);
    script.host.qpn = theirs;
    let (shared, own) =
        (script.window(One, &region, 0, 4096, RIGHTS), script.window(Two, &region, 0, 4096, RIGHTS));
    script.host.qpn = ours;
    assert_eq!(script.send(PSN, write(reth(shared, 0, 1)), &[1]), Ok(()));
    assert_eq!(script.drain(), [(PSN, ack(1))]);
    let status = script.run_local(SendRequest::local_invalidate(1, own));
    assert_eq!(status, CompletionStatus::LocalQpOperation);
    script = revive(script);
    refused(&mut script, PSN, own, Discard::RemoteKey);
    // The window is destroyed with its queue pair.
    assert_eq!(script.host.endpoint.windows_of(region.lkey), Ok(2));
    script.host.endpoint.destroy_qp(script.now, theirs).unwrap();
    assert_eq!(script.host.endpoint.windows_of(region.lkey), Ok(1));
}

fn second_queue_pair(script: &mut Script) -> Qpn {
    let ours = script.host.qpn;
    let options = Options { send_psn: PSN, ..Options::default() };
    let host = &mut script.host;
    let init = QpInit {
        service: Service::Rc,
        pd: host.pd,
        send_cq: host.send_cq,
        recv_cq: host.recv_cq,
        capabilities: Capabilities::default(),
        signal_all: false,
        srq: None,
    };
    host.qpn = host.endpoint.create_qp(script.now, init).unwrap();
    host.ready_to_receive(path(2, 1), Qpn::new(PEER), PSN, &options);
    host.ready_to_send(&options);
    core::mem::replace(&mut host.qpn, ours)
}

/// A message that depends on a bind is not sent before it, because the following SEND contains the key. Completions are in order, although
/// the bind is executed before the preceding WRITE is acknowledged.
#[test]
fn local_requests_run_in_their_turn_and_complete_in_order() {
    let (mut script, region) = script();
    let window = script.host.endpoint.create_window(script.host.pd, Two).unwrap();
    let binding = bind(window, &region, 0, 8, RIGHTS);
    let remote = Remote { address: BASE, rkey: Rkey::new(1) };
    let sge = script.host.sge(0, 1);
    for request in [
        SendRequest::write(1, sge, remote),
        SendRequest::bind(2, binding),
        SendRequest::send(3, sge),
        SendRequest::local_invalidate(4, binding.rkey).unsignalled(),
        SendRequest::write(5, sge, remote),
    ] {
        script.host.endpoint.post_send(script.now, script.host.qpn, request).unwrap();
    }
    assert_eq!(script.host.endpoint.windows_of(region.lkey), Ok(0));
    assert_eq!(script.next().map(|(psn, _)| psn), Some(PSN));
    assert_eq!(script.next().map(|(psn, _)| psn), Some(PSN + 1));
    assert_eq!(script.host.endpoint.windows_of(region.lkey), Ok(1));
    assert_eq!(script.next().map(|(psn, _)| psn), Some(PSN + 2));
    assert_eq!(script.host.endpoint.windows_of(region.lkey), Ok(0));
    assert_eq!(script.host.sent(), []);
    // All unacknowledged requests are retransmitted; local ones that were executed are not executed again.
    script.send(PSN, nak(NakCode::PsnSequenceError, 0), &[]).unwrap();
    let again: Vec<u32> = script.drain().iter().map(|(psn, _)| *psn).collect();
    assert_eq!(again, [PSN, PSN + 1, PSN + 2]);
    script.send(PSN + 1, ack(2), &[]).unwrap();
    script.send(PSN + 2, ack(3), &[]).unwrap();
    let done: Vec<_> = script.host.sent().iter().map(|c| (c.id, c.opcode, c.status)).collect();
    use CompletionOpcode::{Bind, Send, Write};
    let ok = CompletionStatus::Success;
    assert_eq!(done, [(1, Write, ok), (2, Bind, ok), (3, Send, ok), (5, Write, ok)]);
    assert_eq!(script.host.endpoint.send_room(script.host.qpn), Capabilities::default().max_send);
}

/// IBA 10.8.3.3: with a fence, a local request waits for the responses of preceding READs.
#[test]
fn a_fence_holds_a_local_request_until_reads_are_done() {
    let (mut script, region) = script();
    let rkey = script.window(Two, &region, 0, 8, RIGHTS);
    let remote = Remote { address: BASE, rkey: Rkey::new(1) };
    let (qpn, sge) = (script.host.qpn, script.host.sge(0, 4));
    script.host.endpoint.post_send(script.now, qpn, SendRequest::read(1, sge, remote)).unwrap();
    let invalidate = SendRequest::local_invalidate(2, rkey).fenced();
    script.host.endpoint.post_send(script.now, qpn, invalidate).unwrap();
    script.drain();
    assert_eq!(script.host.endpoint.windows_of(region.lkey), Ok(1));
    script.send(PSN, read_response(1), &[1, 2, 3, 4]).unwrap();
    script.drain();
    assert_eq!(script.host.endpoint.windows_of(region.lkey), Ok(0));
    let ids: Vec<u64> = script.host.sent().iter().map(|c| c.id).collect();
    assert_eq!(ids, [1, 2]);
}

/// The failure of a bind is reported after all preceding requests have succeeded.
#[test]
fn a_failing_bind_waits_for_those_before_it() {
    let (mut script, region) = script();
    let window = script.host.endpoint.create_window(script.host.pd, Two).unwrap();
    let bad = Binding { length: 0, ..bind(window, &region, 0, 8, RIGHTS) };
    let remote = Remote { address: BASE, rkey: Rkey::new(1) };
    let (qpn, sge) = (script.host.qpn, script.host.sge(0, 1));
    for request in
        [SendRequest::write(1, sge, remote), SendRequest::bind(2, bad), SendRequest::write(3, sge, remote)]
    {
        script.host.endpoint.post_send(script.now, qpn, request).unwrap();
    }
    assert_eq!(script.drain().len(), 1, "nothing behind it is sent");
    assert_eq!(script.state(), State::ReadyToSend);
    script.send(PSN, ack(1), &[]).unwrap();
    assert_eq!(script.drain(), []);
    let statuses: Vec<_> = script.host.sent().iter().map(|c| (c.id, c.status)).collect();
    use CompletionStatus::{Bind, Flushed, Success};
    assert_eq!(statuses, [(1, Success), (2, Bind), (3, Flushed)]);
}

#[test]
fn a_drained_queue_begins_no_local_request() {
    let (mut script, region) = script();
    let rkey = script.window(Two, &region, 0, 8, RIGHTS);
    let qpn = script.host.qpn;
    script.host.endpoint.modify_qp(script.now, qpn, roce::qp::Modify::Drain { notify: false }).unwrap();
    script.host.endpoint.post_send(script.now, qpn, SendRequest::local_invalidate(1, rkey)).unwrap();
    assert_eq!((script.next(), script.host.endpoint.windows_of(region.lkey)), (None, Ok(1)));
    script.host.endpoint.modify_qp(script.now, qpn, roce::qp::Modify::Resume).unwrap();
    assert_eq!((script.next(), script.host.endpoint.windows_of(region.lkey)), (None, Ok(0)));
}

/// Two hosts with loss: in each round a window is bound, its key sent to the peer, written with, and invalidated by SEND with invalidate.
/// Go-back-N and selective repeat.
#[test]
fn windows_are_bound_and_invalidated_over_a_lossy_link() {
    for selective_repeat in [false, true] {
        let mut pair = Pair::connect(Options { selective_repeat, ..Options::default() });
        pair.faults.loss = 100;
        let host = &mut pair.hosts[1];
        let rights = RIGHTS | Access::WINDOWS;
        let region = host.endpoint.register(host.pd, BASE, 1 << 20, rights).unwrap();
        let mut rkey = host.endpoint.create_window(host.pd, Two).unwrap();
        for round in 0..40u64 {
            let binding = bind(rkey, &region, round * 4096, 4096, RIGHTS);
            rkey = binding.rkey;
            let (lent, returned) = (pair.hosts[0].sge(0, 8), pair.hosts[1].sge(512 << 10, 8));
            pair.receive(0, round, lent);
            pair.receive(1, round, returned);
            let greeting = pair.hosts[1].sge(520 << 10, 8);
            pair.post(1, SendRequest::bind(round, binding));
            pair.post(1, SendRequest::send(round, greeting));
            pair.run(Duration::from_secs(1));
            assert_eq!(pair.hosts[0].received().len(), 1);
            let data = pair.hosts[0].sge(4096, 4096);
            pair.hosts[0].ram.0[4096..8192].fill(round as u8 + 1);
            let remote = Remote { address: BASE + round * 4096, rkey };
            pair.post(0, SendRequest::write(1, data, remote));
            pair.post(0, SendRequest::send_invalidate(2, data_of(&pair), rkey));
            pair.run(Duration::from_secs(1));
            let received = pair.hosts[1].received();
            assert_eq!(received.iter().map(|c| c.invalidated).collect::<Vec<_>>(), [Some(rkey)]);
            assert!(pair.hosts[1].bytes(round as usize * 4096, 4096).iter().all(|&b| b == round as u8 + 1));
            assert_eq!(pair.hosts[1].endpoint.windows_of(region.lkey), Ok(0));
            assert!(
                pair.hosts.iter_mut().all(|h| h.sent().iter().all(|c| c.status == CompletionStatus::Success))
            );
        }
        assert!(pair.hosts[0].endpoint.counters().retransmitted > 0);
    }
}

fn data_of(pair: &Pair) -> roce::qp::Sge {
    pair.hosts[0].sge(4096, 8)
}

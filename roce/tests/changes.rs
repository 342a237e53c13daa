//! Packet scripts of queue pairs whose settings are modified after they were first set (IBA 11.2.5.2).

use crate::harness::script::{PSN, SEND, Script, ack, nak, rnr};
use crate::harness::{BASE, Host, Options, path};
use core::time::Duration;
use roce::qp::{
    AckTimeout, Changes, CompletionStatus, Data, Modify, PostError, QpInit, RecvRequest, Remote, SendRequest,
    State,
};
use roce::wire::{NakCode, Operation, Path, RnrTimer, Service, parse};
use roce::{Access, ControlError, Discard, Event};

const NOTHING: Changes = Changes {
    access: None,
    partition_key: None,
    queue_key: None,
    min_rnr_timer: None,
    path: None,
    ack_timeout: None,
    retry_count: None,
    rnr_retry: None,
    max_rd_atomic: None,
    max_dest_rd_atomic: None,
};

fn change(script: &mut Script, changes: Changes) -> Result<(), ControlError> {
    script.host.endpoint.modify_qp(script.now, script.host.qpn, Modify::Change(changes))
}

fn drain_and(script: &mut Script, changes: Changes) {
    let mut modify = |modify| script.host.endpoint.modify_qp(script.now, script.host.qpn, modify).unwrap();
    modify(Modify::Drain { notify: false });
    modify(Modify::Change(changes));
    modify(Modify::Resume);
}

fn post(script: &mut Script, request: SendRequest) -> Result<(), PostError> {
    script.host.endpoint.post_send(script.now, script.host.qpn, request)
}

fn read(script: &Script, id: u64) -> SendRequest {
    let remote = Remote { address: BASE, rkey: script.rkey() };
    SendRequest::read(id, script.host.sge(0, 8), remote)
}

#[test]
fn remote_write_access_is_revoked_in_rts() {
    let mut script = Script::new(Options::default());
    let write = Operation::WriteOnly(script.reth(0, 1), None);
    script.send(PSN, write, &[1]).unwrap();
    assert_eq!(script.drain(), [(PSN, ack(1))]);
    change(&mut script, Changes { access: Some(Access::REMOTE_READ), ..NOTHING }).unwrap();
    assert_eq!(script.send(PSN + 1, write, &[2]), Err(Discard::RemoteAccess));
    assert_eq!(script.drain(), [(PSN + 1, nak(NakCode::InvalidRequest, 1))]);
    assert_eq!(script.host.bytes(0, 1), [1]);
}

#[test]
fn an_rnr_nak_has_the_timer_that_was_set_last() {
    let mut script = Script::new(Options { rnr_timer: 1, ..Options::default() });
    script.send(PSN, SEND, &[1]).unwrap_err();
    assert_eq!(script.drain(), [(PSN, rnr(1, 0))]);
    change(&mut script, Changes { min_rnr_timer: Some(RnrTimer::new(20)), ..NOTHING }).unwrap();
    script.send(PSN, SEND, &[1]).unwrap_err();
    assert_eq!(script.drain(), [(PSN, rnr(20, 0))]);
}

#[test]
fn a_drained_queue_pair_takes_another_path() {
    let mut script = Script::new(Options::default());
    let elsewhere = Path { udp_source: 0xd00d, ..path(2, 1) };
    let moved = Changes { path: Some(elsewhere), ..NOTHING };
    let qpn = script.host.qpn;
    let setting = "path";
    let refused = ControlError::Setting { qpn, state: State::ReadyToSend, setting };
    assert_eq!(change(&mut script, moved), Err(refused));

    let sge = script.host.sge(0, 1);
    post(&mut script, SendRequest::send(1, sge)).unwrap();
    assert_eq!(script.drain(), [(PSN, SEND)]);
    let drain = Modify::Drain { notify: true };
    script.host.endpoint.modify_qp(script.now, qpn, drain).unwrap();
    assert_eq!(change(&mut script, moved), Err(ControlError::NotDrained { qpn, setting }));
    script.send(PSN, ack(1), &[]).unwrap();
    assert_eq!(script.host.endpoint.poll_event(), Some(Event::SendQueueDrained(qpn)));
    change(&mut script, moved).unwrap();

    script.host.endpoint.modify_qp(script.now, qpn, Modify::Resume).unwrap();
    post(&mut script, SendRequest::send(2, sge)).unwrap();
    let mut frame = [0; 2048];
    let length = script.host.endpoint.poll_transmit(script.now, &script.host.ram, &mut frame).unwrap();
    assert_eq!(parse(&frame[..length]).unwrap().network.path(), elsewhere);
}

#[test]
fn a_changed_timeout_and_retry_count_apply_to_the_next_request() {
    let mut script = Script::new(Options { ack_timeout: 5, retry_count: 7, ..Options::default() });
    let timeout = AckTimeout::new(8);
    drain_and(&mut script, Changes { ack_timeout: Some(timeout), retry_count: Some(1), ..NOTHING });
    let sge = script.host.sge(0, 1);
    post(&mut script, SendRequest::send(1, sge)).unwrap();
    let mut sent = script.drain().len();
    for _ in 0..40 {
        script.wait(Duration::from_micros(100));
        sent += script.drain().len();
    }
    assert_eq!(sent, 2, "once again, after 1 ms");
    assert_eq!(script.host.sent()[0].status, CompletionStatus::RetryExceeded);
}

#[test]
fn changed_limits_of_outstanding_reads_apply() {
    let mut script = Script::new(Options::default());
    drain_and(&mut script, Changes { max_rd_atomic: Some(1), max_dest_rd_atomic: Some(1), ..NOTHING });
    for id in 0..3 {
        let request = read(&script, id);
        post(&mut script, request).unwrap();
    }
    assert_eq!(script.drain().len(), 1, "ours");
    let asked = Operation::ReadRequest(script.reth(0, 8));
    script.send(PSN, asked, &[]).unwrap();
    assert_eq!(script.send(PSN + 1, asked, &[]), Err(Discard::ResponderResources), "the peer's");
}

#[test]
fn reads_wait_while_max_rd_atomic_is_0() {
    for selective_repeat in [false, true] {
        let mut script = Script::new(Options { max_rd_atomic: 0, selective_repeat, ..Options::default() });
        let request = read(&script, 1);
        post(&mut script, request).unwrap();
        assert!(script.drain().is_empty());
        script.wait(Duration::from_millis(100));
        assert!(script.drain().is_empty());
        drain_and(&mut script, Changes { max_rd_atomic: Some(1), ..NOTHING });
        assert_eq!(script.drain().len(), 1);
    }
}

#[test]
fn a_change_is_applied_completely_or_not_at_all() {
    let mut script = Script::new(Options::default());
    let qpn = script.host.qpn;
    for (also, why) in [
        (
            Changes { queue_key: Some(1), ..NOTHING },
            ControlError::Setting { qpn, state: State::ReadyToSend, setting: "Q_Key" },
        ),
        (
            Changes { retry_count: Some(3), ..NOTHING },
            ControlError::Setting { qpn, state: State::ReadyToSend, setting: "retry count" },
        ),
    ] {
        assert_eq!(change(&mut script, Changes { access: Some(Access::LOCAL_READ), ..also }), Err(why));
    }
    let drain = Modify::Drain { notify: false };
    script.host.endpoint.modify_qp(script.now, qpn, drain).unwrap();
    let eight = Changes { access: Some(Access::LOCAL_READ), retry_count: Some(8), ..NOTHING };
    let why = ControlError::Value { what: "retry_count", value: 8, limit: 7 };
    assert_eq!(change(&mut script, eight), Err(why));
    let write = Operation::WriteOnly(script.reth(0, 1), None);
    assert_eq!(script.send(PSN, write, &[1]), Ok(()), "its access is what it was");
}

/// In a state that the table does not contain no change is permitted; in the others, those that the service supports.
#[test]
fn changes_before_init_and_in_the_error_state_are_refused() {
    let access = Changes { access: Some(Access::ALL), ..NOTHING };
    let key = Changes { queue_key: Some(7), ..NOTHING };
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        let options = Options::default();
        let mut host = Host::new(1, &options);
        let now = cc::Instant::ZERO;
        let init = QpInit { service, ..host.init(&options) };
        let qpn = host.endpoint.create_qp(now, init).unwrap();
        let mut modify = |modify| host.endpoint.modify_qp(now, qpn, modify);
        let (of_it, of_others, first) = match service {
            Service::Ud => (key, access, Modify::InitDatagram { queue_key: 1, partition_key: 0xffff }),
            _ => (access, key, Modify::Init { access: Access::LOCAL_READ, partition_key: 0xffff }),
        };
        assert!(modify(Modify::Change(of_it)).is_err(), "{service:?} in RESET");
        modify(first).unwrap();
        assert_eq!(modify(Modify::Change(of_it)), Ok(()), "{service:?}");
        assert!(modify(Modify::Change(of_others)).is_err(), "{service:?}");
        modify(Modify::Error).unwrap();
        assert!(modify(Modify::Change(of_it)).is_err(), "{service:?} in ERR");
    }
}

#[test]
fn data_posted_before_a_change_of_access_is_not_lost() {
    let mut script = Script::new(Options::default());
    let request = RecvRequest::new(5, script.host.sge(0, 4));
    script.host.endpoint.post_recv(script.host.qpn, request).unwrap();
    change(&mut script, Changes { access: Some(Access::LOCAL_READ), ..NOTHING }).unwrap();
    script.send(PSN, SEND, &[1, 2, 3, 4]).unwrap();
    assert_eq!(script.host.received()[0].id, 5);
    let inline = Data::inline(&[9]);
    post(&mut script, SendRequest::send(6, inline)).unwrap();
    assert_eq!(script.drain().len(), 2, "an acknowledgement and a SEND");
}

/// The responder has no more resources than the limit, even after the limit was lowered.
#[test]
fn a_lower_limit_of_reads_is_kept() {
    let mut script = Script::new(Options { max_dest_rd_atomic: 4, ..Options::default() });
    let reth = script.reth(0, 8);
    let mut psn = PSN;
    let mut read = |script: &mut Script| {
        script.send(psn, Operation::ReadRequest(reth), &[]).unwrap();
        assert_eq!(script.drain().len(), 1);
        psn += 1;
    };
    (0..4).for_each(|_| read(&mut script));
    let modify = |script: &mut Script, modify| {
        script.host.endpoint.modify_qp(script.now, script.host.qpn, modify).unwrap();
    };
    let again = |script: &mut Script, psns: core::ops::Range<u32>| {
        let answered = psns.filter(|&psn| {
            assert_eq!(script.send(psn, Operation::ReadRequest(reth), &[]), Err(Discard::Duplicate));
            !script.drain().is_empty()
        });
        answered.collect::<Vec<_>>()
    };
    let lower = |script: &mut Script, limit| {
        modify(script, Modify::Drain { notify: false });
        modify(script, Modify::Change(Changes { max_dest_rd_atomic: Some(limit), ..Changes::default() }));
        modify(script, Modify::Resume);
    };
    lower(&mut script, 2);
    assert_eq!(again(&mut script, PSN..PSN + 4), [PSN + 2, PSN + 3], "trimmed at once");
    lower(&mut script, 1);
    (0..20).for_each(|_| read(&mut script));
    assert_eq!(again(&mut script, PSN..PSN + 24), [PSN + 23], "and as others come");
    lower(&mut script, 0);
    assert_eq!(again(&mut script, PSN..PSN + 24), []);
    let refused = script.send(PSN + 24, Operation::ReadRequest(reth), &[]);
    assert_eq!(refused, Err(Discard::ResponderResources));
}

/// A request that was not answered when the limit was lowered is still answered, and uses the resource of a new one until then.
#[test]
fn answers_that_are_due_survive_a_lower_limit() {
    let mut script = Script::new(Options { max_dest_rd_atomic: 4, ..Options::default() });
    let reth = script.reth(0, 8);
    for psn in PSN..PSN + 3 {
        script.send(psn, Operation::ReadRequest(reth), &[]).unwrap();
    }
    let (now, qpn) = (script.now, script.host.qpn);
    let changes = Changes { max_dest_rd_atomic: Some(2), ..Changes::default() };
    for modify in [Modify::Drain { notify: false }, Modify::Change(changes), Modify::Resume] {
        script.host.endpoint.modify_qp(now, qpn, modify).unwrap();
    }
    // One response is sent; a fourth READ would need two free resources.
    assert_eq!(script.next().map(|(psn, _)| psn), Some(PSN));
    let refused = script.send(PSN + 3, Operation::ReadRequest(reth), &[]);
    assert_eq!(refused, Err(Discard::ResponderResources));
    let left: Vec<_> = script.drain().into_iter().map(|(psn, _)| psn).collect();
    assert_eq!(left, [PSN + 1, PSN + 2, PSN + 3], "the answers, then the NAK");
}

//! Rows about memory windows: keys that are no longer valid, or not valid here.

use super::table::{Outcome, Row, made, reth, write};
use crate::harness::script::{PSN, Script};
use crate::harness::window::bind;
use crate::harness::{BASE, Options, path};
use Outcome::{Acknowledged, Fatal};
use roce::qp::{Capabilities, CompletionStatus, QpInit, SendRequest};
use roce::wire::NakCode::InvalidRequest;
use roce::wire::NakCode::RemoteAccessError;
use roce::wire::{AtomicEth, FetchAdd, Feth, Operation, Reth, SendTail, Service};
use roce::{Access, Discard, Qpn, Rkey, WindowKind};

/// Keys of windows over 4096 bytes from 8192 on; the first two are valid, each other is wrong in a different respect.
#[derive(Clone, Copy)]
pub struct Windows {
    pub shared: Rkey,
    pub own: Rkey,
    pub readable: Rkey,
    /// The key before the window was bound again; only its last byte differs.
    pub older: Rkey,
    pub invalidated: Rkey,
    pub unbound: Rkey,
    pub others: Rkey,
}

const AT: u64 = 8192;
const LENGTH: u64 = 4096;

pub fn windows(script: &mut Script) -> Windows {
    let region = script.windowed(Access::ALL);
    let mut bound = |kind, access| script.window(kind, &region, AT, LENGTH, access);
    let (one, two) = (WindowKind::One, WindowKind::Two);
    let shared = bound(one, Access::ALL);
    let own = bound(two, Access::ALL);
    let readable = bound(two, Access::REMOTE_READ);
    let invalidated = bound(two, Access::ALL);
    script.run_local(SendRequest::local_invalidate(1, invalidated));
    let older = bound_again(script, one);
    let unbound = script.host.endpoint.create_window(script.host.pd, two).unwrap();
    let others = another_queue_pairs(script);
    Windows { shared, own, readable, older, invalidated, unbound, others }
}

fn bound_again(script: &mut Script, kind: WindowKind) -> Rkey {
    let region = script.windowed(Access::ALL);
    let older = script.window(kind, &region, AT, LENGTH, Access::ALL);
    script.run_local(SendRequest::bind(1, bind(older, &region, AT, LENGTH, Access::ALL)));
    older
}

fn another_queue_pairs(script: &mut Script) -> Rkey {
    let region = script.windowed(Access::ALL);
    let ours = script.host.qpn;
    let init = QpInit {
        service: Service::Rc,
        pd: script.host.pd,
        send_cq: script.host.send_cq,
        recv_cq: script.host.recv_cq,
        capabilities: Capabilities::default(),
        signal_all: false,
        srq: None,
    };
    let options = Options { send_psn: PSN, ..Options::default() };
    script.host.qpn = script.host.endpoint.create_qp(script.now, init).unwrap();
    script.host.ready_to_receive(path(2, 1), Qpn::new(1), PSN, &options);
    script.host.ready_to_send(&options);
    let rkey = script.window(WindowKind::Two, &region, AT, LENGTH, Access::ALL);
    script.host.qpn = ours;
    rkey
}

/// IBA 10.6.7.2: the range, queue pair and time for which a window's key is valid; IBA 9.4.1.1.3: which peer may invalidate it.
pub fn rows(keys: Windows) -> Vec<Row> {
    let refused = |name, operation, payload: &[u8], discard| {
        made(name, operation, payload, discard, Fatal(RemoteAccessError, CompletionStatus::Flushed))
    };
    let key = |name, rkey| refused(name, write(reth(rkey, AT, 1)), &[1], Discard::RemoteKey);
    let range = |name, rkey, offset, length| {
        refused(name, Operation::ReadRequest(reth(rkey, offset, length)), &[], Discard::RemoteRange)
    };
    let invalidate = |name, rkey, discard| {
        let operation = Operation::SendOnly(SendTail::Invalidate(rkey));
        made(name, operation, &[], discard, Acknowledged(CompletionStatus::RemoteInvalidRequest))
    };
    let add = AtomicEth { address: BASE + AT, rkey: keys.readable, operands: FetchAdd { add: 1 } };
    vec![
        key("WRITE by a window's older key", keys.older),
        key("WRITE by an invalidated window", keys.invalidated),
        key("WRITE by a window that never was bound", keys.unbound),
        key("WRITE by another queue pair's window", keys.others),
        range("READ before a window", keys.own, AT - 1, 2),
        range("READ beyond a window", keys.own, AT + LENGTH - 1, 2),
        range("READ beyond a type 1 window", keys.shared, AT + LENGTH, 1),
        refused(
            "WRITE by a window for reading",
            write(reth(keys.readable, AT, 1)),
            &[1],
            Discard::RemoteAccess,
        ),
        refused("atomic by a window for reading", Operation::FetchAdd(add), &[], Discard::RemoteAccess),
        invalidate("invalidate by a window's older key", keys.older, Discard::RemoteKey),
        invalidate("invalidate what is not bound any more", keys.invalidated, Discard::RemoteKey),
        invalidate("invalidate what never was bound", keys.unbound, Discard::RemoteKey),
        invalidate("invalidate another queue pair's window", keys.others, Discard::RemoteKey),
        invalidate("invalidate a type 1 window", keys.shared, Discard::RemoteAccess),
    ]
}

/// IBA annex A19: 8 bytes, aligned, with a key that permits writing; a FLUSH with a key that permits flushing, within its range.
pub fn word_rows(whole: Rkey, flushable: Rkey, unknown: Rkey, readable: Rkey) -> Vec<Row> {
    let invalid = Fatal(InvalidRequest, CompletionStatus::Flushed);
    let refused = Fatal(RemoteAccessError, CompletionStatus::Flushed);
    let word = |name, reth, payload: &[u8], discard, outcome| {
        made(name, Operation::AtomicWrite(reth), payload, discard, outcome)
    };
    let flush =
        |name, feth, reth, discard, outcome| made(name, Operation::Flush(feth, reth), &[], discard, outcome);
    let (visible, all) = (Feth::new(true, false, false), Feth::new(true, false, true));
    let at = |rkey| reth(rkey, 64, 8);
    let (length, key) = (Discard::Length, Discard::RemoteKey);
    let beyond = Reth { address: BASE + (1 << 16) - 4, rkey: flushable, length: 8 };
    vec![
        word("ATOMIC WRITE of 7 bytes", at(whole), &[1; 7], length, invalid),
        word("ATOMIC WRITE of 9 bytes", at(whole), &[1; 9], length, invalid),
        word("ATOMIC WRITE of nothing", reth(whole, 64, 0), &[], length, invalid),
        word("ATOMIC WRITE that announces 16 bytes", reth(whole, 64, 16), &[1; 8], length, invalid),
        word("misaligned ATOMIC WRITE", reth(whole, 68, 8), &[1; 8], Discard::Misaligned, invalid),
        word("ATOMIC WRITE by an unknown key", at(unknown), &[1; 8], key, refused),
        word("ATOMIC WRITE to a region for reading", at(readable), &[1; 8], Discard::RemoteAccess, refused),
        word(
            "ATOMIC WRITE behind the region",
            reth(whole, 1 << 16, 8),
            &[1; 8],
            Discard::RemoteRange,
            refused,
        ),
        flush("FLUSH to nowhere", Feth::new(false, false, false), at(flushable), Discard::FlushKind, invalid),
        flush(
            "FLUSH to persistence",
            Feth::new(true, true, false),
            at(flushable),
            Discard::RemoteAccess,
            invalid,
        ),
        flush("FLUSH by an unknown key", visible, at(unknown), key, refused),
        flush("FLUSH of nothing by an unknown key", visible, reth(unknown, 0, 0), key, refused),
        flush("FLUSH of all of an unknown region", all, at(unknown), key, refused),
        flush("FLUSH of a region without the right", visible, at(readable), Discard::RemoteAccess, refused),
        flush(
            "FLUSH of all of a region without the right",
            all,
            at(readable),
            Discard::RemoteAccess,
            refused,
        ),
        flush("FLUSH beyond the region", visible, beyond, Discard::RemoteRange, refused),
    ]
}

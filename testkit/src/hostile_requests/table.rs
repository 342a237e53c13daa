//! The table of malformed requests, one row for each.

use super::windows::{Windows, windows, word_rows};
use crate::harness::raw::Raw;
use crate::harness::script::{LAST, PEER, PSN, SEND, Script};
use crate::harness::{BASE, Options};
use Outcome::{Acknowledged, Again, Fatal, Gap, NotReady, Silence};
use roce::qp::CompletionStatus;
use roce::wire::NakCode::{InvalidRequest, RemoteAccessError};
use roce::wire::{
    AtomicEth, Bth, CompareSwap, FetchAdd, Feth, Header, NakCode, Operation, Reth, SendTail, Service,
};
use roce::{Access, Discard, Qpn, Rkey};

const MTU: usize = 1024;
pub const FULL: &[u8] = &[0xa5; MTU];
const OVER: &[u8] = &[0xa5; MTU + 1];
const SIZE: u64 = 1 << 16;
/// Bytes of each receive, unless a row sets another length.
const RECEIVE: u32 = 3000;
/// READs and atomics that the peer may have outstanding.
const READS: u32 = 2;
pub const IMMEDIATE: [u8; 4] = [9; 4];

#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// No response, and no effect.
    Silence,
    /// A NAK at the packet's own PSN, and ERR; the receive in progress, or the first in the queue, completes with this status.
    Fatal(NakCode, CompletionStatus),
    /// A NAK for the gap, at the expected PSN.
    Gap,
    /// An RNR NAK: no receive is posted.
    NotReady,
    /// The newest acknowledgement is repeated.
    Again,
    /// The packet is acknowledged, and only this side fails: ERR, and the receive completes with this status.
    Acknowledged(CompletionStatus),
}

pub enum Packet {
    /// At this distance from the expected PSN.
    Made(i32, Operation, Vec<u8>),
    /// To another queue pair.
    Stray(Operation),
    /// Of another service.
    Foreign(Header),
    Bytes(Raw),
}

impl Packet {
    pub fn frame(&self, script: &Script, psn: u32) -> Vec<u8> {
        let made = |destination, psn, operation, payload: &[u8]| {
            let bth = Bth { destination, ..script.bth(psn) };
            script.frame(&Header::Connected { service: Service::Rc, bth, operation }, payload)
        };
        match self {
            Self::Made(ahead, operation, payload) => {
                made(script.host.qpn, psn.wrapping_add_signed(*ahead), *operation, payload)
            }
            Self::Stray(operation) => made(Qpn::new(0x77_7777), psn, *operation, &[1]),
            Self::Foreign(header) => script.frame(header, &[]),
            Self::Bytes(raw) => raw.frame(script.host.qpn),
        }
    }
}

pub struct Row {
    pub name: &'static str,
    /// Bytes of each posted receive.
    pub receive: u32,
    /// Valid packets before the malformed one, of one message or several.
    pub before: Vec<(Operation, &'static [u8])>,
    pub packet: Packet,
    pub discard: Discard,
    pub outcome: Outcome,
}

/// Keys of regions over the same memory, each wrong in a different respect.
pub struct Keys {
    pub whole: Rkey,
    pub unknown: Rkey,
    pub stale: Rkey,
    pub foreign: Rkey,
    pub readable: Rkey,
    pub writable: Rkey,
    pub flushable: Rkey,
    pub windows: Windows,
}

pub fn prepare() -> (Script, Keys) {
    prepare_with(&options())
}

/// Returns the settings of the connection that receives the packets.
pub fn options() -> Options {
    let access = Access::ALL | Access::REMOTE_FLUSH;
    Options { memory: SIZE as usize, max_dest_rd_atomic: READS as u8, access, ..Options::default() }
}

pub fn prepare_with(options: &Options) -> (Script, Keys) {
    let mut script = Script::new(*options);
    let pd = script.host.pd;
    let foreign = script.host.endpoint.create_pd();
    let mut register = |pd, access| script.host.endpoint.register(pd, BASE, SIZE, access).unwrap();
    let stale = register(pd, Access::ALL);
    let keys = Keys {
        whole: script.host.region.rkey,
        unknown: Rkey::new(script.host.region.rkey.get() ^ 1),
        stale: stale.rkey,
        foreign: register(foreign, Access::ALL).rkey,
        readable: register(pd, Access::REMOTE_READ).rkey,
        writable: register(pd, Access::REMOTE_WRITE | Access::LOCAL_WRITE).rkey,
        flushable: register(pd, Access::ALL | Access::REMOTE_FLUSH).rkey,
        windows: windows(&mut script),
    };
    script.host.endpoint.deregister(stale.lkey).unwrap();
    (script, keys)
}

pub fn made(
    name: &'static str,
    operation: Operation,
    payload: &[u8],
    discard: Discard,
    outcome: Outcome,
) -> Row {
    Row {
        name,
        receive: RECEIVE,
        before: Vec::new(),
        packet: Packet::Made(0, operation, payload.to_vec()),
        discard,
        outcome,
    }
}

/// Returns a row for a packet that is dropped without a response.
fn silent(name: &'static str, packet: Packet, discard: Discard) -> Row {
    Row { name, receive: RECEIVE, before: Vec::new(), packet, discard, outcome: Silence }
}

pub const fn reth(rkey: Rkey, offset: u64, length: u32) -> Reth {
    Reth { address: BASE + offset, rkey, length }
}

pub const fn write(reth: Reth) -> Operation {
    Operation::WriteOnly(reth, None)
}

const fn fetch_add(address: u64, rkey: Rkey) -> Operation {
    Operation::FetchAdd(AtomicEth { address, rkey, operands: FetchAdd { add: 1 } })
}

const fn compare_swap(address: u64, rkey: Rkey) -> Operation {
    Operation::CompareSwap(AtomicEth { address, rkey, operands: CompareSwap { compare: 0, swap: 1 } })
}

/// Returns the table. A row's comment names the rule.
pub fn table(keys: &Keys) -> Vec<Row> {
    [
        sequence(keys),
        lengths(keys),
        ranges(keys),
        super::windows::rows(keys.windows),
        whole_regions(keys),
        word_rows(keys.whole, keys.flushable, keys.unknown, keys.readable),
        words(keys),
        resources(keys),
        numbers(keys),
        strangers(keys),
        malformed(keys),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// IBA 9.7.4.1.2: first, middle, last in this order, and no other packet between them.
fn sequence(keys: &Keys) -> Vec<Row> {
    let bad = |name, before: &[(Operation, &'static [u8])], operation, payload| Row {
        before: before.to_vec(),
        ..made(
            name,
            operation,
            payload,
            Discard::Sequence,
            Fatal(InvalidRequest, CompletionStatus::RemoteInvalidRequest),
        )
    };
    let none = |name, operation, payload| Row {
        before: Vec::new(),
        ..made(name, operation, payload, Discard::Sequence, Fatal(InvalidRequest, CompletionStatus::Flushed))
    };
    let send = &[(Operation::SendFirst, FULL)];
    let sends = &[(Operation::SendFirst, FULL), (Operation::SendMiddle, FULL)];
    let long = Operation::WriteFirst(reth(keys.whole, 0, 3000));
    let writes = &[(long, FULL)];
    let flushed = |row: Row| Row { outcome: Fatal(InvalidRequest, CompletionStatus::Flushed), ..row };
    let one = reth(keys.whole, 0, 1);
    let returned = Operation::SendOnly(SendTail::Invalidate(keys.windows.own));
    vec![
        none("SEND Middle without First", Operation::SendMiddle, FULL),
        none("SEND Last without First", LAST, &[1]),
        none(
            "SEND Last with Immediate without First",
            Operation::SendLast(SendTail::Immediate(IMMEDIATE)),
            &[1],
        ),
        none("WRITE Middle without First", Operation::WriteMiddle, FULL),
        none("WRITE Last without First", Operation::WriteLast(None), &[1]),
        none("WRITE Last with Immediate without First", Operation::WriteLast(Some(IMMEDIATE)), &[1]),
        bad("SEND First after First", send, Operation::SendFirst, FULL),
        bad("SEND Only after First", send, SEND, &[1]),
        bad("SEND Only with Invalidate after First", send, returned, &[]),
        bad("SEND First after Middle", sends, Operation::SendFirst, FULL),
        bad("WRITE First inside a SEND", send, long, FULL),
        bad("WRITE Middle inside a SEND", send, Operation::WriteMiddle, FULL),
        bad("WRITE Last inside a SEND", send, Operation::WriteLast(None), &[1]),
        bad("WRITE Only inside a SEND", send, write(one), &[1]),
        bad("READ inside a SEND", send, Operation::ReadRequest(one), &[]),
        bad("atomic inside a SEND", send, fetch_add(BASE, keys.whole), &[]),
        flushed(bad("WRITE First after First", writes, long, FULL)),
        flushed(bad("WRITE Only after First", writes, write(one), &[1])),
        flushed(bad("SEND Middle inside a WRITE", writes, Operation::SendMiddle, FULL)),
        flushed(bad("SEND Last inside a WRITE", writes, LAST, &[1])),
        flushed(bad("SEND Only inside a WRITE", writes, SEND, &[1])),
        flushed(bad("READ inside a WRITE", writes, Operation::ReadRequest(one), &[])),
        flushed(bad("atomic inside a WRITE", writes, compare_swap(BASE, keys.whole), &[])),
    ]
}

/// IBA 9.7.4.1.6: each packet has the length that its opcode requires, each message the length in its RETH.
fn lengths(keys: &Keys) -> Vec<Row> {
    let bad = |name, before: &[(Operation, &'static [u8])], operation, payload, receive| Row {
        before: before.to_vec(),
        ..made(name, operation, payload, Discard::Length, Fatal(InvalidRequest, receive))
    };
    let over = |name, operation| {
        made(name, operation, OVER, Discard::Oversized, Fatal(InvalidRequest, CompletionStatus::Flushed))
    };
    let (flushed, broken) = (CompletionStatus::Flushed, CompletionStatus::RemoteInvalidRequest);
    let long = |length| Operation::WriteFirst(reth(keys.whole, 0, length));
    let of = |length| reth(keys.whole, 0, length);
    let send = &[(Operation::SendFirst, FULL)];
    let writes = &[(long(2000), FULL)];
    let local = Fatal(InvalidRequest, CompletionStatus::LocalLength);
    vec![
        bad("short SEND First", &[], Operation::SendFirst, &FULL[1..], flushed),
        bad("empty SEND First", &[], Operation::SendFirst, &[], flushed),
        bad("short SEND Middle", send, Operation::SendMiddle, &FULL[1..], broken),
        bad("empty SEND Last", send, LAST, &[], broken),
        bad("short WRITE First", &[], long(2000), &FULL[1..], flushed),
        bad("short WRITE Middle", writes, Operation::WriteMiddle, &FULL[1..], flushed),
        bad("empty WRITE Last", writes, Operation::WriteLast(None), &[], flushed),
        bad("WRITE Only of more than announced", &[], write(of(1)), &[1, 2], flushed),
        bad("WRITE Only of less than announced", &[], write(of(3)), &[1, 2], flushed),
        bad("WRITE Only of nothing, announced as something", &[], write(of(3)), &[], flushed),
        bad("WRITE First that announces one packet", &[], long(1024), FULL, flushed),
        bad("WRITE First that announces nothing", &[], long(0), FULL, flushed),
        bad(
            "WRITE Last short of what was announced",
            writes,
            Operation::WriteLast(None),
            &FULL[..975],
            flushed,
        ),
        bad(
            "WRITE Last beyond what was announced",
            writes,
            Operation::WriteLast(None),
            &FULL[..977],
            flushed,
        ),
        bad("WRITE Middle beyond what was announced", writes, Operation::WriteMiddle, FULL, flushed),
        bad("WRITE above 2^31", &[], long((1 << 31) + 1), FULL, flushed),
        bad("READ above 2^31", &[], Operation::ReadRequest(of((1 << 31) + 1)), &[], flushed),
        over("SEND Only above the path MTU", SEND),
        over("SEND First above the path MTU", Operation::SendFirst),
        over("WRITE Only above the path MTU", write(of(MTU as u32 + 1))),
        Row {
            receive: 1,
            ..made("SEND Only longer than its receive", SEND, &FULL[..2], Discard::LocalProtection, local)
        },
        Row {
            before: vec![(Operation::SendFirst, FULL), (Operation::SendMiddle, FULL)],
            ..made("SEND Last beyond its receive", LAST, &FULL[..953], Discard::LocalProtection, local)
        },
    ]
}

/// IBA 9.7.4.1.4 and 9.7.4.1.5: keys, ranges and rights.
fn ranges(keys: &Keys) -> Vec<Row> {
    let refused = |name, operation, payload, discard| {
        made(name, operation, payload, discard, Fatal(RemoteAccessError, CompletionStatus::Flushed))
    };
    let key = |name, operation, payload| refused(name, operation, payload, Discard::RemoteKey);
    let range = |name, operation, payload| refused(name, operation, payload, Discard::RemoteRange);
    let right = |name, operation, payload| refused(name, operation, payload, Discard::RemoteAccess);
    let wrap = Reth { address: u64::MAX, rkey: keys.whole, length: 2 };
    let below = Reth { address: BASE - 1, rkey: keys.whole, length: 2 };
    let read = |rkey, offset, length| Operation::ReadRequest(reth(rkey, offset, length));
    vec![
        key("WRITE by an unknown key", write(reth(keys.unknown, 0, 1)), &[1]),
        key("WRITE by a stale key", write(reth(keys.stale, 0, 1)), &[1]),
        key("WRITE by another domain's key", write(reth(keys.foreign, 0, 1)), &[1]),
        key("READ by an unknown key", read(keys.unknown, 0, 1), &[]),
        key("READ by a stale key", read(keys.stale, 0, 1), &[]),
        key("READ by another domain's key", read(keys.foreign, 0, 1), &[]),
        key("atomic by an unknown key", fetch_add(BASE, keys.unknown), &[]),
        key("atomic by a stale key", compare_swap(BASE, keys.stale), &[]),
        key("atomic by another domain's key", fetch_add(BASE, keys.foreign), &[]),
        range("WRITE beyond the region", write(reth(keys.whole, SIZE - 1, 2)), &[1, 2]),
        range("WRITE behind the region", write(reth(keys.whole, SIZE, 1)), &[1]),
        range("WRITE before the region", write(below), &[1, 2]),
        range("WRITE round the address space", write(wrap), &[1, 2]),
        range(
            "WRITE First of a message beyond the region",
            Operation::WriteFirst(reth(keys.whole, SIZE - 1024, 1025)),
            FULL,
        ),
        range("READ beyond the region", read(keys.whole, SIZE - 1, 2), &[]),
        range("READ of 2 GiB", read(keys.whole, 0, 1 << 31), &[]),
        range("READ round the address space", Operation::ReadRequest(wrap), &[]),
        range("atomic behind the region", fetch_add(BASE + SIZE, keys.whole), &[]),
        range("atomic before the region", compare_swap(BASE - 8, keys.whole), &[]),
        right("WRITE to a region for reading", write(reth(keys.readable, 0, 1)), &[1]),
        right("READ of a region for writing", read(keys.writable, 0, 1), &[]),
        right("atomic on a region for writing", fetch_add(BASE, keys.writable), &[]),
        right("atomic on a region for reading", compare_swap(BASE, keys.readable), &[]),
    ]
}

/// IBA 9.4.1.1.3: only the key of a window can be invalidated.
fn whole_regions(keys: &Keys) -> Vec<Row> {
    let invalidate = |name, rkey, discard| {
        let operation = Operation::SendOnly(SendTail::Invalidate(rkey));
        made(name, operation, &[], discard, Acknowledged(CompletionStatus::RemoteInvalidRequest))
    };
    vec![
        invalidate("invalidate a region", keys.whole, Discard::RemoteKey),
        invalidate("invalidate by an unknown key", keys.unknown, Discard::RemoteKey),
    ]
}

/// Returns ATOMIC WRITEs and FLUSHes that are malformed, out of sequence, or beyond the limit.
fn words(keys: &Keys) -> Vec<Row> {
    let invalid = Fatal(InvalidRequest, CompletionStatus::Flushed);
    let one = reth(keys.whole, 0, 1);
    let reads = vec![(Operation::ReadRequest(one), &[][..]); READS as usize];
    let eight = reth(keys.flushable, 64, 8);
    let flush = Operation::Flush(Feth::new(true, false, false), eight);
    let silent = |name, raw, discard| silent(name, Packet::Bytes(raw), discard);
    let row = |name, before, operation, payload: &[u8], discard| Row {
        before,
        ..made(name, operation, payload, discard, invalid)
    };
    let write = Operation::AtomicWrite(eight);
    let within = vec![(Operation::WriteFirst(reth(keys.whole, 0, 3000)), FULL)];
    let full = Discard::ResponderResources;
    vec![
        row("one ATOMIC WRITE too many", reads.clone(), write, &[1; 8], full),
        row("one FLUSH too many", reads, flush, &[], full),
        row("ATOMIC WRITE inside a WRITE", within.clone(), write, &[1; 8], Discard::Sequence),
        row("FLUSH inside a WRITE", within, flush, &[], Discard::Sequence),
        silent("FLUSH with half a RETH", raw(0x1c, 0, raw_reth(one, &[])), Discard::Truncated),
        silent(
            "FLUSH with a payload",
            raw(0x1c, 0, [&[0, 0, 0, 1], &raw_reth(one, &[0; 4])[..]].concat()),
            Discard::Length,
        ),
        silent("ATOMIC WRITE with half a RETH", raw(0x1d, 0, vec![0; 8]), Discard::Truncated),
        silent("reserved operation 24", raw(0x18, 0, vec![0; 32]), Discard::Opcode),
        silent("reserved operation 27", raw(0x1b, 0, vec![0; 32]), Discard::Opcode),
        silent("UC FLUSH", raw(0x3c, 0, vec![0; 20]), Discard::Opcode),
    ]
}

/// IBA 9.4.5, 9.7.4.1.7, 9.7.5.2.8: alignment, responder resources, receives.
fn resources(keys: &Keys) -> Vec<Row> {
    let invalid = Fatal(InvalidRequest, CompletionStatus::Flushed);
    let one = reth(keys.whole, 0, 1);
    let reads = vec![(Operation::ReadRequest(one), &[][..]); READS as usize];
    let none = Discard::ReceiverNotReady;
    vec![
        made("misaligned FETCH_ADD", fetch_add(BASE + 4, keys.whole), &[], Discard::Misaligned, invalid),
        made("misaligned CMP_SWAP", compare_swap(BASE + 1, keys.whole), &[], Discard::Misaligned, invalid),
        Row {
            before: reads.clone(),
            ..made(
                "one READ too many",
                Operation::ReadRequest(one),
                &[],
                Discard::ResponderResources,
                invalid,
            )
        },
        Row {
            before: reads,
            ..made(
                "one atomic too many",
                fetch_add(BASE, keys.whole),
                &[],
                Discard::ResponderResources,
                invalid,
            )
        },
        made("SEND Only without a receive", SEND, &[1], none, NotReady),
        made("SEND First without a receive", Operation::SendFirst, FULL, none, NotReady),
        made(
            "WRITE with Immediate without a receive",
            Operation::WriteOnly(one, Some(IMMEDIATE)),
            &[1],
            none,
            NotReady,
        ),
    ]
}

/// IBA 9.7.4.1.1, 9.7.5.1: PSNs up to half the PSN space ahead are a gap, those behind are duplicates.
fn numbers(keys: &Keys) -> Vec<Row> {
    let at = |name, psn, operation, payload: &[u8], discard, outcome| Row {
        name,
        receive: RECEIVE,
        before: vec![(write(reth(keys.whole, 8, 1)), &[7])],
        packet: Packet::Made(psn, operation, payload.to_vec()),
        discard,
        outcome,
    };
    let one = reth(keys.whole, 0, 1);
    let half = 1 << 23;
    let (gap, duplicate) = (Discard::PsnGap, Discard::Duplicate);
    vec![
        at("one ahead", 1, write(one), &[1], gap, Gap),
        at("READ ahead", 1, Operation::ReadRequest(one), &[], gap, Gap),
        at("atomic ahead", 1, fetch_add(BASE, keys.whole), &[], gap, Gap),
        at("as far ahead as can be", half - 1, write(one), &[1], gap, Gap),
        at("ahead and malformed", 1, LAST, OVER, gap, Gap),
        at("ahead by an unknown key", 1, write(reth(keys.unknown, 0, 1)), &[1], gap, Gap),
        at("one behind", -1, write(one), &[1], duplicate, Again),
        at("one behind, another message", -1, SEND, &[1], duplicate, Again),
        at("behind the first ever sent", -2, write(one), &[1], duplicate, Again),
        at("as far behind as can be", -half, write(one), &[1], duplicate, Again),
        at("behind and malformed", -1, LAST, OVER, duplicate, Again),
        at("behind by an unknown key", -1, write(reth(keys.unknown, 0, 1)), &[1], duplicate, Again),
        at("duplicate of a READ that never was", -1, Operation::ReadRequest(one), &[], duplicate, Silence),
        at("duplicate of an atomic that never was", -1, fetch_add(BASE, keys.whole), &[], duplicate, Silence),
    ]
}

/// IBA 9.6.1.1: packets for other connections are dropped silently.
fn strangers(keys: &Keys) -> Vec<Row> {
    let (script, _) = prepare();
    let one = reth(keys.whole, 0, 1);
    let key = |name, partition_key| {
        let rest = raw_reth(one, &[1, 0, 0, 0]);
        silent(name, Packet::Bytes(Raw { partition_key, ..raw(0x0a, 3, rest) }), Discard::PartitionKey)
    };
    let bth = script.bth(PSN);
    let by = |service, operation| Header::Connected { service, bth, operation };
    let datagram = Header::Datagram { bth, queue_key: 0, source: Qpn::new(PEER), immediate: None };
    vec![
        key("another partition", 0x8001),
        key("partition 0", 0x8000),
        key("a limited member of another partition", 0x0001),
        silent("no such queue pair", Packet::Stray(write(one)), Discard::UnknownQp),
        silent("UC SEND to an RC queue pair", Packet::Foreign(by(Service::Uc, SEND)), Discard::Opcode),
        silent(
            "UC WRITE to an RC queue pair",
            Packet::Foreign(by(Service::Uc, Operation::WriteMiddle)),
            Discard::Opcode,
        ),
        silent("UD SEND to an RC queue pair", Packet::Foreign(datagram), Discard::Opcode),
    ]
}

pub fn raw(opcode: u8, pad: u8, rest: Vec<u8>) -> Raw {
    Raw { opcode, flags: 0x40 | pad << 4, partition_key: 0xffff, ack_request: true, psn: PSN, rest }
}

pub fn raw_reth(reth: Reth, payload: &[u8]) -> Vec<u8> {
    let key = reth.rkey.get().to_be_bytes();
    [&reth.address.to_be_bytes()[..], &key, &reth.length.to_be_bytes(), payload].concat()
}

/// IBA 9.6.1.1, 9.2, 9.2.4: frames that are not a packet of this version are dropped silently.
fn malformed(keys: &Keys) -> Vec<Row> {
    let silent = |name, raw, discard| silent(name, Packet::Bytes(raw), discard);
    let one = reth(keys.whole, 0, 1);
    let read = raw_reth(one, &[]);
    let atomic = |tail: &[u8]| {
        let key = keys.whole.get().to_be_bytes();
        [&BASE.to_be_bytes()[..], &key, &1u64.to_be_bytes(), &0u64.to_be_bytes(), tail].concat()
    };
    vec![
        silent("version 1", Raw { flags: 0x41, ..raw(0x04, 0, vec![]) }, Discard::TransportVersion),
        silent("reserved operation 21", raw(0x15, 0, vec![0; 32]), Discard::Opcode),
        silent("reserved operation 31", raw(0x1f, 0, vec![0; 32]), Discard::Opcode),
        silent("reserved operation 31 of XRC", raw(0xbf, 0, vec![0; 32]), Discard::Opcode),
        silent("XRC SEND to an RC queue pair", raw(0xa4, 0, vec![0; 8]), Discard::Opcode),
        silent("XRC Acknowledge to an RC queue pair", raw(0xb1, 0, vec![0; 4]), Discard::Opcode),
        silent("XRC SEND without an XRCETH", raw(0xa4, 0, vec![]), Discard::Truncated),
        silent("manufacturer's opcode of nobody", raw(0xfe, 0, vec![0; 32]), Discard::Opcode),
        silent("pad of more than there is", raw(0x04, 3, vec![]), Discard::Truncated),
        silent("payload that is no multiple of 4", raw(0x04, 0, vec![1, 2, 3]), Discard::Length),
        silent("pad that makes no multiple of 4", raw(0x04, 1, vec![1, 2, 3]), Discard::Length),
        silent("WRITE without a RETH", raw(0x0a, 0, vec![]), Discard::Truncated),
        silent("WRITE with half a RETH", raw(0x0a, 0, read[..8].to_vec()), Discard::Truncated),
        silent("READ with half a RETH", raw(0x0c, 0, read[..12].to_vec()), Discard::Truncated),
        silent("READ with a payload", raw(0x0c, 0, raw_reth(one, &[1, 2, 3, 4])), Discard::Length),
        silent("READ with a pad", raw(0x0c, 1, raw_reth(one, &[0; 4])), Discard::Length),
        silent("atomic with half an AtomicETH", raw(0x14, 0, atomic(&[])[..16].to_vec()), Discard::Truncated),
        silent("atomic with a payload", raw(0x14, 0, atomic(&[1, 2, 3, 4])), Discard::Length),
        silent("immediate data missing", raw(0x05, 0, vec![]), Discard::Truncated),
        silent("key to invalidate missing", raw(0x17, 0, vec![]), Discard::Truncated),
        silent("payload above every MTU", raw(0x04, 0, vec![1; 4100]), Discard::Oversized),
    ]
}

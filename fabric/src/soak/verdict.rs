//! Checks of memory during a run, and of all state at its end.

use super::connection::{Area, Connection, DEPTH, Host, SUM, SWAPPED};
use super::plan::{Fate, PATIENT};
use super::requests::rule;
use roce::qp::{CompletionOpcode, CompletionStatus, State};
use roce::wire::Service;

/// Attempts after which a queue pair fails: the first, and 7 retries.
const ROUNDS: u32 = 8;

/// Frames dropped by switches and full rings in the whole run, and by switches since the last messages.
#[derive(Clone, Copy)]
pub(super) struct Losses {
    pub(super) all: u64,
    pub(super) last: u64,
}

/// Checks the data of a side's request at its destination. `receive` is the receive that an unreliable SEND consumed.
pub(super) fn arrived(
    connection: &Connection,
    side: usize,
    index: usize,
    receive: Option<usize>,
    hosts: &[Host],
) -> Result<(), String> {
    let peer = 1 - side;
    let posted = connection.sides[side].requests.posted[index];
    // A window disappears with its region. The SEND that invalidates it then fails only at the peer, after the acknowledgement.
    if posted.returns && connection.sides[peer].is_deregistered {
        return Ok(());
    }
    let (ours, theirs) = (&hosts[connection.sides[side].host].ram, &hosts[connection.sides[peer].host].ram);
    let wrong = || format!("side {side}'s {:?} {index} of {} bytes: other bytes", posted.kind, posted.length);
    match posted.kind {
        CompletionOpcode::Read => {
            let brought = ours.bytes(connection.offset(side, Area::Fetched, index), posted.length);
            let offered = theirs.bytes(connection.offset(peer, Area::Offered, index), posted.length);
            rule(brought == offered, wrong)
        }
        CompletionOpcode::FetchAdd | CompletionOpcode::CompareSwap => {
            let found = ours.bytes(connection.offset(side, Area::Fetched, index), 8);
            rule(found == posted.finds.to_ne_bytes(), || {
                format!(
                    "side {side}'s {:?} {index} found {found:x?}, not {:x?}",
                    posted.kind,
                    posted.finds.to_ne_bytes()
                )
            })
        }
        CompletionOpcode::Flush | CompletionOpcode::Bind | CompletionOpcode::LocalInvalidate => Ok(()),
        CompletionOpcode::Write | CompletionOpcode::AtomicWrite => {
            let sent = ours.bytes(connection.offset(side, Area::Outgoing, index), posted.length);
            let brought = theirs.bytes(connection.offset(peer, Area::Written, index), posted.length);
            rule(sent == brought, wrong)
        }
        _ => {
            let Some(receive) = receive.or(posted.receive) else { return Ok(()) };
            let header = if connection.talk.service == Service::Ud { 40 } else { 0 };
            let place = connection.offset(peer, Area::Received, receive) + header;
            let sent = ours.bytes(connection.offset(side, Area::Outgoing, index), posted.length);
            rule(sent == theirs.bytes(place, posted.length), wrong)
        }
    }
}

/// Checks a connection at the end of a run.
pub(super) fn end(connection: &Connection, hosts: &[Host], losses: Losses) -> Result<(), String> {
    for side in 0..2 {
        if connection.is_gone(side) {
            continue;
        }
        untouched(connection, side, hosts)?;
        let host = &hosts[connection.sides[side].host];
        let state = host.state(&connection.sides[side]);
        if host.overflowed(&connection.sides[side]) {
            rule(state == Some(State::Error), || {
                format!("side {side} lost completions and is in {state:?}")
            })?;
            continue;
        }
        let told = match state {
            Some(State::ReadyToSend) => alive(connection, side, hosts, losses.last),
            // The send queue failed; the queue pair still receives.
            Some(State::SendQueueError)
                if !connection.talk.is_reliable() && connection.sides[side].is_deregistered =>
            {
                Ok(())
            }
            Some(State::Error) => dead(connection, side, hosts, losses.all),
            state => Err(format!("is in {state:?}")),
        };
        told.map_err(|why| format!("side {side} ({}): {why}", connection.sides[side].qpn))?;
    }
    Ok(())
}

/// Checks that all requests succeeded. The room in the send queue shows whether unsignalled requests have completed.
fn alive(connection: &Connection, side: usize, hosts: &[Host], lost: u64) -> Result<(), String> {
    let (ours, peer) = (&connection.sides[side], &connection.sides[1 - side]);
    let (requests, host) = (&ours.requests, &hosts[ours.host]);
    rule(requests.failed.is_none(), || format!("{:?} without ERR", requests.failed))?;
    let room = host.endpoint(ours).send_room(ours.qpn);
    let depth = depth(connection, side);
    rule(room == depth, || format!("{} requests have not ended", depth - room))?;
    let silent = requests.posted[requests.ended..].iter().all(|posted| !posted.signalled);
    rule(silent, || "a signalled request said nothing".into())?;
    let in_flight = host.report(ours).map_or(0, |report| report.in_flight);
    rule(in_flight == 0, || format!("{in_flight} bytes are still in flight"))?;
    rule(requests.receive_failed.is_none(), || format!("a receive ended as {:?}", requests.receive_failed))?;
    let peer_lives = !connection.is_gone(1 - side)
        && hosts[peer.host].state(peer) == Some(State::ReadyToSend)
        && !hosts[peer.host].overflowed(peer);
    if !connection.talk.is_reliable() {
        // Earlier messages may be lost, but messages sent after the faults must arrive.
        let last = requests.posted.len().wrapping_sub(1);
        let has_arrived =
            lost > 0 || !peer_lives || connection.is_cut || peer.requests.brought.last() == Some(&last);
        return rule(has_arrived, || {
            format!("the last word {last} did not arrive: {:?}", peer.requests.brought)
        });
    }
    (0..requests.posted.len()).try_for_each(|index| arrived(connection, side, index, None, hosts))?;
    if peer_lives {
        let (brought, sent) = (peer.requests.brought.len(), requests.consuming);
        rule(brought == sent, || format!("the peer received {brought} of {sent} messages"))?;
        let ram = &hosts[peer.host].ram;
        for (word, expected) in [(SUM, requests.added), (SWAPPED, requests.swapped)] {
            let stands = ram.bytes(connection.word(1 - side, word), 8);
            rule(stands == expected.to_ne_bytes(), || format!("word {word}: {stands:x?}, not {expected:x}"))?;
        }
    }
    Ok(())
}

/// Returns the depth of a side's send queue; 0 for an XRC target.
const fn depth(connection: &Connection, side: usize) -> u32 {
    if connection.talk.sends_requests(side) { DEPTH } else { 0 }
}

/// Checks that a queue pair in the error state had a cause, and that its requests were flushed.
fn dead(connection: &Connection, side: usize, hosts: &[Host], dropped: u64) -> Result<(), String> {
    let (ours, peer) = (&connection.sides[side], &connection.sides[1 - side]);
    let (requests, host) = (&ours.requests, &hosts[ours.host]);
    let room = host.endpoint(ours).send_room(ours.qpn);
    let depth = depth(connection, side);
    rule(room == depth, || format!("{} requests are not flushed", depth - room))?;
    if ours.srq.is_none() {
        let left = requests.receives - requests.received;
        rule(left == 0, || format!("{left} receives are not flushed"))?;
    }
    if requests.failed.is_some() {
        let left = requests.posted.len() - requests.ended;
        rule(left == 0, || format!("{left} requests without completion"))?;
    }
    let harmed = |side: usize| {
        let at = &connection.sides[side];
        let overflowed = hosts[at.host].overflowed(at);
        overflowed || !matches!(at.fate, None | Some(Fate::Drained))
    };
    let tired = tired(connection, dropped);
    let peer_failed =
        connection.is_gone(1 - side) || hosts[peer.host].state(peer) != Some(State::ReadyToSend);
    rule(harmed(side) || harmed(1 - side) || tired, || format!("{:?} without any reason", requests.failed))?;
    let deregistered = |side: usize| connection.sides[side].is_deregistered;
    let possible = match requests.failed {
        None => true,
        Some(CompletionStatus::Flushed) => harmed(side) || deregistered(1 - side) || peer_failed,
        Some(CompletionStatus::RetryExceeded) => tired || peer_failed || connection.is_cut,
        Some(CompletionStatus::RnrRetryExceeded) => connection.talk.rnr_retry < 7,
        Some(CompletionStatus::RemoteAccess | CompletionStatus::RemoteOperation) => deregistered(1 - side),
        Some(
            CompletionStatus::LocalProtection | CompletionStatus::Bind | CompletionStatus::LocalQpOperation,
        ) => deregistered(side),
        Some(_) => false,
    };
    rule(possible, || format!("{:?} without a reason for that", requests.failed))
}

/// Returns whether faults may have exhausted the retries.
fn tired(connection: &Connection, dropped: u64) -> bool {
    let hasty = connection.talk.ack_timeout < PATIENT;
    let rnr = connection.talk.rnr_retry < 7;
    connection.is_cut || hasty || rnr || u64::from(connection.harmed_frames) + dropped >= u64::from(ROUNDS)
}

/// Checks that only requests of the peer and of this side changed memory.
fn untouched(connection: &Connection, side: usize, hosts: &[Host]) -> Result<(), String> {
    let peer = 1 - side;
    let ours = &connection.sides[side];
    rule(!ours.is_deregistered || connection.memory(side, hosts) == ours.frozen, || {
        format!("side {side}: memory changed after it was deregistered")
    })?;
    let host = &hosts[connection.sides[side].host];
    let (now, before) = (&host.ram.0, &host.before);
    let places = connection.places;
    let place = connection.place() as usize;
    let same = |area, from: usize| {
        let begin = connection.offset(side, area, 0) as usize + from * place;
        let end = connection.offset(side, area, 0) as usize + places * place;
        rule(now[begin..end] == before[begin..end], || {
            format!("side {side}: memory changed that nobody was given")
        })
    };
    same(Area::Outgoing, 0)?;
    same(Area::Offered, 0)?;
    same(Area::Received, connection.sides[side].requests.receives)?;
    let theirs = &hosts[connection.sides[peer].host].ram.0;
    let posted = &connection.sides[peer].requests.posted;
    let writes = |kind| matches!(kind, CompletionOpcode::Write | CompletionOpcode::AtomicWrite);
    for (index, posted) in posted.iter().enumerate().filter(|(_, posted)| writes(posted.kind)) {
        let to = connection.offset(side, Area::Written, index) as usize;
        let from = connection.offset(peer, Area::Outgoing, index) as usize;
        let length = posted.length as usize;
        let legal =
            (0..length).all(|at| now[to + at] == before[to + at] || now[to + at] == theirs[from + at]);
        rule(legal, || format!("side {side}: WRITE {index} brought other bytes"))?;
        let beyond = to + length..to + place;
        rule(now[beyond.clone()] == before[beyond], || format!("side {side}: beyond WRITE {index}"))?;
    }
    Ok(())
}

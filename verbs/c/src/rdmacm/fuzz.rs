//! Runs a server with arbitrary messages of peers in arbitrary order, for a fuzzer or a seeded test.

use crate::abi::*;
use crate::rdmacm::events::{next_now, rdma_ack_cm_event, rdma_destroy_event_channel};
use crate::rdmacm::id::Id;
use crate::rdmacm::test_environment::{Server, network};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use verbs::cm::machine::message::{self, Kind, Mad};
use verbs::cm::machine::unresolved::LIMIT as MAX_UNRESOLVED;
use verbs::cm::machine::{End, State};

const STATES: [State; 7] = [
    State::RequestSent,
    State::RequestReceived,
    State::ReplySent,
    State::ReplyReceived,
    State::Established,
    State::DisconnectSent,
    State::Ended(End::Disconnected),
];

/// The peers: two that answer ARP, and one that does not.
const PEERS: [[u8; 4]; 3] = [[10, 9, 0, 1], [10, 9, 0, 2], [10, 9, 0, 3]];

/// QPN of every connection.
const QUEUE_PAIR: u32 = 0x901;

/// Runs the steps that `bytes` encode. The server must send at most one answer to each message. When it runs its timers, it must send at
/// most one message for each connection and each resolved source. It must queue no more events than its backlog and its connections allow.
/// All its objects must be destructible afterwards.
///
/// # Panics
/// Panics if the server violates one of these conditions.
pub fn run(bytes: &[u8]) {
    let peers = PEERS.map(IpAddr::from);
    {
        let mut network = network();
        network.there.extend(&peers[..2]);
        network.ended.retain(|qpn| *qpn != QUEUE_PAIR);
    }
    take_sent(&peers);
    let mut server = Server::new();
    let mut ids: Vec<*mut Id> = Vec::new();
    let mut known = vec![0, 1];
    let mut bytes = bytes.iter().copied();
    let mut now = Instant::now();
    while let Some(step) = bytes.next() {
        let mut byte = || bytes.next().unwrap_or_default();
        let peer = peers[usize::from(byte()) % 3];
        let most = match step % 8 {
            0 => {
                let state = STATES[usize::from(byte()) % STATES.len()];
                let id = server.connection(peer, state, QUEUE_PAIR);
                // SAFETY: the identifier is only destroyed below.
                known.push(unsafe { &*id }.lock().local);
                ids.push(id);
                0
            }
            1 => {
                now += Duration::from_millis(u64::from(byte()) * 16);
                server.run_timers(now);
                known.len() + MAX_UNRESOLVED
            }
            2 => {
                take_events(&server, &mut ids, &mut known);
                0
            }
            3 => {
                let mad = server.request(peer, byte().into());
                server.receive(peer, &mad);
                1
            }
            _ => {
                let kind = Kind::ALL[usize::from(byte()) % Kind::ALL.len()];
                let receiver = known[usize::from(byte()) % known.len()];
                let mut mad: Mad = message::message(kind, byte().into(), byte().into(), receiver);
                for _ in 0..byte() % 16 {
                    mad[24 + usize::from(byte()) % 232] = byte();
                }
                server.receive(peer, &mad);
                1
            }
        };
        let sent = take_sent(&peers);
        assert!(sent <= most, "step {step}: {sent} messages were sent, {most} at most are expected");
    }
    end(server, ids, known);
}

/// Returns the number of messages that were sent to the peers since the last call. Tests that run in parallel have other peers.
fn take_sent(peers: &[IpAddr]) -> usize {
    let mut network = network();
    let before = network.sent.len();
    network.sent.retain(|(to, _)| !peers.contains(to));
    before - network.sent.len()
}

/// Receives the events of the program, and keeps the identifiers of requests.
fn take_events(server: &Server, ids: &mut Vec<*mut Id>, known: &mut Vec<u32>) {
    // SAFETY: the channel is alive, each event is acknowledged once, and its identifier lives until the end.
    unsafe {
        while let Some(event) = next_now(server.channel) {
            if (*event).event == RDMA_CM_EVENT_CONNECT_REQUEST {
                let id: *mut Id = (*event).id.cast();
                known.push((*id).lock().local);
                ids.push(id);
            }
            rdma_ack_cm_event(event);
        }
    }
}

/// Destroys all identifiers. Nothing refers to them after their events were received.
fn end(server: Server, mut ids: Vec<*mut Id>, mut known: Vec<u32>) {
    take_events(&server, &mut ids, &mut known);
    let (channel, listener) = (server.channel, server.listener);
    ids.push(listener);
    for id in ids {
        // SAFETY: nothing uses the identifiers, and no event refers to them.
        unsafe { Id::destroy(id) };
    }
    // SAFETY: the channel has no identifiers.
    unsafe { rdma_destroy_event_channel(channel) };
    server.end();
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_identifiers_can_be_destroyed_after_any_messages() {
        let mut seed = 1_u64;
        for _ in 0..500 {
            let bytes: Vec<u8> = (0..300)
                .map(|_| {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (seed >> 56) as u8
                })
                .collect();
            super::run(&bytes);
        }
    }
}

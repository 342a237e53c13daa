//! One connection: its state, the message that it repeats, and what the peer's messages change.

use super::message::{self, Key, Kind, Mad, PeerMessage, Pending, Reason, SMALLEST_MTU, Side};
use super::state::{End, State};
use super::world::World;
use datapath::event_fd::EventFd;
use datapath::siblings::Farewell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) state: State,
    pub(crate) source: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) ours: Side,
    pub(crate) theirs: Side,
    pub(crate) mtu: u8,
    /// The smallest path MTU code that this side agrees to.
    pub(crate) least_mtu: u8,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) traffic_class: u8,
    /// The private data of the peer's last message.
    pub(crate) private: Vec<u8>,
    /// The queue pair that ends with the connection.
    pub(crate) qpn: Option<u32>,
    /// Becomes readable with each change of the state. Until the program takes the peer's request, there is none: requests must not
    /// use up the process's descriptors.
    pub(crate) bell: Option<Arc<EventFd>>,
    /// The program has dropped it, and the peer may not know yet.
    pub(in crate::cm) left: bool,
    pub(in crate::cm) remote: u32,
    pub(in crate::cm) transaction: u64,
    pub(in crate::cm) pending: Option<Pending>,
    /// The number of refusals because the peer had no such listener.
    pub(in crate::cm) early: u32,
}

impl Link {
    /// A connection of this side's own. The program says the rest.
    pub(crate) fn new(source: SocketAddr, peer: SocketAddr, bell: Option<Arc<EventFd>>) -> Self {
        Self {
            state: State::RequestSent,
            source,
            peer,
            ours: Side::default(),
            theirs: Side::default(),
            mtu: 0,
            least_mtu: SMALLEST_MTU,
            ack_timeout: 0,
            retry_count: 0,
            traffic_class: 0,
            private: Vec::new(),
            qpn: None,
            bell,
            left: false,
            remote: 0,
            transaction: 0,
            pending: None,
            early: 0,
        }
    }

    pub(super) fn becomes(&mut self, state: State) {
        self.pending = None;
        self.state = state;
        if let Some(bell) = &self.bell {
            bell.signal();
        }
    }

    pub(super) fn write(&self, kind: Kind, local: u32) -> Mad {
        message::message(kind, self.transaction, local, self.remote)
    }

    /// Returns the message that ends the connection for the peer (IBA 12.6.10).
    pub(super) fn disconnect_request(&self, local: u32) -> Mad {
        message::disconnect_request(self.transaction, local, self.remote, self.theirs.qpn)
    }

    /// Informs the peer that there is no connection. A peer that does not receive this finds out by itself.
    pub(super) fn reject(&self, local: u32, reason: Reason, guid: [u8; 8], world: &impl World) {
        let mad = message::reject(self.transaction, local, self.remote, reason, guid);
        let _ = world.send(self.source.ip(), self.peer.ip(), &mad);
    }

    /// Has another process inform the peer if this process dies.
    pub(super) fn remember(&self, local: u32, world: &impl World) {
        let Some(siblings) = world.siblings() else { return };
        let mad = self.disconnect_request(local);
        siblings.remember(&Farewell {
            id: local,
            source: self.source.ip(),
            destination: self.peer.ip(),
            mad,
        });
    }

    pub(super) fn end(&mut self, local: u32, end: End, world: &impl World) {
        if let Some(siblings) = world.siblings() {
            siblings.forget(local);
        }
        if let Some(qpn) = self.qpn.take() {
            world.end(qpn);
        }
        self.becomes(State::Ended(end));
    }

    /// Repeats the message `kind` later: the peer has received it, and its program takes its time.
    fn wait(&mut self, now: Instant, receipt: &PeerMessage<'_>, kind: Kind) {
        if let Some(pending) = &mut self.pending
            && let Some(time) = message::read_receipt(receipt.mad(), kind)
        {
            pending.wait(now, time);
        }
    }

    /// Puts a request off that the peer had no listener for. Returns when it comes again, unless it did often enough.
    fn put_off(&mut self, now: Instant) -> Option<Instant> {
        let pending = self.pending.as_mut()?;
        pending.next = now + message::early_pause(self.early)?;
        self.early += 1;
        Some(pending.next)
    }

    /// Asks again for the next smaller path MTU, since the peer's port carries a smaller one. Returns when, unless there is none.
    fn ask_for_less(&mut self, now: Instant) -> Option<Instant> {
        let pending = self.pending.as_mut().filter(|_| self.mtu > self.least_mtu)?;
        self.mtu -= 1;
        message::put_mtu(&mut pending.mad, self.mtu);
        pending.next = now;
        Some(now)
    }

    /// Returns what the peer's messages must name.
    pub(super) fn key(&self, local: u32) -> Key {
        let remote = (!matches!(self.state, State::RequestSent)).then_some(self.remote);
        Key { peer: self.peer.ip(), local, remote, qpn: self.ours.qpn }
    }

    /// Takes a message of the peer in. Returns when the connection is looked at again, if that changed.
    pub(super) fn take_in(
        &mut self,
        now: Instant,
        local: u32,
        message: &PeerMessage<'_>,
        world: &impl World,
    ) -> Option<Instant> {
        match (message.kind(), &self.state) {
            (Kind::Reply, State::RequestSent) => {
                self.remote = message.sender();
                self.theirs = message::read_reply(message.mad(), false);
                self.private = message.private_data().to_vec();
                self.remember(local, world);
                self.becomes(State::ReplyCame);
            }
            (Kind::Receipt, State::RequestSent) => self.wait(now, message, Kind::Request),
            (Kind::Receipt, State::ReplySent) => self.wait(now, message, Kind::Reply),
            (Kind::Reply, State::Established) => {
                // If it is lost again, the reply comes again.
                let _ = world.send(self.source.ip(), self.peer.ip(), &self.write(Kind::ReadyToUse, local));
            }
            (Kind::ReadyToUse, State::ReplySent) => self.becomes(State::Established),
            // A peer that waited in vain for this side's RTU rejects its own reply.
            (Kind::Reject, State::DisconnectSent | State::Established)
            | (Kind::DisconnectReply, State::DisconnectSent) => {
                self.end(local, End::Disconnected, world);
            }
            (Kind::Reject, State::RequestSent | State::RequestCame | State::ReplySent | State::ReplyCame) => {
                let reason = message::read_reject(message.mad());
                let again = match self.state {
                    State::RequestSent if reason == Reason::InvalidService as u16 => self.put_off(now),
                    State::RequestSent if reason == Reason::InvalidMtu as u16 => self.ask_for_less(now),
                    _ => None,
                };
                if again.is_some() {
                    return again;
                }
                self.private = message.private_data().to_vec();
                self.end(local, End::Rejected(reason), world);
            }
            (Kind::DisconnectRequest, state) => {
                let up = matches!(
                    state,
                    State::Established | State::ReplySent | State::ReplyCame | State::DisconnectSent
                );
                let reply =
                    message::message(Kind::DisconnectReply, message.transaction(), local, message.sender());
                // If it is lost, the request comes again.
                let _ = world.send(self.source.ip(), self.peer.ip(), &reply);
                if up {
                    self.end(local, End::Disconnected, world);
                }
            }
            // Repeated, or out of its order: answered before, or never.
            _ => {}
        }
        None
    }
}

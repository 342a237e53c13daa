//! One connection: its state, the message that it repeats, and its response to the peer's messages.

use super::environment::{Environment, Event};
use super::message::{self, Key, Kind, Mad, PeerMessage, Pending, QpParameters, Reason, SMALLEST_MTU};
use super::state::{End, State};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Twice the packet lifetime that Linux assumes for Ethernet (4.096 µs × 2¹⁷).
pub(super) const TIME_WAIT: Duration = Duration::from_millis(1074);

/// State of one connection. `C` is the program's data.
#[derive(Debug)]
pub struct CmConnection<C> {
    pub state: State,
    pub source: SocketAddr,
    pub peer: SocketAddr,
    pub ours: QpParameters,
    pub theirs: QpParameters,
    pub mtu: u8,
    /// Smallest acceptable path MTU, as a code.
    pub min_mtu: u8,
    pub ack_timeout: u8,
    pub retry_count: u8,
    pub traffic_class: u8,
    /// Private data of the peer's last message.
    pub private: Vec<u8>,
    /// Queue pair that moves to ERR when the connection ends.
    pub qpn: Option<u32>,
    /// `None` once the program has dropped the connection, even if the peer still has it.
    pub program: Option<C>,
    pub remote: u32,
    pub transaction: u64,
    pub pending: Option<Pending>,
    /// End of TIME_WAIT. Late packets may arrive until then, so no other connection may use these identifiers.
    pub time_wait: Option<Instant>,
}

impl<C> CmConnection<C> {
    /// Returns a connection that this side requests. The caller sets the remaining fields.
    pub fn new(source: SocketAddr, peer: SocketAddr) -> Self {
        Self {
            state: State::RequestSent,
            source,
            peer,
            ours: QpParameters::default(),
            theirs: QpParameters::default(),
            mtu: 0,
            min_mtu: SMALLEST_MTU,
            ack_timeout: 0,
            retry_count: 0,
            traffic_class: 0,
            private: Vec::new(),
            qpn: None,
            program: None,
            remote: 0,
            transaction: 0,
            pending: None,
            time_wait: None,
        }
    }

    /// Enters `state`, and cancels the pending message.
    fn enter<W: Environment<Connection = C>>(
        &mut self,
        state: State,
        event: Event<W::Error>,
        environment: &W,
    ) {
        self.pending = None;
        self.state = state;
        environment.report(self, event);
    }

    pub(super) fn write(&self, kind: Kind, local: u32) -> Mad {
        message::message(kind, self.transaction, local, self.remote)
    }

    /// Returns the message that ends the connection for the peer (IBA 12.6.10).
    pub(super) fn disconnect_request(&self, local: u32) -> Mad {
        message::disconnect_request(self.transaction, local, self.remote, self.theirs.qpn)
    }

    /// Rejects the connection. The rejection is not repeated: if it is lost, the peer times out.
    pub(super) fn reject<W: Environment>(&self, local: u32, reason: Reason, guid: [u8; 8], environment: &W) {
        let mad = message::reject(self.transaction, local, self.remote, reason, guid);
        let _ = environment.send(self.source.ip(), self.peer.ip(), &mad);
    }

    /// Registers the DREQ that another process sends if this process ends without disconnecting.
    pub(super) fn register_disconnect<W: Environment>(&self, local: u32, environment: &W) {
        environment.register_disconnect(
            local,
            self.source.ip(),
            self.peer.ip(),
            &self.disconnect_request(local),
        );
    }

    pub(super) fn end<W: Environment<Connection = C>>(
        &mut self,
        local: u32,
        end: End,
        event: Event<W::Error>,
        environment: &W,
    ) {
        environment.unregister_disconnect(local);
        self.enter(State::Ended(end), event, environment);
    }

    /// Ends the connection, and starts TIME_WAIT. Returns when TIME_WAIT ends.
    pub(super) fn disconnected<W: Environment<Connection = C>>(
        &mut self,
        now: Instant,
        local: u32,
        environment: &W,
    ) -> Option<Instant> {
        self.time_wait = Some(now + TIME_WAIT);
        self.end(local, End::Disconnected, Event::Disconnected, environment);
        self.time_wait
    }

    /// Postpones the repetition of `kind`, because the peer has acknowledged its receipt (MRA) and its program has not answered yet.
    fn wait(&mut self, now: Instant, mra: &PeerMessage<'_>, kind: Kind, restarts_timeout: bool) {
        if let Some(pending) = &mut self.pending
            && let Some(time) = message::read_mra(mra.mad(), kind)
        {
            pending.wait(now, time, restarts_timeout);
        }
    }

    /// Repeats the request with the next smaller path MTU. Returns when the next copy is due, or `None` if this side accepts no smaller
    /// MTU.
    fn lower_mtu(&mut self, now: Instant) -> Option<Instant> {
        let pending = self.pending.as_mut().filter(|_| self.mtu > self.min_mtu)?;
        self.mtu -= 1;
        message::put_mtu(&mut pending.mad, self.mtu);
        pending.next = now;
        Some(now)
    }

    /// Returns the fields that the peer's messages must match.
    pub(super) fn key(&self, local: u32) -> Key {
        let remote = (!matches!(self.state, State::RequestSent)).then_some(self.remote);
        Key { peer: self.peer.ip(), local, remote, qpn: self.ours.qpn }
    }

    /// Handles a message of the peer. Returns when the connection's timer is due, if that changed.
    pub(super) fn handle<W: Environment<Connection = C>>(
        &mut self,
        now: Instant,
        local: u32,
        message: &PeerMessage<'_>,
        environment: &W,
    ) -> Option<Instant> {
        // If the answer is lost, the peer repeats its message.
        let answer = |connection: &Self, mad: &Mad| {
            let _ = environment.send(connection.source.ip(), connection.peer.ip(), mad);
        };
        match (message.kind(), self.state) {
            (Kind::Reply, State::RequestSent) => {
                self.remote = message.sender();
                self.theirs = message::read_reply(message.mad(), self.ours.xrc);
                self.private = message.private_data().to_vec();
                self.register_disconnect(local, environment);
                self.enter(State::ReplyReceived, Event::ReplyReceived, environment);
            }
            (Kind::MessageReceipt, State::RequestSent) => {
                self.wait(now, message, Kind::Request, W::MRA_RESTARTS_TIMEOUT);
            }
            (Kind::MessageReceipt, State::ReplySent) => {
                self.wait(now, message, Kind::Reply, W::MRA_RESTARTS_TIMEOUT);
            }
            (Kind::Reply, State::Established) => answer(self, &self.write(Kind::ReadyToUse, local)),
            (Kind::ReadyToUse, State::ReplySent) => {
                self.private = message.private_data().to_vec();
                self.enter(State::Established, Event::Established, environment);
            }
            (Kind::Reject | Kind::DisconnectReply, State::DisconnectSent) => {
                return self.disconnected(now, local, environment);
            }
            (Kind::Reject, state) if !matches!(state, State::Ended(_)) => {
                return self.rejected(now, local, message, environment);
            }
            (Kind::DisconnectRequest, state) => {
                let (transaction, sender) = (message.transaction(), message.sender());
                answer(self, &message::message(Kind::DisconnectReply, transaction, local, sender));
                if state.is_connected() || state == State::DisconnectSent {
                    return self.disconnected(now, local, environment);
                }
            }
            // A duplicate, or a message that is not valid in this state.
            _ => {}
        }
        None
    }

    /// Handles a rejection. A Linux peer also rejects a connection that its program has accepted, if no RTU arrives in time. This side may
    /// have posted requests by then.
    fn rejected<W: Environment<Connection = C>>(
        &mut self,
        now: Instant,
        local: u32,
        message: &PeerMessage<'_>,
        environment: &W,
    ) -> Option<Instant> {
        let reason = message::read_reject(message.mad());
        let repeated = match self.state {
            State::RequestSent if reason == Reason::InvalidService as u16 => {
                self.pending.as_mut().and_then(|pending| pending.refused(now))
            }
            State::RequestSent if reason == Reason::InvalidMtu as u16 => self.lower_mtu(now),
            _ => None,
        };
        if repeated.is_none() {
            self.private = message.private_data().to_vec();
            let established = self.state == State::Established;
            let end = if established { End::Disconnected } else { End::Rejected(reason) };
            self.end(local, end, Event::Rejected(reason), environment);
        }
        repeated
    }
}

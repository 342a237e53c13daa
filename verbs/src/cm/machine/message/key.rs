//! The fields that identify the connection of a message (IBA 12.9.7; `cm_acquire_id` in Linux's `drivers/infiniband/core/cm.c`).
//!
//! The state machine acts only on a [`PeerMessage`], which only [`Key::matches`] returns. A message with one wrong field therefore changes
//! no connection.

use super::{Kind, Mad, ids, kind, private_data, transaction, word};
use std::net::IpAddr;

/// Offset of the queue pair number in a request to disconnect (IBA 12.6.10, "Remote QPN").
const DISCONNECTED_QPN: usize = 8;

/// The fields that identify a connection in the messages of its peer.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The peer's address.
    pub peer: IpAddr,
    /// This side's communication id.
    pub local: u32,
    /// The peer's communication id. `None` until a message of the peer has arrived.
    pub remote: Option<u32>,
    /// The number of this side's queue pair, as sent to the peer.
    pub qpn: u32,
}

/// A message of the peer about its connection.
pub struct PeerMessage<'a> {
    kind: Kind,
    mad: &'a Mad,
}

impl Key {
    /// Returns the message from `from`, if all its identifiers are this connection's.
    pub fn matches<'a>(&self, from: IpAddr, mad: &'a Mad) -> Option<PeerMessage<'a>> {
        let kind = kind(mad)?;
        let (sender, receiver) = ids(mad);
        // A peer that withdrew its request does not have this side's id (IBA 12.6.7.2, reason 4).
        let is_receiver =
            receiver == self.local || kind == Kind::Reject && receiver == 0 && self.remote.is_some();
        let is_sender = self.remote.is_none_or(|remote| remote == sender);
        let is_queue_pair = kind != Kind::DisconnectRequest || word(mad, DISCONNECTED_QPN) >> 8 == self.qpn;
        let is_ours = from == self.peer && is_receiver && is_sender && is_queue_pair;
        is_ours.then_some(PeerMessage { kind, mad })
    }
}

impl<'a> PeerMessage<'a> {
    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn mad(&self) -> &'a Mad {
        self.mad
    }

    /// Returns the peer's communication id.
    pub fn sender(&self) -> u32 {
        ids(self.mad).0
    }

    pub fn transaction(&self) -> u64 {
        transaction(self.mad)
    }

    pub fn private_data(&self) -> &'a [u8] {
        private_data(self.mad, self.kind)
    }
}

/// Messages for the tests of the state machine.
#[cfg(test)]
pub(crate) mod tests {
    use super::super::{BODY, message};
    use super::*;

    const KINDS: [Kind; 5] =
        [Kind::Reject, Kind::Reply, Kind::ReadyToUse, Kind::DisconnectRequest, Kind::DisconnectReply];

    /// Returns one message of each kind about a connection.
    pub fn messages(key: &Key, remote: u32) -> Vec<(Kind, Mad)> {
        let message = |kind| {
            let mut mad = message(kind, 1, remote, key.local);
            if kind == Kind::DisconnectRequest {
                super::super::put(&mut mad, DISCONNECTED_QPN, (key.qpn << 8).to_be_bytes());
            }
            (kind, mad)
        };
        KINDS.map(message).into()
    }

    /// Returns copies of these messages: one for each identifying byte, with that byte wrong, and one from another host.
    pub fn wrong_messages(key: &Key, remote: u32) -> Vec<(String, IpAddr, Mad)> {
        let other = match key.peer {
            IpAddr::V4(_) => IpAddr::from([10, 9, 9, 9]),
            IpAddr::V6(_) => IpAddr::from([0xfd00, 9, 9, 9, 9, 9, 9, 9]),
        };
        let mut wrong = Vec::new();
        for (kind, mad) in messages(key, remote) {
            wrong.push((format!("{kind:?} from another host"), other, mad));
            let sender = if key.remote.is_some() { 0..4 } else { 0..0 };
            let qpn = if kind == Kind::DisconnectRequest { 8..11 } else { 0..0 };
            for byte in sender.chain(4..8).chain(qpn) {
                let mut mad = mad;
                mad[BODY + byte] ^= 0x80;
                wrong.push((format!("{kind:?} with another byte {byte}"), key.peer, mad));
            }
        }
        wrong
    }
}

//! What the state machine needs of its device and of the program.

use super::connection::CmConnection;
use super::message::{Mad, Sent};
use datapath::siblings::{DisconnectNotice, Siblings};
use std::net::IpAddr;

/// What happens to a connection. The private data of the peer's message is [`CmConnection::private`].
#[derive(Debug, PartialEq, Eq)]
pub enum Event<E> {
    /// The peer accepts (REP).
    ReplyReceived,
    /// The peer confirms that it accepts this side's reply (RTU).
    Established,
    /// The peer rejects the connection for this reason (REJ, IBA 12.6.7.2).
    Rejected(u16),
    /// Either side has disconnected.
    Disconnected,
    /// No host is at the peer's address.
    NotFound(E),
    /// The peer does not answer.
    Unreachable,
    /// Late packets of a connection that was disconnected have expired (IBA 12.9.8.4).
    TimeWaitExit,
}

/// The bits of a communication id below the slot of the process.
const ID_BITS: u32 = 26;

/// The effects that the machine has outside itself.
pub trait Environment {
    /// A failure outside the machine.
    type Error;
    /// The program's part of a connection.
    type Connection;
    /// The program's part of a listener.
    type Listener;

    /// With an MRA the time to wait for an answer begins again, as on Linux. Otherwise what the program chose is the limit.
    const MRA_RESTARTS_TIMEOUT: bool;

    /// Sends a message, without a wait.
    fn send(&self, from: IpAddr, to: IpAddr, mad: &Mad) -> Result<Sent, Self::Error>;
    /// Returns whether a peer's Ethernet address is known; asks for it if not.
    fn poll_resolution(&self, peer: IpAddr) -> Result<bool, Self::Error>;
    /// Returns whether an address is the device's.
    fn is_own(&self, address: IpAddr) -> bool;
    /// An unpredictable number.
    fn random(&self) -> Result<u32, Self::Error>;
    /// The error of a program whose private data does not fit its message.
    fn too_long(&self, length: usize, limit: usize) -> Self::Error;

    /// The other processes of the device's interface, if processes share it. All have its queue pair 1, and each message of a peer reaches
    /// all of them. The process that has the connection, or listens to the service, handles it.
    fn siblings(&self) -> Option<&Siblings>;

    /// Returns a communication id of this process, from an unpredictable number: each process of the interface has its own.
    fn communication_id(&self, random: u32) -> u32 {
        let slot = self.siblings().map(|siblings| u32::from(siblings.slot()) << ID_BITS);
        slot.map_or(random, |slot| slot | random & ((1 << ID_BITS) - 1))
    }

    /// Returns whether this process, of those that share the interface, answers a request that has just come, for a service without a
    /// listener. `remote` is the peer's communication id.
    fn answers_for(&self, from: IpAddr, remote: u32, service: u64, at: IpAddr) -> bool {
        self.siblings().is_none_or(|siblings| siblings.answers_for(from, remote, service, at))
    }

    /// Returns whether this process answers a message that has just come, to a communication id without a connection.
    fn answers_to(&self, from: IpAddr, id: u32) -> bool {
        self.siblings().is_none_or(|siblings| siblings.answers_to(from, id))
    }

    /// Has another process send this DREQ if this process dies.
    fn register_disconnect(&self, id: u32, source: IpAddr, destination: IpAddr, disconnect_request: &Mad) {
        if let Some(siblings) = self.siblings() {
            siblings.register_disconnect(&DisconnectNotice {
                id,
                source,
                destination,
                mad: *disconnect_request,
            });
        }
    }

    /// The connection has ended: its peer knows, or has been informed.
    fn unregister_disconnect(&self, id: u32) {
        if let Some(siblings) = self.siblings() {
            siblings.unregister_disconnect(id);
        }
    }

    /// Returns whether a listener has no room for another request.
    fn is_full(&self, listener: &Self::Listener) -> bool;
    /// Reports a request to its listener. If this fails, the request is dropped, and the peer repeats it.
    fn on_request(
        &self,
        listener: &mut Self::Listener,
        local: u32,
        connection: &mut CmConnection<Self::Connection>,
    ) -> Result<(), Self::Error>;
    /// Reports an event to the program of the connection.
    fn report(&self, connection: &mut CmConnection<Self::Connection>, event: Event<Self::Error>);
}

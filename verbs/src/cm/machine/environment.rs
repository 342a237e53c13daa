//! Interface of the state machine to its device and to the program.

use super::connection::CmConnection;
use super::message::{Mad, Sent};
use datapath::siblings::{DisconnectNotice, Siblings};
use std::net::IpAddr;

/// An event of a connection. The private data of the peer's message is [`CmConnection::private`].
#[derive(Debug, PartialEq, Eq)]
pub enum Event<E> {
    /// The peer accepts (REP).
    ReplyReceived,
    /// The peer has confirmed this side's reply (RTU).
    Established,
    /// The peer rejects the connection for this reason (REJ, IBA 12.6.7.2).
    Rejected(u16),
    /// Either side has disconnected.
    Disconnected,
    /// No host is at the peer's address.
    NotFound(E),
    /// The peer does not answer.
    Unreachable,
    /// TIME_WAIT has ended: late packets of the connection have expired (IBA 12.9.8.4).
    TimeWaitExit,
}

/// Number of bits of a communication id below the slot of the process.
const ID_BITS: u32 = 26;

/// The I/O and the reports of the machine.
pub trait Environment {
    /// An error of the device.
    type Error;
    /// The program's part of a connection.
    type Connection;
    /// The program's part of a listener.
    type Listener;

    /// Whether an MRA restarts the timeout of the pending message, as on Linux. If not, the program's timeout is the limit.
    const MRA_RESTARTS_TIMEOUT: bool;

    /// Sends a message without waiting.
    fn send(&self, from: IpAddr, to: IpAddr, mad: &Mad) -> Result<Sent, Self::Error>;
    /// Returns whether a peer's Ethernet address is known. If not, starts to resolve it.
    fn poll_resolution(&self, peer: IpAddr) -> Result<bool, Self::Error>;
    /// Returns whether the device has this address.
    fn is_own(&self, address: IpAddr) -> bool;
    /// Returns an unpredictable number.
    fn random(&self) -> Result<u32, Self::Error>;
    /// Returns the error for private data that does not fit its message.
    fn too_long(&self, length: usize, limit: usize) -> Self::Error;

    /// Returns the other processes of the device's interface, if processes share it. All have its queue pair 1, and the kernel delivers
    /// each message of a peer to all of them. The process that has the connection, or listens to the service, handles it.
    fn siblings(&self) -> Option<&Siblings>;

    /// Returns a communication id from an unpredictable number. The ids of two processes of the interface always differ.
    fn communication_id(&self, random: u32) -> u32 {
        let slot = self.siblings().map(|siblings| u32::from(siblings.slot()) << ID_BITS);
        slot.map_or(random, |slot| slot | random & ((1 << ID_BITS) - 1))
    }

    /// Returns whether this process, of those that share the interface, answers a new request for a service without a listener. `remote` is
    /// the peer's communication id.
    fn answers_for(&self, from: IpAddr, remote: u32, service: u64, at: IpAddr) -> bool {
        self.siblings().is_none_or(|siblings| siblings.answers_for(from, remote, service, at))
    }

    /// Returns whether this process answers a new message to a communication id without a connection.
    fn answers_to(&self, from: IpAddr, id: u32) -> bool {
        self.siblings().is_none_or(|siblings| siblings.answers_to(from, id))
    }

    /// Registers a DREQ that another process sends if this process ends without disconnecting.
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

    /// Withdraws the registered DREQ, because the connection has ended.
    fn unregister_disconnect(&self, id: u32) {
        if let Some(siblings) = self.siblings() {
            siblings.unregister_disconnect(id);
        }
    }

    /// Returns whether the backlog of a listener is full.
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

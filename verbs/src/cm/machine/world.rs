//! What the state machine needs of its device and of the program.

use super::link::Link;
use super::message::{Mad, Sent};
use std::net::IpAddr;

/// What happens to a connection. The private data of the peer's message is [`Link::private`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<E> {
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

/// The effects that the machine has outside itself.
pub(crate) trait World {
    /// A failure outside the machine.
    type Error;
    /// The program's part of a connection.
    type Connection;
    /// The program's part of a listener.
    type Listener;

    /// With an MRA the time to wait for an answer begins again, as on Linux. Otherwise what the program chose is the limit.
    const RECEIPT_RESTARTS_TIMEOUT: bool;

    /// Sends a message, without a wait.
    fn send(&self, from: IpAddr, to: IpAddr, mad: &Mad) -> Result<Sent, Self::Error>;
    /// Returns whether a peer's Ethernet address is known; asks for it if not.
    fn finds(&self, peer: IpAddr) -> Result<bool, Self::Error>;
    /// Returns whether an address is the device's.
    fn is_own(&self, address: IpAddr) -> bool;
    /// An unpredictable number.
    fn random(&self) -> Result<u32, Self::Error>;
    /// The error of a program whose private data does not fit its message.
    fn too_long(&self, length: usize, limit: usize) -> Self::Error;

    /// Returns a communication id of this process, from an unpredictable number: each process of the interface has its own.
    fn communication_id(&self, random: u32) -> u32;
    /// Returns whether this process, of those that share the interface, answers a request for a service without a listener.
    fn answers_for(&self, service: u64, at: IpAddr) -> bool;
    /// Returns whether this process answers a message to a communication id without a connection.
    fn answers_to(&self, id: u32) -> bool;
    /// Has another process send this DREQ if this process dies.
    fn remember(&self, local: u32, from: IpAddr, to: IpAddr, disconnect_request: &Mad);
    /// The connection has ended.
    fn forget(&self, local: u32);

    /// Returns whether a listener has no room for another request.
    fn is_full(&self, listener: &Self::Listener) -> bool;
    /// Reports a request to its listener. If this fails, the request is dropped, and the peer repeats it.
    fn requested(
        &self,
        listener: &mut Self::Listener,
        local: u32,
        link: &mut Link<Self::Connection>,
    ) -> Result<(), Self::Error>;
    /// Reports an event to the program of the connection.
    fn report(&self, link: &mut Link<Self::Connection>, event: Event<Self::Error>);
}

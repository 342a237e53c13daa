//! Listeners, and the connection requests in their backlogs.

use super::connection::{Handle, Negotiated, establish};
use super::machine::State;
use super::machine::message::QpParameters;
use super::manager::{Backlog, Connections, ManagerRef};
use super::{Connection, Options, TCP_SERVICES};
use crate::channel::event_fd;
use crate::device::random;
use crate::{Device, Error, QueuePair};
use datapath::event_fd::EventFd;
use datapath::siblings::{Claim, ClaimError};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Lowest port that is chosen for a program that binds to port 0.
const FIRST_PORT: u16 = 32768;
/// Number of random ports to try before [`Error::PortTaken`].
const PORTS: u32 = 64;
/// A listener for connection requests to one port. Its descriptor is readable while requests are queued. Dropping it rejects them.
#[derive(Debug)]
pub struct Listener {
    pub(super) manager: ManagerRef,
    claim: Claim,
    address: SocketAddr,
    pub(super) event_fd: Arc<EventFd>,
}

/// A peer's connection request. Dropping it rejects the request.
#[derive(Debug)]
pub struct Request {
    handle: Handle,
    private_data: Vec<u8>,
}

impl Listener {
    /// Listens at `at`: an address of the device, or `0.0.0.0` or `::` for all. Port 0 selects a free one.
    ///
    /// # Errors
    /// Returns [`Error::PortTaken`] if another listener has the port, in this process or in another one of the interface. Returns another
    /// error if the device has no such address, the program has opened the device's queue pair 1 itself, or the core has stopped.
    pub fn bind(device: &Device, at: SocketAddr) -> Result<Self, Error> {
        let ip = at.ip();
        if !ip.is_unspecified() && !device.inner.engine.gids().contains(ip) {
            return Err(Error::value(
                "the listener's address",
                ip,
                "an address of the device, or 0.0.0.0 or ::".into(),
            ));
        }
        let manager = ManagerRef::new(&device.inner)?;
        let event_fd = event_fd(libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE)?;
        let tries = if at.port() == 0 { PORTS } else { 1 };
        for _ in 0..tries {
            let port = if at.port() == 0 { free_port()? } else { at.port() };
            let service = TCP_SERVICES | u64::from(port);
            let claim = Claim { service, at: ip, family_only: ip.is_ipv4(), shared: false, listens: true };
            if take(&manager, &claim, &event_fd)? {
                return Ok(Self { manager, claim, address: SocketAddr::new(ip, port), event_fd });
            }
        }
        Err(Error::PortTaken { at })
    }

    /// Returns the address of the listener.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn accept(&self) -> Result<Request, Error> {
        self.manager
            .wait(&self.event_fd, |machine| self.take(machine))?
            .and_then(|incoming| self.request(incoming))
    }

    /// Waits up to `timeout` for a request. Returns `None` if none arrived.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Option<Request>, Error> {
        let until = Instant::now().checked_add(timeout);
        let incoming = self.manager.wait_until(&self.event_fd, until, |machine| self.take(machine))?;
        incoming.transpose()?.map(|incoming| self.request(incoming)).transpose()
    }

    /// Returns a queued request, if there is one. Never waits.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn try_accept(&self) -> Result<Option<Request>, Error> {
        let incoming = self.manager.poll_ready(|machine| self.take(machine))?;
        incoming.transpose()?.map(|incoming| self.request(incoming)).transpose()
    }

    pub(super) fn take(&self, machine: &mut Connections) -> Option<Result<IncomingRequest, Error>> {
        let listening = machine.listeners.iter_mut().find(|other| other.claim == self.claim)?;
        let (local, event_fd) = match listening.program.take(|| event_fd(libc::EFD_NONBLOCK))? {
            Ok(incoming) => incoming,
            Err(error) => return Some(Err(error)),
        };
        let connection = machine.connection(local)?;
        connection.program.as_mut()?.event_fd = Some(event_fd.clone());
        Some(Ok(IncomingRequest {
            local,
            peer: connection.peer,
            private: connection.private.clone(),
            event_fd,
        }))
    }

    pub(super) fn request(&self, incoming: IncomingRequest) -> Result<Request, Error> {
        let IncomingRequest { local, peer, private, event_fd } = incoming;
        let manager = ManagerRef::new(self.manager.device())?;
        Ok(Request { handle: Handle { manager, local, peer, event_fd }, private_data: private })
    }
}

pub(super) struct IncomingRequest {
    local: u32,
    peer: SocketAddr,
    private: Vec<u8>,
    event_fd: Arc<EventFd>,
}

/// Claims a service, first among the processes of the interface, then in this one. Returns `false` if another listener has a conflicting
/// claim.
fn take(manager: &ManagerRef, claim: &Claim, event_fd: &Arc<EventFd>) -> Result<bool, Error> {
    let siblings = manager.device().engine.siblings();
    if let Some(Err(error)) = siblings.map(|siblings| siblings.claim(claim)) {
        return match error {
            ClaimError::Taken { .. } => Ok(false),
            error => Err(Error::Claim { port: claim.service as u16, source: error }),
        };
    }
    let free = manager.act(|machine, _, _| machine.listen(*claim, false, Backlog::new(event_fd.clone())));
    if let (Ok(false) | Err(_), Some(siblings)) = (&free, siblings) {
        siblings.release(claim);
    }
    free
}

/// Returns a random port from 32768, for a listener at port 0 and for the side that connects.
pub(super) fn free_port() -> Result<u16, Error> {
    Ok(FIRST_PORT | u16::from_ne_bytes(random()?))
}

impl Drop for Listener {
    fn drop(&mut self) {
        // `act` fails in a forked process, which must not end its parent's listener.
        let _ = self.manager.act(|machine, now, port| {
            let backlog = machine.unlisten(&self.claim);
            let requests = backlog.into_iter().flat_map(|backlog| backlog.requests);
            requests.for_each(|local| machine.abandon(local, now, port));
        });
        if let Some(siblings) = self.manager.device().engine.siblings() {
            siblings.release(&self.claim);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.event_fd.as_raw_fd()
    }
}

impl Request {
    /// Returns the peer's address and source port.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.handle.peer
    }

    /// Returns the private data of the peer's request: 56 bytes, zero-padded.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Connects `qp` to the peer, and waits for the peer's confirmation (RTU). Post receives before this call: the peer may send as soon as
    /// the reply has arrived, and may even have ended the connection when this call returns.
    ///
    /// # Errors
    /// Returns [`Error::NoAnswer`] if the peer does not confirm the connection in time, and [`Error::Ended`] if it has withdrawn its
    /// request. Returns another error if the queue pair belongs to another device or is not in Init, or a setting is out of range. The
    /// queue pair is then destroyed, and the peer is informed.
    pub fn accept(self, qp: QueuePair, options: &Options) -> Result<Connection, Error> {
        let mut connection = self.begin(qp, options)?;
        connection.wait_established(options.timeout)?;
        Ok(connection)
    }

    /// Moves the queue pair to RTS, and sends the reply.
    pub(super) fn begin(self, mut qp: QueuePair, options: &Options) -> Result<Connection, Error> {
        let Self { handle, .. } = self;
        let wanted = &options.connection;
        handle.check(&qp, wanted)?;
        let (qpn, peer) = (qp.qpn().get(), handle.peer);
        let offers = qp.endpoint().selective_repeat;
        let negotiated = handle.manager.act(|machine, _, _| {
            let connection = machine.connection(handle.local)?;
            let State::RequestReceived = connection.state else { return None };
            let depth = wanted.max_rd_atomic.min(connection.ours.initiator_depth);
            let selective_repeat = offers && connection.theirs.selective_repeat;
            let rnr_retry = wanted.rnr_retry;
            connection.ours =
                QpParameters { qpn, rnr_retry, initiator_depth: depth, selective_repeat, ..connection.ours };
            connection.qpn = Some(qpn);
            Some(Negotiated::of(connection))
        })?;
        if let Err(error) = establish(&mut qp, &negotiated.ok_or(Error::Ended { peer })?, wanted) {
            // A REJ that arrives in the meantime moves the queue pair to ERR.
            let state = |machine: &mut Connections| {
                Some(matches!(machine.connection(handle.local)?.state, State::RequestReceived))
            };
            let is_waiting = handle.manager.act(|machine, _, _| state(machine))?.unwrap_or(false);
            return Err(if is_waiting { error } else { Error::Ended { peer } });
        }
        let private = &options.private_data;
        handle
            .manager
            .act(|machine, now, port| machine.reply(handle.local, private, options.timeout, now, port))??;
        Ok(Connection::new(handle, qp, self.private_data))
    }

    /// Rejects the request. The peer's program receives `private_data`, up to 148 bytes.
    ///
    /// # Errors
    /// Returns an error if the private data is too long, or the core has stopped.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.handle.manager.act(|machine, _, port| machine.reject(self.handle.local, private_data, port))?
    }
}

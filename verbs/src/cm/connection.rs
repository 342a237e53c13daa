//! A queue pair with a connection: requests it, and ends it.

use super::listener::free_port;
use super::machine::message::{QpParameters, SMALLEST_MTU};
use super::machine::{CmConnection, End, State};
use super::manager::{ConnectionNotifier, Connections, ManagerRef};
use super::{Options, TCP_SERVICES};
use crate::channel::event_fd;
use crate::errors::{PostError, PostListError};
use crate::queue_pair::random_psn;
use crate::state::AckTimeout;
use crate::{ConnectOptions, Error, Mtu, Psn, QpEndpoint, Qpn, QueuePair, RecvRequest, SendRequest};
use datapath::event_fd::EventFd;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A reference to a connection of the state machine. Dropping it abandons the connection.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) manager: ManagerRef,
    pub(super) local: u32,
    pub(super) peer: SocketAddr,
    pub(super) event_fd: Arc<EventFd>,
}

/// A connection and its queue pair. Requests are posted to it as to a [`QueuePair`]. When either side ends the connection, the queue pair
/// moves to the error state, which flushes outstanding requests, and the connection's descriptor becomes readable.
///
/// Dropping it destroys the queue pair and sends DREQ. While the device has another listener or connection, DREQ is repeated for 2 s until
/// the peer answers, as in librdmacm. Dropping the device's last listener or connection sends DREQ once: if it is lost, the peer's next
/// request fails. [`disconnect`](Self::disconnect) waits for the peer's answer.
#[derive(Debug)]
pub struct Connection {
    // Dropped before `qp`, so that DREQ is sent first.
    handle: Handle,
    qp: QueuePair,
    private_data: Vec<u8>,
}

pub(super) struct Negotiated {
    source: SocketAddr,
    peer: SocketAddr,
    ours: QpParameters,
    theirs: QpParameters,
    mtu: u8,
    ack_timeout: u8,
    retry_count: u8,
    traffic_class: u8,
}

impl Negotiated {
    pub(super) fn of(connection: &CmConnection<ConnectionNotifier>) -> Self {
        let CmConnection { source, peer, ours, theirs, mtu, ack_timeout, retry_count, traffic_class, .. } =
            *connection;
        Self { source, peer, ours, theirs, mtu, ack_timeout, retry_count, traffic_class }
    }
}

/// Connects a queue pair to its peer. Each side begins with the PSN that the other side chose (IBA 12.7.31).
pub(super) fn establish(
    qp: &mut QueuePair,
    negotiated: &Negotiated,
    options: &ConnectOptions,
) -> Result<(), Error> {
    let Negotiated { source, peer, ours, theirs, .. } = negotiated;
    let (ip, psn, max_rd_atomic) = (source.ip(), Psn::new(theirs.psn), ours.responder_resources);
    let here = QpEndpoint { ip, psn, max_rd_atomic, ..qp.endpoint() };
    let there = QpEndpoint {
        ip: peer.ip(),
        qpn: Qpn::new(theirs.qpn),
        psn: Psn::new(ours.psn),
        mtu: here.mtu,
        max_rd_atomic: theirs.responder_resources,
        selective_repeat: theirs.selective_repeat,
    };
    // Code 0 disables the timeout, so a lost packet would never be resent.
    let named = (negotiated.ack_timeout != 0).then(|| AckTimeout::new(negotiated.ack_timeout));
    let options = ConnectOptions {
        ack_timeout: named.unwrap_or(options.ack_timeout),
        retry_count: negotiated.retry_count,
        rnr_retry: theirs.rnr_retry,
        mtu: Mtu::from_code(negotiated.mtu),
        max_rd_atomic: ours.initiator_depth,
        traffic_class: match options.traffic_class {
            0 => negotiated.traffic_class,
            own => own,
        },
        ..*options
    };
    qp.connect_as(&here, &there, &options)
}

/// Connects `qp` to the program that listens at `to`.
///
/// # Errors
/// Returns [`Error::Rejected`] if the peer refuses or no program listens there, and [`Error::NoAnswer`] if the peer does not answer in
/// time. Returns another error if the peer's host is not found, the queue pair is not in Init, or a setting is out of range. The queue pair
/// is then destroyed, and the peer is informed.
pub fn connect(qp: QueuePair, to: SocketAddr, options: &Options) -> Result<Connection, Error> {
    let connecting = begin(qp, to, options)?;
    let Connection { handle, .. } = &connecting;
    let negotiated =
        handle.manager.wait(&handle.event_fd, |machine| handle.answer(machine, options.timeout))?;
    connecting.finish(negotiated?, options)
}

/// Sends the request. The connection is usable only after [`Connection::finish`].
pub(super) fn begin(qp: QueuePair, to: SocketAddr, options: &Options) -> Result<Connection, Error> {
    let (wanted, info) = (&options.connection, qp.device.current());
    check(&qp, wanted)?;
    let mtu = wanted.path_mtu(info.mtu)?;
    let manager = ManagerRef::new(&qp.device)?;
    let source = info.gids.get(info.gid_towards(to.ip()));
    let source = source.ok_or_else(|| Error::NoAddress { port: info.port.clone() })?;
    let event_fd = event_fd(libc::EFD_NONBLOCK)?;
    let connection = CmConnection {
        ours: QpParameters {
            qpn: qp.qpn().get(),
            psn: random_psn()?.get(),
            responder_resources: info.limits.max_rd_atomic,
            initiator_depth: wanted.max_rd_atomic,
            rnr_retry: wanted.rnr_retry,
            selective_repeat: qp.endpoint().selective_repeat,
            ..QpParameters::default()
        },
        mtu: mtu.code(),
        // A path MTU that the program chose is not lowered.
        min_mtu: wanted.mtu.map_or(SMALLEST_MTU, Mtu::code),
        ack_timeout: wanted.ack_timeout.code(),
        retry_count: wanted.retry_count,
        traffic_class: wanted.traffic_class,
        qpn: Some(qp.qpn().get()),
        program: Some(ConnectionNotifier { event_fd: Some(event_fd.clone()), error: None }),
        ..CmConnection::new(SocketAddr::new(source, free_port()?), to)
    };
    let request = (TCP_SERVICES | u64::from(to.port()), &options.private_data[..]);
    let local = manager
        .act(|machine, now, port| machine.request(connection, request, options.timeout, now, port))??;
    Ok(Connection::new(Handle { manager, local, peer: to, event_fd }, qp, Vec::new()))
}

fn check(qp: &QueuePair, wanted: &ConnectOptions) -> Result<(), Error> {
    qp.check_new()?;
    wanted.check(&qp.device.info)
}

impl Handle {
    /// Checks that `qp` belongs to this device and can be connected.
    pub(super) fn check(&self, qp: &QueuePair, wanted: &ConnectOptions) -> Result<(), Error> {
        if !Arc::ptr_eq(&qp.device, self.manager.device()) {
            return Err(Error::OtherDevice { what: "the queue pair" });
        }
        check(qp, wanted)
    }

    /// Returns the error of a connection that has ended, or `None` if it has not.
    fn error(&self, machine: &mut Connections, timeout: Duration) -> Option<Error> {
        let peer = self.peer;
        let Some(connection) = machine.connection(self.local) else { return Some(Error::Ended { peer }) };
        let State::Ended(end) = connection.state else { return None };
        let private_data = std::mem::take(&mut connection.private);
        let error = connection.program.as_mut().and_then(|notifier| notifier.error.take());
        Some(match end {
            End::Disconnected => Error::Ended { peer },
            End::Rejected(reason) => Error::Rejected { peer, reason, private_data },
            End::Unreachable => Error::NoAnswer { peer, timeout },
            End::NotFound => error.unwrap_or(Error::NoAnswer { peer, timeout }),
        })
    }

    /// Returns the outcome of a request, or `None` while it is pending.
    pub(super) fn answer(
        &self,
        machine: &mut Connections,
        timeout: Duration,
    ) -> Option<Result<(Negotiated, Vec<u8>), Error>> {
        // Clears the event of the change that this call examines.
        let _ = self.event_fd.take();
        if let Some(error) = self.error(machine, timeout) {
            return Some(Err(error));
        }
        let connection = machine.connection(self.local)?;
        let State::ReplyReceived = connection.state else { return None };
        Some(Ok((Negotiated::of(connection), connection.private.clone())))
    }

    /// Returns the outcome of a reply, or `None` while it is pending. A connection that was established and has ended since counts as
    /// established, because the program may still poll its completions.
    pub(super) fn established(
        &self,
        machine: &mut Connections,
        timeout: Duration,
    ) -> Option<Result<(), Error>> {
        let ended = self.has_ended(machine);
        match machine.connection(self.local).map(|connection| &connection.state) {
            Some(State::Established | State::Ended(End::Disconnected)) => Some(Ok(())),
            // The peer has withdrawn its request.
            Some(State::Ended(End::Rejected(_))) => Some(Err(Error::Ended { peer: self.peer })),
            _ if ended => self.error(machine, timeout).map(Err),
            _ => None,
        }
    }

    /// Returns whether the connection has ended. If so, its descriptor stays readable.
    pub(super) fn has_ended(&self, machine: &mut Connections) -> bool {
        let ended = machine
            .connection(self.local)
            .is_none_or(|connection| matches!(connection.state, State::Ended(_)));
        if !ended {
            let _ = self.event_fd.take();
        }
        ended
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // `act` fails in a forked process, which must not end its parent's connection.
        let _ = self.manager.act(|machine, now, port| machine.abandon(self.local, now, port));
    }
}

impl Connection {
    pub(super) fn new(handle: Handle, qp: QueuePair, private_data: Vec<u8>) -> Self {
        Self { handle, qp, private_data }
    }

    #[cfg(feature = "tokio")]
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Moves the queue pair to RTS after the peer's reply, and sends RTU.
    pub(super) fn finish(
        mut self,
        (negotiated, private_data): (Negotiated, Vec<u8>),
        options: &Options,
    ) -> Result<Self, Error> {
        establish(&mut self.qp, &negotiated, &options.connection)?;
        self.private_data = private_data;
        let Handle { manager, local, .. } = &self.handle;
        manager.act(|machine, _, port| machine.ready(*local, port))?;
        Ok(self)
    }

    pub(super) fn wait_established(&mut self, timeout: Duration) -> Result<(), Error> {
        let Handle { manager, event_fd, .. } = &self.handle;
        manager.wait(event_fd, |machine| self.handle.established(machine, timeout))?
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.handle.peer
    }

    /// Returns the peer's private data: 56 bytes of its request or 196 of its reply, padded with zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns whether either side has ended the connection.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn has_ended(&self) -> Result<bool, Error> {
        let ended = self.handle.manager.poll_ready(|machine| self.handle.has_ended(machine).then_some(()))?;
        Ok(ended.is_some())
    }

    /// Waits until either side has ended the connection.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn wait_end(&mut self) -> Result<(), Error> {
        let Handle { manager, event_fd, .. } = &self.handle;
        manager.wait(event_fd, |machine| self.handle.has_ended(machine).then_some(()))
    }

    /// Waits up to `timeout` until either side has ended the connection. Returns whether it has ended.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn wait_end_for(&mut self, timeout: Duration) -> Result<bool, Error> {
        let Handle { manager, event_fd, .. } = &self.handle;
        let ended = |machine: &mut Connections| self.handle.has_ended(machine).then_some(());
        Ok(manager.wait_until(event_fd, Instant::now().checked_add(timeout), ended)?.is_some())
    }

    /// Posts a send request, as [`QueuePair::post_send`].
    ///
    /// # Errors
    /// As [`QueuePair::post_send`].
    pub fn post_send(&mut self, request: SendRequest) -> Result<(), PostError> {
        self.qp.post_send(request)
    }

    /// Posts send requests, as [`QueuePair::post_send_list`].
    ///
    /// # Errors
    /// As [`QueuePair::post_send_list`].
    pub fn post_send_list(
        &mut self,
        requests: impl IntoIterator<Item = SendRequest>,
    ) -> Result<usize, PostListError> {
        self.qp.post_send_list(requests)
    }

    /// Posts a receive request, as [`QueuePair::post_recv`].
    ///
    /// # Errors
    /// As [`QueuePair::post_recv`].
    pub fn post_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        self.qp.post_recv(request)
    }

    /// Posts receive requests, as [`QueuePair::post_recv_list`].
    ///
    /// # Errors
    /// As [`QueuePair::post_recv_list`].
    pub fn post_recv_list(
        &mut self,
        requests: impl IntoIterator<Item = RecvRequest>,
    ) -> Result<usize, PostListError> {
        self.qp.post_recv_list(requests)
    }

    /// Ends the connection, and waits up to 2 s for the peer's answer. Outstanding requests complete as flushed. Returns at once if the
    /// connection has ended already.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn disconnect(&mut self) -> Result<(), Error> {
        self.begin_disconnect()?;
        self.wait_end()
    }

    pub(super) fn begin_disconnect(&mut self) -> Result<(), Error> {
        self.qp.fail()?;
        let Handle { manager, local, .. } = &self.handle;
        manager.act(|machine, now, port| machine.disconnect(*local, now, port))
    }
}

impl Deref for Connection {
    type Target = QueuePair;

    fn deref(&self) -> &QueuePair {
        &self.qp
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.event_fd.as_fd()
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.handle.event_fd.as_raw_fd()
    }
}

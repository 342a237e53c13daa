//! A connected queue pair, from the first message to the last.

use super::listener::free_port;
use super::machine::message::{SMALLEST_MTU, Side};
use super::machine::{End, Link, State};
use super::manager::{Connections, User, Watcher};
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

/// A reference to a connection of the state machine. Dropping it gives the connection up.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) user: User,
    pub(super) local: u32,
    pub(super) peer: SocketAddr,
    pub(super) bell: Arc<EventFd>,
}

/// A connection and its queue pair. Requests are posted to it as to a [`QueuePair`]. When either side ends the connection, the queue pair
/// moves to the error state, which flushes outstanding requests, and the connection's descriptor becomes readable.
///
/// Dropping it destroys the queue pair and sends DREQ. While the device has another listener or connection, DREQ is repeated for 2 s until
/// the peer answers, as librdmacm does. Dropping the device's last one sends DREQ once: if it is lost, the peer's next request fails.
/// [`disconnect`](Self::disconnect) waits for the peer's answer.
#[derive(Debug)]
pub struct Connection {
    // Dropped before `qp`, so that the peer is informed first.
    handle: Handle,
    qp: QueuePair,
    private_data: Vec<u8>,
}

pub(super) struct Agreed {
    source: SocketAddr,
    peer: SocketAddr,
    ours: Side,
    theirs: Side,
    mtu: u8,
    ack_timeout: u8,
    retry_count: u8,
    traffic_class: u8,
}

impl Agreed {
    pub(super) fn of(link: &Link<Watcher>) -> Self {
        let Link { source, peer, ours, theirs, mtu, ack_timeout, retry_count, traffic_class, .. } = *link;
        Self { source, peer, ours, theirs, mtu, ack_timeout, retry_count, traffic_class }
    }
}

/// Connects a queue pair to its peer. Each side begins with the PSN that the other side chose (IBA 12.7.31).
pub(super) fn establish(qp: &mut QueuePair, agreed: &Agreed, options: &ConnectOptions) -> Result<(), Error> {
    let Agreed { source, peer, ours, theirs, .. } = agreed;
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
    // Code 0 disables the timeout: a lost packet would never be sent again.
    let named = (agreed.ack_timeout != 0).then(|| AckTimeout::new(agreed.ack_timeout));
    let options = ConnectOptions {
        ack_timeout: named.unwrap_or(options.ack_timeout),
        retry_count: agreed.retry_count,
        rnr_retry: theirs.rnr_retry,
        mtu: Mtu::from_code(agreed.mtu),
        max_rd_atomic: ours.initiator_depth,
        traffic_class: match options.traffic_class {
            0 => agreed.traffic_class,
            own => own,
        },
        ..*options
    };
    qp.connect_as(&here, &there, &options)
}

/// Connects `qp` to the program that listens at `to`.
///
/// # Errors
/// Returns [`Error::Rejected`] if the peer refuses or no program listens there, [`Error::NoAnswer`] if the peer does not answer in time, and
/// another error if the peer's host is not found, the queue pair is not in Init, or a setting is out of range. The queue pair is then
/// destroyed, and the peer is informed.
pub fn connect(qp: QueuePair, to: SocketAddr, options: &Options) -> Result<Connection, Error> {
    let connecting = begin(qp, to, options)?;
    let Connection { handle, .. } = &connecting;
    let agreed = handle.user.wait(&handle.bell, |machine| handle.answer(machine, options.timeout))?;
    connecting.finish(agreed?, options)
}

/// Sends the request. The connection is usable only after [`Connection::finish`].
pub(super) fn begin(qp: QueuePair, to: SocketAddr, options: &Options) -> Result<Connection, Error> {
    let (wanted, info) = (&options.connection, qp.device.current());
    check(&qp, wanted)?;
    let mtu = wanted.path_mtu(info.mtu)?;
    let user = User::new(&qp.device)?;
    let source = info.gids.get(info.gid_towards(to.ip()));
    let source = source.ok_or_else(|| Error::NoAddress { port: info.port.clone() })?;
    let bell = event_fd(libc::EFD_NONBLOCK)?;
    let link = Link {
        ours: Side {
            qpn: qp.qpn().get(),
            psn: random_psn()?.get(),
            responder_resources: info.limits.max_rd_atomic,
            initiator_depth: wanted.max_rd_atomic,
            rnr_retry: wanted.rnr_retry,
            selective_repeat: qp.endpoint().selective_repeat,
            ..Side::default()
        },
        mtu: mtu.code(),
        // A path MTU that the program chose is not lowered.
        least_mtu: wanted.mtu.map_or(SMALLEST_MTU, Mtu::code),
        ack_timeout: wanted.ack_timeout.code(),
        retry_count: wanted.retry_count,
        traffic_class: wanted.traffic_class,
        qpn: Some(qp.qpn().get()),
        program: Some(Watcher { bell: Some(bell.clone()), error: None }),
        ..Link::new(SocketAddr::new(source, free_port()?), to)
    };
    let request = (TCP_SERVICES | u64::from(to.port()), &options.private_data[..]);
    let local =
        user.act(|machine, now, port| machine.request(link, request, options.timeout, now, port))??;
    Ok(Connection::new(Handle { user, local, peer: to, bell }, qp, Vec::new()))
}

fn check(qp: &QueuePair, wanted: &ConnectOptions) -> Result<(), Error> {
    qp.check_new()?;
    wanted.check(&qp.device.info)
}

impl Handle {
    /// Checks that `qp` belongs to this device and can be connected.
    pub(super) fn check(&self, qp: &QueuePair, wanted: &ConnectOptions) -> Result<(), Error> {
        if !Arc::ptr_eq(&qp.device, self.user.device()) {
            return Err(Error::OtherDevice { what: "the queue pair" });
        }
        check(qp, wanted)
    }

    /// Returns the error of a connection that has ended, or `None` if it has not.
    fn error(&self, machine: &mut Connections, timeout: Duration) -> Option<Error> {
        let peer = self.peer;
        let Some(link) = machine.link(self.local) else { return Some(Error::Ended { peer }) };
        let State::Ended(end) = link.state else { return None };
        let private_data = std::mem::take(&mut link.private);
        let error = link.program.as_mut().and_then(|watcher| watcher.error.take());
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
    ) -> Option<Result<(Agreed, Vec<u8>), Error>> {
        // Clears the event of the change that this call examines.
        let _ = self.bell.take();
        if let Some(error) = self.error(machine, timeout) {
            return Some(Err(error));
        }
        let link = machine.link(self.local)?;
        let State::ReplyReceived = link.state else { return None };
        Some(Ok((Agreed::of(link), link.private.clone())))
    }

    /// Returns the outcome of a reply, or `None` while it is pending. A connection that was established and has ended since counts as
    /// established, because the program may still poll its completions.
    pub(super) fn established(
        &self,
        machine: &mut Connections,
        timeout: Duration,
    ) -> Option<Result<(), Error>> {
        let ended = self.has_ended(machine);
        match machine.link(self.local).map(|link| &link.state) {
            Some(State::Established | State::Ended(End::Disconnected)) => Some(Ok(())),
            // The peer has withdrawn its request.
            Some(State::Ended(End::Rejected(_))) => Some(Err(Error::Ended { peer: self.peer })),
            _ if ended => self.error(machine, timeout).map(Err),
            _ => None,
        }
    }

    /// Returns whether the connection has ended. If so, its descriptor stays readable.
    pub(super) fn has_ended(&self, machine: &mut Connections) -> bool {
        let ended = machine.link(self.local).is_none_or(|link| matches!(link.state, State::Ended(_)));
        if !ended {
            let _ = self.bell.take();
        }
        ended
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // `act` fails in a forked process, which must not end its parent's connection.
        let _ = self.user.act(|machine, now, port| machine.give_up(self.local, now, port));
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
        (agreed, private_data): (Agreed, Vec<u8>),
        options: &Options,
    ) -> Result<Self, Error> {
        establish(&mut self.qp, &agreed, &options.connection)?;
        self.private_data = private_data;
        let Handle { user, local, .. } = &self.handle;
        user.act(|machine, _, port| machine.ready(*local, port))?;
        Ok(self)
    }

    pub(super) fn wait_established(&mut self, timeout: Duration) -> Result<(), Error> {
        let Handle { user, bell, .. } = &self.handle;
        user.wait(bell, |machine| self.handle.established(machine, timeout))?
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
        let ended = self.handle.user.look(|machine| self.handle.has_ended(machine).then_some(()))?;
        Ok(ended.is_some())
    }

    /// Waits until either side has ended the connection.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn wait_end(&mut self) -> Result<(), Error> {
        let Handle { user, bell, .. } = &self.handle;
        user.wait(bell, |machine| self.handle.has_ended(machine).then_some(()))
    }

    /// Waits up to `timeout` until either side has ended the connection. Returns whether it has ended.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn wait_end_for(&mut self, timeout: Duration) -> Result<bool, Error> {
        let Handle { user, bell, .. } = &self.handle;
        let ended = |machine: &mut Connections| self.handle.has_ended(machine).then_some(());
        Ok(user.wait_until(bell, Instant::now().checked_add(timeout), ended)?.is_some())
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
        let Handle { user, local, .. } = &self.handle;
        user.act(|machine, now, port| machine.disconnect(*local, now, port))
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
        self.handle.bell.as_fd()
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.handle.bell.as_raw_fd()
    }
}

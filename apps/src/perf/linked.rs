//! A queue pair of a test. The addresses of the control connection connect it, or the connection manager (`-R`).

use super::link::failed;
use super::plan::Plan;
use crate::failure::Failure;
use roce::Qpn;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use verbs::cm::{self, Connection, Listener, Options, Request};
use verbs::errors::{PostError, PostListError};
use verbs::observe::QpReport;
use verbs::service::Any;
use verbs::{Device, QpEndpoint, QueuePair, QueuePairBuilder, RecvRequest, SendRequest};

/// The time limit for the connection of one queue pair.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// The time after which a wait for a connection looks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// A queue pair and its kind of connection.
#[derive(Debug)]
pub enum LinkedQp {
    /// Connected with the addresses of the control connection.
    Direct(QueuePair<Any>),
    /// To be connected by the connection manager.
    Unconnected(QueuePair),
    /// Connected by the connection manager.
    Managed(Connection),
}

macro_rules! each {
    ($linked:ident, $qp:ident => $call:expr) => {
        match $linked {
            LinkedQp::Direct($qp) => $call,
            LinkedQp::Unconnected($qp) => $call,
            LinkedQp::Managed($qp) => $call,
        }
    };
}

impl LinkedQp {
    /// Creates a queue pair for the service of `plan`, for the kind of connection in `plan`.
    ///
    /// # Errors
    /// Returns a failure if a limit of the device is exceeded.
    pub fn build(builder: QueuePairBuilder, plan: &Plan) -> Result<Self, Failure> {
        match plan.rdma_cm {
            true => builder.build().map(Self::Unconnected),
            false => builder.service(plan.connection.service()).build().map(Self::Direct),
        }
        .map_err(failed)
    }

    pub fn qpn(&self) -> Qpn {
        each!(self, qp => qp.qpn())
    }

    pub fn endpoint(&self) -> QpEndpoint {
        each!(self, qp => qp.endpoint())
    }

    /// Reports on the queue pair, as [`QueuePair::query`].
    pub fn query(&self) -> Result<QpReport, verbs::Error> {
        each!(self, qp => qp.query())
    }

    /// Posts a send request, as [`QueuePair::post_send`].
    pub fn post_send(&mut self, request: SendRequest) -> Result<(), PostError> {
        each!(self, qp => qp.post_send(request))
    }

    /// Posts send requests, as [`QueuePair::post_send_list`].
    pub fn post_send_list(
        &mut self,
        requests: impl IntoIterator<Item = SendRequest>,
    ) -> Result<usize, PostListError> {
        each!(self, qp => qp.post_send_list(requests))
    }

    /// Posts a receive request, as [`QueuePair::post_recv`].
    pub fn post_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        each!(self, qp => qp.post_recv(request))
    }

    pub const fn is_managed(&self) -> bool {
        matches!(self, Self::Managed(_))
    }

    /// Connects the queue pair by the connection manager: to the server at `to`, or as a server with the next request of `listener`.
    ///
    /// # Errors
    /// Returns a failure if the other side refuses or does not answer in time.
    pub fn managed(
        self,
        listener: Option<&Listener>,
        to: SocketAddr,
        options: &Options,
    ) -> Result<Self, Failure> {
        let Self::Unconnected(qp) = self else { return Ok(self) };
        let connection = match listener {
            None => cm::connect(qp, to, options).map_err(failed)?,
            Some(listener) => next_request(listener)?.accept(qp, options).map_err(failed)?,
        };
        Ok(Self::Managed(connection))
    }
}

/// Waits for a connection request. A signal ends the wait.
fn next_request(listener: &Listener) -> Result<Request, Failure> {
    let until = Instant::now() + CONNECT_TIMEOUT;
    loop {
        crate::signals::check()?;
        if let Some(request) = listener.accept_timeout(SIGNAL_INTERVAL).map_err(failed)? {
            return Ok(request);
        }
        if Instant::now() >= until {
            return Err(Failure::run("the client did not connect by rdma_cm within 60 s; check its output"));
        }
    }
}

/// Listens for the client's queue pairs on `port` at all addresses of the family of `qp`, in the connection manager's port space of TCP.
///
/// # Errors
/// Returns a failure if another program on the interface listens on that port.
pub fn listen(device: &Device, qp: &LinkedQp, port: u16) -> Result<Listener, Failure> {
    let any = match qp.endpoint().ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    Listener::bind(device, SocketAddr::new(any, port))
        .map_err(|error| Failure::run(format!("-R: {error}; choose another -p on both sides")))
}

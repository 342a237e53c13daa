//! Transport services as types: a queue pair accepts only requests that its service supports.
//!
//! | service | type | created by | `post_send` accepts |
//! |---|---|---|---|
//! | reliable connection | [`QueuePair<Rc>`](crate::QueuePair), the default | `build()` | [`SendRequest`] |
//! | unreliable connection | `QueuePair<Uc>` | [`unreliable()`](crate::QueuePairBuilder::unreliable) | [`Request<Uc>`] |
//! | datagrams | `QueuePair<Ud>` | [`datagrams()`](crate::QueuePairBuilder::datagrams) | [`Request<Ud>`] |
//! | raw packets | `QueuePair<Raw>` | [`raw()`](crate::QueuePairBuilder::raw) | [`Request<Raw>`] |
//! | chosen at run time, or XRC | `QueuePair<Any>` | [`service(..)`](crate::QueuePairBuilder::service) | [`SendRequest`] |
//!
//! Datagrams carry no WRITE, and an unreliable connection no READ:
//!
//! ```compile_fail,E0308
//! # use ferroce_verbs::{QueuePair, Remote, SendRequest, Sge, service::Ud};
//! fn write(qp: &mut QueuePair<Ud>, data: Sge, remote: Remote) {
//!     let _ = qp.post_send(SendRequest::write(1, data, remote));
//! }
//! ```
//! ```compile_fail,E0599
//! # use ferroce_verbs::{QueuePair, Remote, Sge, service::{Request, Uc}};
//! fn read(qp: &mut QueuePair<Uc>, into: Sge, remote: Remote) {
//!     let _ = qp.post_send(Request::<Uc>::read(1, into, remote));
//! }
//! ```
//!
//! Datagrams have no peer to connect to, and a connection cannot be opened without a peer:
//!
//! ```compile_fail,E0599
//! # use ferroce_verbs::{ConnectOptions, QpEndpoint, QueuePair, service::Ud};
//! fn connect(qp: &mut QueuePair<Ud>, peer: &QpEndpoint) {
//!     let _ = qp.connect(peer, &ConnectOptions::default());
//! }
//! ```
//! ```compile_fail,E0599
//! # use ferroce_verbs::QueuePair;
//! fn open(qp: &mut QueuePair) {
//!     let _ = qp.open(None);
//! }
//! ```
//! ```compile_fail,E0308
//! # use ferroce_verbs::{cm, QueuePair, service::Ud};
//! fn connect(qp: QueuePair<Ud>) {
//!     let _ = cm::connect(qp, "10.0.0.1:7471".parse().unwrap(), &cm::Options::default());
//! }
//! ```
//!
//! The same functions with requests that the service supports:
//!
//! ```
//! # use ferroce_verbs::{Datagram, QueuePair, Remote, Sge, service::{Request, Uc, Ud}};
//! fn send(qp: &mut QueuePair<Ud>, data: Sge, to: Datagram) {
//!     let _ = qp.post_send(Request::send_to(1, data, to));
//! }
//! fn write(qp: &mut QueuePair<Uc>, data: Sge, remote: Remote) {
//!     let _ = qp.post_send(Request::write(1, data, remote).unsignalled());
//! }
//! ```

use crate::{Data, Datagram, Remote, Rkey, SendRequest};
use roce::Binding;
use std::marker::PhantomData;

/// The reliable connection. `post_send` refuses SEND to an address handle at run time, the only operation that it does not support.
#[derive(Clone, Copy, Debug)]
pub enum Rc {}

/// The unreliable connection: SEND and WRITE without acknowledgements.
#[derive(Clone, Copy, Debug)]
pub enum Uc {}

/// Unreliable datagrams: SEND to any queue pair, one packet each.
#[derive(Clone, Copy, Debug)]
pub enum Ud {}

/// [Raw packets](crate::raw): whole Ethernet frames, as the program wrote them.
#[derive(Clone, Copy, Debug)]
pub enum Raw {}

/// A service that the program chooses at run time. `post_send` refuses requests that the service does not support.
#[derive(Clone, Copy, Debug)]
pub enum Any {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Rc {}
    impl Sealed for super::Uc {}
    impl Sealed for super::Ud {}
    impl Sealed for super::Raw {}
    impl Sealed for super::Any {}
}

/// A transport service.
pub trait Transport: sealed::Sealed {
    /// The send requests that queue pairs of the service accept.
    type Request: Into<SendRequest>;
}

impl Transport for Rc {
    type Request = SendRequest;
}

impl Transport for Uc {
    type Request = Request<Self>;
}

impl Transport for Ud {
    type Request = Request<Self>;
}

impl Transport for Raw {
    type Request = Request<Self>;
}

impl Transport for Any {
    type Request = SendRequest;
}

/// A service whose queue pairs are connected to a peer.
pub trait Connected: Transport {}
impl Connected for Rc {}
impl Connected for Uc {}
impl Connected for Any {}

/// A service whose queue pairs exchange datagrams.
pub trait Datagrams: Transport {}
impl Datagrams for Ud {}
impl Datagrams for Any {}

/// A service whose queue pairs exchange raw packets.
pub trait Frames: Transport {}
impl Frames for Raw {}
impl Frames for Any {}

/// A send request that service `S` supports.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before post_send()"]
pub struct Request<S>(SendRequest, PhantomData<S>);

impl<S> Request<S> {
    fn of(request: SendRequest) -> Self {
        Self(request, PhantomData)
    }

    /// Adds 4 bytes of immediate data for the peer's completion.
    pub fn with_immediate(self, data: [u8; 4]) -> Self {
        Self::of(self.0.with_immediate(data))
    }

    /// Suppresses the completion if the request succeeds.
    pub fn unsignalled(self) -> Self {
        Self::of(self.0.unsignalled())
    }

    /// Makes the peer's completion raise a solicited event.
    pub fn solicited(self) -> Self {
        Self::of(self.0.solicited())
    }
}

impl Request<Uc> {
    /// Creates a SEND, as [`SendRequest::send`].
    pub fn send(id: u64, data: impl Into<Data>) -> Self {
        Self::of(SendRequest::send(id, data))
    }

    /// Creates a WRITE, as [`SendRequest::write`].
    pub fn write(id: u64, data: impl Into<Data>, remote: Remote) -> Self {
        Self::of(SendRequest::write(id, data, remote))
    }

    /// Binds a memory window, as [`SendRequest::bind`].
    pub fn bind(id: u64, binding: Binding) -> Self {
        Self::of(SendRequest::bind(id, binding))
    }

    /// Invalidates a memory window, as [`SendRequest::local_invalidate`].
    pub fn local_invalidate(id: u64, rkey: Rkey) -> Self {
        Self::of(SendRequest::local_invalidate(id, rkey))
    }
}

impl Request<Ud> {
    /// Creates a SEND to another queue pair, as [`SendRequest::send_to`].
    pub fn send_to(id: u64, data: impl Into<Data>, to: Datagram) -> Self {
        Self::of(SendRequest::send_to(id, data, to))
    }
}

impl Request<Raw> {
    /// Creates a request to send an Ethernet frame, as [`SendRequest::send`] does for this service.
    pub fn frame(id: u64, data: impl Into<Data>) -> Self {
        Self::of(SendRequest::send(id, data))
    }
}

impl<S> From<Request<S>> for SendRequest {
    fn from(request: Request<S>) -> Self {
        request.0
    }
}

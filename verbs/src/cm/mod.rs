//! Connections by socket address, with the wire protocol of librdmacm. Programs need not exchange [`QpEndpoint`](crate::QpEndpoint)s.
//!
//! A peer may be a C program on librdmacm, on Ferroce, on Soft-RoCE or on a NIC. Connections are reliable ones, in the port space of TCP
//! (`RDMA_PS_TCP`). Requests and replies carry private data: 56 bytes from the side that connects, 196 from the side that accepts. Shorter
//! data of a program is padded with zeros. Two Ferroce peers use selective repeat if both queue pairs offer it; other peers ignore the
//! offer.
//!
//! A device with a listener or a connection has a thread that answers and repeats messages, `ferroce-cm`. It opens queue pair 1, so such
//! a device has no other [`ManagementPort`](crate::management::ManagementPort). A call that waits runs an inline core. In a process that
//! is forked from the device's, all calls fail, and dropping a value does nothing.
//!
//! ```
//! use ferroce_verbs::cm::{self, Listener, Options};
//! # use ferroce_verbs::port::{Mac, OwnPort, pair};
//! # use ferroce_verbs::{Device, DeviceConfig, Progress};
//! # type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
//! # fn main() -> Outcome<()> {
//! # let (left, right) = pair(64, 4500);
//! # let open = |port, last: u8| -> Outcome<Device> {
//! #     let config = DeviceConfig::new().address(format!("10.0.0.{last}/24").parse()?).progress(Progress::Adaptive);
//! #     Ok(Device::open_on(port, OwnPort { name: format!("left{last}"), mac: Mac([2, 0, 0, 0, 0, last]) }, &config)?)
//! # };
//! # let (server, client) = (open(left, 1)?, open(right, 2)?);
//! let listener = Listener::bind(&server, "0.0.0.0:7471".parse()?)?;
//! let serve = std::thread::spawn(move || -> Outcome<()> {
//!     let request = listener.accept()?;
//!     assert_eq!(&request.private_data()[..5], b"hello");
//!     let cq = server.create_cq(16)?;
//!     let qp = server.allocate_pd()?.queue_pair(&cq, &cq).build()?;
//!     let mut connection = request.accept(qp, &Options::default())?;
//!     // Requests are posted to the connection.
//!     connection.wait_end()?;
//!     Ok(())
//! });
//! let cq = client.create_cq(16)?;
//! let qp = client.allocate_pd()?.queue_pair(&cq, &cq).build()?;
//! let options = Options::new().private_data(b"hello");
//! let mut connection = cm::connect(qp, "10.0.0.1:7471".parse()?, &options)?;
//! connection.disconnect()?;
//! # serve.join().map_err(|_| "the server panicked")??;
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "tokio")]
mod asynchronous;
mod connection;
mod listener;
#[doc(hidden)]
pub mod machine;
mod manager;

#[cfg(feature = "tokio")]
pub use asynchronous::connect_async;
pub use connection::{Connection, connect};
pub use listener::{Listener, Request};
pub(crate) use manager::ManagerSlot;

use crate::ConnectOptions;
use datapath::siblings::Claim;
use std::time::Duration;

/// Prefix of service IDs in the port space of TCP (IBA A11.2).
const TCP_SERVICES: u64 = 0x0106 << 16;

/// The settings of a connection by address, as in `Options::new().private_data(b"hello")`.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "it changes nothing before it is passed to connect() or accept()"]
#[non_exhaustive]
pub struct Options {
    /// The settings of the queue pair. The connecting side's `ack_timeout`, `retry_count` and `mtu` apply to both sides, and
    /// its `traffic_class` to an accepting side that chooses none.
    pub connection: ConnectOptions,
    /// Private data for the peer's program: at most 56 bytes with [`connect`], 196 with [`Request::accept`].
    pub private_data: Vec<u8>,
    /// The time to wait for the peer's answer. The default is 8 s. Messages are repeated after 0.5 s, and then with a delay that doubles
    /// each time, up to 4.3 s.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connection: ConnectOptions::default(),
            private_data: Vec::new(),
            timeout: Duration::from_secs(8),
        }
    }
}

impl Options {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [the settings of the queue pair](Self::connection).
    pub fn connection(self, connection: ConnectOptions) -> Self {
        Self { connection, ..self }
    }

    /// Sets [the private data](Self::private_data).
    pub fn private_data(self, private_data: impl Into<Vec<u8>>) -> Self {
        Self { private_data: private_data.into(), ..self }
    }

    /// Sets [the time to wait for the peer](Self::timeout).
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

/// Returns the remedy for a rejection, which is appended to its message.
pub(crate) fn remedy(reason: u16) -> &'static str {
    match reason {
        8 => ": no program listens there; start one, or check the port",
        26 => ": the peer's port carries only a smaller path MTU; choose a smaller ConnectOptions::mtu",
        28 => ": the peer's program refused it; look for the reason in its log",
        _ => "",
    }
}

//! Reports of a running process for observers: its devices, their counters, and the waiting state of each queue pair.
//!
//! A process with an open device listens on a socket that only its user and root can access ([`folder`]). A separate thread waits for
//! connections. When an observer connects, the thread queries the cores between two turns, 64 queue pairs at a time. Without an observer,
//! the datapath has no overhead.
//!
//! An observer that requests a capture receives a ring of shared memory for each core instead of a report ([`Capture`]). One that requests a
//! [fault](crate::fault) receives an answer when the fault has taken effect ([`inject`]).
//!
//! ```
//! use ferroce_verbs::observe;
//!
//! // Every process of this user that has an open device.
//! for process in observe::read_all().into_iter().flatten() {
//!     for pair in process.devices.iter().flat_map(|device| &device.queue_pairs) {
//!         println!("{}: QP {:#08x} waits for {}", process.command, pair.qpn, pair.waiting);
//!     }
//! }
//! ```

mod capture;
mod capture_server;
mod client;
mod fault;
mod fault_server;
mod folder;
mod names;
mod sanitize;
mod server;
mod status;

pub use capture::{Capture, Waited};
pub use client::{AttachError, read, read_all};
pub use datapath::capture::{Direction, Record};
pub use datapath::engine::CoreCounters;
pub use fault::inject;
pub use folder::{FolderError, folder};
pub use names::{named_core_counters, named_counters};
pub use roce::qp::{QpReport, Waiting, WaitingTimes};
pub use roce::{Counters, Discard, SrqReport};
pub use status::{
    CoreStatus, DeviceStatus, Diagnosis, FORMAT, HopStatus, PeerStatus, ProcessStatus, QueuePairStatus,
};

pub(crate) use server::{publish, withdraw};

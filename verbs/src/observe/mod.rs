//! The report of a running process to an observer: its devices, their counters, and what each queue pair waits for.
//!
//! A process with an open device listens on a socket that only its user and root can reach ([`folder`]). A separate thread waits on the
//! socket. When an observer connects, the thread queries the cores between two turns, 64 queue pairs at a time. Until then it costs the
//! datapath nothing.
//!
//! An observer that requests a capture receives a ring of shared memory per core instead of a report ([`Capture`]).
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
mod folder;
mod names;
mod sanitize;
mod server;
mod status;

pub use capture::{Capture, Waited};
pub use client::{AttachError, read, read_all};
pub use datapath::capture::{Direction, Record};
pub use datapath::engine::CoreCounters;
pub use folder::{FolderError, folder};
pub use names::{named_core_counters, named_counters};
pub use roce::qp::{QpReport, Waiting, WaitingTimes};
pub use roce::{Counters, Discard, SrqReport};
pub use status::{
    CoreStatus, DeviceStatus, Diagnosis, FORMAT, HopStatus, PeerStatus, ProcessStatus, QueuePairStatus,
};

pub(crate) use server::{publish, withdraw};

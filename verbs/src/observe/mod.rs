//! What a running process tells an observer: its devices, their counters, and what each queue pair waits for.
//!
//! A process with an open device listens on a socket that only its user and root reach ([`folder`]). A thread of its own sleeps there,
//! and asks the cores between two of their turns, 64 queue pairs at a time; it costs the datapath nothing until an observer comes.

mod client;
mod folder;
mod server;
mod status;

pub use client::{AttachError, read, read_all};
pub use folder::{FolderError, folder};
pub use status::{DeviceStatus, FORMAT, PeerStatus, ProcessStatus, QueuePairStatus, named_counters};

pub(crate) use server::{publish, withdraw};

//! The poll-mode core and the rings by which applications reach it.

mod config;

pub use config::{Idle, Progress};

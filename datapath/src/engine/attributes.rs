//! The attributes of a port that change while it is open.

use crate::neighbour::GidTable;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The current results of a query of the port.
#[derive(Debug)]
pub(super) struct Attributes {
    gids: Mutex<GidTable>,
    /// The largest IP packet of the port's Linux interface in bytes; 0 if it has none, or its state has not been read yet.
    ip_mtu: AtomicU32,
    /// Whether a fault holds the port down.
    is_held_down: AtomicBool,
}

impl Attributes {
    pub(super) fn new(gids: GidTable) -> Self {
        Self { gids: Mutex::new(gids), ip_mtu: AtomicU32::new(0), is_held_down: AtomicBool::new(false) }
    }

    pub(super) fn gids(&self) -> MutexGuard<'_, GidTable> {
        self.gids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hold_down(&self, is_held: bool) {
        self.is_held_down.store(is_held, Ordering::Relaxed);
    }

    pub(super) fn is_held_down(&self) -> bool {
        self.is_held_down.load(Ordering::Relaxed)
    }

    pub(super) fn ip_mtu(&self) -> Option<u32> {
        Some(self.ip_mtu.load(Ordering::Relaxed)).filter(|mtu| *mtu > 0)
    }

    /// Stores the interface's MTU, and returns the previous one if it was known.
    pub(super) fn set_ip_mtu(&self, mtu: u32) -> Option<u32> {
        Some(self.ip_mtu.swap(mtu, Ordering::Relaxed)).filter(|mtu| *mtu > 0)
    }
}

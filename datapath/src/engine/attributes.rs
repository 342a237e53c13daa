//! The attributes of a port that change while it is open.

use crate::neighbour::GidTable;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a query of the port returns at the moment.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    gids: Mutex<GidTable>,
}

impl Attributes {
    pub(super) fn new(gids: GidTable) -> Self {
        Self { gids: Mutex::new(gids) }
    }

    /// Locks the GID table.
    pub(super) fn gids(&self) -> MutexGuard<'_, GidTable> {
        self.gids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

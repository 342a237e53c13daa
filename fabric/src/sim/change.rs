//! Changes of links during a run.

use cc::Rate;
use std::time::Duration;

/// A kind of change of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// New rate of both directions: whole Gb/s from 1 to 1000. A packet in transmission and the limits of PFC keep the old rate.
    Rate(Rate),
    /// The link fails. The packets on it are lost, switches drop the packets queued for it, and flows move to other shortest paths, if any
    /// exist. PFC pauses end.
    Down,
    /// The link and the paths over it are available again.
    Up,
}

/// A change of one or more links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Virtual time.
    pub at: Duration,
    /// Indices of the links in [`Topology::links`](super::Topology::links).
    pub links: Vec<usize>,
    /// Change of each of these links.
    pub what: LinkChange,
}

impl Change {
    /// Returns the new rate of the links; `None` for a change of another kind.
    #[must_use]
    pub const fn rate(&self) -> Option<Rate> {
        match self.what {
            LinkChange::Rate(rate) => Some(rate),
            LinkChange::Down | LinkChange::Up => None,
        }
    }
}

//! Changes of links during a run.

use cc::Rate;
use std::time::Duration;

/// What happens to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// Both directions get this rate: whole Gb/s from 1 to 1000. A packet that is being sent keeps the old one, as do the limits of PFC.
    Rate(Rate),
    /// The link fails. The packets on it are lost, switches drop those that wait for it, and flows take other shortest paths, if there are
    /// any. PFC pauses end.
    Down,
    /// The link returns, and with it the paths over it.
    Up,
}

/// A change of one or more links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Virtual time.
    pub at: Duration,
    /// Indices of the links in [`Topology::links`](super::Topology::links).
    pub links: Vec<usize>,
    /// What happens to each of them.
    pub what: LinkChange,
}

impl Change {
    /// Returns the new rate of the links, if the change is of their rate.
    #[must_use]
    pub const fn rate(&self) -> Option<Rate> {
        match self.what {
            LinkChange::Rate(rate) => Some(rate),
            LinkChange::Down | LinkChange::Up => None,
        }
    }
}

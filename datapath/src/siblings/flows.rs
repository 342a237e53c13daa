//! The numbers of active flows that the processes of an interface publish for each other, because all share the interface's link.

use super::memory::{OwnMemory, PeerMemory};
use cc::{Instant, PublishedFlows};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

/// A process's view of the numbers of all processes. Times are those of `CLOCK_MONOTONIC`, which all processes read.
pub(crate) struct MemberFlows {
    own: Arc<OwnMemory>,
    /// The memory of the other processes, with their slots.
    members: RwLock<Vec<(u8, Arc<PeerMemory>)>>,
}

impl MemberFlows {
    pub(super) fn new(own: Arc<OwnMemory>) -> Self {
        Self { own, members: RwLock::default() }
    }

    pub(super) fn add(&self, slot: u8, memory: Arc<PeerMemory>) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        members.retain(|(other, _)| *other != slot);
        members.push((slot, memory));
    }

    pub(crate) fn remove(&self, slot: u8) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        members.retain(|(other, _)| *other != slot);
    }

    /// Publishes the number of this process.
    pub(crate) fn publish(&self, flows: PublishedFlows) {
        self.own.head().flows().store(flows.into_bits(), Ordering::Relaxed);
    }

    /// Returns the number of flows of all other processes; `None` while a process joins or leaves, because a core does not wait.
    pub(crate) fn others(&self, now: Instant) -> Option<u32> {
        let members = self.members.try_read().ok()?;
        let flows = |(_, memory): &(u8, Arc<PeerMemory>)| {
            let word = memory.head().flows().load(Ordering::Relaxed);
            PublishedFlows::from_bits(word).at(now)
        };
        // At most 63 numbers of 20 bits.
        Some(members.iter().map(flows).sum())
    }
}

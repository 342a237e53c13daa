//! One count of the flows whose telemetry arrives at a port, for all cores and processes that share it.
//!
//! Each core counts the flows of its own queue pairs, and publishes its number in a word that only it writes. The flows at the port are the
//! sum of all words. A number holds for a limited time, so that nobody needs to correct that of a core that sleeps or of a process that has
//! ended.

use crate::clock::Clock;
use crate::siblings::MemberFlows;
use cc::{Instant, PublishedFlows};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A core's word, in a pair of cache lines of its own, because CPUs prefetch pairs.
#[derive(Default)]
#[repr(align(128))]
struct CoreCount(AtomicU64);

pub(super) struct PortFlows {
    cores: Box<[CoreCount]>,
    /// The other processes of the interface, if there can be any.
    members: Option<Arc<MemberFlows>>,
    clock: Clock,
}

impl PortFlows {
    /// Longest age of the numbers of others that a working core uses. It is below the shortest period in which flows are counted (100 µs).
    pub(super) const AGE: Duration = Duration::from_micros(10);

    /// Returns the numbers of a port, or `None` if one core has the port for itself.
    pub(super) fn shared(cores: u8, members: Option<Arc<MemberFlows>>) -> Option<Arc<Self>> {
        (cores > 1 || members.is_some()).then(|| Arc::new(Self::new(cores, members)))
    }

    pub(super) fn new(cores: u8, members: Option<Arc<MemberFlows>>) -> Self {
        let cores = (0..cores).map(|_| CoreCount::default()).collect();
        Self { cores, members, clock: Clock::new() }
    }

    /// Publishes the number of `core`. Returns that of all others; `None` if it is not known now.
    pub(super) fn exchange(&self, now: Instant, core: usize, own: PublishedFlows) -> Option<u32> {
        let slots = self.cores.iter().map(|slot| &slot.0);
        let (mut others, mut until) = (0, own.until());
        for (other, slot) in slots.enumerate() {
            if other == core {
                slot.store(own.into_bits(), Ordering::Relaxed);
                continue;
            }
            let flows = PublishedFlows::from_bits(slot.load(Ordering::Relaxed));
            others += flows.at(now);
            until = until.max(flows.until());
        }
        let Some(members) = &self.members else { return Some(others) };
        let until = self.clock.since_boot(until);
        members.publish(PublishedFlows::new(others + own.at(now), until));
        Some(others + members.others(self.clock.since_boot(now))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn each_core_gets_the_flows_of_the_others_while_they_are_active() {
        let flows = PortFlows::new(4, None);
        let own = |count| PublishedFlows::new(count, at(1200));
        let at_first = [1, 2, 3, 4].map(|count| flows.exchange(at(1000), count as usize - 1, own(count)));
        assert_eq!(at_first, [Some(0), Some(1), Some(3), Some(6)]);
        assert_eq!(flows.exchange(at(1010), 0, own(1)), Some(9));
        let later = PublishedFlows::new(5, at(1600));
        assert_eq!(flows.exchange(at(1400), 2, later), Some(0), "the others have received nothing");
        assert_eq!(flows.exchange(at(1400), 0, later), Some(5));
    }
}

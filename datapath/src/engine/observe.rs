//! An observer's view of a core: its queue pairs, and those whose completions the program has not polled.

use super::core_state::CoreState;
use cc::Instant;
use roce::Observation;

/// An observer's view of a queue pair.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The endpoint's view of the queue pair.
    pub queue_pair: Observation,
    /// Completions of its send requests that the program has not polled.
    pub unpolled: u32,
}

impl CoreState {
    /// Returns up to `most` queue pairs, starting at `from`, and the value of `from` for the next call, or `None` at the end. The first
    /// call passes 0.
    ///
    /// Also records in the endpoint whether each of these queue pairs has unpolled send completions.
    pub fn observe(&mut self, now: Instant, from: u32, most: usize) -> (Vec<Observed>, Option<u32>) {
        let (seen, more) = self.endpoint.observe(now, from, most);
        let unpolled = |queue_pair: &Observation| self.queues.unpolled_sends(queue_pair.qpn);
        let seen: Vec<_> = seen
            .into_iter()
            .map(|queue_pair| Observed { unpolled: unpolled(&queue_pair), queue_pair })
            .collect();
        for Observed { queue_pair, unpolled } in &seen {
            self.endpoint.record_unpolled(now, queue_pair.qpn, *unpolled > 0);
        }
        (seen, more)
    }
}

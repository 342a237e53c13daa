//! The exchange between the threads of a run.
//!
//! Each thread simulates some nodes. An event at one of its nodes affects nodes of other threads only over links, that is, after at least
//! the shortest delay of a link, or after a constant that is longer. All threads therefore run the events of a window of that length, and
//! then exchange the events for each other (conservative synchronisation with a window, as in Unison, EuroSys 2024). The windows depend on
//! the events and not on the number of threads, so that a run ends at the same event with any number.

use super::event::Packed;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};

/// An event for a node of another thread.
pub(super) struct Message<P> {
    pub(super) at: u64,
    /// Its order among simultaneous events.
    pub(super) order: u64,
    pub(super) event: Packed,
    /// The packet of an arrival. Its place in `event` has no meaning.
    pub(super) packet: Option<P>,
}

/// What a thread publishes after a window, or the sum over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Time of the next event, `u64::MAX` if there is none.
    pub(super) next: u64,
    /// Number of ended flows.
    pub(super) finished: u64,
    /// Number of events processed.
    pub(super) events: u64,
    /// Whether the observer has ended the run, or a flow has failed.
    pub(super) is_ended: bool,
}

/// The state and the messages of a round, per thread.
struct Round<P> {
    states: Vec<[AtomicU64; 4]>,
    mail: Vec<Mutex<Vec<Message<P>>>>,
}

/// What the threads share. Even and odd rounds have places of their own, so that one barrier per round suffices: a thread that is one round
/// ahead does not overwrite what another still reads.
pub(super) struct Exchange<P> {
    rounds: [Round<P>; 2],
    barrier: Barrier,
    /// Queued bytes of the sampled ports, for reports of the state. Each thread writes those of its own ports in the round before a report.
    queues: Vec<AtomicU64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P> Exchange<P> {
    pub(super) fn new(threads: usize, sampled: usize) -> Self {
        let round = || Round {
            states: (0..threads).map(|_| Default::default()).collect(),
            mail: (0..threads).map(|_| Mutex::default()).collect(),
        };
        Self {
            rounds: [round(), round()],
            barrier: Barrier::new(threads),
            queues: (0..sampled).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Publishes the queued bytes of a sampled port.
    pub(super) fn publish_queue(&self, sampled: usize, bytes: u64) {
        self.queues[sampled].store(bytes, Ordering::Relaxed);
    }

    /// Returns the published queues.
    pub(super) fn queues(&self) -> Vec<u64> {
        self.queues.iter().map(|queue| queue.load(Ordering::Relaxed)).collect()
    }

    /// Makes the other threads end at their first exchange, because thread `me` cannot begin.
    #[cold]
    pub(super) fn leave(&self, me: usize) {
        self.meet((me, 0), State { is_ended: true, ..State::default() }, &mut []);
    }

    /// Publishes the state of thread `me` and its messages for the others after a round, and waits for all threads. Returns the messages
    /// for this thread, and the state of all.
    pub(super) fn meet(
        &self,
        (me, round): (usize, usize),
        own: State,
        outgoing: &mut [Vec<Message<P>>],
    ) -> (Vec<Message<P>>, State) {
        let Round { states, mail } = &self.rounds[round % 2];
        let sent = outgoing.iter().flatten().map(|message| message.at).min();
        let next = own.next.min(sent.unwrap_or(u64::MAX));
        for (place, value) in states[me].iter().zip([next, own.finished, own.events, own.is_ended.into()]) {
            place.store(value, Ordering::Relaxed);
        }
        for (to, messages) in outgoing.iter_mut().enumerate().filter(|(_, messages)| !messages.is_empty()) {
            lock(&mail[to]).append(messages);
        }
        if states.len() > 1 {
            self.barrier.wait();
        }
        let mut all = State { next: u64::MAX, ..State::default() };
        for state in states {
            let [next, finished, events, ended] = state.each_ref().map(|value| value.load(Ordering::Relaxed));
            all.next = all.next.min(next);
            all.finished += finished;
            all.events += events;
            all.is_ended |= ended > 0;
        }
        (mem::take(&mut *lock(&mail[me])), all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::event::Event;
    use std::thread;

    #[test]
    fn every_thread_gets_its_messages_and_the_sum_of_all_states() {
        const THREADS: usize = 3;
        const ROUNDS: usize = 50;
        let exchange = Exchange::<usize>::new(THREADS, 0);
        let work = |me: usize| {
            for round in 0..ROUNDS {
                let message = |to: usize| Message {
                    at: (100 + to) as u64,
                    order: 0,
                    event: Packed::new(Event::Sample),
                    packet: Some(me * 10 + round),
                };
                let mut outgoing: Vec<_> =
                    (0..THREADS).map(|to| if to == me { Vec::new() } else { vec![message(to)] }).collect();
                let own = State {
                    next: (200 + me) as u64,
                    finished: 1,
                    events: round as u64,
                    is_ended: me == round,
                };
                let (messages, all) = exchange.meet((me, round), own, &mut outgoing);
                let mut packets: Vec<_> = messages.iter().filter_map(|message| message.packet).collect();
                packets.sort_unstable();
                let others = (0..THREADS).filter(|from| *from != me);
                assert_eq!(packets, others.map(|from| from * 10 + round).collect::<Vec<_>>());
                assert_eq!((all.next, all.finished, all.events), (100, 3, 3 * round as u64));
                assert_eq!(all.is_ended, round < THREADS);
            }
        };
        thread::scope(|scope| (0..THREADS).for_each(|me| drop(scope.spawn(move || work(me)))));
    }
}

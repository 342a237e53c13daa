//! Counts of repeated messages that belong to no process of the interface.
//!
//! One process answers each message: the one with the lowest slot, of those with a connection manager. If that process is stopped, the peer
//! repeats its message. The process with the next slot answers the first repetition, the one after it the second, and so on. A peer that
//! repeats because an answer was lost receives another answer, which changes nothing.

use std::collections::VecDeque;
use std::net::IpAddr;

/// Most messages counted. The oldest is removed first.
const MAX_MESSAGES: usize = 256;

/// A peer's message: the peer's address and a communication id in the message, its own or the one that it refers to.
type MessageId = (IpAddr, u32);

/// Recent messages, each with the number of times that it was received.
#[derive(Debug, Default)]
pub(super) struct Repeats(VecDeque<(MessageId, usize)>);

impl Repeats {
    /// Counts a message. Returns how often it was received before.
    pub(super) fn count(&mut self, peer: IpAddr, id: u32) -> usize {
        let key = (peer, id);
        if let Some((_, times)) = self.0.iter_mut().find(|(known, _)| *known == key) {
            *times += 1;
            return *times - 1;
        }
        if self.0.len() >= MAX_MESSAGES {
            self.0.pop_front();
        }
        self.0.push_back((key, 1));
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_counted_per_message_and_the_oldest_is_evicted() {
        let peer = |n: u32| IpAddr::from(n.to_be_bytes());
        let mut repeats = Repeats::default();
        assert_eq!([1, 1, 2, 1].map(|id| repeats.count(peer(1), id)), [0, 1, 0, 2]);
        assert_eq!(repeats.count(peer(2), 1), 0);
        for n in 3..3 + MAX_MESSAGES as u32 {
            assert_eq!(repeats.count(peer(n), 1), 0);
        }
        assert_eq!(repeats.count(peer(1), 1), 0);
        assert_eq!(repeats.0.len(), MAX_MESSAGES);
    }
}

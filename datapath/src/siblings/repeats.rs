//! How often messages came that no process of the interface can place.
//!
//! One process answers each: of those with a connection manager, the one with the lowest slot. If that one is stopped, the peer repeats its
//! message, and the process with the next slot answers the first repetition, the one after it the second, and so on. A peer that repeats
//! because an answer was lost receives another one, which changes nothing.

use std::collections::VecDeque;
use std::net::IpAddr;

/// The limit on the messages that are remembered, of which the oldest is forgotten first.
const MAX_MESSAGES: usize = 256;

/// A peer's message: its address and a communication id in the message, its own or the one that it names.
type Key = (IpAddr, u32);

/// Messages that came lately, each with how often.
#[derive(Debug, Default)]
pub(super) struct Repeats(VecDeque<(Key, usize)>);

impl Repeats {
    /// Counts a message; returns how often it came before.
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
    fn each_message_is_counted_by_itself_and_the_oldest_is_forgotten() {
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

//! A responder's memory of paths that a peer only probes: their records must not mix with those of the path of its data.

use crate::qp::PathChoice;
use alloc::vec::Vec;
use cc::PathRecords;

/// Told apart by UDP source port. A peer can make us hold so many and no more; the oldest goes first.
#[derive(Debug, Default)]
pub(super) struct Alternates {
    /// The port of the peer's requests.
    data: Option<u16>,
    records: Vec<(u16, PathRecords)>,
    oldest: usize,
}

impl Alternates {
    /// A request came from this port. Tells whether the peer's requests have moved.
    pub(super) fn on_request(&mut self, port: u16) -> bool {
        self.data.replace(port).is_some_and(|before| before != port)
    }

    /// The records of a path that only probes take; none where requests take it too.
    pub(super) fn of_probe(&mut self, port: u16) -> Option<&mut PathRecords> {
        const MOST: usize = PathChoice::MOST as usize - 1;
        if self.data.is_none_or(|data| data == port) {
            return None;
        }
        if let Some(at) = self.records.iter().position(|(known, _)| *known == port) {
            return Some(&mut self.records[at].1);
        }
        let at = if self.records.len() < MOST {
            // All of it at once: nothing grows with packets.
            self.records.reserve_exact(MOST - self.records.len());
            self.records.push((port, PathRecords::new()));
            self.records.len() - 1
        } else {
            self.oldest = (self.oldest + 1) % MOST;
            self.records[self.oldest] = (port, PathRecords::new());
            self.oldest
        };
        Some(&mut self.records[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_elsewhere_have_records_of_their_own_and_a_limit() {
        let mut alternates = Alternates::default();
        assert!(alternates.of_probe(1).is_none(), "nobody knows yet where the data go");
        assert!(!alternates.on_request(1));
        assert!(alternates.of_probe(1).is_none());
        for port in 2..40 {
            assert!(alternates.of_probe(port).is_some());
        }
        assert_eq!(alternates.records.len(), 7);
        assert!(alternates.on_request(39), "moved");
        assert!(alternates.of_probe(39).is_none());
        assert!(!alternates.on_request(39));
    }
}

//! Connection requests, and requests for a datagram service, from peers that have not been resolved yet.
//!
//! Any host on the network can forge the sender of a request. A request therefore reaches the program only after its sender, or the router
//! to it, has answered ARP or neighbour discovery. No thread waits for the answer. The number of held requests is limited, and the oldest
//! is dropped first: a present peer answers soon, and an honest peer repeats a lost request.

use super::message::{self, FIRST_LOOK, Mad};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The number of requests that wait at most.
pub(crate) const MOST: usize = 256;

struct Stranger {
    from: IpAddr,
    mad: Mad,
    next: Instant,
    pause: Duration,
}

/// The waiting requests, the oldest first.
#[derive(Default)]
pub(crate) struct Strangers {
    waiting: VecDeque<Stranger>,
}

impl Strangers {
    /// Returns whether the sender has been found. While it is still looked for, its request is kept.
    pub(crate) fn are_found<E>(
        &mut self,
        finds: impl Fn(IpAddr) -> Result<bool, E>,
        from: IpAddr,
        mad: &Mad,
    ) -> bool {
        let same = |known: &Stranger| known.from == from && message::ids(&known.mad).0 == message::ids(mad).0;
        if self.waiting.iter().any(same) {
            return false;
        }
        match finds(from) {
            Ok(true) => return true,
            Ok(false) => self.keep(from, mad),
            // The sender does not exist.
            Err(_) => {}
        }
        false
    }

    fn keep(&mut self, from: IpAddr, mad: &Mad) {
        if self.waiting.len() >= MOST {
            self.waiting.pop_front();
        }
        let next = Instant::now() + FIRST_LOOK;
        self.waiting.push_back(Stranger { from, mad: *mad, next, pause: FIRST_LOOK });
    }

    /// Looks at peers whose time has come. Returns the requests of those that were found, and forgets those that do not answer.
    pub(crate) fn look<E>(
        &mut self,
        finds: impl Fn(IpAddr) -> Result<bool, E>,
        now: Instant,
    ) -> Vec<(IpAddr, Mad)> {
        let mut found = Vec::new();
        self.waiting.retain_mut(|stranger| {
            if stranger.next > now {
                return true;
            }
            match finds(stranger.from) {
                Ok(true) => found.push((stranger.from, stranger.mad)),
                Ok(false) => {
                    stranger.pause *= 2;
                    stranger.next = now + stranger.pause;
                    return true;
                }
                Err(_) => {}
            }
            false
        });
        found
    }

    /// Returns how many wait.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }

    /// When the next look is.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.waiting.iter().map(|stranger| stranger.next).min()
    }
}

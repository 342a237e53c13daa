//! Requests for connections or datagram services whose sources are not resolved yet.
//!
//! Any host on the network can forge the source of a request. A request is therefore passed to the program only after its source, or the
//! router to it, has answered ARP or neighbour discovery. No thread waits for the answer. The number of queued requests is limited, and the
//! oldest is dropped first: the source of a valid request answers soon, and repeats a request that was dropped.

use super::message::{self, FIRST_CHECK, Mad};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Maximum number of queued requests.
pub const LIMIT: usize = 256;

struct QueuedRequest {
    from: IpAddr,
    mad: Mad,
    /// Time of the next check whether the source is resolved.
    next: Instant,
    pause: Duration,
}

/// The queued requests, oldest first.
#[derive(Default)]
pub struct Unresolved {
    requests: VecDeque<QueuedRequest>,
}

impl Unresolved {
    /// Returns whether the source of a request is resolved. Queues the request while the source is being resolved.
    pub fn is_resolved<E>(
        &mut self,
        poll_resolution: impl Fn(IpAddr) -> Result<bool, E>,
        now: Instant,
        from: IpAddr,
        mad: &Mad,
    ) -> bool {
        let same =
            |kept: &QueuedRequest| kept.from == from && message::ids(&kept.mad).0 == message::ids(mad).0;
        if self.requests.iter().any(same) {
            return false;
        }
        match poll_resolution(from) {
            Ok(true) => return true,
            Ok(false) => self.queue(now, from, mad),
            // The source does not answer, so the request is dropped.
            Err(_) => {}
        }
        false
    }

    fn queue(&mut self, now: Instant, from: IpAddr, mad: &Mad) {
        if self.requests.len() >= LIMIT {
            self.requests.pop_front();
        }
        self.requests.push_back(QueuedRequest {
            from,
            mad: *mad,
            next: now + FIRST_CHECK,
            pause: FIRST_CHECK,
        });
    }

    /// Removes and returns the requests whose sources are resolved. Drops those whose sources do not answer.
    pub fn resolved<E>(
        &mut self,
        poll_resolution: impl Fn(IpAddr) -> Result<bool, E>,
        now: Instant,
    ) -> Vec<(IpAddr, Mad)> {
        let mut found = Vec::new();
        self.requests.retain_mut(|request| {
            if request.next > now {
                return true;
            }
            match poll_resolution(request.from) {
                Ok(true) => found.push((request.from, request.mad)),
                Ok(false) => {
                    request.pause *= 2;
                    request.next = now + request.pause;
                    return true;
                }
                Err(_) => {}
            }
            false
        });
        found
    }

    /// Returns the number of queued requests.
    pub fn count(&self) -> usize {
        self.requests.len()
    }

    /// Returns when the next check is due.
    pub fn next(&self) -> Option<Instant> {
        self.requests.iter().map(|request| request.next).min()
    }
}

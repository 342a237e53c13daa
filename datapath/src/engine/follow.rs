//! Peers whose Ethernet address changes while queue pairs talk to them: a standby takes over, a machine moves, a router is replaced.
//!
//! A queue pair that gets no answer in time doubts its way (`Endpoint::poll_doubted`), long before it gives up. Its neighbour is asked
//! for again, and where it is elsewhere now, all that goes there goes on with the new address. Nothing of this is on the path of a
//! packet that is answered.

use crate::neighbour::{Asked, Neighbours};
use cc::Instant;
use roce::Endpoint;
use std::net::IpAddr;

/// Peers that are asked for at a time. Others are doubted again at their next timeout.
const LIMIT: usize = 64;

/// Those who are being asked for.
#[derive(Debug, Default)]
pub(super) struct Followed {
    waiting: Vec<IpAddr>,
    /// Of the neighbours' answers when they were looked at last.
    seen: u64,
}

impl Followed {
    /// Once a turn.
    #[inline]
    pub(super) fn turn(&mut self, now: Instant, endpoint: &mut Endpoint, neighbours: &mut Neighbours) {
        while let Some(peer) = endpoint.poll_doubted() {
            self.doubt(now, peer, neighbours);
        }
        if !self.waiting.is_empty() && self.seen != neighbours.answers() {
            self.look(now, endpoint, neighbours);
        }
    }

    #[cold]
    fn doubt(&mut self, now: Instant, peer: IpAddr, neighbours: &mut Neighbours) {
        if self.waiting.len() < LIMIT && !self.waiting.contains(&peer) {
            neighbours.doubt(now, peer);
            self.waiting.push(peer);
            // What is known already is looked at at once.
            self.seen = neighbours.answers().wrapping_sub(1);
        }
    }

    #[cold]
    fn look(&mut self, now: Instant, endpoint: &mut Endpoint, neighbours: &mut Neighbours) {
        self.seen = neighbours.answers();
        self.waiting.retain(|&peer| match neighbours.resolve(now, peer) {
            Ok(Asked::Asking) => true,
            Ok(Asked::Known(mac)) => {
                if endpoint.redirect(peer, mac) > 0 {
                    tracing::info!("{peer} has moved: its packets go to {mac} now");
                }
                false
            }
            // Nobody answers: the next timeout asks again, until the queue pair gives up.
            Err(_) => false,
        });
    }
}

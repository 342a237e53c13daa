//! Delayed acknowledgements: an acknowledgement waits for the program's reply, and leaves in the same burst, behind it.
//!
//! On an interface of the kernel, a burst costs its sender about 2 µs. A core that acknowledges a request at once spends them before the
//! program sees the request. TCP delays its acknowledgements for the same reason. Here, they wait only if the program
//! has replied to the last [`LEARNED`] messages within [`MAX_DELAY`], and at most until the first turn after that time. A program that stops
//! polling stops running turns, too. An adaptive core's thread then runs one after 1 ms at most, or when the process exits; an inline core
//! answers only while the program polls.

use crate::io::{Burst, PacketBuf};
use cc::Instant;
use roce::wire::{self, Numbers, Opcode};
use std::time::Duration;

/// Consecutive quick replies after which acknowledgements wait.
const LEARNED: u8 = 8;

/// The longest time from an acknowledgement to a reply that counts as quick. A fourth of a requester's shortest probe timeout.
const MAX_DELAY: Duration = Duration::from_micros(10);

/// Acknowledgements that may wait at once. More are a sign of other traffic than messages with replies.
const MAX_WAITING: usize = 4;

#[derive(Debug, Default)]
pub(super) struct DelayedAck {
    /// Consecutive quick replies, at most [`LEARNED`].
    replies: u8,
    /// When the last acknowledgements were written, if nothing was since.
    acknowledged_at: Option<Instant>,
    /// The number of acknowledgements that wait, at the front of the burst.
    waiting: usize,
}

impl DelayedAck {
    /// Returns the state after [`LEARNED`] quick replies.
    #[cfg(test)]
    pub(super) const fn after_replies() -> Self {
        Self { replies: LEARNED, acknowledged_at: None, waiting: 0 }
    }

    /// Returns the number of acknowledgements that wait.
    #[inline]
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Decides whether the burst leaves now. Moves acknowledgements that have waited behind the requests of their reply.
    #[inline]
    pub(super) fn leaves<B: PacketBuf>(&mut self, now: Instant, frames: &mut Burst<B>) -> bool {
        if self.acknowledged_at.is_none() && !frames.first().is_some_and(is_acknowledge) {
            return true;
        }
        self.decide(now, frames)
    }

    #[inline(never)]
    fn decide<B: PacketBuf>(&mut self, now: Instant, frames: &mut Burst<B>) -> bool {
        let waiting = std::mem::take(&mut self.waiting);
        let (_, new) = frames.split_at(waiting);
        let is_quick = self.acknowledged_at.is_some_and(|at| now.saturating_since(at) <= MAX_DELAY);
        if new.is_empty() && is_quick {
            self.waiting = waiting;
            return false;
        }
        if new.len() > MAX_WAITING || !new.iter().all(is_acknowledge) {
            self.on_reply(is_quick);
            if waiting > 0 && new.iter().all(is_request) {
                frames.rotate_left(waiting);
            }
            return true;
        }
        // The acknowledgements before these had no reply.
        if self.acknowledged_at.is_some() {
            self.replies = 0;
        }
        self.acknowledged_at = (!new.is_empty()).then_some(now);
        if self.replies == LEARNED {
            self.waiting = new.len();
        }
        self.waiting == 0
    }

    const fn on_reply(&mut self, is_quick: bool) {
        if self.acknowledged_at.take().is_some() {
            self.replies = match (is_quick, self.replies) {
                (false, _) => 0,
                (true, LEARNED) => LEARNED,
                (true, replies) => replies + 1,
            };
        }
    }

    /// Lets acknowledgements that wait leave with the next burst.
    pub(super) const fn stop_waiting(&mut self) {
        self.waiting = 0;
    }
}

#[inline]
fn opcode<B: PacketBuf>(frame: &B) -> Option<Opcode> {
    wire::opcode_and_destination(frame, Numbers::DEFAULT).map(|(opcode, _)| opcode)
}

#[inline]
fn is_acknowledge<B: PacketBuf>(frame: &B) -> bool {
    opcode(frame).is_some_and(Opcode::is_acknowledge)
}

/// Returns whether the frame is a request of a connected queue pair. Messages of the connection manager are not: a disconnect request that
/// overtakes an acknowledgement would flush the work request that it acknowledges.
fn is_request<B: PacketBuf>(frame: &B) -> bool {
    opcode(frame).is_some_and(Opcode::is_request)
}

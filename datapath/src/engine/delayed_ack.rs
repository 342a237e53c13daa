//! Delayed acknowledgements: an ACK waits for the program's reply, and leaves in the same burst, before it.
//!
//! A burst to a socket of the kernel costs its sender about 2 µs. A core that acknowledges a request at once spends them before the program
//! sees the request. TCP delays its acknowledgements for the same reason. Here, an ACK waits only if the program has replied to the last
//! [`LEARNED`] requests within [`MAX_DELAY`], and at most until the first turn after that time. A program that stops polling stops running
//! turns, too. An adaptive core's thread then runs one after 2 ms at most, or when the process exits with `exit`. The ACKs of other cores wait
//! only if the program promises to poll.

use crate::io::PacketBuf;
use cc::Instant;
use roce::Qpn;
use roce::wire::{self, Numbers, Opcode};
use std::time::Duration;

/// Consecutive quick replies after which ACKs wait.
const LEARNED: u8 = 8;

/// The longest time from an ACK to a reply that counts as quick. Half of the shortest time after which a requester probes.
const MAX_DELAY: Duration = Duration::from_micros(10);

#[derive(Debug, Default)]
pub(super) struct DelayedAck {
    may_wait: bool,
    /// Consecutive quick replies, at most [`LEARNED`].
    replies: u8,
    /// When the last ACK was written, and its destination, if nothing was written since.
    acknowledged: Option<(Instant, Qpn)>,
    /// Whether that ACK waits, as the first frame of the burst.
    is_waiting: bool,
}

impl DelayedAck {
    pub(super) fn new(may_wait: bool) -> Self {
        Self { may_wait, ..Self::default() }
    }

    /// Returns the state after [`LEARNED`] quick replies.
    #[cfg(test)]
    pub(super) fn after_replies() -> Self {
        Self { replies: LEARNED, ..Self::new(true) }
    }

    /// Returns whether an ACK waits.
    #[inline]
    pub(super) const fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Decides whether the burst leaves now.
    #[inline]
    pub(super) fn leaves<B: PacketBuf>(&mut self, now: Instant, frames: &[B]) -> bool {
        !self.may_wait || self.decide(now, frames)
    }

    #[inline(never)]
    fn decide<B: PacketBuf>(&mut self, now: Instant, frames: &[B]) -> bool {
        let waited = std::mem::take(&mut self.is_waiting);
        let new = frames.get(usize::from(waited)..).unwrap_or_default();
        if waited && new.is_empty() && self.is_quick(now) {
            self.is_waiting = true;
            return false;
        }
        if let [frame] = new
            && let Some(destination) = acknowledged_by(frame)
        {
            return self.on_ack(now, destination);
        }
        self.on_other(now, new);
        true
    }

    /// Returns whether a reply at `now` would be quick.
    fn is_quick(&self, now: Instant) -> bool {
        self.acknowledged.is_some_and(|(at, _)| now.saturating_since(at) <= MAX_DELAY)
    }

    /// Records an ACK that is alone in its burst. Returns false if it waits.
    const fn on_ack(&mut self, now: Instant, destination: Qpn) -> bool {
        if self.acknowledged.replace((now, destination)).is_some() {
            // The last one had no reply.
            self.replies = 0;
        }
        self.is_waiting = self.replies == LEARNED;
        !self.is_waiting
    }

    /// Records other frames, of which a request to the queue pair of the last ACK is a reply.
    fn on_other<B: PacketBuf>(&mut self, now: Instant, frames: &[B]) {
        let is_quick = self.is_quick(now);
        if let Some((_, peer)) = self.acknowledged.take() {
            let replies = is_quick && frames.iter().any(|frame| requested_from(frame) == Some(peer));
            self.replies = if replies { LEARNED.min(self.replies.saturating_add(1)) } else { 0 };
        }
    }

    /// Lets an ACK that waits leave with the next burst.
    pub(super) const fn stop_waiting(&mut self) {
        self.is_waiting = false;
    }
}

/// Returns the destination of an ACK; `None` for NAKs and other frames.
fn acknowledged_by<B: PacketBuf>(frame: &B) -> Option<Qpn> {
    let (opcode, destination) = wire::opcode_and_destination(frame, Numbers::DEFAULT)?;
    if !opcode.is_acknowledge() {
        return None;
    }
    // The upper bits of an ACK's syndrome are 0.
    let body = wire::body(frame)?;
    (frame.get(body.start)? >> 5 == 0).then_some(destination)
}

/// Returns the destination of a request of a connected queue pair; `None` for other frames.
fn requested_from<B: PacketBuf>(frame: &B) -> Option<Qpn> {
    let (opcode, destination) = wire::opcode_and_destination(frame, Numbers::DEFAULT)?;
    Opcode::is_request(opcode).then_some(destination)
}

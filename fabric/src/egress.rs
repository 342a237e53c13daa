//! An egress port: its queues, its shaper, and the departure time of each frame.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use crate::classes::{ClassId, Queued, Queues, SecondClass};
use crate::shares::Shares;
use crate::statistics::Statistics;
use cc::{Instant, Rate};
use datapath::io::PacketBuf;
use std::collections::VecDeque;
use std::time::Duration;

/// A port's state when a frame starts to leave: the contents of telemetry (rtgwg-00 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) time: Instant,
    /// Bytes that left before the frame.
    pub(crate) tx_bytes: u64,
    /// Bytes queued behind the frame, in its class.
    pub(crate) queue: u64,
    /// `tx_bytes` and `queue` as telemetry reports them. With two classes, they are scaled to the whole link ([`Shares`]).
    pub(crate) reported: (u64, u64),
    /// Time that the frame waited.
    pub(crate) sojourn: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    QueueFull,
    PortBlocked,
}

/// Queues with a limit in bytes, and a link of a fixed rate, on the link's own clock.
pub(crate) struct Egress<B> {
    waiting: Queues<B>,
    /// Frames that have started to leave, until [`fetch`](Self::fetch) removes them.
    released: VecDeque<B>,
    released_bytes: u64,
    rate: Option<Rate>,
    limit: u64,
    limit_frames: usize,
    /// End of the link's last frame, and the remainder in 1/rate ns, so that rounding errors do not add up.
    free: Instant,
    rest: u64,
    tx_bytes: u64,
    shares: Option<Shares>,
    pub(crate) statistics: Statistics,
}

impl<B: PacketBuf> Egress<B> {
    pub(crate) fn new(
        rate: Option<Rate>,
        limit: u64,
        limit_frames: usize,
        second: Option<SecondClass>,
    ) -> Self {
        Self {
            waiting: Queues::new(limit_frames, second),
            released: VecDeque::with_capacity(limit_frames),
            released_bytes: 0,
            rate,
            limit,
            limit_frames,
            free: Instant::ZERO,
            rest: 0,
            tx_bytes: 0,
            shares: rate.zip(second).map(|(rate, second)| Shares::new(rate, second)),
            statistics: Statistics::new(limit, Instant::ZERO),
        }
    }

    pub(crate) const fn waiting(&self) -> u64 {
        self.waiting.total()
    }

    pub(crate) fn class_of(&self, frame: &[u8]) -> ClassId {
        self.waiting.class_of(frame)
    }

    pub(crate) const fn waiting_in(&self, class: ClassId) -> u64 {
        self.waiting.bytes(class)
    }

    /// Returns the number of queued and released frames.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the bytes of held frames fit into 64 bits and products into 128, and rates are above 0"
    )]
    pub(crate) fn frames(&self) -> usize {
        self.released.len() + self.waiting.frames()
    }

    pub(crate) const fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Returns whether the queue accepts a frame of `bytes`. `limit` applies to the frames of a class that wait for the link. Released
    /// frames may occupy `limit` bytes more; then the port is blocked.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the bytes of held frames fit into 64 bits and products into 128, and rates are above 0"
    )]
    pub(crate) fn admits(&self, class: ClassId, bytes: u64) -> Result<(), Refused> {
        if self.waiting.bytes(class) + bytes > self.limit {
            return Err(Refused::QueueFull);
        }
        let most = (self.waiting.count() + 1).saturating_mul(self.limit);
        if self.waiting.total() + self.released_bytes + bytes > most || self.frames() >= self.limit_frames {
            return Err(Refused::PortBlocked);
        }
        Ok(())
    }

    /// Appends a frame that [`admits`](Self::admits) accepted. The link may start to send it at `ready`, which is at most `now`.
    pub(crate) fn push(&mut self, now: Instant, ready: Instant, class: ClassId, buf: B) {
        self.statistics.held(if self.rate.is_some() { self.waiting.total() } else { 0 }, now);
        self.waiting.push(class, Queued { buf, ready });
    }

    /// Releases all frames whose start is at or before `now`. Calls `leave` for each with the port's state at its start. `leave` may
    /// lengthen the frame; the link then carries the new length.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the bytes of held frames fit into 64 bits and products into 128, and rates are above 0"
    )]
    pub(crate) fn advance(&mut self, now: Instant, mut leave: impl FnMut(&mut B, Snapshot)) {
        // A link without a rate has no queue, regardless of delays of the poll loop.
        let shaped = self.rate.is_some();
        while let Some(ready) = self.waiting.ready() {
            let time = self.free.max(ready);
            if time > now {
                return;
            }
            self.statistics.held(if shaped { self.waiting.total() } else { 0 }, time);
            let Some((class, Queued { mut buf, ready })) = self.waiting.take(time) else { return };
            let (tx_bytes, queue) = (self.tx_bytes, self.waiting.bytes(class));
            let sojourn = time.saturating_since(ready);
            let shares = self.shares.as_mut();
            let reported = shares.map_or((tx_bytes, queue), |shares| shares.reported(time, class, queue));
            leave(&mut buf, Snapshot { time, tx_bytes, queue, reported, sojourn });
            let bytes = buf.len() as u64;
            if let Some(shares) = &mut self.shares {
                shares.left(time, class, bytes);
            }
            self.tx_bytes += bytes;
            self.released_bytes += bytes;
            self.released.push_back(buf);
            self.occupy(time, bytes);
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the bytes of held frames fit into 64 bits and products into 128, and rates are above 0"
    )]
    pub(crate) fn fetch(&mut self) -> Option<B> {
        let buf = self.released.pop_front()?;
        self.released_bytes -= buf.len() as u64;
        Some(buf)
    }

    /// Returns when the next frame starts to leave; [`Instant::ZERO`] if a released frame has not been fetched.
    pub(crate) fn next_departure(&self) -> Option<Instant> {
        if !self.released.is_empty() {
            return Some(Instant::ZERO);
        }
        self.waiting.ready().map(|ready| self.free.max(ready))
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the bytes of held frames fit into 64 bits and products into 128, and rates are above 0"
    )]
    fn occupy(&mut self, start: Instant, bytes: u64) {
        let Some(rate) = self.rate else {
            self.free = start;
            return;
        };
        if start > self.free {
            self.rest = 0;
        }
        let bit_nanos = u128::from(bytes) * 8 * 1_000_000_000 + u128::from(self.rest);
        let nanos = (bit_nanos / u128::from(rate.as_bps())) as u64;
        self.rest = (bit_nanos % u128::from(rate.as_bps())) as u64;
        let time = Duration::from_nanos(nanos);
        self.free = start + time;
        self.statistics.busy(time);
    }
}

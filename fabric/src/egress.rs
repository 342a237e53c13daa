use crate::statistics::Statistics;
use cc::{Instant, Rate};
use datapath::io::PacketBuf;
use std::collections::VecDeque;
use std::time::Duration;

/// A port's state at the moment a frame starts to leave: what telemetry carries (rtgwg-00 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// When the frame starts to leave.
    pub(crate) time: Instant,
    /// Bytes that left before it.
    pub(crate) tx_bytes: u64,
    /// Bytes that wait behind it.
    pub(crate) queue: u64,
    /// How long it has waited.
    pub(crate) sojourn: Duration,
}

/// Why the queue didn't take a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    QueueFull,
    PortBlocked,
}

struct Queued<B> {
    buf: B,
    /// The link may start with it from here on.
    ready: Instant,
}

/// A byte-bounded queue before a link of a fixed rate, on the link's own clock.
pub(crate) struct Egress<B> {
    /// The first `released` have started to leave and wait for somebody to fetch them.
    frames: VecDeque<Queued<B>>,
    released: usize,
    released_bytes: u64,
    waiting_bytes: u64,
    rate: Option<Rate>,
    limit: u64,
    limit_frames: usize,
    /// When the link has ended its last frame, and the rest of a nanosecond in 1/rate ns: no rounding adds up.
    free: Instant,
    rest: u64,
    tx_bytes: u64,
    pub(crate) statistics: Statistics,
}

impl<B: PacketBuf> Egress<B> {
    pub(crate) fn new(rate: Option<Rate>, limit: u64, limit_frames: usize) -> Self {
        Self {
            frames: VecDeque::with_capacity(limit_frames),
            released: 0,
            released_bytes: 0,
            waiting_bytes: 0,
            rate,
            limit,
            limit_frames,
            free: Instant::ZERO,
            rest: 0,
            tx_bytes: 0,
            statistics: Statistics::new(limit, Instant::ZERO),
        }
    }

    /// Bytes that wait for the link.
    pub(crate) const fn waiting(&self) -> u64 {
        self.waiting_bytes
    }

    /// Frames inside, fetched or not.
    pub(crate) fn frames(&self) -> usize {
        self.frames.len()
    }

    pub(crate) const fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Whether a frame of `bytes` has room. The queue's bound counts what waits for the link. What has left it and
    /// isn't fetched may be as much again: then the port behind has stopped.
    pub(crate) fn admits(&self, bytes: u64) -> Result<(), Refused> {
        if self.waiting_bytes + bytes > self.limit {
            return Err(Refused::QueueFull);
        }
        if self.waiting_bytes + self.released_bytes + bytes > 2 * self.limit
            || self.frames.len() >= self.limit_frames
        {
            return Err(Refused::PortBlocked);
        }
        Ok(())
    }

    /// Appends a frame that [`admits`](Self::admits) let in; the link may start with it from `ready` on, which
    /// is at most `now`.
    pub(crate) fn push(&mut self, now: Instant, ready: Instant, buf: B) {
        self.statistics.held(if self.rate.is_some() { self.waiting_bytes } else { 0 }, now);
        self.waiting_bytes += buf.len() as u64;
        self.frames.push_back(Queued { buf, ready });
    }

    /// Lets all frames go whose start lies at or before `now`. `leave` sees each with the port's state at its start, and may
    /// make it longer: what it is then, the link carries.
    pub(crate) fn advance(&mut self, now: Instant, mut leave: impl FnMut(&mut B, Snapshot)) {
        // Before a link without a rate nothing waits, however late somebody looks.
        let shaped = self.rate.is_some();
        while let Some(frame) = self.frames.get_mut(self.released) {
            let time = self.free.max(frame.ready);
            if time > now {
                return;
            }
            self.statistics.held(if shaped { self.waiting_bytes } else { 0 }, time);
            self.waiting_bytes -= frame.buf.len() as u64;
            let sojourn = time.saturating_since(frame.ready);
            let (tx_bytes, queue) = (self.tx_bytes, self.waiting_bytes);
            leave(&mut frame.buf, Snapshot { time, tx_bytes, queue, sojourn });
            let bytes = frame.buf.len() as u64;
            self.tx_bytes += bytes;
            self.released += 1;
            self.released_bytes += bytes;
            self.occupy(time, bytes);
        }
    }

    /// The next frame that has left.
    pub(crate) fn fetch(&mut self) -> Option<B> {
        if self.released == 0 {
            return None;
        }
        let buf = self.frames.pop_front()?.buf;
        self.released -= 1;
        self.released_bytes -= buf.len() as u64;
        Some(buf)
    }

    /// When the next frame starts to leave; the origin of time where one has left already.
    pub(crate) fn next_departure(&self) -> Option<Instant> {
        if self.released > 0 {
            return Some(Instant::ZERO);
        }
        self.frames.front().map(|frame| self.free.max(frame.ready))
    }

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

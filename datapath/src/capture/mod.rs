//! Frames of a core on their way to an observer in another process: a ring in shared memory that the core fills and the observer empties.
//!
//! The core never waits. A frame that has no room is counted and not captured, so an observer that is slow, stopped or dead costs the
//! core no more than that. The ring outlives a process that is killed: the observer still reads what it wrote.

#[cfg(test)]
mod tests;

use crate::clock::Clock;
use crate::shared_memory::{self, Access, Mapping};
use cc::Instant;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

/// The first word of the memory, which identifies the layout below. Another version is refused.
const LAYOUT: u64 = 0x4652_4341_5054_0001;
/// Offsets of the header. The core writes all but `TAKEN`, which has a separate cache line.
const EPOCH: usize = 8;
const SENT: usize = 64;
const DROPPED: usize = 72;
const CLOSED: usize = 80;
const TAKEN: usize = 128;
const RING_AT: usize = 4096;
/// Bytes of the ring: 6 ms at 10 Gb/s, which is longer than an observer with a CPU sleeps.
const RING: usize = 8 << 20;
const LENGTH: usize = RING_AT + RING;

/// Bytes of a record's header, of which records are multiples too.
const HEADER: usize = 24;
const ALIGN: usize = 8;
/// The longest frame that is believed.
const LONGEST: u32 = 1 << 16;
/// In a record's length: the core sent the frame.
const OUT: u32 = 1 << 31;

/// The way of a captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The core received it.
    In,
    /// The core sent it.
    Out,
}

/// The core's end of a capture. Dropping it marks the capture's end.
#[derive(Debug)]
pub struct Tap {
    memory: Mapping,
    /// Bytes of a frame that are captured.
    snap: usize,
    /// Bytes that were ever put in, and that the observer ever took out, as it was seen last.
    sent: u64,
    taken: u64,
    dropped: u64,
    /// Frames dropped since the last one that had room.
    gap: u32,
}

impl Tap {
    /// Creates a ring for the first `snap` bytes of each frame, and its memory for [`Reader::new`].
    ///
    /// # Errors
    /// Returns the system's error if it has no 8 MiB of memory.
    pub fn new(snap: u32) -> io::Result<(Self, OwnedFd)> {
        let file = shared_memory::create(c"ferroce-capture", LENGTH)?;
        // Mapping alone does not: the core would be killed at the first page that the system does not have.
        shared_memory::populate(file.as_fd(), LENGTH)?;
        shared_memory::seal(file.as_fd(), 0)?;
        let memory = Mapping::new(file.as_fd(), Access::WritePresent, 0, LENGTH)?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let epoch = unix.saturating_sub(Clock::new().now().as_nanos());
        memory.long(EPOCH).store(epoch, Ordering::Relaxed);
        memory.long(0).store(LAYOUT, Ordering::Release);
        let tap = Self { memory, snap: snap.min(LONGEST) as usize, sent: 0, taken: 0, dropped: 0, gap: 0 };
        Ok((tap, file))
    }

    /// Captures a frame, or counts it if there is no room.
    #[cold]
    pub(crate) fn record(&mut self, now: Instant, direction: Direction, frame: &[u8]) {
        let captured = frame.get(..self.snap).unwrap_or(frame);
        let record = (HEADER + captured.len()).next_multiple_of(ALIGN) as u64;
        if !self.has_room(record) {
            self.dropped += 1;
            self.gap = self.gap.saturating_add(1);
            self.memory.long(DROPPED).store(self.dropped, Ordering::Relaxed);
            return;
        }
        let way = if direction == Direction::Out { OUT } else { 0 };
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&(captured.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&(frame.len() as u32 | way).to_le_bytes());
        header[8..16].copy_from_slice(&now.as_nanos().to_le_bytes());
        header[16..20].copy_from_slice(&self.gap.to_le_bytes());
        self.put(self.sent, &header);
        self.put(self.sent + HEADER as u64, captured);
        self.gap = 0;
        self.sent += record;
        self.memory.long(SENT).store(self.sent, Ordering::Release);
    }

    fn has_room(&mut self, record: u64) -> bool {
        let fits = |taken| self.sent - taken + record <= RING as u64;
        if fits(self.taken) {
            return true;
        }
        // Whatever the observer wrote there: no more was taken than was put in, and no less than before.
        let taken = self.memory.long(TAKEN).load(Ordering::Acquire);
        let is_plausible = (self.taken..=self.sent).contains(&taken);
        if is_plausible && fits(taken) {
            self.taken = taken;
            return true;
        }
        false
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let (first, rest) = halves(at, bytes.len());
        self.memory.copy_in(first, &bytes[..rest]);
        self.memory.copy_in(RING_AT, &bytes[rest..]);
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.memory.long(CLOSED).store(1, Ordering::Release);
    }
}

/// The offset of the ring's position `at`, and how many of `length` bytes lie before the ring's end.
fn halves(at: u64, length: usize) -> (usize, usize) {
    let place = (at % RING as u64) as usize;
    (RING_AT + place, length.min(RING - place))
}

/// A captured frame but for its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When the core's turn began that received or sent it, in ns since 1970.
    pub time: u64,
    /// Its direction: received or sent.
    pub direction: Direction,
    /// Bytes of the frame without FCS.
    pub length: u32,
    /// Bytes captured.
    pub captured: u32,
    /// Frames dropped between the record before and this one.
    pub dropped: u32,
}

/// The observer's end of a capture.
#[derive(Debug)]
pub struct Reader {
    memory: Mapping,
    epoch: u64,
    sent: u64,
    taken: u64,
    /// The oldest record that was not taken.
    next: Option<Record>,
}

impl Reader {
    /// Maps the ring of another process.
    ///
    /// # Errors
    /// Returns an error if the memory is not what [`Tap::new`] creates, or the system's.
    pub fn new(file: &OwnedFd) -> io::Result<Self> {
        shared_memory::check(file.as_fd(), LENGTH)?;
        let memory = Mapping::new(file.as_fd(), Access::Write, 0, LENGTH)?;
        if memory.long(0).load(Ordering::Acquire) != LAYOUT {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its memory has another layout"));
        }
        let epoch = memory.long(EPOCH).load(Ordering::Relaxed);
        Ok(Self { memory, epoch, sent: 0, taken: 0, next: None })
    }

    /// Returns the oldest frame that was not taken.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::InvalidData`] if the process wrote something else than records.
    pub fn peek(&mut self) -> io::Result<Option<Record>> {
        if self.next.is_some() {
            return Ok(self.next);
        }
        if self.taken == self.sent {
            self.sent = self.memory.long(SENT).load(Ordering::Acquire);
        }
        let waiting = self.sent.wrapping_sub(self.taken);
        if waiting == 0 {
            return Ok(None);
        }
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "its capture is damaged");
        if waiting > RING as u64 || waiting < HEADER as u64 {
            return Err(damaged());
        }
        let mut header = [0; HEADER];
        self.get(self.taken, &mut header);
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (captured, length) = (word(0), word(4) & !OUT);
        if length > LONGEST || captured > length || size(captured) > waiting {
            return Err(damaged());
        }
        let time = u64::from(word(12)) << 32 | u64::from(word(8));
        let direction = if word(4) & OUT != 0 { Direction::Out } else { Direction::In };
        let time = self.epoch.saturating_add(time);
        self.next = Some(Record { time, direction, length, captured, dropped: word(16) });
        Ok(self.next)
    }

    /// Takes the oldest frame: `frame` becomes its captured bytes.
    ///
    /// # Errors
    /// As [`peek`](Self::peek).
    pub fn take(&mut self, frame: &mut Vec<u8>) -> io::Result<Option<Record>> {
        let Some(record) = self.peek()? else { return Ok(None) };
        frame.resize(record.captured as usize, 0);
        self.get(self.taken + HEADER as u64, frame);
        self.next = None;
        self.taken += size(record.captured);
        self.memory.long(TAKEN).store(self.taken, Ordering::Release);
        Ok(Some(record))
    }

    /// Returns how many frames were dropped since the capture began.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.memory.long(DROPPED).load(Ordering::Relaxed)
    }

    /// Returns whether the core has ended the capture: nothing comes after what waits now.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.memory.long(CLOSED).load(Ordering::Acquire) != 0
    }

    fn get(&self, at: u64, into: &mut [u8]) {
        let (first, rest) = halves(at, into.len());
        let (begin, end) = into.split_at_mut(rest);
        self.memory.copy_out(first, begin);
        self.memory.copy_out(RING_AT, end);
    }
}

fn size(captured: u32) -> u64 {
    (HEADER + captured as usize).next_multiple_of(ALIGN) as u64
}

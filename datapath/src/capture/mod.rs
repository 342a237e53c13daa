//! Frames captured on a core for an observer in another process: a ring in shared memory.
//!
//! The core never waits: if the ring has no room for a frame, the core counts it and does not capture it. So a slow, stopped or ended
//! observer has no cost for the core. The ring outlives the captured process: the observer can still read the records of a killed process.

#[cfg(test)]
mod tests;

use crate::clock::Clock;
use crate::shared_memory::{self, Access, Mapping};
use cc::Instant;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

/// The first word of the memory: the version of this layout. A reader refuses all others.
const LAYOUT: u64 = 0x4652_4341_5054_0001;
/// Offsets of the header's fields. The core writes all but `READ_POS`, which has its own cache line.
const EPOCH: usize = 8;
const WRITE_POS: usize = 64;
const DROPPED: usize = 72;
const CLOSED: usize = 80;
const READ_POS: usize = 128;
const RING_AT: usize = 4096;
/// Bytes of the ring: 6 ms of traffic at 10 Gb/s, which is longer than an observer with its own CPU sleeps.
const RING: usize = 8 << 20;
const LENGTH: usize = RING_AT + RING;

/// Bytes of a record's header, and the alignment of records.
const HEADER: usize = 24;
const ALIGN: usize = 8;
/// The longest frame in bytes that a reader accepts.
const LONGEST: u32 = 1 << 16;
/// Flag in a record's length: the core sent the frame.
const OUT: u32 = 1 << 31;

/// Direction of a captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The core received the frame.
    In,
    /// The core sent the frame.
    Out,
}

/// The core's end of a capture. Dropping it marks the end of the capture.
#[derive(Debug)]
pub struct Tap {
    memory: Mapping,
    snaplen: usize,
    /// Bytes ever written, and bytes ever read according to the observer's last report.
    write_pos: u64,
    read_pos: u64,
    dropped: u64,
    gap: u32,
}

impl Tap {
    /// Creates a ring for the first `snaplen` bytes of each frame. Returns the tap and the memory to pass to [`Reader::new`].
    ///
    /// # Errors
    /// Returns the system's error if it cannot provide 8 MiB of shared memory.
    pub fn new(snaplen: u32) -> io::Result<(Self, OwnedFd)> {
        let file = shared_memory::create(c"ferroce-capture", LENGTH)?;
        // A mapping alone allocates no pages. The first write to a page that the system cannot provide would kill the process.
        shared_memory::populate(file.as_fd(), LENGTH)?;
        shared_memory::seal(file.as_fd(), 0)?;
        let memory = Mapping::new(file.as_fd(), Access::WritePresent, 0, LENGTH)?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let epoch = unix.saturating_sub(Clock::new().now().as_nanos());
        memory.long(EPOCH).store(epoch, Ordering::Relaxed);
        memory.long(0).store(LAYOUT, Ordering::Release);
        let tap = Self {
            memory,
            snaplen: snaplen.min(LONGEST) as usize,
            write_pos: 0,
            read_pos: 0,
            dropped: 0,
            gap: 0,
        };
        Ok((tap, file))
    }

    /// Captures a frame, or counts it as dropped if the ring is full.
    #[cold]
    pub(crate) fn record(&mut self, now: Instant, direction: Direction, frame: &[u8]) {
        let captured = frame.get(..self.snaplen).unwrap_or(frame);
        let record = (HEADER + captured.len()).next_multiple_of(ALIGN) as u64;
        if !self.has_room(record) {
            self.dropped += 1;
            self.gap = self.gap.saturating_add(1);
            self.memory.long(DROPPED).store(self.dropped, Ordering::Relaxed);
            return;
        }
        let flag = if direction == Direction::Out { OUT } else { 0 };
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&(captured.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&(frame.len() as u32 | flag).to_le_bytes());
        header[8..16].copy_from_slice(&now.as_nanos().to_le_bytes());
        header[16..20].copy_from_slice(&self.gap.to_le_bytes());
        self.put(self.write_pos, &header);
        self.put(self.write_pos + HEADER as u64, captured);
        self.gap = 0;
        self.write_pos += record;
        self.memory.long(WRITE_POS).store(self.write_pos, Ordering::Release);
    }

    fn has_room(&mut self, record: u64) -> bool {
        let fits = |read_pos| self.write_pos - read_pos + record <= RING as u64;
        if fits(self.read_pos) {
            return true;
        }
        // The observer may write any value. Only a count from the last known one up to the bytes written is accepted.
        let read_pos = self.memory.long(READ_POS).load(Ordering::Acquire);
        let is_plausible = (self.read_pos..=self.write_pos).contains(&read_pos);
        if is_plausible && fits(read_pos) {
            self.read_pos = read_pos;
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

/// Returns the offset in the memory of ring position `at`, and the number of the `length` bytes that are before the ring's end.
fn halves(at: u64, length: usize) -> (usize, usize) {
    let place = (at % RING as u64) as usize;
    (RING_AT + place, length.min(RING - place))
}

/// A captured frame, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Start of the core's turn that received or sent the frame, in ns since 1970.
    pub time: u64,
    /// Whether the core received or sent the frame.
    pub direction: Direction,
    /// Length of the frame in bytes, without FCS.
    pub length: u32,
    /// Captured bytes.
    pub captured: u32,
    /// Frames dropped between the previous record and this one.
    pub dropped: u32,
}

/// The observer's end of a capture.
#[derive(Debug)]
pub struct Reader {
    memory: Mapping,
    epoch: u64,
    write_pos: u64,
    read_pos: u64,
    /// The oldest unread record, if it has been parsed.
    next: Option<Record>,
}

impl Reader {
    /// Maps the ring of another process.
    ///
    /// # Errors
    /// Returns an error if [`Tap::new`] did not create the memory, or if the system cannot map it.
    pub fn new(file: &OwnedFd) -> io::Result<Self> {
        shared_memory::check(file.as_fd(), LENGTH)?;
        let memory = Mapping::new(file.as_fd(), Access::Write, 0, LENGTH)?;
        if memory.long(0).load(Ordering::Acquire) != LAYOUT {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its memory has another layout"));
        }
        let epoch = memory.long(EPOCH).load(Ordering::Relaxed);
        Ok(Self { memory, epoch, write_pos: 0, read_pos: 0, next: None })
    }

    /// Returns the oldest unread frame, and leaves it in the ring.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::InvalidData`] if the ring does not contain valid records.
    pub fn peek(&mut self) -> io::Result<Option<Record>> {
        if self.next.is_some() {
            return Ok(self.next);
        }
        if self.read_pos == self.write_pos {
            self.write_pos = self.memory.long(WRITE_POS).load(Ordering::Acquire);
        }
        let waiting = self.write_pos.wrapping_sub(self.read_pos);
        if waiting == 0 {
            return Ok(None);
        }
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "its capture is damaged");
        if waiting > RING as u64 || waiting < HEADER as u64 {
            return Err(damaged());
        }
        let mut header = [0; HEADER];
        self.get(self.read_pos, &mut header);
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

    /// Removes the oldest frame from the ring, and copies its captured bytes to `frame`.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::InvalidData`] if the ring does not contain valid records.
    pub fn take(&mut self, frame: &mut Vec<u8>) -> io::Result<Option<Record>> {
        let Some(record) = self.peek()? else { return Ok(None) };
        frame.resize(record.captured as usize, 0);
        self.get(self.read_pos + HEADER as u64, frame);
        self.next = None;
        self.read_pos += size(record.captured);
        self.memory.long(READ_POS).store(self.read_pos, Ordering::Release);
        Ok(Some(record))
    }

    /// Returns the number of frames dropped since the capture began.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.memory.long(DROPPED).load(Ordering::Relaxed)
    }

    /// Returns true if the core has ended the capture. No further frames are then added to the ring.
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

//! Two in-process ports connected by a cable, for tests and examples.

use super::{Burst, Caps, PacketBuf, PacketIo};
use crossbeam::queue::ArrayQueue;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Most frames in one direction of a [`pair`]. While it is full, the sender keeps its frames.
const WIRE: usize = 1024;

type LoopbackPool = ArrayQueue<Box<[u8]>>;
type Wire = ArrayQueue<LoopbackBuf>;

/// One end of an in-process cable.
#[derive(Debug)]
pub struct Loopback {
    pool: Arc<LoopbackPool>,
    inbound: Arc<Wire>,
    outbound: Arc<Wire>,
    max_frame: usize,
}

/// A buffer. Dropping it returns it to its pool.
#[derive(Debug)]
pub struct LoopbackBuf {
    bytes: Box<[u8]>,
    length: usize,
    pool: Arc<LoopbackPool>,
}

/// Returns two connected ports, each with a pool of `buffers` buffers of `max_frame` bytes. Each receives the frames of the other in order.
///
/// # Panics
/// Panics if `buffers` is 0.
#[must_use]
pub fn pair(buffers: usize, max_frame: usize) -> (Loopback, Loopback) {
    let pool = || {
        let pool = ArrayQueue::new(buffers);
        for _ in 0..buffers {
            pool.push(vec![0; max_frame].into_boxed_slice()).expect("a pool holds its own buffers");
        }
        Arc::new(pool)
    };
    let (left, right) = (Arc::new(Wire::new(WIRE)), Arc::new(Wire::new(WIRE)));
    (
        Loopback { pool: pool(), inbound: left.clone(), outbound: right.clone(), max_frame },
        Loopback { pool: pool(), inbound: right, outbound: left, max_frame },
    )
}

impl Loopback {
    /// Returns the number of free buffers in this end's pool.
    #[must_use]
    pub fn free_buffers(&self) -> usize {
        self.pool.len()
    }
}

impl PacketIo for Loopback {
    type Buf = LoopbackBuf;

    fn receive(&mut self, into: &mut Burst<LoopbackBuf>) {
        while !into.is_full()
            && let Some(frame) = self.inbound.pop()
        {
            into.push(frame);
        }
    }

    fn alloc(&mut self) -> Option<LoopbackBuf> {
        let bytes = self.pool.pop()?;
        Some(LoopbackBuf { bytes, length: 0, pool: self.pool.clone() })
    }

    fn transmit(&mut self, from: &mut Burst<LoopbackBuf>) {
        if Arc::strong_count(&self.outbound) == 1 {
            // The other end was dropped: an unplugged cable drops frames.
            from.clear();
        }
        let room = self.outbound.capacity() - self.outbound.len();
        for buffer in from.drain(..room.min(from.len())) {
            let sent = self.outbound.push(buffer);
            debug_assert!(sent.is_ok(), "this end alone fills the wire");
        }
    }

    fn caps(&self) -> Caps {
        Caps { max_frame: self.max_frame, speed_mbps: None }
    }
}

impl PacketBuf for LoopbackBuf {
    fn capacity(&self) -> usize {
        self.bytes.len()
    }

    fn set_len(&mut self, len: usize) {
        assert!(len <= self.bytes.len(), "a frame of {len} bytes in a buffer of {}", self.bytes.len());
        self.length = len;
    }
}

impl Deref for LoopbackBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl DerefMut for LoopbackBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl Drop for LoopbackBuf {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let returned = self.pool.push(bytes);
        debug_assert!(returned.is_ok(), "a pool takes back what it gave");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(port: &mut Loopback, bytes: &[u8]) -> LoopbackBuf {
        let mut buffer = port.alloc().unwrap();
        buffer.set_len(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    #[test]
    fn frames_arrive_in_order_and_buffers_return_to_their_pool() {
        let (mut a, mut b) = pair(4, 64);
        let mut out = Burst::new();
        out.push(frame(&mut a, b"one"));
        out.push(frame(&mut a, b"two"));
        a.transmit(&mut out);
        assert!(out.is_empty());
        assert_eq!(a.free_buffers(), 2);
        let mut arrived = Burst::new();
        b.receive(&mut arrived);
        assert_eq!(arrived.iter().map(|f| f.to_vec()).collect::<Vec<_>>(), [b"one", b"two"]);
        drop(arrived);
        assert_eq!((a.free_buffers(), b.free_buffers()), (4, 4));
    }

    #[test]
    fn an_empty_pool_allocates_nothing() {
        let (mut a, _b) = pair(1, 64);
        let held = a.alloc();
        assert!(held.is_some() && a.alloc().is_none());
        drop(held);
        assert!(a.alloc().is_some());
    }

    #[test]
    fn a_full_wire_keeps_the_rest_in_order() {
        let (mut a, mut b) = pair(WIRE + 2, 64);
        let mut out = Burst::new();
        let mut next = 0;
        while out.is_empty() {
            while !out.is_full() && next < WIRE + 2 {
                out.push(frame(&mut a, &next.to_be_bytes()));
                next += 1;
            }
            a.transmit(&mut out);
        }
        assert_eq!(out.len(), 2);
        let mut arrived = Burst::new();
        let mut expected = 0_usize;
        while expected < WIRE + 2 {
            b.receive(&mut arrived);
            for frame in arrived.drain(..) {
                assert_eq!(*frame, expected.to_be_bytes());
                expected += 1;
            }
            a.transmit(&mut out);
        }
        assert!(out.is_empty());
    }

    #[test]
    fn an_unplugged_cable_loses_frames() {
        let (mut a, b) = pair(2, 64);
        drop(b);
        let mut out = Burst::new();
        out.push(frame(&mut a, b"lost"));
        a.transmit(&mut out);
        assert!(out.is_empty());
        assert_eq!(a.free_buffers(), 2);
    }
}

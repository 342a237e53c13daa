//! The seam between packets and what carries them.

mod counters;
mod loopback;

pub use counters::PortCounters;
pub use loopback::{Loopback, LoopbackBuf, pair};

use crate::steering::Steering;
use arrayvec::ArrayVec;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;

/// Buffers that one receive or transmit call moves at most.
pub const BURST: usize = 32;

/// Up to [`BURST`] buffers in order, held inline: it can't grow, so it never allocates. A port's driver reads and
/// writes it in place.
pub type Burst<B> = ArrayVec<B, BURST>;

/// A packet buffer: bytes that dereference to a frame without its FCS.
pub trait PacketBuf: Deref<Target = [u8]> + DerefMut + Send {
    /// Bytes that the frame may grow to.
    fn capacity(&self) -> usize;
    /// Sets the frame's length to `len` bytes, at most the capacity. New bytes have any content.
    fn set_len(&mut self, len: usize);
    /// Frees buffers, from any thread.
    fn free_all(from: &mut Burst<Self>)
    where
        Self: Sized,
    {
        from.clear();
    }
}

/// The capabilities of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The largest frame, Ethernet header included, FCS excluded.
    pub max_frame: usize,
    /// The link's speed in Mb/s if the port knows one.
    pub speed_mbps: Option<u32>,
}

/// A descriptor that becomes readable when frames arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bell {
    /// Of every frame.
    Now(RawFd),
    /// Of every frame but those that came when the port had just begun to listen: a sleeping thread looks again soon, for once.
    Soon(RawFd),
}

/// Why a port could not open a queue for each core.
pub type QueueError = Box<dyn std::error::Error + Send + Sync>;

/// A port that moves whole frames in bursts. One thread at a time.
pub trait PacketIo: Send {
    /// The buffer of a frame.
    type Buf: PacketBuf;

    /// Opens a queue for each core but core 0, in their order, if the port has more than one. A queue receives frames of its core and sends
    /// by itself; the port goes on to receive all other frames.
    ///
    /// # Errors
    /// Returns the port's error if it has queues, and one does not open.
    fn open_queues(&mut self, _steering: &Steering) -> Result<Vec<Self>, QueueError>
    where
        Self: Sized,
    {
        Ok(Vec::new())
    }

    /// Returns true if this queue of a port with several may receive frames of other cores.
    fn strays(&self) -> bool {
        false
    }

    /// The calling thread is about to use the port. Called again and again.
    fn attach(&mut self) {}
    /// Appends received frames to `into`, as many as wait and fit; never waits itself.
    fn receive(&mut self, into: &mut Burst<Self::Buf>);
    /// Returns true if received frames wait that the port lends. Those of most ports have buffers of their own, for
    /// [`receive`](Self::receive).
    fn lends(&self) -> bool {
        false
    }
    /// Appends received frames to `into`, as [`receive`](Self::receive) does, unless the port lends them. Returns true if there are frames: in
    /// `into`, or to be [lent](Self::lend).
    #[inline]
    fn receive_or_lend(&mut self, into: &mut Burst<Self::Buf>) -> bool {
        let lends = self.lends();
        if !lends {
            self.receive(into);
        }
        lends || !into.is_empty()
    }
    /// Passes received frames to `take` in order, as many as wait, up to about a burst. Each is lent for one call, in the place where the
    /// port received it. Those for which `take` returns false are appended to `others`, as by [`receive`](Self::receive). Only for a port
    /// that [lends](Self::lends).
    fn lend(&mut self, _others: &mut Burst<Self::Buf>, _take: impl FnMut(&[u8]) -> bool)
    where
        Self: Sized,
    {
    }
    /// A fresh, empty buffer; `None` while the pool is dry.
    fn alloc(&mut self) -> Option<Self::Buf>;
    /// Frees buffers that are no longer needed.
    fn recycle(&mut self, from: &mut Burst<Self::Buf>) {
        Self::Buf::free_all(from);
    }
    /// Sends from the front of `from` what the port takes now; the rest stays, in order.
    fn transmit(&mut self, from: &mut Burst<Self::Buf>);
    /// Returns the port's capabilities.
    fn caps(&self) -> Caps;
    /// Returns the counts of what the port itself dropped. It may take a system call.
    fn counters(&mut self) -> PortCounters {
        PortCounters::default()
    }
    /// Returns true if the port receives all that it sends.
    fn loops(&self) -> bool {
        false
    }
    /// Sets if the descriptor reports frames from now on, for a thread that sleeps until one arrives. It costs a system call a burst.
    fn listen(&mut self, _on: bool) {}
    /// Returns a descriptor that is readable while a received frame waits and the port listens; `None` if there is no
    /// such descriptor.
    fn descriptor(&self) -> Option<Bell> {
        None
    }
}

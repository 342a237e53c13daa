//! The interface between the protocol and ports.

mod counters;
mod loopback;

pub use counters::PortCounters;
pub use loopback::{Loopback, LoopbackBuf, pair};

use crate::steering::Steering;
use arrayvec::ArrayVec;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;

/// Most buffers that one call receives or transmits.
pub const BURST: usize = 64;

/// Up to [`BURST`] buffers in order, stored inline. It never allocates, and a port's driver reads and writes it in place.
pub type Burst<B> = ArrayVec<B, BURST>;

/// A packet buffer, which dereferences to a frame without FCS.
pub trait PacketBuf: Deref<Target = [u8]> + DerefMut + Send {
    /// Returns the largest possible length of the frame in bytes.
    fn capacity(&self) -> usize;
    /// Sets the frame's length in bytes, at most the capacity. The contents of added bytes are unspecified.
    fn set_len(&mut self, len: usize);
    /// Frees buffers. Any thread may call this.
    fn free_all(from: &mut Burst<Self>)
    where
        Self: Sized,
    {
        from.clear();
    }
}

/// Properties of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The largest frame in bytes, with Ethernet header, without FCS.
    pub max_frame: usize,
    /// The link's speed in Mb/s, if known.
    pub speed_mbps: Option<u32>,
}

/// A descriptor that becomes readable when frames arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeDescriptor {
    /// Signals every frame.
    Reliable(RawFd),
    /// May miss frames that arrive while the port starts listening, so the first sleep must be short.
    Racy(RawFd),
}

/// The reason why a port could not open a queue for each core.
pub type QueueError = Box<dyn std::error::Error + Send + Sync>;

/// A port that sends and receives whole frames in bursts. One thread uses it at a time.
pub trait PacketIo: Send {
    /// The buffer of one frame.
    type Buf: PacketBuf;

    /// Opens a queue for each core from 1 on, in order, if the port supports several. A queue receives its core's frames and sends by
    /// itself. The port continues to receive all other frames. Returns no queues if the port supports only one.
    ///
    /// # Errors
    /// Returns the port's error if it supports several queues but one cannot be opened.
    fn open_queues(&mut self, _steering: &Steering) -> Result<Vec<Self>, QueueError>
    where
        Self: Sized,
    {
        Ok(Vec::new())
    }

    /// Returns true if this queue may receive frames of other cores.
    fn misdirects(&self) -> bool {
        false
    }

    /// Prepares the calling thread for using the port. May be called repeatedly.
    fn attach(&mut self) {}
    /// Appends received frames to `into`, as many as it has room for. Does not wait.
    fn receive(&mut self, into: &mut Burst<Self::Buf>);
    /// Returns true if the port has frames for [`receive_in_place`](Self::receive_in_place). Other frames are delivered in buffers by
    /// [`receive`](Self::receive).
    fn has_in_place(&self) -> bool {
        false
    }
    /// Appends received frames to `into`, as [`receive`](Self::receive) does, unless they are in place. Returns true if there are frames:
    /// in `into`, or for [`receive_in_place`](Self::receive_in_place).
    #[inline]
    fn poll_receive(&mut self, into: &mut Burst<Self::Buf>) -> bool {
        let has_in_place = self.has_in_place();
        if !has_in_place {
            self.receive(into);
        }
        has_in_place || !into.is_empty()
    }
    /// Passes received frames to `take` in order, up to about a burst. Each is passed in the place where the port received it, and only
    /// during the call. Appends those for which `take` returns false to `others`, as [`receive`](Self::receive) would. Must be called only
    /// if
    /// [`has_in_place`](Self::has_in_place) returns true.
    fn receive_in_place(&mut self, _others: &mut Burst<Self::Buf>, _take: impl FnMut(&[u8]) -> bool)
    where
        Self: Sized,
    {
    }
    /// Allocates an empty buffer. Returns `None` while the pool is empty.
    fn alloc(&mut self) -> Option<Self::Buf>;
    /// Frees buffers.
    fn recycle(&mut self, from: &mut Burst<Self::Buf>) {
        Self::Buf::free_all(from);
    }
    /// Sends frames from the front of `from`, as many as the port accepts now. The others stay, in order.
    fn transmit(&mut self, from: &mut Burst<Self::Buf>);
    /// Returns true if each burst is a system call, which takes longer than a packet.
    fn sends_by_system_calls(&self) -> bool {
        false
    }
    /// Records that packets to `peer` may be lost: a request was not answered in time, or an answered one arrived again.
    fn suspect(&mut self, _peer: IpAddr) {}
    /// Returns the port's properties.
    fn caps(&self) -> Caps;
    /// Returns the counts of frames that the port itself dropped. May make a system call.
    fn counters(&mut self) -> PortCounters {
        PortCounters::default()
    }
    /// Returns true if the port receives everything that it sends.
    fn loops_back(&self) -> bool {
        false
    }
    /// Sets whether the descriptor signals frames, for a thread that is about to sleep. While set, it costs a system call for each burst.
    fn listen(&mut self, _on: bool) {}
    /// Returns a descriptor that is readable while a received frame is queued and the port listens, or `None` if the port has none.
    fn descriptor(&self) -> Option<WakeDescriptor> {
        None
    }
}

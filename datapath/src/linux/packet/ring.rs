//! The receive ring of a packet socket, shared with the kernel (packet(7), `TPACKET_V2`), which copies each frame to the next slot.
//! Reading a frame needs no system call.
//!
//! The sender's CPU makes that copy on a veth, and the NIC's interrupt elsewhere. So the kernel copies only short frames to a slot. It
//! queues a datagram that is longer than a slot, and marks the slot (`PACKET_COPY_THRESH`, `TP_STATUS_COPY`). The receiver then reads the
//! datagram into its one buffer, which stays in the cache of its CPU. The limit on queued bytes is far too small for this unless the
//! process may raise it. Without that privilege, a slot has room for the longest datagram.

use super::queued::QueuedDatagram;
use crate::fork::Process;
use crate::linux::datagrams::{DatagramSlot, HEADROOM, LONGEST, QUEUE, Tag, VNET_LENGTH, VnetHeader};
use crate::socket_option;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a slot before its frame: the kernel's header of less than 128 bytes. Not a power of two, so that the starts of the slots of
/// 64 KiB do not map to the same cache sets.
const SLOT_HEAD: usize = 192;
/// Most slots that have room for the longest datagram: 16 MiB.
const MAX_LARGE_SLOTS: usize = 240;
/// Bytes that the kernel allocates contiguously if possible.
const BLOCK: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct ReceiveRing {
    memory: NonNull<u8>,
    blocks: usize,
    slots_of_block: usize,
    /// Bytes of a slot.
    slot_length: usize,
    block: usize,
    slot: usize,
    queued: QueuedDatagram,
    /// The process that has the mapping. Its forked children do not have it.
    process: Process,
}

// SAFETY: the ring owns its mapping, and `&mut self` restricts its use to one thread at a time.
unsafe impl Send for ReceiveRing {}

impl ReceiveRing {
    /// Creates a ring of at least `slots` slots, rounded up to whole MiB, for `socket`, which must not be bound yet. Frames of up to
    /// `max_frame` bytes fit into a slot. If slots have room for the longest datagram, there are at most 240.
    ///
    /// # Errors
    /// Returns the kernel's error: `ENOMEM` if it has no memory for the ring.
    pub(super) fn new(socket: &OwnedFd, slots: usize, max_frame: usize) -> io::Result<Self> {
        let on: libc::c_int = 1;
        let queues = socket_option::set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &QUEUE)
            .and_then(|()| socket_option::set(socket, libc::SOL_PACKET, libc::PACKET_COPY_THRESH, &on));
        let (slots, longest) =
            if queues.is_ok() { (slots, max_frame) } else { (slots.min(MAX_LARGE_SLOTS), LONGEST) };
        // The kernel requires a multiple of TPACKET_ALIGNMENT.
        let slot = (longest + SLOT_HEAD).next_multiple_of(64);
        let slots_of_block = BLOCK / slot;
        let blocks = slots.div_ceil(slots_of_block).max(1);
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot as u32,
            tp_frame_nr: (blocks * slots_of_block) as u32,
        };
        socket_option::set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let (length, access) = (blocks * BLOCK, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: creates a new mapping at an address that the kernel chooses.
        let memory = unsafe {
            libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, socket.as_raw_fd(), 0)
        };
        let memory = NonNull::new(memory).filter(|memory| memory.as_ptr() != libc::MAP_FAILED);
        let memory = memory.ok_or_else(io::Error::last_os_error)?.cast();
        let ring = Self {
            memory,
            blocks,
            slots_of_block,
            slot_length: slot,
            block: 0,
            slot: 0,
            queued: QueuedDatagram::new(if queues.is_ok() { LONGEST } else { 0 }),
            process: Process::this(),
        };
        // A mapping in a forked child would keep the socket open.
        // SAFETY: the range is this mapping, and the call changes only what forked children see of it.
        unsafe { libc::madvise(memory.as_ptr().cast(), length, libc::MADV_DONTFORK) };
        Ok(ring)
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the slot lies within the mapping, as `block` is below `blocks` and `slot` below the slots of a block.
        unsafe { self.memory.as_ptr().add(self.block * BLOCK + self.slot * self.slot_length) }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: a slot begins with its aligned status, which the kernel writes at any time.
        unsafe { AtomicU32::from_ptr(self.start().cast()) }
    }

    #[inline]
    pub(super) fn is_filled(&self) -> bool {
        self.status().load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0
    }

    /// Returns the datagram of the next filled slot of the ring of `socket`.
    #[inline]
    pub(super) fn front(&mut self, socket: &impl AsRawFd) -> Option<DatagramSlot<'_>> {
        // Pairs with the kernel's barrier before its store of the status.
        let status = self.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot begins with this header, which is aligned, and the kernel does not write to it until the status changes.
        let header = unsafe { self.start().cast::<libc::tpacket2_hdr>().read() };
        let length = header.tp_len as usize;
        let ([t0, t1], [i0, i1]) = (tag_type(status, header.tp_vlan_tpid), header.tp_vlan_tci.to_be_bytes());
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then_some(Tag([t0, t1, i0, i1]));
        if status & libc::TP_STATUS_COPY != 0 {
            let (vnet, room) = self.queued.receive(socket, length);
            return Some(DatagramSlot { vnet: VnetHeader::parse(vnet), room, length, tag });
        }
        let begin = usize::from(header.tp_mac).clamp(size_of_val(&header) + VNET_LENGTH, self.slot_length);
        let received = (header.tp_snaplen as usize).min(self.slot_length - begin);
        // SAFETY: the range lies within the slot, after its header: `begin` leaves room for the virtio header, which is longer than the
        // headroom. The kernel does not write to the slot until `release`, which needs `&mut self`, so no other reference to it exists.
        let (vnet, room) = unsafe {
            let start = self.start().add(begin);
            let vnet = start.sub(VNET_LENGTH).cast::<[u8; VNET_LENGTH]>().read();
            (vnet, std::slice::from_raw_parts_mut(start.sub(HEADROOM), HEADROOM + received))
        };
        Some(DatagramSlot { vnet: VnetHeader::parse(vnet), room, length, tag })
    }

    /// Returns the slot of [`front`](Self::front) to the kernel.
    #[inline]
    pub(super) fn release(&mut self) {
        self.queued.clear();
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.slot += 1;
        if self.slot == self.slots_of_block {
            self.slot = 0;
            self.block = if self.block + 1 == self.blocks { 0 } else { self.block + 1 };
        }
    }
}

impl Drop for ReceiveRing {
    fn drop(&mut self) {
        if self.process.is_parent() {
            return;
        }
        // SAFETY: `new` created the mapping, and no reference to it is left.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.blocks * BLOCK) };
    }
}

/// Returns the EtherType of a tag: 802.1Q unless the kernel reports another.
const fn tag_type(status: u32, given: u16) -> [u8; 2] {
    if status & libc::TP_STATUS_VLAN_TPID_VALID == 0 { [0x81, 0] } else { given.to_be_bytes() }
}

//! The queue pair of a datagram socket on one device, with the memory of its messages.

use super::introduction::Source;
use super::memory::Registered;
use super::queue::{BATCH, Queue, attributes};
use crate::abi::*;
use crate::rdmacm::datagram::QKEY;
use crate::rdmacm::device::Device;
use crate::rdmacm::errno::{Errno, INVALID};
use crate::rdmacm::id::{Connection, Id};
use crate::rdmacm::queue_pair;
use std::ffi::c_int;

/// Length of the longest datagram with its header, bytes, as in rdma-core.
pub(super) const LONGEST: usize = 2048;
/// Length of the header that the device writes before each datagram, bytes.
const GRH: usize = 40;
/// Distance between the places of received datagrams, bytes.
const STRIDE: usize = GRH + LONGEST;
/// Distinguishes completions of receive requests from those of sends.
const RECEIVED: u64 = 1 << 63;

/// A received datagram in the memory of a port.
#[derive(Clone, Copy)]
pub(super) struct ReceivedDatagram {
    place: u32,
    /// Length including the header, bytes.
    length: u32,
}

pub(super) struct Port {
    pub(super) device: &'static Device,
    id: *mut Id,
    pub(super) queue: Queue,
    sends: Registered,
    /// The places of `sends` that no datagram uses.
    free: Vec<u32>,
    depth: usize,
    receives: Registered,
}

// SAFETY: the port owns the identifier, which is only used under the socket's lock.
unsafe impl Send for Port {}

impl Port {
    /// Creates a queue pair with this many places for datagrams to send and to receive.
    pub(super) fn new(device: &'static Device, sends: u32, receives: u32) -> Result<Self, Errno> {
        let id = Id::create(std::ptr::null_mut(), std::ptr::null_mut(), RDMA_PS_UDP)?;
        // SAFETY: the identifier was created above and is owned by the port; the device is open as long as the process exists.
        let parts = unsafe {
            (*id).show(Some(device), &Connection::default());
            Self::parts(device, &*id, sends, receives).inspect_err(|_| Id::destroy(id))
        };
        let (queue, sent, received) = parts?;
        let (free, depth) = ((0..sends).collect(), sends as usize);
        let port = Self { device, id, queue, sends: sent, free, depth, receives: received };
        (0..receives).try_for_each(|place| port.post_receive(place))?;
        Ok(port)
    }

    /// Creates the queue pair of an identifier, with its completion queue and its memory.
    ///
    /// # Safety
    /// The caller must pass an identifier without a queue pair, and destroy its queue pair before the completion queue.
    unsafe fn parts(
        device: &Device,
        id: &Id,
        sends: u32,
        receives: u32,
    ) -> Result<(Queue, Registered, Registered), Errno> {
        let pd = queue_pair::default_domain(device)?;
        let register = |places: u32, size: usize| {
            // SAFETY: the domain exists as long as the process.
            unsafe { Registered::new(pd, places as usize * size, IBV_ACCESS_LOCAL_WRITE) }
        };
        let (sent, received) = (register(sends, LONGEST)?, register(receives, STRIDE)?);
        // SAFETY: the context is open as long as the process exists.
        let queue = unsafe { Queue::new(device.context, sends + receives) }?;
        let mut wanted = attributes(IBV_QPT_UD, queue.cq(), (sends, receives));
        // SAFETY: the queue is alive.
        unsafe { queue_pair::create(id, pd, &mut wanted) }?;
        Ok((queue, sent, received))
    }

    fn id(&self) -> &Id {
        // SAFETY: the port owns the identifier, which lives as long as the port.
        unsafe { &*self.id }
    }

    pub(super) fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is alive as long as the port.
        unsafe { (*self.id().qp()).qp_num }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn all_left(&self) -> bool {
        self.free.len() == self.depth
    }

    /// Handles completions. Passes received datagrams to `received`.
    pub(super) fn poll(&mut self, mut received: impl FnMut(ReceivedDatagram)) {
        let mut batch = [ibv_wc::default(); BATCH];
        loop {
            let found = self.queue.poll(&mut batch);
            if found == 0 {
                return;
            }
            for wc in &batch[..found] {
                let place = wc.wr_id as u32;
                if wc.wr_id & RECEIVED == 0 {
                    self.free.push(place);
                } else if wc.status == IBV_WC_SUCCESS && wc.byte_len as usize >= GRH {
                    let whole = ReceivedDatagram { place, length: wc.byte_len - GRH as u32 };
                    if self.source(whole).is_some() { received(whole) } else { self.repost(whole) }
                }
            }
        }
    }

    /// Reads the header of a received datagram. Returns its sender, and the length of the header.
    pub(super) fn source(&self, received: ReceivedDatagram) -> Option<(Source, usize)> {
        let mut header = [0; Source::MAX];
        let header = &mut header[..Source::MAX.min(received.length as usize)];
        self.receives.read(received.place as usize * STRIDE + GRH, header);
        Source::read(header)
    }

    /// Copies the data of a datagram, truncated to the available room. Returns the number of bytes.
    pub(super) fn read(&self, received: ReceivedDatagram, header: usize, into: &mut [u8]) -> usize {
        let length = (received.length as usize - header).min(into.len());
        self.receives.read(received.place as usize * STRIDE + GRH + header, &mut into[..length]);
        length
    }

    /// Posts the place of a datagram for another one. Fails only if the queue pair has failed and receives no more datagrams.
    pub(super) fn repost(&self, received: ReceivedDatagram) {
        let _ = self.post_receive(received.place);
    }

    fn post_receive(&self, place: u32) -> Result<(), Errno> {
        let addr = self.receives.address() + u64::from(place) * STRIDE as u64;
        let mut buffer = ibv_sge { addr, length: STRIDE as u32, lkey: self.receives.lkey() };
        let mut request = ibv_recv_wr {
            wr_id: RECEIVED | u64::from(place),
            sg_list: &mut buffer,
            num_sge: 1,
            ..Default::default()
        };
        let (qp, mut bad) = (self.id().qp(), std::ptr::null_mut());
        // SAFETY: every context has the function; the request's parts outlive the call, and its memory lives as long as the queue pair.
        let result = unsafe { (*(*qp).context).ops.post_recv.map(|post| post(qp, &mut request, &mut bad)) };
        if result == Some(0) { Ok(()) } else { Err(INVALID) }
    }

    /// Sends header and data to a queue pair. Returns `EAGAIN` if there is no room.
    ///
    /// # Safety
    /// The caller must keep the address handle alive until the datagram has been sent.
    pub(super) unsafe fn send(&mut self, parts: [&[u8]; 2], ah: *mut ibv_ah, qpn: u32) -> Result<(), Errno> {
        let place = self.free.pop().ok_or(Errno(libc::EAGAIN))?;
        let at = place as usize * LONGEST;
        self.sends.write(at, parts[0]);
        self.sends.write(at + parts[0].len(), parts[1]);
        let length = (parts[0].len() + parts[1].len()) as u32;
        let mut buffer = ibv_sge { addr: self.sends.address() + at as u64, length, lkey: self.sends.lkey() };
        let mut request = ibv_send_wr {
            wr_id: place.into(),
            sg_list: &mut buffer,
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags: IBV_SEND_SIGNALED,
            ..Default::default()
        };
        request.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn: qpn, remote_qkey: QKEY };
        let (qp, mut bad) = (self.id().qp(), std::ptr::null_mut());
        // SAFETY: every context has the function; the request's parts outlive the call, and its memory lives as long as the queue pair.
        let result: Option<c_int> =
            unsafe { (*(*qp).context).ops.post_send.map(|post| post(qp, &mut request, &mut bad)) };
        match result {
            Some(0) => Ok(()),
            failed => {
                self.free.push(place);
                Err(failed.map_or(INVALID, Errno))
            }
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: the port owns both, nothing else uses them, and each is destroyed once. The queue is dropped after them.
        unsafe {
            queue_pair::destroy(self.id());
            Id::destroy(self.id);
        }
    }
}

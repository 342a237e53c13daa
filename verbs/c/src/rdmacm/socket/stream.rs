//! A stream: its queue pair, its sender and its receiver.

use super::mapping::Mappings;
use super::memory::Registered;
use super::queue::{BATCH, Queue, attributes};
use super::receiver::{ENTRIES, Receiver};
use super::sender::{CONTROLS, LIST, Sender, Write};
use super::wire::{Greeting, Mapping, Message, Target};
use super::{Pollable, SocketState};
use crate::abi::*;
use crate::rdmacm::connect::{rdma_accept, rdma_connect};
use crate::rdmacm::errno::{Errno, INVALID, last};
use crate::rdmacm::events;
use crate::rdmacm::id::Id;
use crate::rdmacm::queue_pair;
use std::ffi::{c_int, c_void};

/// The sizes of a stream's buffers and queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) send_buffer: usize,
    pub(super) receive_buffer: usize,
    /// Maximum number of data messages that are being sent, in each direction.
    pub(super) send_queue: u16,
    pub(super) receive_queue: u16,
    /// Maximum number of mappings that the peer may create.
    pub(super) mappings: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamState {
    /// The request has been sent.
    Connecting,
    /// The reply has been sent, and the peer has not confirmed it yet.
    Accepting,
    Up,
    /// One side has ended the connection, or the peer no longer answers.
    Down,
    /// The connection was not established.
    Failed(Errno),
}

pub(super) struct Stream {
    id: *mut Id,
    queue: Queue,
    pub(super) state: StreamState,
    /// False if the program or the peer has shut down this direction.
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) mappings: Mappings,
}

// SAFETY: the pointers refer to objects of libibverbs, which any thread may use, and to the identifier, which is only used under the
// socket's lock.
unsafe impl Send for Stream {}

/// Distinguishes completions of receive requests from those of sends.
const RECEIVED: u64 = 1 << 63;
const LOCAL: u32 = IBV_ACCESS_LOCAL_WRITE;
const REMOTE: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

impl Stream {
    /// Creates a stream that is not connected yet, for an identifier with its addresses.
    ///
    /// # Safety
    /// The caller must pass a live identifier with its own channel. The stream becomes its owner.
    unsafe fn new(id: *mut Id, sizes: &Sizes, state: StreamState) -> Result<Self, Errno> {
        // SAFETY: guaranteed by the caller.
        let device = unsafe { (*id).device() }?;
        let receives = u32::from(sizes.receive_queue) + CONTROLS;
        let sends = u32::from(sizes.send_queue) + CONTROLS;
        // SAFETY: the context is open; objects are destroyed if a later one cannot be created.
        unsafe {
            let queue = Queue::new(device.context, sends + receives)?;
            let made = Self::with_queue(id, sizes, (sends, receives), queue.cq());
            let (sender, receiver) = made.inspect_err(|_| queue_pair::destroy(&*id))?;
            let (readable, writable) = (true, true);
            Ok(Self { id, queue, state, readable, writable, sender, receiver, mappings: Mappings::default() })
        }
    }

    /// # Safety
    /// The caller must fulfil the conditions of `new`, and pass a live queue.
    unsafe fn with_queue(
        id: *mut Id,
        sizes: &Sizes,
        (sends, receives): (u32, u32),
        cq: *mut ibv_cq,
    ) -> Result<(Sender, Receiver), Errno> {
        let mut wanted = attributes(IBV_QPT_RC, cq, (sends, receives));
        // SAFETY: guaranteed by the caller; the domain exists as long as the process.
        unsafe {
            queue_pair::create(&*id, std::ptr::null_mut(), &mut wanted)?;
            let pd = queue_pair::default_domain((*id).device()?)?;
            let register = |length, access| Registered::new(pd, length, access);
            let table = usize::from(sizes.mappings) * Mapping::SIZE;
            let list = register(LIST * Target::SIZE + table, REMOTE)?;
            let sender = Sender::new(register(sizes.send_buffer, LOCAL)?, list, sizes.send_queue.into());
            let entries = register(ENTRIES * Target::SIZE, LOCAL)?;
            let receiver =
                Receiver::new(register(sizes.receive_buffer, REMOTE)?, entries, sizes.receive_queue);
            for _ in 0..receives {
                post_receive(&*id)?;
            }
            Ok((sender, receiver))
        }
    }

    /// Requests a connection to the identifier's destination.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of `new`.
    pub(super) unsafe fn connect(id: *mut Id, sizes: &Sizes) -> Result<Self, Errno> {
        // SAFETY: guaranteed by the caller; the call does not wait, because the identifier has a channel.
        unsafe {
            let stream = Self::new(id, sizes, StreamState::Connecting)?;
            let greeting = stream.receiver.greeting(stream.sender.list(), sizes.mappings).write();
            if rdma_connect((*id).abi(), &mut parameters(&greeting)) == 0 { Ok(stream) } else { Err(last()) }
        }
    }

    /// Accepts a peer's request.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of `new`.
    pub(super) unsafe fn accept(id: *mut Id, sizes: &Sizes, peer: &Greeting) -> Result<Self, Errno> {
        // SAFETY: as in `connect`.
        unsafe {
            let mut stream = Self::new(id, sizes, StreamState::Accepting)?;
            stream.sender.on_greeting(peer);
            stream.receiver.on_greeting(peer);
            stream.mappings.on_greeting(peer);
            let greeting = stream.receiver.greeting(stream.sender.list(), sizes.mappings).write();
            if rdma_accept((*id).abi(), &mut parameters(&greeting)) == 0 { Ok(stream) } else { Err(last()) }
        }
    }

    fn id(&self) -> &Id {
        // SAFETY: the stream owns the identifier, which lives as long as the stream.
        unsafe { &*self.id }
    }

    fn on_event(&mut self, kind: rdma_cm_event_type, status: c_int, greeting: Option<Greeting>) {
        self.state = match (kind, self.state) {
            (RDMA_CM_EVENT_ESTABLISHED, StreamState::Connecting) => match greeting {
                Some(peer) => {
                    self.sender.on_greeting(&peer);
                    self.receiver.on_greeting(&peer);
                    self.mappings.on_greeting(&peer);
                    StreamState::Up
                }
                None => StreamState::Failed(Errno(libc::ECONNREFUSED)),
            },
            (RDMA_CM_EVENT_ESTABLISHED, StreamState::Accepting) => StreamState::Up,
            (RDMA_CM_EVENT_REJECTED, StreamState::Connecting) => {
                StreamState::Failed(Errno(libc::ECONNREFUSED))
            }
            (RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_CONNECT_ERROR, StreamState::Connecting) => {
                StreamState::Failed(if status < 0 { Errno(-status) } else { Errno(libc::ETIMEDOUT) })
            }
            (
                RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_CONNECT_ERROR,
                StreamState::Accepting | StreamState::Up,
            ) => {
                // Data that arrived earlier can still be read.
                self.poll();
                StreamState::Down
            }
            (_, state) => state,
        };
    }

    /// Announces free room to the peer, if it is due.
    fn credit(&mut self) {
        while self.state == StreamState::Up && self.readable && self.sender.may_control() {
            let Some(write) = self.receiver.credit() else { return };
            self.control(&write);
        }
    }

    fn control(&mut self, write: &Write) {
        // SAFETY: the identifier's queue pair is alive; the sent bytes are in the stream's memory.
        let sent = self.sender.control(write, &mut |write| unsafe { post(&*self.id, write) });
        if sent.is_err() {
            self.state = StreamState::Down;
        }
    }

    fn poll(&mut self) {
        let mut batch = [ibv_wc::default(); BATCH];
        loop {
            let found = self.queue.poll(&mut batch);
            if found == 0 {
                return;
            }
            for wc in &batch[..found] {
                self.on_completion(wc);
            }
        }
    }

    fn on_completion(&mut self, wc: &ibv_wc) {
        if wc.status != IBV_WC_SUCCESS {
            self.state = StreamState::Down;
        } else if wc.wr_id & RECEIVED == 0 {
            self.sender.completed(Message::decode(wc.wr_id as u32));
        } else {
            // SAFETY: any bytes are a number.
            let word = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data });
            self.on_message(Message::decode(word), wc.byte_len);
            // SAFETY: the identifier's queue pair is alive.
            if unsafe { post_receive(&*self.id) }.is_err() {
                self.state = StreamState::Down;
            }
        }
    }

    fn on_message(&mut self, message: Option<Message>, written: u32) {
        if self.state == StreamState::Accepting {
            // The peer's RTU was lost, or is late.
            self.state = StreamState::Up;
        }
        match message {
            Some(Message::Data(length)) => {
                if length != written || self.receiver.arrived(length).is_err() {
                    self.state = StreamState::Down;
                }
            }
            Some(Message::Credit(limit)) => self.sender.on_credit(limit, written as usize == Target::SIZE),
            Some(Message::Shutdown) if self.writable => self.readable = false,
            Some(Message::Disconnect | Message::Shutdown) => self.state = StreamState::Down,
            // The message counts against the peer's credits, as data does.
            Some(Message::Mapped(_)) if self.receiver.arrived(0).is_err() => self.state = StreamState::Down,
            Some(Message::Mapped(_) | Message::KeepAlive) | None => {}
        }
    }

    /// Copies and sends as many bytes as there is room for. Returns their number.
    pub(super) fn send(&mut self, data: &[u8]) -> Result<usize, Errno> {
        // SAFETY: as in `control`.
        self.sender
            .send(data, &mut |write| unsafe { post(&*self.id, write) })
            .inspect_err(|_| self.state = StreamState::Down)
    }

    /// Sends as many bytes as there is room for to memory that the peer mapped. Returns their number.
    pub(super) fn write(&mut self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        // SAFETY: as in `control`.
        let wrote = self.sender.write(data, offset, &mut |write| unsafe { post(&*self.id, write) });
        wrote.inspect_err(|_| self.state = StreamState::Down)?.ok_or(INVALID)
    }

    /// Allows the peer to write memory of the program, and announces it.
    ///
    /// # Safety
    /// The caller must ensure that the program keeps the memory until it is unmapped or the socket is closed.
    pub(super) unsafe fn map(&mut self, start: *mut c_void, length: usize, offset: u64) -> Result<(), Errno> {
        let pd = queue_pair::default_domain(self.id().device()?)?;
        // SAFETY: guaranteed by the caller; the domain exists as long as the process.
        let write = unsafe { self.mappings.add(pd, start, length, offset) }?;
        // SAFETY: as in `control`.
        let announced = self.sender.announce(&write, &mut |write| unsafe { post(&*self.id, write) });
        announced.inspect_err(|_| self.state = StreamState::Down)
    }

    /// Sends a message without data, which ends one direction or both.
    pub(super) fn send_control(&mut self, message: Message) {
        let write = self.receiver.empty(message);
        self.control(&write);
    }
}

impl Pollable for Stream {
    fn of(inner: &mut SocketState) -> Result<&mut Self, Errno> {
        inner.stream()
    }

    fn process(&mut self) {
        // SAFETY: the identifier's channel is alive, and only this socket receives its events.
        while let Some(event) = unsafe { events::next_now(self.id().channel()) } {
            // SAFETY: `next_now` returned the event, which is acknowledged once.
            unsafe {
                let data = events::private_data(event);
                self.on_event((*event).event, (*event).status, Greeting::read(data));
                events::rdma_ack_cm_event(event);
            }
        }
        if matches!(self.state, StreamState::Accepting | StreamState::Up) {
            self.credit();
            self.poll();
            self.credit();
        }
    }

    fn queues(&mut self) -> impl Iterator<Item = &mut Queue> {
        std::iter::once(&mut self.queue)
    }

    fn descriptor(&self) -> c_int {
        // SAFETY: the channel lives as long as the stream.
        unsafe { (*self.id().channel()).fd }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream owns the queue pair, and nothing else uses it.
        unsafe { queue_pair::destroy(self.id()) };
    }
}

/// Returns the parameters of a connection without READs and atomics. The number of RNR retries is unlimited.
fn parameters(greeting: &[u8; Greeting::SIZE]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: greeting.as_ptr().cast(),
        private_data_len: Greeting::SIZE as u8,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        ..Default::default()
    }
}

/// # Safety
/// The caller must ensure that the identifier's queue pair is alive.
unsafe fn post_receive(id: &Id) -> Result<(), Errno> {
    let mut request = ibv_recv_wr { wr_id: RECEIVED, ..Default::default() };
    let mut bad = std::ptr::null_mut();
    // SAFETY: every context has the function; the request has no buffers.
    let result =
        unsafe { (*(*id.qp()).context).ops.post_recv.map(|post| post(id.qp(), &mut request, &mut bad)) };
    if result == Some(0) { Ok(()) } else { Err(INVALID) }
}

/// # Safety
/// The caller must ensure that the identifier's queue pair is alive, and that the sent bytes are in registered memory.
unsafe fn post(id: &Id, write: &Write) -> Result<(), Errno> {
    let message = write.message.encode();
    let mut buffer = ibv_sge { addr: write.from, length: write.length, lkey: write.lkey };
    let mut request = ibv_send_wr {
        wr_id: message.into(),
        sg_list: &mut buffer,
        num_sge: c_int::from(write.length > 0),
        opcode: if write.silent { IBV_WR_RDMA_WRITE } else { IBV_WR_RDMA_WRITE_WITH_IMM },
        send_flags: IBV_SEND_SIGNALED,
        ..Default::default()
    };
    request.__bindgen_anon_1.imm_data = message.to_be();
    request.wr.rdma.remote_addr = write.to;
    request.wr.rdma.rkey = write.rkey;
    let mut bad = std::ptr::null_mut();
    // SAFETY: every context has the function; the request's parts outlive the call.
    let result =
        unsafe { (*(*id.qp()).context).ops.post_send.map(|post| post(id.qp(), &mut request, &mut bad)) };
    match result {
        Some(0) => Ok(()),
        Some(errno) => Err(Errno(errno)),
        None => Err(INVALID),
    }
}

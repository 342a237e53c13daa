//! Event channels, through which the program receives the events of its identifiers.

use crate::abi::*;
use crate::cancel;
use crate::rdmacm::connect;
use crate::rdmacm::errno::{Errno, at, count, injected, last, out, status};
use crate::rdmacm::id::Id;
use datapath::event_fd::EventFd;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use verbs::fault::Verb;

/// An event channel: a descriptor that is readable while events are queued.
#[repr(C)]
pub(crate) struct EventChannel {
    abi: rdma_event_channel,
    state: Mutex<ChannelState>,
}

struct ChannelState {
    queued: VecDeque<QueuedEvent>,
    /// Number of signals of removed events that threads have already read, or that could not be withdrawn.
    read: usize,
    end: End,
}

/// The state of a channel: open, or destroyed by the program.
enum End {
    Open(EventFd),
    /// The thread that destroyed the channel, and whether the descriptor was blocking.
    Destroyed {
        by: libc::pthread_t,
        blocked: bool,
    },
}

/// Returns the calling thread. Rust's own identifier is not available while a thread or the process ends.
fn this_thread() -> libc::pthread_t {
    // SAFETY: pthread_self has no arguments and cannot fail.
    unsafe { libc::pthread_self() }
}

/// Channels that programs destroyed recently. On Linux a thread that waits on a channel keeps waiting when another thread destroys the
/// channel. Programs such as `rping` have a thread that does so until the process ends. Such a thread may call after the destruction: it
/// then finds that the channel is destroyed, and also waits.
static DESTROYED: Mutex<VecDeque<Box<EventChannel>>> = Mutex::new(VecDeque::new());
/// Maximum number of destroyed channels that are kept, of 150 bytes each.
const MAX_DESTROYED: usize = 64;

/// An event that the program has not received yet.
pub(crate) struct QueuedEvent {
    pub(crate) id: *mut Id,
    pub(crate) listener: *mut Id,
    pub(crate) kind: rdma_cm_event_type,
    pub(crate) status: c_int,
    pub(crate) parameters: Parameters,
    pub(crate) private: Vec<u8>,
}

/// The peer's parameters, as the program reads them.
#[derive(Clone, Copy)]
pub(crate) enum Parameters {
    Connection(rdma_conn_param),
    Datagram(rdma_ud_param),
    /// Parameters of a multicast join. The private data is the program's own pointer.
    Group(rdma_ud_param),
}

impl Parameters {
    /// Converts the parameters to the program's structure, whose private data points to `private`.
    fn show(self, private: &[u8]) -> rdma_cm_event__bindgen_ty_1 {
        let (data, length) = match private {
            [] => (std::ptr::null(), 0),
            private => (private.as_ptr().cast(), private.len() as u8),
        };
        match self {
            Self::Connection(conn) => rdma_cm_event__bindgen_ty_1 {
                conn: rdma_conn_param { private_data: data, private_data_len: length, ..conn },
            },
            Self::Group(ud) => rdma_cm_event__bindgen_ty_1 { ud },
            Self::Datagram(ud) => rdma_cm_event__bindgen_ty_1 {
                ud: rdma_ud_param { private_data: data, private_data_len: length, ..ud },
            },
        }
    }
}

impl QueuedEvent {
    /// Returns the identifier that counts the event as unacknowledged. For a request this is the listener, until the program has the new
    /// identifier.
    fn holder(&self) -> *mut Id {
        if self.listener.is_null() { self.id } else { self.listener }
    }
}

// SAFETY: the pointers are identifiers, which are not destroyed while an event refers to them.
unsafe impl Send for QueuedEvent {}

/// An event that the program has not acknowledged.
#[repr(C)]
struct DeliveredEvent {
    abi: rdma_cm_event,
    private: Vec<u8>,
}

/// The number of an identifier's events that the program has received and not acknowledged. The identifier is not destroyed before it is 0.
#[derive(Default)]
pub(crate) struct UnacknowledgedEvents {
    count: Mutex<usize>,
    acknowledged: Condvar,
}

impl UnacknowledgedEvents {
    fn add(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// Subtracts one event. The identifier may be freed as soon as the lock is released, so it is not accessed after that.
    fn remove(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        self.acknowledged.notify_all();
    }

    #[cfg(test)]
    pub(crate) fn any(&self) -> bool {
        *self.count.lock().unwrap() > 0
    }

    pub(crate) fn wait(&self) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.acknowledged.wait_while(count, |count| *count > 0));
    }
}

impl EventChannel {
    pub(crate) fn create() -> Result<*mut rdma_event_channel, Errno> {
        let descriptor = EventFd::new(libc::EFD_SEMAPHORE)?;
        let abi = rdma_event_channel { fd: descriptor.as_raw_fd() };
        let state = ChannelState { queued: VecDeque::new(), read: 0, end: End::Open(descriptor) };
        Ok(Box::into_raw(Box::new(Self { abi, state: Mutex::new(state) })).cast())
    }

    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: QueuedEvent) {
        #[cfg(test)]
        crate::rdmacm::test_environment::WHILE_REPORTED
            .with_borrow(|hook| hook.iter().for_each(|hook| hook()));
        let mut state = self.lock();
        state.queued.push_back(event);
        if let End::Open(descriptor) = &state.end {
            descriptor.signal();
        }
    }

    /// Removes and returns the next event. Waits for it if the descriptor blocks.
    fn take(&self) -> Result<QueuedEvent, Errno> {
        loop {
            if !cancel::take_event(self.abi.fd) {
                return Err(last());
            }
            if let Some(event) = self.pop_announced() {
                return Ok(event);
            }
        }
    }

    /// Removes the event that the descriptor signalled, unless its identifier has been destroyed. The event counts as unacknowledged before
    /// the lock is released: `rdma_destroy_id` either removes the event itself or waits until the program acknowledges it.
    fn pop_announced(&self) -> Option<QueuedEvent> {
        let mut state = self.lock();
        if state.read > 0 {
            state.read -= 1;
            return None;
        }
        let event = state.queued.pop_front()?;
        // SAFETY: an identifier is alive while one of its events is queued, and the events stay queued until this lock is released.
        let holder = unsafe { &*event.holder() };
        holder.unacknowledged.add();
        if event.kind == RDMA_CM_EVENT_CONNECT_REQUEST {
            holder.backlog.decrement();
        }
        Some(event)
    }

    /// Returns whether the channel is destroyed and the caller must keep waiting. All threads except the one that destroyed the channel
    /// wait until the process ends, as threads do that waited before the destruction.
    fn must_keep_waiting(&self) -> Result<bool, Errno> {
        let End::Destroyed { by, blocked } = self.lock().end else { return Ok(false) };
        if blocked && by != this_thread() { Ok(true) } else { Err(Errno(libc::EBADF)) }
    }

    /// Closes the descriptor. The memory is kept in [`DESTROYED`].
    fn end(self: Box<Self>) {
        // SAFETY: the descriptor is open, or the kernel returns an error.
        let flags = unsafe { libc::fcntl(self.abi.fd, libc::F_GETFL) };
        let gone = End::Destroyed { by: this_thread(), blocked: flags & libc::O_NONBLOCK == 0 };
        let mut state = self.lock();
        state.queued = VecDeque::new();
        drop(std::mem::replace(&mut state.end, gone));
        drop(state);
        let mut kept = DESTROYED.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(self);
        if kept.len() > MAX_DESTROYED {
            kept.pop_front();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().queued.is_empty()
    }

    /// Removes the events of an identifier. Returns the identifiers to which only those events refer, and which the program never received.
    pub(crate) fn discard_events(&self, id: *mut Id) -> Vec<*mut Id> {
        let removed = self.lock().remove(|event| event.id == id || event.listener == id);
        removed.into_iter().filter(|event| event.listener == id).map(|event| event.id).collect()
    }

    /// Moves the events of an identifier to another channel. Requests to it are moved, too, with the identifiers to which only they refer
    /// and the events of these.
    ///
    /// # Safety
    /// The caller must pass a live channel, and hold the guard of [`Id::lock_channel`].
    pub(crate) unsafe fn move_events(&self, id: *mut Id, to: *mut rdma_event_channel) {
        let mut moved = self.lock().remove(|event| event.id == id || event.listener == id);
        let children: Vec<_> =
            moved.iter().filter(|event| event.listener == id).map(|event| event.id).collect();
        for child in children {
            // SAFETY: only the request refers to it, and the program can no longer receive that request, so nothing destroys the
            // identifier.
            let child_id = unsafe { &*child };
            let _guard = child_id.lock_channel();
            // SAFETY: an identifier's structure is written under its lock.
            unsafe { (*child_id.abi()).channel = to };
            moved.extend(self.lock().remove(|event| event.id == child));
        }
        // SAFETY: guaranteed by the caller.
        let to = unsafe { &*to.cast::<Self>() };
        moved.into_iter().for_each(|event| to.push(event));
    }
}

impl ChannelState {
    /// Removes the events that `chosen` selects, and withdraws their signals from the descriptor. Otherwise a program that polls would wait
    /// for a removed event.
    fn remove(&mut self, chosen: impl Fn(&QueuedEvent) -> bool) -> VecDeque<QueuedEvent> {
        let (removed, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.queued).into_iter().partition(chosen);
        self.queued = kept;
        if let End::Open(descriptor) = &self.end {
            let taken_back = removed.iter().take_while(|_| descriptor.take_now()).count();
            self.read += removed.len() - taken_back;
        }
        removed
    }
}

/// Removes the next event of a channel, and converts it for the program.
///
/// # Safety
/// The caller must pass a live channel.
pub(crate) unsafe fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Errno> {
    // SAFETY: guaranteed by the caller.
    let channel = unsafe { at(channel.cast::<EventChannel>())? };
    Ok(show(channel.take()?))
}

/// Converts an event that [`EventChannel::pop_announced`] returned to the program's structure.
fn show(mut event: QueuedEvent) -> *mut rdma_cm_event {
    if event.kind == RDMA_CM_EVENT_CONNECT_RESPONSE {
        // SAFETY: the event counts as unacknowledged, which keeps its identifier alive.
        connect::finish(unsafe { &*event.id }, &mut event);
    }
    let listen_id = event.listener.cast();
    let abi = rdma_cm_event {
        id: event.id.cast(),
        listen_id,
        event: event.kind,
        status: event.status,
        param: event.parameters.show(&event.private),
    };
    Box::into_raw(Box::new(DeliveredEvent { abi, private: event.private })).cast()
}

/// Removes the next event of a channel, if there is one, and converts it for the program.
///
/// # Safety
/// The caller must pass null or a live channel.
pub(crate) unsafe fn next_now(channel: *mut rdma_event_channel) -> Option<*mut rdma_cm_event> {
    // SAFETY: guaranteed by the caller.
    let empty = unsafe { channel.cast::<EventChannel>().as_ref() }?.is_empty();
    // SAFETY: as above.
    if empty { None } else { unsafe { next(channel) }.ok() }
}

/// Returns the peer's private data in an event of a connection.
///
/// # Safety
/// The caller must pass an event that `next` returned and that has not been acknowledged.
pub(crate) unsafe fn private_data<'a>(event: *mut rdma_cm_event) -> &'a [u8] {
    // SAFETY: guaranteed by the caller: such an event is the first field of a `DeliveredEvent`.
    unsafe { &(*event.cast::<DeliveredEvent>()).private }
}

/// `rdma_create_event_channel(3)`
#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    injected(Verb::RdmaCreateEventChannel).and_then(|()| EventChannel::create()).unwrap_or_else(|errno| {
        crate::rdmacm::errno::set(errno);
        std::ptr::null_mut()
    })
}

/// `rdma_destroy_event_channel(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        // SAFETY: `EventChannel::create` created the box, and the program must not use it after this call.
        unsafe { Box::from_raw(channel.cast::<EventChannel>()) }.end();
    }
}

/// `rdma_get_cm_event(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    loop {
        let mut kept = false;
        let descriptor = count(|| {
            // SAFETY: the contract of the manual page.
            let (channel, _) = unsafe { (at(channel.cast::<EventChannel>())?, out(event)?) };
            kept = channel.must_keep_waiting()?;
            Ok(channel.abi.fd)
        });
        if descriptor < 0 {
            return -1;
        }
        if kept {
            cancel::stay();
        }
        let announced = cancel::take_event(descriptor);
        let found = count(|| {
            let why = last();
            // SAFETY: the contract of the manual page.
            let (channel, event) = unsafe { (at(channel.cast::<EventChannel>())?, out(event)?) };
            if !announced {
                return if channel.must_keep_waiting()? { Ok(0) } else { Err(why) };
            }
            let Some(next) = channel.pop_announced() else { return Ok(0) };
            *event = show(next);
            Ok(1)
        });
        if found != 0 {
            return found.min(0);
        }
    }
}

/// `rdma_ack_cm_event(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let abi = unsafe { *out(event)? };
        let holder = if abi.listen_id.is_null() { abi.id } else { abi.listen_id };
        // SAFETY: `next` created the box, and the program must not use it after this call.
        drop(unsafe { Box::from_raw(event.cast::<DeliveredEvent>()) });
        // SAFETY: an identifier is not destroyed before its events are acknowledged.
        unsafe { &*holder.cast::<Id>() }.unacknowledged.remove();
        Ok(())
    })
}

/// `rdma_event_str(3)`
#[unsafe(no_mangle)]
pub extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    let name = match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests;

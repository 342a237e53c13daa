//! `rsocket(7)`: streams and datagrams over RDMA, with the calls of sockets.
//!
//! The number of a socket is the descriptor of its event channel. `wire` defines the messages between two streams. `stream` is a connection
//! with its `sender` and `receiver`, and `datagrams` a datagram socket, whose headers are in `introduction`. `calls` and `transfer` contain
//! the functions that programs call, and `poll` those that wait for several sockets.

mod calls;
mod datagrams;
mod introduction;
mod kernel;
mod mapping;
mod memory;
mod options;
mod poll;
mod port;
mod queue;
mod receiver;
mod sender;
mod stream;
#[cfg(test)]
mod tests;
mod transfer;
mod wire;

pub use calls::*;
pub use mapping::*;
pub use options::*;
pub use poll::*;
pub use transfer::*;

use crate::rdmacm::errno::{Errno, last};
use crate::rdmacm::events::rdma_destroy_event_channel;
use crate::rdmacm::id::Id;
use datagrams::Datagrams;
use libc::pollfd;
use options::Options;
use queue::Queue;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use stream::{Stream, StreamState};

/// Time for which a call polls before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(100);

pub(crate) struct Socket {
    id: *mut Id,
    inner: Mutex<SocketState>,
}

// SAFETY: the socket owns the identifier, which lives as long as the socket; any thread may use an identifier.
unsafe impl Send for Socket {}
// SAFETY: as above.
unsafe impl Sync for Socket {}

/// State that only one thread at a time uses.
struct SocketState {
    phase: Phase,
    options: Options,
    /// The errno of the last attempt to connect, until the program reads it.
    error: c_int,
    /// Number of threads that wait on the socket's descriptors.
    watchers: u32,
}

enum Phase {
    Idle,
    Listening,
    Stream(Box<Stream>),
    /// The phase of a datagram socket from its creation to its end.
    Datagrams(Box<Datagrams>),
    /// The socket cannot be used again.
    Failed,
}

/// An object of a socket for which a thread may wait.
trait Pollable: Sized {
    /// Returns the socket's object, or an error if the socket is in another phase.
    fn of(inner: &mut SocketState) -> Result<&mut Self, Errno>;
    /// Handles the events and completions that have arrived.
    fn process(&mut self);
    /// Returns the completion queues that signal its completions.
    fn queues(&mut self) -> impl Iterator<Item = &mut Queue>;
    /// Returns the descriptor that signals all other events.
    fn descriptor(&self) -> c_int;

    /// Arms the queues, and adds the descriptors to wait on. The caller must call `process` once more before it waits.
    fn watch(&mut self, into: &mut Vec<pollfd>) {
        for queue in self.queues() {
            queue.arm();
            into.push(readable(queue.descriptor()));
        }
        into.push(readable(self.descriptor()));
    }
}

const fn readable(fd: c_int) -> pollfd {
    pollfd { fd, events: libc::POLLIN, revents: 0 }
}

static SOCKETS: RwLock<BTreeMap<c_int, Arc<Socket>>> = RwLock::new(BTreeMap::new());

fn find(number: c_int) -> Option<Arc<Socket>> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
}

fn socket(number: c_int) -> Result<Arc<Socket>, Errno> {
    find(number).ok_or(Errno(libc::EBADF))
}

impl Socket {
    /// Creates a socket for an identifier with its channel. Returns the socket's number.
    fn publish(id: *mut Id, phase: Phase, options: Options) -> c_int {
        let socket =
            Arc::new(Self { id, inner: Mutex::new(SocketState { phase, options, error: 0, watchers: 0 }) });
        let number = socket.number();
        SOCKETS.write().unwrap_or_else(PoisonError::into_inner).insert(number, socket);
        number
    }

    fn id(&self) -> &Id {
        // SAFETY: the socket owns the identifier, which lives as long as the socket.
        unsafe { &*self.id }
    }

    fn number(&self) -> c_int {
        // SAFETY: an identifier's channel outlives it.
        unsafe { (*self.id().channel()).fd }
    }

    fn lock(&self) -> MutexGuard<'_, SocketState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `check` until it returns a value. If the call must not block, returns `EAGAIN` instead of waiting.
    fn wait<W: Pollable, T>(
        &self,
        is_blocking: bool,
        mut check: impl FnMut(&mut W) -> Option<T>,
    ) -> Result<T, Errno> {
        let until = Instant::now() + SPIN_TIME;
        let mut watched = Vec::new();
        loop {
            let mut inner = self.lock();
            let pollable = W::of(&mut inner)?;
            pollable.process();
            if let Some(answer) = check(pollable) {
                return Ok(answer);
            }
            if !is_blocking {
                return Err(Errno(libc::EAGAIN));
            }
            if Instant::now() < until {
                continue;
            }
            watched.clear();
            pollable.watch(&mut watched);
            pollable.process();
            if let Some(answer) = check(pollable) {
                return Ok(answer);
            }
            inner.watchers += 1;
            drop(inner);
            // SAFETY: the array has `watched.len()` elements; the descriptors are open as long as the socket exists.
            let woken = unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, -1) };
            let why = last();
            self.lock().unwatch();
            if woken < 0 {
                return Err(why);
            }
        }
    }
}

impl SocketState {
    fn stream(&mut self) -> Result<&mut Stream, Errno> {
        match &mut self.phase {
            Phase::Stream(stream) => Ok(stream),
            Phase::Idle | Phase::Listening | Phase::Failed | Phase::Datagrams(_) => {
                Err(Errno(libc::ENOTCONN))
            }
        }
    }

    fn datagrams(&mut self) -> Option<&mut Datagrams> {
        if let Phase::Datagrams(datagrams) = &mut self.phase { Some(datagrams) } else { None }
    }

    /// Ends the wait of a thread. Only the last one removes the events of the queues, because the other threads still wait for them.
    fn unwatch(&mut self) {
        self.watchers -= 1;
        if self.watchers == 0 {
            match &mut self.phase {
                Phase::Stream(stream) => stream.queues().for_each(Queue::disarm),
                Phase::Datagrams(datagrams) => datagrams.queues().for_each(Queue::disarm),
                Phase::Idle | Phase::Listening | Phase::Failed => {}
            }
        }
    }

    /// Returns the state of the connection. Stores a failure for `SO_ERROR`.
    fn stream_state(&mut self) -> Option<StreamState> {
        let Phase::Stream(stream) = &mut self.phase else { return None };
        stream.process();
        let state = stream.state;
        if let StreamState::Failed(errno) = state {
            self.error = errno.0;
            self.phase = Phase::Failed;
        }
        Some(state)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let channel = self.id().channel();
        // Drops the stream, because its queue pair must be destroyed before the identifier.
        self.lock().phase = Phase::Failed;
        // SAFETY: the identifier and its channel have no other owner.
        unsafe {
            Id::destroy(self.id);
            rdma_destroy_event_channel(channel);
        }
    }
}

//! `rsocket(7)`: streams over RDMA, with the calls of sockets.
//!
//! A socket's number is its event channel's descriptor. `wire` has what two sockets tell each other, `stream` a connection with
//! its two sides `sender` and `receiver`, `calls` and `transfer` the functions that programs call, `poll` how they wait for
//! many. Datagrams are not there.

mod calls;
mod mapping;
mod memory;
mod options;
mod poll;
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

use crate::errno::{Errno, last};
use crate::events::rdma_destroy_event_channel;
use crate::id::Id;
use options::Options;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use stream::{Link, Stream};

/// The time that a call polls by itself before it sleeps.
const LOOK: Duration = Duration::from_micros(100);

/// A socket.
pub(crate) struct Socket {
    id: *mut Id,
    inner: Mutex<Inner>,
}

// SAFETY: the identifier is the socket's own, and lives as long as it; identifiers may be used from any thread.
unsafe impl Send for Socket {}
// SAFETY: as above.
unsafe impl Sync for Socket {}

/// The state that one thread at a time uses.
struct Inner {
    phase: Phase,
    options: Options,
    /// The errno of the last attempt to connect, until the program asks for it.
    error: c_int,
}

/// The phase of a socket.
enum Phase {
    Idle,
    Listening,
    Stream(Box<Stream>),
    /// It can't be used again.
    Failed,
}

static SOCKETS: RwLock<BTreeMap<c_int, Arc<Socket>>> = RwLock::new(BTreeMap::new());

/// The socket of a number, if it is one.
fn find(number: c_int) -> Option<Arc<Socket>> {
    SOCKETS.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
}

/// The same; `EBADF` if it is none.
fn socket(number: c_int) -> Result<Arc<Socket>, Errno> {
    find(number).ok_or(Errno(libc::EBADF))
}

impl Socket {
    /// Gives an identifier, with its channel, to a new socket.
    fn publish(id: *mut Id, phase: Phase, options: Options) -> c_int {
        let socket = Arc::new(Self { id, inner: Mutex::new(Inner { phase, options, error: 0 }) });
        let number = socket.number();
        SOCKETS.write().unwrap_or_else(PoisonError::into_inner).insert(number, socket);
        number
    }

    fn id(&self) -> &Id {
        // SAFETY: the socket's own, alive as long as it.
        unsafe { &*self.id }
    }

    fn number(&self) -> c_int {
        // SAFETY: an identifier's channel outlives it.
        unsafe { (*self.id().channel()).fd }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until what the stream is asked is answered, or says `EAGAIN` if the program doesn't want to wait.
    fn wait<T>(&self, patient: bool, mut ask: impl FnMut(&mut Stream) -> Option<T>) -> Result<T, Errno> {
        let until = Instant::now() + LOOK;
        loop {
            let mut inner = self.lock();
            let stream = inner.stream()?;
            stream.process();
            if let Some(answer) = ask(stream) {
                return Ok(answer);
            }
            if !patient {
                return Err(Errno(libc::EAGAIN));
            }
            if Instant::now() < until {
                continue;
            }
            stream.arm();
            stream.process();
            if let Some(answer) = ask(stream) {
                return Ok(answer);
            }
            stream.watch();
            let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut watched = stream.descriptors().map(watch);
            drop(inner);
            // SAFETY: the array is as long as said; the descriptors are open as long as the socket.
            let woken = unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, -1) };
            let why = last();
            if let Ok(stream) = self.lock().stream() {
                stream.unwatch();
            }
            if woken < 0 {
                return Err(why);
            }
        }
    }
}

impl Inner {
    fn stream(&mut self) -> Result<&mut Stream, Errno> {
        match &mut self.phase {
            Phase::Stream(stream) => Ok(stream),
            Phase::Idle | Phase::Listening | Phase::Failed => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// Returns the state of the connection; a failure is kept for `SO_ERROR`.
    fn link(&mut self) -> Option<Link> {
        let Phase::Stream(stream) = &mut self.phase else { return None };
        stream.process();
        let link = stream.link;
        if let Link::Failed(errno) = link {
            self.error = errno.0;
            self.phase = Phase::Failed;
        }
        Some(link)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let channel = self.id().channel();
        // The queue pair is destroyed before the identifier, and cannot report its peer afterwards.
        self.lock().phase = Phase::Failed;
        // SAFETY: nothing else knows the identifier or its channel.
        unsafe {
            Id::destroy(self.id);
            rdma_destroy_event_channel(channel);
        }
    }
}

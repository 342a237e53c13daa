//! Incoming requests: reports them to the listener, with an identifier for the new connection or datagram sender.

#[cfg(test)]
mod tests;

use crate::abi::*;
use crate::rdmacm::device::Device;
use crate::rdmacm::errno::Errno;
use crate::rdmacm::events::{Parameters, QueuedEvent};
use crate::rdmacm::id::{Connection, Id};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum backlog, as in Linux (`net.rdma_ucm.max_backlog`).
const MAX_BACKLOG: u32 = 1024;

/// The number of a listener's requests that the program has not received yet, and its maximum.
pub(crate) struct Backlog {
    most: AtomicU32,
    waiting: AtomicU32,
}

impl Default for Backlog {
    fn default() -> Self {
        Self { most: AtomicU32::new(MAX_BACKLOG), waiting: AtomicU32::new(0) }
    }
}

impl Backlog {
    /// Sets the maximum from the argument of `rdma_listen`. A number outside 1 to 1024 stands for 1024, as on Linux.
    pub(crate) fn limit(&self, wanted: c_int) {
        let most = u32::try_from(wanted).ok().filter(|wanted| (1..=MAX_BACKLOG).contains(wanted));
        self.most.store(most.unwrap_or(MAX_BACKLOG), Ordering::Relaxed);
    }

    /// Returns whether a further request must be dropped. A peer that receives no answer repeats its request. Only the manager's thread
    /// adds requests, so the room cannot disappear before it adds one.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn increment(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts a request that the program has received.
    pub(crate) fn decrement(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Creates the identifier for a peer's request to `listener`. `join` registers it for the peer's next messages.
pub(crate) fn create(
    device: &Device,
    listener: &Id,
    connection: Connection,
    join: impl FnOnce(&Id) -> Result<(), Errno>,
) -> Result<*mut Id, Errno> {
    // SAFETY: the listener is alive.
    let (channel, user, ps, qp_type) = unsafe {
        let abi = listener.abi();
        (listener.channel(), (*abi).context, (*abi).ps, (*abi).qp_type)
    };
    let child = Id::create(channel, user, ps)?;
    // SAFETY: the identifier was created above.
    let id = unsafe { &*child };
    // SAFETY: as above.
    unsafe { (*id.abi()).qp_type = qp_type };
    *id.lock() = connection;
    if let Err(errno) = join(id) {
        // SAFETY: no other code has the identifier yet.
        unsafe { drop(Box::from_raw(child)) };
        return Err(errno);
    }
    id.show(Some(device), &id.lock());
    Ok(child)
}

/// Reports a request to the program, through the current channel of the listener.
///
/// # Safety
/// The caller must pass a live listener, and an identifier that [`create`] returned and that no other code has yet.
pub(crate) unsafe fn report(listener: &Id, id: *mut Id, parameters: Parameters, private: Vec<u8>) {
    let guard = listener.lock_channel();
    // SAFETY: guaranteed by the caller.
    unsafe { (*(*id).abi()).channel = listener.channel() };
    let kind = RDMA_CM_EVENT_CONNECT_REQUEST;
    let listener_id = listener.abi().cast();
    listener.backlog.increment();
    listener.report_in_channel(
        &guard,
        QueuedEvent { id, listener: listener_id, kind, status: 0, parameters, private },
    );
}

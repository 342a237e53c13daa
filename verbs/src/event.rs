//! Asynchronous events: what no completion tells.

use crate::device::Inner;
use crate::{Device, Error};
use datapath::engine::{AsyncEvent, EventQueue};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Events of a device, oldest first. Its descriptor becomes readable with each: for `poll`, `epoll`, or
/// [`wait`](Self::wait). One thread at a time takes events.
#[derive(Debug)]
pub struct Events {
    device: Arc<Inner>,
    queue: Arc<EventQueue>,
}

impl Device {
    /// Events from now on. Each call's result hears all of them.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptor left.
    pub fn events(&self) -> Result<Events, Error> {
        self.events_where(|_| true)
    }

    /// Events that `filter` lets pass. The core calls it, seldom, so it must call neither the device nor these events.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptor left.
    pub fn events_where(
        &self,
        filter: impl Fn(&AsyncEvent) -> bool + Send + Sync + 'static,
    ) -> Result<Events, Error> {
        let queue = EventQueue::new(filter).map_err(|error| Error::Descriptor(error.to_string()))?;
        let queue = Arc::new(queue);
        self.inner.engine.subscribe(queue.clone());
        Ok(Events { device: self.inner.clone(), queue })
    }
}

impl Events {
    /// Takes the oldest event, and waits for it where the descriptor blocks, as it does unless the program changed that.
    /// Somebody must run the core meanwhile: with [`Inline`](crate::Progress::Inline) progress, who polls.
    ///
    /// # Errors
    /// A signal, or `WouldBlock` where the descriptor doesn't block and there is none.
    pub fn wait(&self) -> io::Result<AsyncEvent> {
        self.device.engine.hand_over();
        self.queue.wait()
    }

    /// The oldest event, for who has read the descriptor: what [`wait`](Self::wait) does then.
    #[must_use]
    pub fn told(&self) -> Option<AsyncEvent> {
        self.queue.told()
    }

    /// Forgets waiting events, for example those of an object that will be destroyed. The descriptor counts them no longer.
    pub fn forget(&self, about: impl Fn(&AsyncEvent) -> bool) {
        self.queue.forget(about);
    }

    /// The oldest event, if there is one. With an inline core it runs one turn first.
    #[must_use]
    pub fn take(&self) -> Option<AsyncEvent> {
        self.device.engine.progress();
        self.queue.take()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.device.engine.unsubscribe(&self.queue);
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.queue.as_raw_fd()
    }
}

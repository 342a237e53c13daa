//! Asynchronous events of a device and its objects.

use crate::device::Inner;
use crate::{Device, Error};
use datapath::engine::EventQueue;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

pub use datapath::engine::AsyncEvent;
pub use roce::wire::NakCode;
pub use roce::{CqId, Event, FailureCause, FailureReason, QpFailure, SrqId, Unreachable};

/// A receiver of a device's events, oldest first. Each event makes the descriptor readable, for `poll`, `epoll`, or
/// [`wait`](Self::wait). Only one thread may take events at a time.
///
/// ```
/// # use ferroce_verbs::{Device, Error};
/// fn report(device: &Device) -> Result<(), Error> {
///     let events = device.events()?;
///     // Such as a queue pair that failed, and why.
///     while let Some(event) = events.take() {
///         println!("{event:?}");
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Events {
    device: Arc<Inner>,
    queue: Arc<EventQueue>,
}

impl Device {
    /// Returns a receiver of all events from now on. Each event is delivered to every receiver.
    ///
    /// # Errors
    /// Returns an error if the process has no file descriptor left.
    pub fn events(&self) -> Result<Events, Error> {
        self.events_where(|_| true)
    }

    /// Returns a receiver of the events that `filter` accepts. The core calls `filter`, so it must use neither the device nor this
    /// receiver.
    ///
    /// # Errors
    /// Returns an error if the process has no file descriptor left.
    pub fn events_where(
        &self,
        filter: impl Fn(&AsyncEvent) -> bool + Send + Sync + 'static,
    ) -> Result<Events, Error> {
        let queue = EventQueue::new(filter).map_err(Error::Descriptor)?;
        let queue = Arc::new(queue);
        self.inner.engine.subscribe(queue.clone());
        Ok(Events { device: self.inner.clone(), queue })
    }
}

impl Events {
    /// Removes and returns the oldest event. Waits for it if the descriptor is blocking, which is the default. With
    /// [`Inline`](crate::Progress::Inline) progress, another thread must poll meanwhile to run the core.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the descriptor is non-blocking and there is no event, and `BrokenPipe` if the core has stopped and no event
    /// is left. Returns another error if a signal arrives. After the core has stopped, the descriptor stays readable.
    pub fn wait(&self) -> io::Result<AsyncEvent> {
        self.device.engine.hand_over();
        self.queue.wait()
    }

    /// Removes and returns the oldest event, for a caller that has read the descriptor itself.
    #[must_use]
    pub fn pop_after_read(&self) -> Option<AsyncEvent> {
        self.queue.pop_after_read()
    }

    /// Returns whether the core has stopped and no event is left. Call it if [`pop_after_read`](Self::pop_after_read) returns no event
    /// after a read of the descriptor: the call makes the descriptor readable again for other callers.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.queue.has_ended()
    }

    /// Discards the queued events that `about` selects, for example those of an object that is about to be destroyed. The descriptor no
    /// longer counts them.
    pub fn discard(&self, about: impl Fn(&AsyncEvent) -> bool) {
        self.queue.discard(about);
    }

    /// Removes and returns the oldest event, if there is one. An inline core runs one turn first.
    #[must_use]
    pub fn take(&self) -> Option<AsyncEvent> {
        self.device.engine.progress();
        self.queue.take()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.device.engine.unsubscribe(&self.queue);
        // Wakes threads that sleep on a copy of the descriptor.
        self.queue.end();
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

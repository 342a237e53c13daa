//! Completion channels, on which a thread sleeps until a completion arrives.

use crate::device::Inner;
use crate::fault::{self, Verb};
use crate::{CompletionQueue, Device, Error};
use datapath::engine::{EndEvent, Notifier};
use datapath::event_fd::EventFd;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// A descriptor that becomes readable when an armed completion queue has a completion: for `poll`, `epoll`, or
/// [`wait`](Self::wait). Clones share the channel, and several completion queues may be bound to it.
///
/// ```no_run
/// # use ferroce_verbs::Device;
/// # fn sleep(device: &Device) -> Result<(), Box<dyn std::error::Error>> {
/// let (channel, mut completions) = (device.create_channel()?, device.create_cq(128)?);
/// completions.bind_channel(&channel)?;
/// loop {
///     completions.arm(false);
///     // A completion before arm() causes no event.
///     while let Some(completion) = completions.poll_one()? {
///         println!("request {} has ended", completion.ok()?.id);
///     }
///     channel.wait()?;
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    pub(crate) descriptor: Arc<EventFd>,
    end: Arc<EndEvent>,
}

pub(crate) fn event_fd(flags: c_int) -> Result<Arc<EventFd>, Error> {
    EventFd::new(flags).map(Arc::new).map_err(Error::Descriptor)
}

impl Device {
    /// Creates a channel.
    ///
    /// # Errors
    /// Returns an error if the process has no file descriptor left.
    pub fn create_channel(&self) -> Result<CompletionChannel, Error> {
        fault::check_call::<Error>(Verb::CreateCompChannel)?;
        CompletionChannel::new(&self.inner, libc::EFD_SEMAPHORE)
    }
}

impl CompletionChannel {
    /// Creates a channel that becomes readable when the device's core stops. `flags` are those of eventfd(2).
    pub(crate) fn new(device: &Inner, flags: c_int) -> Result<Self, Error> {
        let descriptor = event_fd(flags)?;
        Ok(Self { end: device.engine.end_event(descriptor.clone()), descriptor })
    }

    /// Reads one event from the descriptor. Waits for it if the descriptor is blocking, which is the default. Call
    /// [`CompletionQueue::take_event`] on the channel's queues to find the one that caused it.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the descriptor is non-blocking and there is no event, `BrokenPipe` if the core has stopped, and another
    /// error if a signal arrives. After the core has stopped, the descriptor stays readable; poll the queues for their last completions.
    pub fn wait(&self) -> io::Result<()> {
        self.descriptor.take()?;
        if !self.has_ended() {
            return Ok(());
        }
        let reason = "completion channel: the core has stopped; poll its queues for the reason, and open the device again";
        Err(io::Error::new(io::ErrorKind::BrokenPipe, reason))
    }

    /// Returns whether the core has stopped. Call it after reading an event from the descriptor that belongs to no queue: the call makes
    /// the descriptor readable again for other callers.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.end.signal_if_ended()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

impl CompletionQueue {
    /// Binds the queue to `channel`, which reports the events that [`arm`](Self::arm) requests. [`unbind_channel`](Self::unbind_channel)
    /// unbinds it.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn bind_channel(&mut self, channel: &CompletionChannel) -> Result<(), Error> {
        let notifier = Arc::new(Notifier::new(channel.descriptor.clone()));
        let (id, of_core) = (self.handle.id, notifier.clone());
        self.handle.device.on_all(move |state, _| state.watch_cq(id, of_core))??;
        self.notifier = Some(notifier);
        Ok(())
    }

    /// Requests an event for the next completion; with `solicited_only`, for the next one that the peer solicited or that is an error. Each
    /// call causes at most one event. Poll the queue between this call and waiting, because completions that arrived before the call cause
    /// no event. Does nothing if the queue has no channel.
    pub fn arm(&self, solicited_only: bool) {
        if let Some(notifier) = &self.notifier {
            notifier.arm(solicited_only);
            // The caller probably waits next.
            self.handle.device.engine.hand_over();
        }
    }

    /// Unbinds the queue and withdraws its unread events. Returns the number of events that a thread has read from the channel's descriptor
    /// but not yet [taken](Self::take_event): that thread finds no event of this queue. Dropping the queue does the same.
    pub fn unbind_channel(&mut self) -> u32 {
        let Some(notifier) = self.notifier.take() else { return 0 };
        notifier.disarm();
        // After this call, each core has finished the turn in which it may have seen the notifier armed. A stopped core signals nothing.
        let _ = self.handle.device.engine.call_all(|_, _| ());
        notifier.take_back()
    }

    /// Takes one event of this queue. Returns whether there was one.
    pub fn take_event(&self) -> bool {
        self.notifier.as_ref().is_some_and(|notifier| notifier.take())
    }
}

//! Sleeping until a completion comes.

use crate::{CompletionQueue, Device, Error};
use datapath::engine::Notifier;
use datapath::event_fd::EventFd;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// A descriptor that becomes readable when an armed completion queue has a completion: for `poll`, `epoll`, or
/// [`wait`](Self::wait). Clones are the same channel, and several queues may ring on it.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    descriptor: Arc<EventFd>,
}

impl Device {
    /// Makes a channel.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptor left.
    pub fn create_channel(&self) -> Result<CompletionChannel, Error> {
        let descriptor = EventFd::new(libc::EFD_SEMAPHORE);
        let descriptor = descriptor.map_err(|error| Error::Descriptor(error.to_string()))?;
        Ok(CompletionChannel { descriptor: Arc::new(descriptor) })
    }
}

impl CompletionChannel {
    /// Takes one event from the descriptor, and waits for it where the descriptor blocks, as it does unless the program
    /// changed that. [`CompletionQueue::take_event`] says whose it is.
    ///
    /// # Errors
    /// A signal, or `WouldBlock` where the descriptor doesn't block and there is none.
    pub fn wait(&self) -> io::Result<()> {
        self.descriptor.take()
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
    /// Has the queue ring on `channel` when it is armed, for good.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn ring_on(&mut self, channel: &CompletionChannel) -> Result<(), Error> {
        let notifier = Arc::new(Notifier::new(channel.descriptor.clone()));
        let (id, bell) = (self.handle.id, notifier.clone());
        self.handle.device.engine.call(move |station, _| station.watch_cq(id, bell))??;
        self.notifier = Some(notifier);
        Ok(())
    }

    /// Asks for an event with the next completion; with `solicited_only`, the next that the peer solicited or that is an
    /// error. One event for each call at most. Poll the queue after this and before waiting: what came earlier makes no
    /// event. Without a channel nothing happens.
    pub fn arm(&self, solicited_only: bool) {
        if let Some(notifier) = &self.notifier {
            notifier.arm(solicited_only);
            // Who arms will sleep.
            self.handle.device.engine.hand_over();
        }
    }

    /// Rings no more, and takes those events back that no thread took. Returns how many of them a thread has read from the
    /// channel's descriptor and not yet [taken](Self::take_event): it will find none. Dropping the queue does this too.
    pub fn leave_channel(&mut self) -> u32 {
        let Some(notifier) = self.notifier.take() else { return 0 };
        notifier.disarm();
        // After a call the core has left the turn in which it may have seen the bell armed. A stopped core rings no more.
        let _ = self.handle.device.engine.call(|_, _| ());
        notifier.take_back()
    }

    /// Takes one event of this queue, where there is one.
    pub fn take_event(&self) -> bool {
        self.notifier.as_ref().is_some_and(|notifier| notifier.take())
    }
}

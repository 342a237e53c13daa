//! Who is told of asynchronous events, and the descriptor by which.

use crate::event_fd::EventFd;
use roce::Event;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Something that no completion tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// Of a queue pair, a completion queue or a shared receive queue.
    Transport(Event),
    /// The port's link came up.
    PortUp,
    /// The port's link went down.
    PortDown,
}

type Filter = Box<dyn Fn(&AsyncEvent) -> bool + Send + Sync>;

/// Events for one who waits for them, oldest first.
///
/// The descriptor, an eventfd that counts as a semaphore, becomes readable with each event: for `poll`, `epoll`, or
/// [`wait`](Self::wait), which blocks as the descriptor does.
pub struct EventQueue {
    waiting: Mutex<VecDeque<AsyncEvent>>,
    descriptor: EventFd,
    filter: Filter,
}

impl EventQueue {
    /// Events that wait at most; more are forgotten.
    pub const LIMIT: usize = 1 << 16;

    /// A queue for what `filter` lets pass. The core calls it, seldom, so it must not wait for the core.
    ///
    /// # Errors
    /// Where the process has no descriptor left.
    pub fn new(filter: impl Fn(&AsyncEvent) -> bool + Send + Sync + 'static) -> io::Result<Self> {
        let descriptor = EventFd::new(libc::EFD_SEMAPHORE)?;
        Ok(Self { waiting: Mutex::default(), descriptor, filter: Box::new(filter) })
    }

    /// Takes the oldest event, and waits for it where the descriptor blocks, as it does unless the program changed that.
    ///
    /// # Errors
    /// A signal, or `WouldBlock` where the descriptor doesn't block and there is none.
    pub fn wait(&self) -> io::Result<AsyncEvent> {
        loop {
            self.descriptor.take()?;
            if let Some(event) = self.told() {
                return Ok(event);
            }
        }
    }

    /// The oldest event, for who has read the descriptor: the event is in the queue before the descriptor says so.
    pub fn told(&self) -> Option<AsyncEvent> {
        self.lock().pop_front()
    }

    /// The oldest event, if there is one. One thread at a time takes events.
    pub fn take(&self) -> Option<AsyncEvent> {
        let mut readable = libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, alive.
        let ready = unsafe { libc::poll(&raw mut readable, 1, 0) };
        if ready > 0 { self.wait().ok() } else { None }
    }

    fn tell(&self, event: &AsyncEvent) {
        if !(self.filter)(event) {
            return;
        }
        let mut waiting = self.lock();
        if waiting.len() == Self::LIMIT {
            return;
        }
        waiting.push_back(*event);
        self.descriptor.signal();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<AsyncEvent>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for EventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for EventQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

impl std::fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventQueue").field("waiting", &self.lock().len()).finish_non_exhaustive()
    }
}

/// All who want to know. The lock is taken when something happens, never for a packet.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Mutex<Vec<Arc<EventQueue>>>);

impl Subscribers {
    pub(super) fn add(&self, queue: Arc<EventQueue>) {
        self.lock().push(queue);
    }

    pub(super) fn remove(&self, queue: &Arc<EventQueue>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, queue));
    }

    /// Tells all of it, and the log of what failed.
    pub(super) fn tell(&self, port: &str, event: AsyncEvent) {
        match event {
            AsyncEvent::Transport(Event::QpFailed(failure)) => tracing::warn!("{port}: {failure}"),
            AsyncEvent::Transport(Event::CqOverflowed(cq)) => {
                tracing::warn!("{port}: CQ {} overflowed, its queue pairs failed", cq.0);
            }
            AsyncEvent::PortUp => tracing::info!("{port}: link up"),
            AsyncEvent::PortDown => tracing::warn!("{port}: link down"),
            AsyncEvent::Transport(
                Event::CommunicationEstablished(_)
                | Event::SendQueueDrained(_)
                | Event::LastReceive(_)
                | Event::SharedReceivesLow(_),
            ) => {}
        }
        self.lock().iter().for_each(|queue| queue.tell(&event));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<EventQueue>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::Qpn;

    const UP: AsyncEvent = AsyncEvent::PortUp;

    #[test]
    fn each_hears_what_it_asked_for_and_as_often() {
        let subscribers = Subscribers::default();
        let all = Arc::new(EventQueue::new(|_| true).unwrap());
        let ports = Arc::new(EventQueue::new(|event| !matches!(event, AsyncEvent::Transport(_))).unwrap());
        [&all, &ports].into_iter().for_each(|queue| subscribers.add(queue.clone()));
        let drained = AsyncEvent::Transport(Event::SendQueueDrained(Qpn::new(5)));
        [drained, UP].into_iter().for_each(|event| subscribers.tell("port", event));
        assert_eq!([all.take(), all.take(), all.take()], [Some(drained), Some(UP), None]);
        subscribers.remove(&all);
        subscribers.tell("port", UP);
        assert_eq!(all.take(), None);
        assert_eq!([ports.wait().unwrap(), ports.wait().unwrap()], [UP, UP]);
        assert_eq!(ports.take(), None);
    }

    #[test]
    fn who_never_listens_costs_no_more_than_the_limit() {
        let subscribers = Subscribers::default();
        let queue = Arc::new(EventQueue::new(|_| true).unwrap());
        subscribers.add(queue.clone());
        (0..EventQueue::LIMIT + 5).for_each(|_| subscribers.tell("port", UP));
        assert_eq!(core::iter::from_fn(|| queue.take()).count(), EventQueue::LIMIT);
    }
}

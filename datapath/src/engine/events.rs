//! The receivers of asynchronous events, and their descriptors.

use super::notify::LastEvent;
use crate::event_fd::EventFd;
use crate::probes;
use roce::Event;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

/// An event that no completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// Of a queue pair, a completion queue or a shared receive queue.
    Transport(Event),
    /// The port's link came up.
    PortUp,
    /// The port's link went down.
    PortDown,
    /// A defect ended the core: its queue pairs have completed in error, and every call returns why.
    CoreFailed,
}

type Filter = Box<dyn Fn(&AsyncEvent) -> bool + Send + Sync>;

/// Events for a thread that waits for them, oldest first.
///
/// The descriptor, an eventfd that counts as a semaphore, becomes readable with each event: for `poll`, `epoll`, or
/// [`wait`](Self::wait), which blocks as the descriptor does.
pub struct EventQueue {
    waiting: Mutex<Waiting>,
    descriptor: Arc<EventFd>,
    last: Arc<LastEvent>,
    filter: Filter,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<AsyncEvent>,
    /// Forgotten events whose count in the descriptor a thread has read: it will look for an event and must find none.
    read: usize,
}

impl EventQueue {
    /// Events that wait at most; more are forgotten.
    pub const LIMIT: usize = 1 << 16;

    /// A queue for what `filter` lets pass. The core calls it, seldom, with the queue locked: it must wait neither for the core nor
    /// for the queue.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptor left.
    pub fn new(filter: impl Fn(&AsyncEvent) -> bool + Send + Sync + 'static) -> io::Result<Self> {
        let descriptor = Arc::new(EventFd::new(libc::EFD_SEMAPHORE)?);
        let last = Arc::new(LastEvent::new(descriptor.clone()));
        Ok(Self { waiting: Mutex::default(), descriptor, last, filter: Box::new(filter) })
    }

    /// Learns of the core's end.
    pub(super) fn last(&self) -> &Arc<LastEvent> {
        &self.last
    }

    /// Ends the queue: wakes all that wait for its descriptor, which stays readable.
    pub fn end(&self) {
        self.last.announce();
    }

    /// Returns whether no event will come: the core has stopped, or the queue has [ended](Self::end). Used by a caller that has read the
    /// descriptor and finds no event: the descriptor stays readable for the other callers.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.last.taken() && self.lock().events.is_empty()
    }

    /// Takes the oldest event, and waits for it if the descriptor blocks, as it does unless the program changed that.
    ///
    /// # Errors
    /// Returns an error if a signal interrupts the wait, `WouldBlock` if the descriptor does not block and there is none, or `BrokenPipe` if
    /// the core has stopped and no event is left.
    pub fn wait(&self) -> io::Result<AsyncEvent> {
        loop {
            self.descriptor.take()?;
            if let Some(event) = self.told() {
                return Ok(event);
            }
            if self.has_ended() {
                let reason = "events: the core has stopped and reports no more; open the device again";
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, reason));
            }
        }
    }

    /// Returns the oldest event, for a thread that has read the descriptor: the event is in the queue before the descriptor says so.
    /// `None` if the event was [forgotten](Self::forget) meanwhile; then the thread reads the descriptor again.
    pub fn told(&self) -> Option<AsyncEvent> {
        let mut waiting = self.lock();
        if waiting.read > 0 {
            waiting.read -= 1;
            return None;
        }
        waiting.events.pop_front()
    }

    /// Forgets waiting events, and takes them out of what the descriptor counts. If the filter refuses them by now, none comes
    /// after this.
    pub fn forget(&self, about: impl Fn(&AsyncEvent) -> bool) {
        let mut waiting = self.lock();
        let before = waiting.events.len();
        waiting.events.retain(|event| !about(event));
        let forgotten = before - waiting.events.len();
        waiting.read += (0..forgotten).filter(|_| !self.descriptor.take_now()).count();
    }

    /// The oldest event, if there is one. One thread at a time takes events.
    pub fn take(&self) -> Option<AsyncEvent> {
        // A count without an event is left over if the kernel could not take it back.
        while self.is_readable() {
            self.descriptor.take().ok()?;
            if let Some(event) = self.told() {
                return Some(event);
            }
            if self.has_ended() {
                return None;
            }
        }
        None
    }

    fn is_readable(&self) -> bool {
        let mut readable = libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, alive.
        let ready = unsafe { libc::poll(&raw mut readable, 1, 0) };
        ready > 0
    }

    fn tell(&self, event: &AsyncEvent) {
        // Under the lock, so that no event passes the filter and comes after `forget`.
        let mut waiting = self.lock();
        if !(self.filter)(event) || waiting.events.len() == Self::LIMIT {
            return;
        }
        waiting.events.push_back(*event);
        self.descriptor.signal();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
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
        f.debug_struct("EventQueue").field("waiting", &self.lock().events.len()).finish_non_exhaustive()
    }
}

/// The receivers. The lock is taken only for an event, never for a packet.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Mutex<Vec<Arc<EventQueue>>>);

impl Subscribers {
    pub(super) fn add(&self, queue: Arc<EventQueue>) {
        self.lock().push(queue);
    }

    pub(super) fn remove(&self, queue: &Arc<EventQueue>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, queue));
    }

    /// Informs all receivers, and logs failures.
    pub(super) fn tell(&self, port: &str, event: AsyncEvent) {
        match event {
            AsyncEvent::Transport(Event::QpFailed(failure) | Event::SendQueueFailed(failure)) => {
                probes::failed(&failure);
                tracing::warn!("{port}: {failure}");
            }
            AsyncEvent::Transport(Event::CqOverflowed(cq)) => {
                tracing::warn!("{port}: CQ {} overflowed, its queue pairs failed", cq.0);
            }
            AsyncEvent::PortUp => tracing::info!("{port}: link up"),
            AsyncEvent::PortDown => tracing::warn!("{port}: link down"),
            // Its cause was logged.
            AsyncEvent::CoreFailed => {}
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
    fn forgotten_events_are_no_longer_counted() {
        let queue = EventQueue::new(|_| true).unwrap();
        let [gone, there] = [5, 6].map(|qpn| AsyncEvent::Transport(Event::SendQueueDrained(Qpn::new(qpn))));
        [gone, there, gone].iter().for_each(|event| queue.tell(event));
        queue.forget(|event| *event == gone);
        assert_eq!([queue.take(), queue.take()], [Some(there), None]);
        // A thread has read the descriptor, and looks after the event was forgotten: the next event is announced once.
        queue.tell(&gone);
        queue.descriptor.take().unwrap();
        queue.forget(|event| *event == gone);
        queue.tell(&there);
        assert_eq!([queue.told(), queue.take(), queue.take()], [None, Some(there), None]);
    }

    #[test]
    fn an_ended_queue_gives_what_is_left_and_then_refuses() {
        let queue = EventQueue::new(|_| true).unwrap();
        queue.tell(&UP);
        queue.end();
        assert!(!queue.has_ended(), "an event is left");
        assert_eq!(queue.wait().unwrap(), UP);
        assert_eq!(queue.take(), None);
        for _ in 0..3 {
            assert_eq!(queue.wait().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        }
        assert!(queue.is_readable(), "for those that poll");
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

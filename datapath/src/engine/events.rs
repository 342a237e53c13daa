//! Asynchronous events and the queues that receive them.

use super::notify::EndEvent;
use crate::event_fd::EventFd;
use crate::probes;
use roce::Event;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

/// An event that is not reported by a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// An event of a queue pair, a completion queue or a shared receive queue.
    Transport(Event),
    /// The port's link came up.
    PortUp,
    /// The port's link went down.
    PortDown,
    /// An address was added to the port's GID table, or removed from it.
    GidChange,
    /// The core has ended because of a defect, or because its Linux interface was removed. Its queue pairs have completed in error, and
    /// every call returns the reason.
    CoreFailed,
}

type Filter = Box<dyn Fn(&AsyncEvent) -> bool + Send + Sync>;

/// A queue of events, oldest first.
///
/// Its descriptor, an eventfd with semaphore semantics, becomes readable with each event. Use it with `poll` or `epoll`, or call
/// [`wait`](Self::wait).
pub struct EventQueue {
    state: Mutex<EventState>,
    descriptor: Arc<EventFd>,
    end_event: Arc<EndEvent>,
    filter: Filter,
}

#[derive(Debug, Default)]
struct EventState {
    events: VecDeque<AsyncEvent>,
    /// Discarded events whose count a thread has already read from the descriptor. That many calls of `pop_after_read` return no event.
    read: usize,
}

impl EventQueue {
    /// Most queued events. Further ones are dropped.
    pub const LIMIT: usize = 1 << 16;

    /// Creates a queue of the events for which `filter` returns true. The core calls `filter` while the queue is locked, so it must not
    /// wait for the core or use the queue.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptor left.
    pub fn new(filter: impl Fn(&AsyncEvent) -> bool + Send + Sync + 'static) -> io::Result<Self> {
        let descriptor = Arc::new(EventFd::new(libc::EFD_SEMAPHORE)?);
        let end_event = Arc::new(EndEvent::new(descriptor.clone()));
        Ok(Self { state: Mutex::default(), descriptor, end_event, filter: Box::new(filter) })
    }

    pub(super) fn end_event(&self) -> &Arc<EndEvent> {
        &self.end_event
    }

    /// Ends the queue: wakes all threads that wait for its descriptor, which stays readable.
    pub fn end(&self) {
        self.end_event.announce();
    }

    /// Returns true if the core has stopped or the queue has [ended](Self::end), and no event is left. Call it after the descriptor was
    /// read and no event was found. The descriptor stays readable for other callers.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.end_event.signal_if_ended() && self.lock().events.is_empty()
    }

    /// Removes and returns the oldest event. Waits for one if the descriptor blocks, which is the default.
    ///
    /// # Errors
    /// Returns an error if a signal interrupts the wait. Returns `WouldBlock` if the descriptor does not block and the queue is empty, or
    /// `BrokenPipe` if the core has stopped and no event is left.
    pub fn wait(&self) -> io::Result<AsyncEvent> {
        loop {
            self.descriptor.take()?;
            if let Some(event) = self.pop_after_read() {
                return Ok(event);
            }
            if self.has_ended() {
                let reason = "events: the core has stopped and reports no more; open the device again";
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, reason));
            }
        }
    }

    /// Removes and returns the oldest event, for a thread that has read the descriptor. Returns `None` if the event was
    /// [discarded](Self::discard) meanwhile; the thread must then read the descriptor again.
    pub fn pop_after_read(&self) -> Option<AsyncEvent> {
        let mut state = self.lock();
        if state.read > 0 {
            state.read -= 1;
            return None;
        }
        state.events.pop_front()
    }

    /// Removes queued events for which `about` returns true, and subtracts them from the descriptor. If the filter already refuses such
    /// events, none follows.
    pub fn discard(&self, about: impl Fn(&AsyncEvent) -> bool) {
        let mut state = self.lock();
        let before = state.events.len();
        state.events.retain(|event| !about(event));
        let discarded = before - state.events.len();
        state.read += (0..discarded).filter(|_| !self.descriptor.take_now()).count();
    }

    /// Removes and returns the oldest event without waiting. Only one thread may take events at a time.
    pub fn take(&self) -> Option<AsyncEvent> {
        // The descriptor may count an event that was discarded.
        while self.is_readable() {
            self.descriptor.take().ok()?;
            if let Some(event) = self.pop_after_read() {
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
        // SAFETY: passes one pollfd with an open descriptor.
        let ready = unsafe { libc::poll(&raw mut readable, 1, 0) };
        ready > 0
    }

    fn publish(&self, event: &AsyncEvent) {
        // Locked before the filter runs, so that no event that it accepted is added after `discard`.
        let mut state = self.lock();
        if !(self.filter)(event) || state.events.len() == Self::LIMIT {
            return;
        }
        state.events.push_back(*event);
        self.descriptor.signal();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, EventState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The event queues of a port's users. Locked only for an event, never for a packet.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Mutex<Vec<Arc<EventQueue>>>);

impl Subscribers {
    pub(super) fn add(&self, queue: Arc<EventQueue>) {
        self.lock().push(queue);
    }

    pub(super) fn remove(&self, queue: &Arc<EventQueue>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, queue));
    }

    /// Adds an event to all queues whose filter accepts it, and logs failures.
    pub(super) fn publish(&self, port: &str, event: AsyncEvent) {
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
            // `fail_all` has logged the cause, and the caller that changed the table has logged the address.
            AsyncEvent::CoreFailed | AsyncEvent::GidChange => {}
            AsyncEvent::Transport(
                Event::CommunicationEstablished(_)
                | Event::SendQueueDrained(_)
                | Event::LastReceive(_)
                | Event::SharedReceivesLow(_),
            ) => {}
        }
        self.lock().iter().for_each(|queue| queue.publish(&event));
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
    fn each_queue_has_the_events_of_its_filter() {
        let subscribers = Subscribers::default();
        let all = Arc::new(EventQueue::new(|_| true).unwrap());
        let ports = Arc::new(EventQueue::new(|event| !matches!(event, AsyncEvent::Transport(_))).unwrap());
        [&all, &ports].into_iter().for_each(|queue| subscribers.add(queue.clone()));
        let drained = AsyncEvent::Transport(Event::SendQueueDrained(Qpn::new(5)));
        [drained, UP].into_iter().for_each(|event| subscribers.publish("port", event));
        assert_eq!([all.take(), all.take(), all.take()], [Some(drained), Some(UP), None]);
        subscribers.remove(&all);
        subscribers.publish("port", UP);
        assert_eq!(all.take(), None);
        assert_eq!([ports.wait().unwrap(), ports.wait().unwrap()], [UP, UP]);
        assert_eq!(ports.take(), None);
    }

    #[test]
    fn discarded_events_are_no_longer_counted() {
        let queue = EventQueue::new(|_| true).unwrap();
        let [gone, there] = [5, 6].map(|qpn| AsyncEvent::Transport(Event::SendQueueDrained(Qpn::new(qpn))));
        [gone, there, gone].iter().for_each(|event| queue.publish(event));
        queue.discard(|event| *event == gone);
        assert_eq!([queue.take(), queue.take()], [Some(there), None]);
        // A thread has read the descriptor before the event is discarded. The next event is signalled once.
        queue.publish(&gone);
        queue.descriptor.take().unwrap();
        queue.discard(|event| *event == gone);
        queue.publish(&there);
        assert_eq!([queue.pop_after_read(), queue.take(), queue.take()], [None, Some(there), None]);
    }

    #[test]
    fn an_ended_queue_returns_its_events_and_then_an_error() {
        let queue = EventQueue::new(|_| true).unwrap();
        queue.publish(&UP);
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
    fn a_queue_that_is_never_read_is_bounded() {
        let subscribers = Subscribers::default();
        let queue = Arc::new(EventQueue::new(|_| true).unwrap());
        subscribers.add(queue.clone());
        (0..EventQueue::LIMIT + 5).for_each(|_| subscribers.publish("port", UP));
        assert_eq!(core::iter::from_fn(|| queue.take()).count(), EventQueue::LIMIT);
    }
}

//! [`Completions`] for tokio tasks, and the descriptors on which tasks wait. Feature `tokio`.

use crate::channel::CompletionChannel;
use crate::errors::PollError;
use crate::{Completion, CompletionQueue, Error};
use datapath::event_fd::EventFd;
use std::future::poll_fn;
use std::ops::Deref;
use std::task::Poll;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that the current runtime watches.
#[derive(Debug)]
pub(crate) struct WatchedFd(AsyncFd<EventFd>);

impl WatchedFd {
    /// Watches a duplicate of `event_fd`: an epoll instance accepts each descriptor once, and several tasks may wait for the same one.
    pub(crate) fn new(event_fd: &EventFd) -> Result<Self, Error> {
        let own = event_fd.try_clone().map_err(Error::Descriptor)?;
        // SAFETY: `own` returns the same open descriptor for its whole life, and the `AsyncFd` owns `own` until it is dropped.
        let watched = unsafe { AsyncFd::register_with_interest(own, Interest::READABLE) };
        watched.map(Self).map_err(|error| Error::Descriptor(error.into()))
    }

    /// Waits until the descriptor is signalled after the last call returned. Does not read the counter.
    pub(crate) async fn signalled(&self) {
        match self.0.readable().await {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime that watched the descriptor has shut down, so the task polls.
            Err(_) => yield_now().await,
        }
    }
}

/// Yields to the other tasks of the runtime. No thread runs an inline core, so a task that waits must keep polling.
pub(crate) async fn yield_now() {
    let mut first = true;
    poll_fn(|context| {
        if !std::mem::replace(&mut first, false) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A completion queue whose completions a task awaits. It dereferences to the queue, so that queue pairs are created with it.
///
/// With [`Inline`](crate::Progress::Inline) progress, no other thread runs the core: a waiting task polls, and yields to other tasks
/// between two polls. In the other modes it sleeps.
///
/// ```
/// use ferroce_verbs::{Completions, RecvRequest, SendRequest};
/// # use ferroce_verbs::port::{Mac, OwnPort, pair};
/// # use ferroce_verbs::{Access, ConnectOptions, Device, DeviceConfig, MemoryRegion, Progress};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (left, _right) = pair(64, 4500);
/// # let config = DeviceConfig::new().address("10.0.0.1/24".parse()?).progress(Progress::Adaptive);
/// # let device = Device::open_on(left, OwnPort { name: "left".into(), mac: Mac([2, 0, 0, 0, 0, 1]) }, &config)?;
/// let domain = device.allocate_pd()?;
/// let mut completions = Completions::new(device.create_cq(16)?)?;
/// let mut qp = domain.queue_pair(&completions, &completions).build()?;
/// # let own = qp.endpoint();
/// # qp.connect(&own, &ConnectOptions::default())?;
/// # let buffer = MemoryRegion::alloc(&domain, 128, Access::LOCAL_WRITE)?;
/// qp.post_recv(RecvRequest::new(1, buffer.sge(0, 64)?))?;
/// qp.post_send(SendRequest::send(2, buffer.sge(64, 5)?))?;
/// for _ in 0..2 {
///     completions.next().await?.ok()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Completions {
    queue: CompletionQueue,
    channel: CompletionChannel,
    watched: WatchedFd,
    /// Number of calls of [`next`](Self::next) since the task last yielded.
    calls: u8,
}

/// Number of calls of [`Completions::next`] after which the task yields although completions may be ready.
const MAX_CONSECUTIVE: u8 = 64;

impl Completions {
    /// Binds `queue` to a new channel. A channel to which the queue was bound before no longer reports its completions.
    ///
    /// # Errors
    /// Returns an error if the process has no file descriptor left, or the core has stopped.
    ///
    /// # Panics
    /// Panics if the caller is not in a tokio runtime with I/O enabled.
    pub fn new(mut queue: CompletionQueue) -> Result<Self, Error> {
        let channel = CompletionChannel::new(&queue.handle.device, libc::EFD_NONBLOCK)?;
        let watched = WatchedFd::new(&channel.descriptor)?;
        queue.unbind_channel();
        queue.bind_channel(&channel)?;
        Ok(Self { queue, channel, watched, calls: 0 })
    }

    /// Returns the next completion, oldest first.
    ///
    /// This method is cancel safe: a completion leaves the queue only when the future returns it. If the future is dropped before, the next
    /// call returns the completion.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll`].
    pub async fn next(&mut self) -> Result<Completion, PollError> {
        self.calls = (self.calls + 1) % MAX_CONSECUTIVE;
        if self.calls == 0 {
            yield_now().await;
        }
        loop {
            if let Some(completion) = self.queue.poll_one()? {
                return Ok(completion);
            }
            if self.queue.handle.device.engine.is_inline() {
                yield_now().await;
                continue;
            }
            self.queue.arm(false);
            // A completion that arrived before arm() causes no event.
            if let Some(completion) = self.queue.poll_one()? {
                return Ok(completion);
            }
            self.watched.signalled().await;
            // Resets both counters, so that they do not overflow. The next poll reports a stopped core.
            let _ = self.channel.wait();
            while self.queue.take_event() {}
        }
    }
}

impl Deref for Completions {
    type Target = CompletionQueue;

    fn deref(&self) -> &CompletionQueue {
        &self.queue
    }
}

//! The asynchronous forms of the blocking calls of this module, for tokio. Feature `tokio`.

use super::connection::begin;
use super::manager::{Connections, ManagerRef};
use super::{Connection, Listener, Options, Request};
use crate::asynchronous::{WatchedFd, yield_now};
use crate::{Error, QueuePair};
use datapath::event_fd::EventFd;
use std::net::SocketAddr;

impl ManagerRef {
    /// Waits as [`ManagerRef::wait`] does. Cancel safe, because the future returns a result of `ready` without another await.
    async fn wait_async<R>(
        &self,
        event_fd: &EventFd,
        mut ready: impl FnMut(&mut Connections) -> Option<R>,
    ) -> Result<R, Error> {
        let watched = WatchedFd::new(event_fd)?;
        loop {
            if let Some(result) = self.poll_ready(&mut ready)? {
                return Ok(result);
            }
            if self.sleeps() {
                watched.signalled().await;
            } else {
                yield_now().await;
            }
        }
    }
}

/// Connects `qp` to the program that listens at `to`. The asynchronous form of [`connect`](super::connect).
///
/// If the future is dropped before it returns, the queue pair is destroyed, and the peer's connection ends. Waiting for the peer's answer
/// does not block the thread. Changing the queue pair's state takes microseconds, unless the peer's Ethernet address has to be resolved
/// again.
///
/// # Errors
/// As [`connect`](super::connect).
///
/// # Panics
/// Panics if the caller is not in a tokio runtime with I/O enabled.
pub async fn connect_async(qp: QueuePair, to: SocketAddr, options: &Options) -> Result<Connection, Error> {
    let connecting = begin(qp, to, options)?;
    let handle = connecting.handle();
    let answer = |machine: &mut Connections| handle.answer(machine, options.timeout);
    let negotiated = handle.manager.wait_async(&handle.event_fd, answer).await?;
    connecting.finish(negotiated?, options)
}

impl Listener {
    /// Waits for a request. The asynchronous form of [`accept`](Self::accept). Several tasks may wait.
    ///
    /// This method is cancel safe: if the future is dropped, the next call returns the request.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    ///
    /// # Panics
    /// Panics if the caller is not in a tokio runtime with I/O enabled.
    pub async fn accept_async(&self) -> Result<Request, Error> {
        let taken = self.manager.wait_async(&self.event_fd, |machine| self.take(machine)).await?;
        self.request(taken?)
    }
}

impl Request {
    /// Connects `qp` to the peer. The asynchronous form of [`accept`](Self::accept).
    ///
    /// If the future is dropped before it returns, the queue pair is destroyed and the peer receives the end of the connection.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    ///
    /// # Panics
    /// Panics if the caller is not in a tokio runtime with I/O enabled.
    pub async fn accept_async(self, qp: QueuePair, options: &Options) -> Result<Connection, Error> {
        let connection = self.begin(qp, options)?;
        let handle = connection.handle();
        let established = |machine: &mut Connections| handle.established(machine, options.timeout);
        handle.manager.wait_async(&handle.event_fd, established).await??;
        Ok(connection)
    }
}

impl Connection {
    /// Waits until either side has ended the connection. The asynchronous form of [`wait_end`](Self::wait_end).
    ///
    /// This method is cancel safe: if the future is dropped, the next call waits for the same end.
    ///
    /// # Errors
    /// As [`wait_end`](Self::wait_end).
    ///
    /// # Panics
    /// Panics if the caller is not in a tokio runtime with I/O enabled.
    pub async fn wait_end_async(&mut self) -> Result<(), Error> {
        let handle = self.handle();
        let ended = |machine: &mut Connections| handle.has_ended(machine).then_some(());
        handle.manager.wait_async(&handle.event_fd, ended).await
    }

    /// Ends the connection, and waits for the peer's answer. The asynchronous form of [`disconnect`](Self::disconnect).
    ///
    /// This method is cancel safe: if the future is dropped after its first poll, the connection nevertheless ends. The next call or
    /// [`wait_end_async`](Self::wait_end_async) then waits for the answer.
    ///
    /// # Errors
    /// As [`disconnect`](Self::disconnect).
    ///
    /// # Panics
    /// Panics if the caller is not in a tokio runtime with I/O enabled.
    pub async fn disconnect_async(&mut self) -> Result<(), Error> {
        self.begin_disconnect()?;
        self.wait_end_async().await
    }
}

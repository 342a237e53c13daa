use crate::{Access, ConnectOptions, Error, PostListError, QpEndpoint};
use roce::Qpn;
use roce::qp::{Capabilities, PostError, QpReport, RecvRequest, SendRequest};

/// Says what a queue pair shall be.
#[derive(Debug)]
#[must_use = "nothing is made before build()"]
pub struct QueuePairBuilder {}

impl QueuePairBuilder {
    pub(crate) fn new() -> Self {
        Self {}
    }

    /// Depths and limits.
    pub fn capabilities(self, capabilities: Capabilities) -> Self {
        let _ = capabilities;
        self
    }

    /// What the peer may do, on top of each region's own rights. All by default.
    pub fn access(self, access: Access) -> Self {
        let _ = access;
        self
    }

    /// Every send request makes a completion, signalled or not.
    pub fn signal_all(self, all: bool) -> Self {
        let _ = all;
        self
    }

    /// Which of the device's addresses it uses. 0 by default.
    pub fn gid_index(self, index: usize) -> Self {
        let _ = index;
        self
    }

    /// Makes the queue pair, in INIT: receives may be posted.
    ///
    /// # Errors
    /// Where a limit is passed, the device has no such GID, or the core has stopped.
    pub fn build(self) -> Result<QueuePair, Error> {
        Err(Error::CoreStopped("not built yet".into()))
    }
}

/// A reliable connection's end. One thread at a time uses it.
#[derive(Debug)]
pub struct QueuePair {}

impl QueuePair {
    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        Qpn::new(0)
    }

    /// What the peer needs to connect.
    #[must_use]
    pub fn endpoint(&self) -> QpEndpoint {
        unimplemented!("not built yet")
    }

    /// Finds the way to the peer and goes to RTS. Waits for the neighbour's answer, 3 s at most. What the peer sends
    /// before its own `connect` returned is answered.
    ///
    /// # Errors
    /// Where the peer can't be reached, an option is out of its range, or the queue pair was connected before.
    pub fn connect(&mut self, remote: &QpEndpoint, options: &ConnectOptions) -> Result<(), Error> {
        let _ = (remote, options);
        Err(Error::CoreStopped("not built yet".into()))
    }

    /// Hands one send request to the core.
    ///
    /// # Errors
    /// Where the queue is full, the request passes a limit, or the queue pair is not connected. Nothing of it was done.
    pub fn post_send(&mut self, request: SendRequest) -> Result<(), PostError> {
        let _ = request;
        Err(PostError::QueueFull { limit: 0 })
    }

    /// Posts in order until the first error; rings the doorbell once.
    ///
    /// # Errors
    /// Which request was refused, and why. Those before it are posted.
    pub fn post_send_list(
        &mut self,
        requests: impl IntoIterator<Item = SendRequest>,
    ) -> Result<usize, PostListError> {
        let _ = requests.into_iter();
        Err(PostListError { posted: 0, error: PostError::QueueFull { limit: 0 } })
    }

    /// Hands one receive request to the core.
    ///
    /// # Errors
    /// Where the queue is full or the request passes a limit. Nothing of it was done.
    pub fn post_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        let _ = request;
        Err(PostError::QueueFull { limit: 0 })
    }

    /// Posts in order until the first error.
    ///
    /// # Errors
    /// Which request was refused, and why. Those before it are posted.
    pub fn post_recv_list(
        &mut self,
        requests: impl IntoIterator<Item = RecvRequest>,
    ) -> Result<usize, PostListError> {
        let _ = requests.into_iter();
        Err(PostListError { posted: 0, error: PostError::QueueFull { limit: 0 } })
    }

    /// What the queue pair says of itself.
    ///
    /// # Errors
    /// Where the core has stopped.
    pub fn query(&self) -> Result<QpReport, Error> {
        Err(Error::CoreStopped("not built yet".into()))
    }

    /// To the error state: everything outstanding is flushed.
    ///
    /// # Errors
    /// Where the core has stopped.
    pub fn fail(&mut self) -> Result<(), Error> {
        Err(Error::CoreStopped("not built yet".into()))
    }

    /// The limits it was made with.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
}

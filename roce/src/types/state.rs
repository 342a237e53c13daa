//! The states of a queue pair, and its limits.

/// State of a queue pair (IBA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum State {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    SendQueueDrained,
    /// Unreliable services only: a send failed, but packets are received.
    SendQueueError,
    Error,
}

/// Depths and limits, fixed when a queue pair is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Send requests that may be outstanding.
    pub max_send: u32,
    /// Receive requests that may be outstanding.
    pub max_recv: u32,
    /// Buffers in one send request.
    pub max_send_sge: u32,
    /// Buffers in one receive request.
    pub max_recv_sge: u32,
    /// Bytes of inline data in a request.
    pub max_inline: u32,
}

impl Capabilities {
    /// Limits of all capabilities.
    pub const MAX: Self =
        Self { max_send: 1 << 15, max_recv: 1 << 15, max_send_sge: 32, max_recv_sge: 32, max_inline: 1024 };
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { max_send: 128, max_recv: 512, max_send_sge: 4, max_recv_sge: 4, max_inline: 236 }
    }
}

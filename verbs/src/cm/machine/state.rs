//! The states of a connection, and how it ends.

/// The state of a connection (IBA 12.9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    RequestSent,
    /// The peer's reply waits for the program to take its queue pair to it.
    ReplyReceived,
    /// The peer's request waits for the program to accept it.
    RequestReceived,
    ReplySent,
    Established,
    DisconnectSent,
    Ended(End),
}

/// The ways in which a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Disconnected,
    Rejected(u16),
    Unreachable,
    NotFound,
}

impl State {
    /// The peer has, or may have, a connection that a DREQ ends.
    pub(super) fn is_connected(self) -> bool {
        matches!(self, Self::Established | Self::ReplySent | Self::ReplyReceived)
    }
}

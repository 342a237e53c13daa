//! The states of a connection, and the ways in which it ends.

/// The state of a connection (IBA 12.9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    RequestSent,
    /// The peer has replied; the program has not connected its queue pair yet.
    ReplyReceived,
    /// The peer has requested; the program has not accepted yet.
    RequestReceived,
    ReplySent,
    Established,
    DisconnectSent,
    Ended(End),
}

/// The way in which a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Disconnected,
    Rejected(u16),
    Unreachable,
    NotFound,
}

impl State {
    /// Returns whether the peer has, or may have, a connection. DREQ ends it.
    pub(super) fn is_connected(self) -> bool {
        matches!(self, Self::Established | Self::ReplySent | Self::ReplyReceived)
    }
}

//! The states of a connection, and how it ends.

use crate::Error;

/// The state of a connection.
#[derive(Debug)]
pub(crate) enum State {
    RequestSent,
    /// The peer's reply waits for the program to take its queue pair to it.
    ReplyCame,
    /// The peer's request waits for the program to accept it.
    RequestCame,
    ReplySent,
    Established,
    DisconnectSent,
    Ended(End),
}

/// The ways in which a connection ends.
#[derive(Debug)]
pub(crate) enum End {
    Disconnected,
    Rejected(u16),
    Silent,
    NotFound(Error),
}

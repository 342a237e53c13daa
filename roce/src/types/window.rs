//! The binding of a memory window (IBA 10.6.7).

use super::{Access, AccessError};
use crate::{Lkey, Rkey};
use thiserror::Error;

/// Type of a memory window (IBA 10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// Type 1: every queue pair of its domain accepts it, and a new binding replaces the former one.
    One,
    /// Type 2B: only the queue pair that bound it accepts it. It must be invalidated before it is bound again.
    Two,
}

/// Range and rights of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Window, by any key that it has had.
    pub window: Rkey,
    /// New key of the window. Only the last byte may be chosen.
    pub rkey: Rkey,
    /// Key of the region. Ignored if `length` is 0.
    pub lkey: Lkey,
    /// First address of the window, as in requests to the region.
    pub address: u64,
    /// Length in bytes. 0 unbinds a window of type 1.
    pub length: u64,
    /// Operations that the peer may execute.
    pub access: Access,
    /// Whether the peer's addresses begin with 0 at the window's first byte. Type 2 only.
    pub zero_based: bool,
}

/// Reason to refuse the binding of a window (IBA 10.6.7.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum BindError {
    /// The window does not exist, or is of another protection domain.
    #[error("there is no such memory window in this protection domain")]
    Window,
    /// The new key differs from the window's in more than the last byte.
    #[error("only the last byte of a memory window's key may be chosen")]
    Key,
    /// A window of type 2 is bound already, or the range is empty.
    #[error(
        "a type 2 memory window is bound already, or the range is empty; invalidate it first, and bind at least 1 byte"
    )]
    Bound,
    /// A window of type 1 cannot be zero-based.
    #[error("a type 1 memory window can't be zero-based")]
    ZeroBased,
    /// The region does not contain the range, or does not allow windows with these rights.
    #[error("the memory region: {0}")]
    Region(AccessError),
}

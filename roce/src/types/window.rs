//! What a memory window is bound to (IBA 10.6.7).

use super::{Access, AccessError};
use crate::{Lkey, Rkey};
use thiserror::Error;

/// Which rules a memory window has (IBA 10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// Type 1: every queue pair of its domain serves it, and binding it again takes the place of what it was bound to.
    One,
    /// Type 2B: the queue pair that bound it serves it, no other. It must be invalidated before it is bound again.
    Two,
}

/// The range and rights that a memory window is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The window, by any of the keys that it had.
    pub window: Rkey,
    /// Its key from now on. Only the last byte is free.
    pub rkey: Rkey,
    /// The region. Ignored if `length` is 0.
    pub lkey: Lkey,
    /// The window's first address, in the addresses that requests to the region use.
    pub address: u64,
    /// Bytes. 0 takes a window of type 1 back.
    pub length: u64,
    /// The operations that the peer may execute.
    pub access: Access,
    /// The peer counts addresses from 0 at the window's first byte. Type 2 only.
    pub zero_based: bool,
}

/// Why a window was not bound (IBA 10.6.7.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum BindError {
    /// There is no such window, or it is of another protection domain.
    #[error("there is no such memory window in this protection domain")]
    Window,
    /// The new key differs from the window's in more than its last byte.
    #[error("only the last byte of a memory window's key may be chosen")]
    Key,
    /// A window of type 2 that is bound, or is to be bound to nothing.
    #[error(
        "a type 2 memory window is bound already, or the range is empty; invalidate it first, and bind at least 1 byte"
    )]
    Bound,
    /// Only windows of type 2 count from 0.
    #[error("a type 1 memory window can't be zero-based")]
    ZeroBased,
    /// The region does not have the range, or does not allow windows of these rights.
    #[error("the memory region: {0}")]
    Region(AccessError),
}

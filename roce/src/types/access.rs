//! Access rights to registered memory, and the reasons to refuse an access.

use crate::Discard;
use core::ops::BitOr;
use thiserror::Error;

/// Operations that a memory region allows, or a queue pair as responder (IBA 10.6.3.1).
///
/// Local reading is always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// Local read only.
    pub const LOCAL_READ: Self = Self(0);
    /// Local write: the owner may receive into the region.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Remote WRITE.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Remote READ.
    pub const REMOTE_READ: Self = Self(4);
    /// Remote atomics.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// All rights above.
    pub const ALL: Self = Self(15);
    /// Binding of memory windows to the region.
    pub const WINDOWS: Self = Self(16);
    /// Remote FLUSH to global visibility.
    pub const REMOTE_FLUSH: Self = Self(32);

    /// Returns whether `self` has all rights of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Reason to refuse an access to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum AccessError {
    /// No region has this key: it was never assigned, or its region is deregistered.
    #[error("no memory region has this key")]
    UnknownKey,
    /// The region is of another protection domain, or the window of another queue pair.
    #[error(
        "the memory region belongs to another protection domain, or the memory window to another queue pair"
    )]
    ProtectionDomain,
    /// The access is not completely inside the region.
    #[error("the access leaves the memory region")]
    Range,
    /// The region does not allow this kind of access.
    #[error("the memory region does not allow this access")]
    Access,
    /// The region's memory is no longer mapped.
    #[error("the memory region is registered, but its memory is no longer mapped")]
    Vanished,
}

impl AccessError {
    /// Returns the counter of remote requests that are refused for this reason. A region of another domain counts as no region: both are an
    /// R_Key violation (IBA 9.7.4.1.4), which the NAK does not distinguish.
    #[must_use]
    pub const fn discard(self) -> Discard {
        match self {
            Self::UnknownKey | Self::ProtectionDomain => Discard::RemoteKey,
            Self::Range => Discard::RemoteRange,
            Self::Access => Discard::RemoteAccess,
            Self::Vanished => Discard::Vanished,
        }
    }
}

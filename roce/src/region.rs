use crate::{Lkey, Rkey};
use core::ops::BitOr;

/// What may be done with a memory region, or with a queue pair as responder (IBA 10.6.3.1).
///
/// Local reading is always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// Local read only.
    pub const LOCAL_READ: Self = Self(0);
    /// The owner may receive into it.
    pub const LOCAL_WRITE: Self = Self(1);
    /// The peer may WRITE.
    pub const REMOTE_WRITE: Self = Self(2);
    /// The peer may READ.
    pub const REMOTE_READ: Self = Self(4);
    /// The peer may run atomics.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// All of them.
    pub const ALL: Self = Self(15);

    /// Whether all of `other` is allowed.
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

/// A registered memory region as its owner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where it starts in the owner's address space.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// What may be done with it.
    pub access: Access,
    /// For local work requests.
    pub lkey: Lkey,
    /// For the peer. Worthless without a remote access right.
    pub rkey: Rkey,
}

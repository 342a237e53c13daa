use crate::key_space::KeySpace;
use crate::{ControlError, Discard, Lkey, PdId, Rkey, Slice};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use core::ops::BitOr;
use thiserror::Error;

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

/// Why an access to registered memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum AccessError {
    /// No region has this key: it never had, or it is deregistered.
    #[error("no memory region has this key")]
    UnknownKey,
    /// The region belongs to another protection domain.
    #[error("the memory region is of another protection domain")]
    ProtectionDomain,
    /// The access begins or ends outside the region.
    #[error("the access leaves the memory region")]
    Range,
    /// The region does not allow this kind of access.
    #[error("the memory region does not allow this access")]
    Access,
}

impl AccessError {
    /// The counter of a remote request that was refused for this. A region of another domain counts as no
    /// region: both are an R_Key violation (IBA 9.7.4.1.4), and the peer learns no more.
    #[must_use]
    pub const fn discard(self) -> Discard {
        match self {
            Self::UnknownKey | Self::ProtectionDomain => Discard::RemoteKey,
            Self::Range => Discard::RemoteRange,
            Self::Access => Discard::RemoteAccess,
        }
    }
}

/// One place of the table: a region, or what its next region's generation will be.
#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: u32,
    live: Option<Live>,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    pd: PdId,
    region: Region,
}

/// All memory regions of one endpoint, found by key. Room for all is taken when it is made.
///
/// A key is the region's place in the table and the place's generation, sealed by a secret permutation, another
/// one for local than for remote keys. A place that is free waits its turn behind all others, and its generation
/// has all the bits that its number leaves: a key comes again only after 2^32 / (places, rounded up to a power of
/// two) registrations in the very same place.
///
/// Accesses of 0 bytes need no valid key (IBA 9.7.4.1.4 for remote ones): the caller must not ask for them. If it
/// does, they are checked as any other.
pub struct RegionTable {
    entries: Box<[Entry]>,
    free: VecDeque<u32>,
    index_bits: u32,
    local: KeySpace,
    remote: KeySpace,
}

impl RegionTable {
    /// Room for `max` regions. `secret` must be unpredictable and serve nothing else.
    #[must_use]
    pub fn new(max: u32, secret: &[u8; 32]) -> Self {
        let half = |at: usize| core::array::from_fn(|i| secret[at + i]);
        Self {
            entries: vec![Entry { generation: 0, live: None }; max as usize].into_boxed_slice(),
            free: (0..max).collect(),
            index_bits: u64::from(max.max(1)).next_power_of_two().ilog2(),
            local: KeySpace::new(&half(0)),
            remote: KeySpace::new(&half(16)),
        }
    }

    /// Registered regions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether no region is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Registers `length` bytes at `address` and draws keys for them.
    ///
    /// # Errors
    /// An empty region, one that runs over the end of the address space, or one more than the table holds.
    pub fn register(
        &mut self,
        pd: PdId,
        address: u64,
        length: u64,
        access: Access,
    ) -> Result<Region, ControlError> {
        // The last byte of the address space is left out, so that every end has an address.
        let limit = u64::MAX - address;
        if length == 0 || length > limit {
            return Err(ControlError::Value { what: "a region's length", value: length, limit });
        }
        let max = self.entries.len() as u32;
        let index =
            self.free.pop_front().ok_or(ControlError::Limit { what: "memory regions", limit: max })?;
        let generation = self.entries[index as usize].generation;
        let number = self.number(index, generation);
        let region = Region {
            address,
            length,
            access,
            lkey: Lkey::new(self.local.seal(number)),
            rkey: Rkey::new(self.remote.seal(number)),
        };
        self.entries[index as usize].live = Some(Live { pd, region });
        Ok(region)
    }

    /// Forgets a region: from now on its keys name nothing.
    ///
    /// # Errors
    /// No region has this key.
    pub fn deregister(&mut self, lkey: Lkey) -> Result<Region, ControlError> {
        let number = self.local.open(lkey.get());
        let index = self.index(number);
        let region = self.find(number).map_err(|_| ControlError::NoRegion(lkey))?.region;
        let generation = self.entries[index as usize].generation.wrapping_add(1);
        self.entries[index as usize] = Entry { generation, live: None };
        self.free.push_back(index);
        Ok(region)
    }

    /// Checks an access of this side's own requests: `length` bytes at `address`.
    ///
    /// # Errors
    /// The first check that failed: key, protection domain, access right, range.
    pub fn local(
        &self,
        lkey: Lkey,
        pd: PdId,
        address: u64,
        length: u32,
        access: Access,
    ) -> Result<Slice, AccessError> {
        check(self.find(self.local.open(lkey.get()))?, pd, address, length, access)
    }

    /// Checks an access that a peer asks for: `length` bytes at `address`.
    ///
    /// # Errors
    /// The first check that failed: key, protection domain, access right, range.
    pub fn remote(
        &self,
        rkey: Rkey,
        pd: PdId,
        address: u64,
        length: u32,
        access: Access,
    ) -> Result<Slice, AccessError> {
        check(self.find(self.remote.open(rkey.get()))?, pd, address, length, access)
    }

    /// What a place and its generation are called before sealing. Generation bits that don't fit are dropped.
    fn number(&self, index: u32, generation: u32) -> u32 {
        generation.checked_shl(self.index_bits).unwrap_or(0) | index
    }

    fn index(&self, number: u32) -> u32 {
        number & (u32::MAX.checked_shr(32 - self.index_bits).unwrap_or(0))
    }

    fn find(&self, number: u32) -> Result<&Live, AccessError> {
        let index = self.index(number);
        match self.entries.get(index as usize) {
            Some(Entry { generation, live: Some(live) }) if self.number(index, *generation) == number => {
                Ok(live)
            }
            _ => Err(AccessError::UnknownKey),
        }
    }
}

fn check(live: &Live, pd: PdId, address: u64, length: u32, access: Access) -> Result<Slice, AccessError> {
    if live.pd != pd {
        return Err(AccessError::ProtectionDomain);
    }
    if !live.region.access.contains(access) {
        return Err(AccessError::Access);
    }
    let left =
        address.checked_sub(live.region.address).and_then(|offset| live.region.length.checked_sub(offset));
    match left {
        Some(left) if u64::from(length) <= left => Ok(Slice::new(address, length)),
        _ => Err(AccessError::Range),
    }
}

#[cfg(test)]
mod tests;

//! Memory regions: the memory of a key, and the operations that the key allows (IBA 10.6).

use super::KeySpace;
use super::memory_window::{self, Windows};
use crate::{
    Access, AccessError, BindError, Binding, ControlError, Lkey, PdId, Qpn, Rkey, Slice, WindowKind,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;

/// Registered memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address, in the owner's address space.
    pub address: u64,
    /// Address of the first byte in requests of both sides (IBA 11.2.8.1, Virtual Address): usually `address`.
    pub origin: u64,
    /// Length in bytes.
    pub length: u64,
    /// Operations that the region allows.
    pub access: Access,
    /// Key for local work requests.
    pub lkey: Lkey,
    /// Key for the peer: the same number as `lkey`, as with rxe, mlx4 and mlx5. It allows nothing without a remote access right.
    pub rkey: Rkey,
}

/// Entry of the table: a region, or the generation of its next one.
#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: u32,
    live: Option<Live>,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    pd: PdId,
    region: Region,
    windows: u32,
}

/// Memory regions of one endpoint, found by key, and its memory windows. Room for all regions is allocated at creation. No region has a key
/// that a window may have.
///
/// A key is the region's index in the table and the generation of the index, encrypted by a secret permutation. It is both the L_Key and
/// the R_Key (`docs/decisions/016-one-key-per-region.md`). Freed indices are reused in the order in which they were freed. The generation
/// has all bits that the index leaves, so a key repeats only after 2^32 / `n` registrations at one index. `n` is the number of indices,
/// rounded up to a power of two.
///
/// Accesses of 0 bytes need no valid key (IBA 9.7.4.1.4 for remote ones), so the caller must not pass them to the checks of this table.
pub struct RegionTable {
    entries: Box<[Entry]>,
    free: VecDeque<u32>,
    index_bits: u32,
    keys: KeySpace,
    windows: Windows,
}

impl RegionTable {
    /// Creates a table for `max` regions, and as many windows. `secret` must be unpredictable and used for nothing else.
    #[must_use]
    pub fn new(max: u32, secret: &[u8; 32]) -> Self {
        let half = |at: usize| core::array::from_fn(|i| secret[at + i]);
        Self {
            entries: vec![Entry { generation: 0, live: None }; max as usize].into_boxed_slice(),
            free: (0..max).collect(),
            index_bits: u64::from(max.max(1)).next_power_of_two().ilog2(),
            keys: KeySpace::new(&half(0)),
            windows: Windows::new(max, KeySpace::new(&half(16))),
        }
    }

    /// Returns the number of registered regions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns whether no region is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Registers `length` bytes at `address`, and assigns keys.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the region is empty or exceeds the address space, or the table is full.
    pub fn register(
        &mut self,
        pd: PdId,
        address: u64,
        length: u64,
        access: Access,
    ) -> Result<Region, ControlError> {
        self.register_as(pd, address, length, address, access)
    }

    /// Registers a region whose first byte has the address `origin` in requests; 0 makes it zero-based.
    ///
    /// # Errors
    /// Returns the errors of [`register`](Self::register).
    pub fn register_as(
        &mut self,
        pd: PdId,
        address: u64,
        length: u64,
        origin: u64,
        access: Access,
    ) -> Result<Region, ControlError> {
        check_place(address, origin, length)?;
        let max = self.entries.len() as u32;
        let index =
            self.free.pop_front().ok_or(ControlError::Limit { what: "memory regions", limit: max })?;
        let mut number = self.number(index, self.entries[index as usize].generation);
        while self.windows.owns(Rkey::new(self.keys.seal(number))) {
            let entry = &mut self.entries[index as usize];
            entry.generation = entry.generation.wrapping_add(1);
            let generation = entry.generation;
            number = self.number(index, generation);
        }
        let key = self.keys.seal(number);
        let region = Region { address, origin, length, access, lkey: Lkey::new(key), rkey: Rkey::new(key) };
        self.entries[index as usize].live = Some(Live { pd, region, windows: 0 });
        Ok(region)
    }

    /// Changes all properties of a region except its keys.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if no region has this key, windows are bound to it, or [`register`](Self::register) would refuse the
    /// memory. The region is then unchanged.
    pub fn change(&mut self, lkey: Lkey, pd: PdId, wanted: &Region) -> Result<Region, ControlError> {
        let &Region { address, origin, length, access, .. } = wanted;
        check_place(address, origin, length)?;
        let live = self.live(lkey).ok_or(ControlError::NoRegion(lkey))?;
        if live.windows > 0 {
            return Err(ControlError::RegionBusy { lkey, windows: live.windows });
        }
        live.pd = pd;
        live.region = Region { address, origin, length, access, ..live.region };
        Ok(live.region)
    }

    /// Deregisters a region, and invalidates its keys.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if no region has this key, or windows are bound to it (IBA 10.6.7.2.6).
    pub fn deregister(&mut self, lkey: Lkey) -> Result<Region, ControlError> {
        let number = self.keys.open(lkey.get());
        let index = self.index(number);
        let &Live { region, windows, .. } = self.find(number).map_err(|_| ControlError::NoRegion(lkey))?;
        if windows > 0 {
            return Err(ControlError::RegionBusy { lkey, windows });
        }
        let generation = self.entries[index as usize].generation.wrapping_add(1);
        self.entries[index as usize] = Entry { generation, live: None };
        self.free.push_back(index);
        Ok(region)
    }

    /// Deregisters a region, and invalidates the windows that are bound to it.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if no region has this key.
    pub fn deregister_with_windows(&mut self, lkey: Lkey) -> Result<Region, ControlError> {
        if let Some(live) = self.live(lkey)
            && live.windows > 0
        {
            live.windows = 0;
            self.windows.release_region(lkey);
        }
        self.deregister(lkey)
    }

    /// Returns the number of windows that are bound to a region.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if no region has this key.
    pub fn windows_of(&self, lkey: Lkey) -> Result<u32, ControlError> {
        let live = self.find(self.keys.open(lkey.get())).map_err(|_| ControlError::NoRegion(lkey))?;
        Ok(live.windows)
    }

    /// Creates an unbound memory window, and returns its key.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the table is full.
    pub fn create_window(&mut self, pd: PdId, kind: WindowKind) -> Result<Rkey, ControlError> {
        let Self { entries, keys, index_bits, windows, .. } = self;
        let is_taken = |rkey: Rkey| {
            let number = keys.open(rkey.get());
            find(entries, *index_bits, number).is_ok()
        };
        windows.create(pd, kind, is_taken)
    }

    /// Destroys a memory window, bound or not.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if no window has this key.
    pub fn destroy_window(&mut self, rkey: Rkey) -> Result<(), ControlError> {
        let before = self.windows.destroy(rkey)?;
        self.on_unbound(before);
        Ok(())
    }

    /// Invalidates the windows that a destroyed queue pair bound.
    pub fn release_queue_pair(&mut self, qpn: Qpn) {
        let Self { entries, keys, index_bits, windows, .. } = self;
        windows.release_queue_pair(qpn, |lkey| {
            if let Some(live) = find_mut(entries, *index_bits, keys.open(lkey.get())) {
                live.windows -= 1;
            }
        });
    }

    /// Binds a memory window for a queue pair (IBA 10.6.7.2.3).
    ///
    /// # Errors
    /// Returns a [`BindError`] if the window was not bound; it is then unchanged.
    pub fn bind(&mut self, pd: PdId, qpn: Qpn, binding: &Binding) -> Result<(), BindError> {
        self.windows.check(pd, binding)?;
        let start = match binding.length {
            0 => 0,
            _ => self.check_binding(pd, binding).map_err(BindError::Region)?,
        };
        let before = self.windows.bind(qpn, binding, start);
        self.on_unbound(before);
        if binding.length > 0
            && let Some(live) = self.live(binding.lkey)
        {
            live.windows += 1;
        }
        Ok(())
    }

    /// Checks the region of a binding. Returns the first address of the window, in the owner's address space.
    fn check_binding(&self, pd: PdId, binding: &Binding) -> Result<u64, AccessError> {
        let Live { pd: owner, region, .. } = self.find(self.keys.open(binding.lkey.get()))?;
        if *owner != pd {
            return Err(AccessError::ProtectionDomain);
        }
        let writes = [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
        let writes = writes.into_iter().any(|right| binding.access.contains(right));
        let needs = if writes { Access::WINDOWS | Access::LOCAL_WRITE } else { Access::WINDOWS };
        if !region.access.contains(needs) {
            return Err(AccessError::Access);
        }
        let offset = binding.address.checked_sub(region.origin).ok_or(AccessError::Range)?;
        match region.length.checked_sub(offset) {
            Some(left) if binding.length <= left => Ok(region.address + offset),
            _ => Err(AccessError::Range),
        }
    }

    /// Invalidates a window of type 2: its key is invalid until it is bound again (IBA 10.6.7.2.5).
    ///
    /// # Errors
    /// Returns an [`AccessError`] if no window that this queue pair bound has this key, or it is of type 1.
    pub fn invalidate(&mut self, rkey: Rkey, pd: PdId, qpn: Qpn) -> Result<(), AccessError> {
        let before = self.windows.invalidate(rkey, pd, qpn)?;
        self.on_unbound(Some(before));
        Ok(())
    }

    fn on_unbound(&mut self, lkey: Option<Lkey>) {
        if let Some(live) = lkey.and_then(|lkey| self.live(lkey)) {
            live.windows -= 1;
        }
    }

    fn live(&mut self, lkey: Lkey) -> Option<&mut Live> {
        let number = self.keys.open(lkey.get());
        find_mut(&mut self.entries, self.index_bits, number)
    }

    /// Checks an access of local requests to `length` bytes at `address`.
    ///
    /// # Errors
    /// Returns the [`AccessError`] of the first check that fails: key, protection domain, access right, range.
    #[inline]
    pub fn local(
        &self,
        lkey: Lkey,
        pd: PdId,
        address: u64,
        length: u32,
        access: Access,
    ) -> Result<Slice, AccessError> {
        check(self.find(self.keys.open(lkey.get()))?, pd, address, length, access)
    }

    /// Checks an access of the peer of queue pair `qpn` to `length` bytes at `address`, by the key of a region or of a window.
    ///
    /// # Errors
    /// Returns the [`AccessError`] of the first check that fails: key, protection domain, access right, range.
    #[inline]
    pub fn remote(
        &self,
        rkey: Rkey,
        pd: PdId,
        qpn: Qpn,
        address: u64,
        length: u32,
        access: Access,
    ) -> Result<Slice, AccessError> {
        match self.find(self.keys.open(rkey.get())) {
            Ok(live) => check(live, pd, address, length, access),
            Err(_) => self.windows.slice(rkey, pd, qpn, address, length, access),
        }
    }

    /// Checks an access to a whole region or window.
    ///
    /// # Errors
    /// Returns the [`AccessError`] of the first check that fails: key, protection domain, access right.
    pub fn remote_whole(&self, rkey: Rkey, pd: PdId, qpn: Qpn, access: Access) -> Result<(), AccessError> {
        match self.find(self.keys.open(rkey.get())) {
            Ok(live) => check(live, pd, live.region.origin, 0, access).map(drop),
            Err(_) => self.windows.whole(rkey, pd, qpn, access),
        }
    }

    fn number(&self, index: u32, generation: u32) -> u32 {
        number(self.index_bits, index, generation)
    }

    fn index(&self, number: u32) -> u32 {
        index(self.index_bits, number)
    }

    fn find(&self, number: u32) -> Result<&Live, AccessError> {
        find(&self.entries, self.index_bits, number)
    }
}

/// Checks the memory of a region. The last byte of the address space is excluded, so that the end of every region has an address.
fn check_place(address: u64, origin: u64, length: u64) -> Result<(), ControlError> {
    let limit = u64::MAX - address.max(origin);
    if length == 0 || length > limit {
        return Err(ControlError::Value { what: "a region's length", value: length, limit });
    }
    Ok(())
}

/// Returns the number of an index and its generation before encryption. Generation bits that do not fit are dropped.
fn number(index_bits: u32, index: u32, generation: u32) -> u32 {
    generation.checked_shl(index_bits).unwrap_or(0) | index
}

fn index(index_bits: u32, number: u32) -> u32 {
    number & (u32::MAX.checked_shr(32 - index_bits).unwrap_or(0))
}

#[inline]
fn find(entries: &[Entry], index_bits: u32, wanted: u32) -> Result<&Live, AccessError> {
    let index = index(index_bits, wanted);
    match entries.get(index as usize) {
        Some(Entry { generation, live: Some(live) }) if number(index_bits, index, *generation) == wanted => {
            Ok(live)
        }
        _ => Err(AccessError::UnknownKey),
    }
}

fn find_mut(entries: &mut [Entry], index_bits: u32, wanted: u32) -> Option<&mut Live> {
    find(entries, index_bits, wanted).ok()?;
    entries.get_mut(index(index_bits, wanted) as usize)?.live.as_mut()
}

#[inline]
fn check(live: &Live, pd: PdId, address: u64, length: u32, access: Access) -> Result<Slice, AccessError> {
    if live.pd != pd {
        return Err(AccessError::ProtectionDomain);
    }
    if !live.region.access.contains(access) {
        return Err(AccessError::Access);
    }
    let Region { address: start, origin, length: size, .. } = live.region;
    memory_window::slice(origin, start, size, address, length)
}

#[cfg(test)]
mod tests;

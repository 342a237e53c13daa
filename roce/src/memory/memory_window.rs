//! Memory windows: separate keys for a part of a region, bound and invalidated by work requests (IBA 10.6.7).

use super::KeySpace;
use crate::{
    Access, AccessError, BindError, Binding, ControlError, Lkey, PdId, Qpn, Rkey, Slice, WindowKind,
};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

#[derive(Clone, Copy, Debug)]
struct Bound {
    /// Queue pair that bound the window, for type 2.
    qpn: Option<Qpn>,
    lkey: Lkey,
    start: u64,
    /// Address of `start` in the peer's requests.
    origin: u64,
    length: u64,
    access: Access,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    pd: PdId,
    kind: WindowKind,
    key: u8,
    bound: Option<Bound>,
}

/// All windows of one endpoint, by the first 24 bits of their keys.
pub(crate) struct Windows {
    windows: BTreeMap<u32, Window>,
    /// Bound windows of type 2, by queue pair.
    of_queue_pairs: BTreeSet<(u32, u32)>,
    keys: KeySpace,
    drawn: u32,
    limit: u32,
}

impl Windows {
    pub(crate) const fn new(limit: u32, keys: KeySpace) -> Self {
        Self { windows: BTreeMap::new(), of_queue_pairs: BTreeSet::new(), keys, drawn: 0, limit }
    }

    /// Returns whether a window has, or may have, this key.
    pub(crate) fn owns(&self, rkey: Rkey) -> bool {
        self.windows.contains_key(&index(rkey))
    }

    /// Creates an unbound window. `is_taken` returns whether a region has a key.
    pub(crate) fn create(
        &mut self,
        pd: PdId,
        kind: WindowKind,
        is_taken: impl Fn(Rkey) -> bool,
    ) -> Result<Rkey, ControlError> {
        if self.windows.len() as u32 >= self.limit {
            return Err(ControlError::Limit { what: "memory windows", limit: self.limit });
        }
        loop {
            let rkey = Rkey::new(self.keys.seal(self.drawn));
            self.drawn = self.drawn.wrapping_add(1);
            let taken = |key: u8| is_taken(with_key(rkey, key));
            if !self.owns(rkey) && !(0..=u8::MAX).any(taken) {
                self.windows.insert(index(rkey), Window { pd, kind, key: key(rkey), bound: None });
                return Ok(rkey);
            }
        }
    }

    /// Destroys a window. Returns the region to which it was bound.
    pub(crate) fn destroy(&mut self, rkey: Rkey) -> Result<Option<Lkey>, ControlError> {
        let before = self.rebind(index(rkey), None);
        self.windows.remove(&index(rkey)).ok_or(ControlError::NoWindow(rkey))?;
        Ok(before.map(|before| before.lkey))
    }

    pub(crate) fn check(&self, pd: PdId, binding: &Binding) -> Result<(), BindError> {
        let window = self.windows.get(&index(binding.window)).filter(|window| window.pd == pd);
        let window = window.ok_or(BindError::Window)?;
        if index(binding.window) != index(binding.rkey) {
            return Err(BindError::Key);
        }
        match window.kind {
            WindowKind::One if binding.zero_based => Err(BindError::ZeroBased),
            WindowKind::Two if window.bound.is_some() || binding.length == 0 => Err(BindError::Bound),
            WindowKind::One | WindowKind::Two => Ok(()),
        }
    }

    /// Binds a window after [`Self::check`], to memory from `start` on. Returns the region to which it was bound before.
    pub(crate) fn bind(&mut self, qpn: Qpn, binding: &Binding, start: u64) -> Option<Lkey> {
        let window = self.windows.get_mut(&index(binding.window))?;
        let Binding { lkey, address, length, access, zero_based, .. } = *binding;
        let qpn = match window.kind {
            WindowKind::One => None,
            WindowKind::Two => Some(qpn),
        };
        let origin = if zero_based { 0 } else { address };
        let bound = (length > 0).then_some(Bound { qpn, lkey, start, origin, length, access });
        window.key = key(binding.rkey);
        self.rebind(index(binding.window), bound).map(|before| before.lkey)
    }

    /// Binds a window to `bound`, or unbinds it. Returns its former binding.
    fn rebind(&mut self, index: u32, bound: Option<Bound>) -> Option<Bound> {
        let window = self.windows.get_mut(&index)?;
        let before = core::mem::replace(&mut window.bound, bound);
        if let Some(qpn) = before.and_then(|before| before.qpn) {
            self.of_queue_pairs.remove(&(qpn.get(), index));
        }
        if let Some(qpn) = bound.and_then(|bound| bound.qpn) {
            self.of_queue_pairs.insert((qpn.get(), index));
        }
        before
    }

    /// Invalidates a window of type 2 that this queue pair bound. Returns its region.
    pub(crate) fn invalidate(&mut self, rkey: Rkey, pd: PdId, qpn: Qpn) -> Result<Lkey, AccessError> {
        let window = self.windows.get(&index(rkey)).filter(|window| window.key == key(rkey));
        let window = window.ok_or(AccessError::UnknownKey)?;
        let bound = window.bound.ok_or(AccessError::UnknownKey)?;
        if window.pd != pd || bound.qpn.is_some_and(|owner| owner != qpn) {
            return Err(AccessError::ProtectionDomain);
        }
        match window.kind {
            WindowKind::One => Err(AccessError::Access),
            WindowKind::Two => {
                self.rebind(index(rkey), None);
                Ok(bound.lkey)
            }
        }
    }

    /// Invalidates the windows that a destroyed queue pair bound, and passes their regions to `on_unbound`.
    pub(crate) fn release_queue_pair(&mut self, qpn: Qpn, mut on_unbound: impl FnMut(Lkey)) {
        let number = qpn.get();
        while let Some(&(_, index)) = self.of_queue_pairs.range((number, 0)..=(number, u32::MAX)).next() {
            match self.rebind(index, None) {
                Some(bound) => on_unbound(bound.lkey),
                None => return,
            }
        }
    }

    pub(crate) fn release_region(&mut self, lkey: Lkey) {
        let is_bound = |window: &Window| window.bound.is_some_and(|bound| bound.lkey == lkey);
        let bound = self.windows.iter().filter(|(_, window)| is_bound(window)).map(|(&index, _)| index);
        for index in bound.collect::<Vec<_>>() {
            self.rebind(index, None);
        }
    }

    pub(crate) fn slice(
        &self,
        rkey: Rkey,
        pd: PdId,
        qpn: Qpn,
        address: u64,
        length: u32,
        access: Access,
    ) -> Result<Slice, AccessError> {
        let bound = self.bound(rkey, pd, qpn, access)?;
        slice(bound.origin, bound.start, bound.length, address, length)
    }

    pub(crate) fn whole(&self, rkey: Rkey, pd: PdId, qpn: Qpn, access: Access) -> Result<(), AccessError> {
        self.bound(rkey, pd, qpn, access).map(drop)
    }

    fn bound(&self, rkey: Rkey, pd: PdId, qpn: Qpn, access: Access) -> Result<&Bound, AccessError> {
        let window = self.windows.get(&index(rkey)).filter(|window| window.key == key(rkey));
        let window = window.ok_or(AccessError::UnknownKey)?;
        let bound = window.bound.as_ref().ok_or(AccessError::UnknownKey)?;
        if window.pd != pd || bound.qpn.is_some_and(|owner| owner != qpn) {
            return Err(AccessError::ProtectionDomain);
        }
        if bound.access.contains(access) { Ok(bound) } else { Err(AccessError::Access) }
    }
}

/// Returns `length` bytes at `address` of memory with `size` bytes from `start` on. `origin` is its first address in requests.
#[inline]
pub(crate) fn slice(
    origin: u64,
    start: u64,
    size: u64,
    address: u64,
    length: u32,
) -> Result<Slice, AccessError> {
    let offset = address.checked_sub(origin).ok_or(AccessError::Range)?;
    match size.checked_sub(offset) {
        Some(left) if u64::from(length) <= left => Ok(Slice::new(start + offset, length)),
        _ => Err(AccessError::Range),
    }
}

const fn index(rkey: Rkey) -> u32 {
    rkey.get() >> 8
}

const fn key(rkey: Rkey) -> u8 {
    rkey.get() as u8
}

const fn with_key(rkey: Rkey, key: u8) -> Rkey {
    Rkey::new(rkey.get() & !0xff | key as u32)
}

impl Rkey {
    /// Returns the key that programs usually choose for the next binding of a window: its last byte plus one.
    #[must_use]
    pub const fn next(self) -> Self {
        with_key(self, key(self).wrapping_add(1))
    }
}

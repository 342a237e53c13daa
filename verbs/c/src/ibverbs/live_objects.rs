//! The table of live objects to which the program has pointers.
//!
//! Verbs that create, change or destroy objects look pointers up here. They refuse a pointer to a destroyed object, or to no object of the
//! library, as the kernel refuses an unknown handle. Verbs that post and poll do not check the program's pointers. Those of rdma-core do
//! not, either.

use crate::errno::{Errno, INVALID};
use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard};

type Objects = HashMap<usize, TypeId>;

static OBJECTS: LazyLock<RwLock<Objects>> = LazyLock::new(RwLock::default);

/// The kernel's errno for an unknown handle.
const NOT_LIVE: Errno = Errno(libc::ENOENT);

fn objects() -> RwLockReadGuard<'static, Objects> {
    OBJECTS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Passes a new object to the program.
pub(crate) fn publish<T: 'static>(object: T) -> *mut T {
    let pointer = Box::into_raw(Box::new(object));
    OBJECTS.write().unwrap_or_else(PoisonError::into_inner).insert(pointer.addr(), TypeId::of::<T>());
    pointer
}

/// Returns the live object to which a program's pointer refers, or `EINVAL`.
///
/// # Safety
/// The caller must ensure that no other thread destroys the object during `'a`.
pub(crate) unsafe fn find<'a, T: 'static>(pointer: *const T) -> Result<&'a T, Errno> {
    if objects().get(&pointer.addr()) != Some(&TypeId::of::<T>()) {
        return Err(INVALID);
    }
    // SAFETY: `publish` created the object at this address, and `reclaim` has not freed it yet.
    Ok(unsafe { &*pointer })
}

/// Looks up an object as [`find`] does, but returns `None` for null.
///
/// # Safety
/// As [`find`].
pub(crate) unsafe fn find_any<'a, T: 'static>(pointer: *const T) -> Result<Option<&'a T>, Errno> {
    // SAFETY: guaranteed by the caller.
    if pointer.is_null() { Ok(None) } else { unsafe { find(pointer) }.map(Some) }
}

/// Looks up an object as [`find`] does, for a caller that destroys it: returns `ENOENT` if there is no live object.
///
/// # Safety
/// As [`find`].
pub(crate) unsafe fn find_last<'a, T: 'static>(pointer: *const T) -> Result<&'a T, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { find(pointer) }.map_err(|_| if pointer.is_null() { INVALID } else { NOT_LIVE })
}

/// Takes back the ownership of an object. Returns `ENOENT` if the object is not live.
///
/// # Safety
/// The caller must ensure that no other thread uses the object.
pub(crate) unsafe fn reclaim<T: 'static>(pointer: *mut T) -> Result<Box<T>, Errno> {
    let mut objects = OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
    if objects.get(&pointer.addr()) != Some(&TypeId::of::<T>()) {
        return Err(NOT_LIVE);
    }
    objects.remove(&pointer.addr());
    // SAFETY: `publish` created the box, and no other call reclaims it.
    Ok(unsafe { Box::from_raw(pointer) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_while_it_lives_and_by_its_type() {
        let object = publish(7_u64);
        // SAFETY: only this thread uses the object.
        unsafe {
            assert_eq!(find(object), Ok(&7));
            assert_eq!(find(object.cast::<[u8; 8]>()), Err(INVALID));
            assert_eq!(reclaim(object.cast::<[u8; 8]>()), Err(NOT_LIVE));
            assert_eq!(reclaim(object).map(|object| *object), Ok(7));
            assert_eq!(
                (reclaim(object), find(object), find_last(object)),
                (Err(NOT_LIVE), Err(INVALID), Err(NOT_LIVE))
            );
            assert_eq!(find_last(std::ptr::null::<u64>()), Err(INVALID));
        }
    }
}

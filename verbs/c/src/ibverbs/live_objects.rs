//! The table of live objects to which the program has pointers.
//!
//! Verbs that create, change or destroy look pointers up here. A pointer to an object that was destroyed, or to none of the library's, is
//! refused as the kernel refuses an unknown handle. Verbs that post and poll trust the program's pointers, as rdma-core does.

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

/// Returns the live object to which a pointer from the program refers, or `EINVAL`.
///
/// # Safety
/// The caller must ensure that no other thread destroys the object during `'a`.
pub(crate) unsafe fn find<'a, T: 'static>(pointer: *const T) -> Result<&'a T, Errno> {
    if objects().get(&pointer.addr()) != Some(&TypeId::of::<T>()) {
        return Err(INVALID);
    }
    // SAFETY: `publish` created the object here, and `reclaim` has not freed it yet.
    Ok(unsafe { &*pointer })
}

/// Looks up as [`find`] does, but returns `None` for null.
///
/// # Safety
/// As [`find`].
pub(crate) unsafe fn find_any<'a, T: 'static>(pointer: *const T) -> Result<Option<&'a T>, Errno> {
    // SAFETY: guaranteed by the caller.
    if pointer.is_null() { Ok(None) } else { unsafe { find(pointer) }.map(Some) }
}

/// Looks up as [`find`] does, for a caller that destroys the object: a pointer to no live object is `ENOENT`.
///
/// # Safety
/// As [`find`].
pub(crate) unsafe fn find_last<'a, T: 'static>(pointer: *const T) -> Result<&'a T, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { find(pointer) }.map_err(|_| if pointer.is_null() { INVALID } else { NOT_LIVE })
}

/// Takes an object back from the program. Returns `ENOENT` if the object is not live.
///
/// # Safety
/// The caller must ensure that no other thread uses the object any more.
pub(crate) unsafe fn reclaim<T: 'static>(pointer: *mut T) -> Result<Box<T>, Errno> {
    let mut objects = OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
    if objects.get(&pointer.addr()) != Some(&TypeId::of::<T>()) {
        return Err(NOT_LIVE);
    }
    objects.remove(&pointer.addr());
    // SAFETY: `publish` created the box, and nothing else reclaims it.
    Ok(unsafe { Box::from_raw(pointer) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_while_it_lives_and_by_its_type() {
        let object = publish(7_u64);
        // SAFETY: only this thread has it.
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

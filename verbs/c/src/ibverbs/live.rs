//! The pointers of a program that lead to live objects of ours.
//!
//! Verbs that create, change or destroy look here first: an object that was destroyed, or never was the library's, is refused as the kernel
//! refuses a handle that it does not know. Verbs that post and poll do not look: they trust the program, as rdma-core does.

use crate::errno::{Errno, INVALID};
use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard};

type Objects = HashMap<usize, TypeId>;

static OBJECTS: LazyLock<RwLock<Objects>> = LazyLock::new(RwLock::default);

/// The errno of the kernel for a handle that it does not know.
const GONE: Errno = Errno(libc::ENOENT);

fn objects() -> RwLockReadGuard<'static, Objects> {
    OBJECTS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a new object to the program.
pub(crate) fn give<T: 'static>(object: T) -> *mut T {
    let pointer = Box::into_raw(Box::new(object));
    OBJECTS.write().unwrap_or_else(PoisonError::into_inner).insert(pointer.addr(), TypeId::of::<T>());
    pointer
}

/// The object that a pointer of the program leads to; null, or none that lives, is `EINVAL`.
///
/// # Safety
/// No other thread destroys the object while it is used.
pub(crate) unsafe fn find<'a, T: 'static>(pointer: *const T) -> Result<&'a T, Errno> {
    if objects().get(&pointer.addr()) != Some(&TypeId::of::<T>()) {
        return Err(INVALID);
    }
    // SAFETY: `give` created the object here, and `take` did not take it yet.
    Ok(unsafe { &*pointer })
}

/// As [`find`], but null means none.
///
/// # Safety
/// As [`find`].
pub(crate) unsafe fn find_any<'a, T: 'static>(pointer: *const T) -> Result<Option<&'a T>, Errno> {
    // SAFETY: passed on.
    if pointer.is_null() { Ok(None) } else { unsafe { find(pointer) }.map(Some) }
}

/// As [`find`], for a caller that destroys the object: an object that does not live is `ENOENT`.
///
/// # Safety
/// As [`find`].
pub(crate) unsafe fn find_last<'a, T: 'static>(pointer: *const T) -> Result<&'a T, Errno> {
    // SAFETY: passed on.
    unsafe { find(pointer) }.map_err(|_| if pointer.is_null() { INVALID } else { GONE })
}

/// Takes an object back from the program, once.
///
/// # Safety
/// The caller must not use the object any more.
pub(crate) unsafe fn take<T: 'static>(pointer: *mut T) -> Result<Box<T>, Errno> {
    let mut objects = OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
    if objects.get(&pointer.addr()) != Some(&TypeId::of::<T>()) {
        return Err(GONE);
    }
    objects.remove(&pointer.addr());
    // SAFETY: `give` created the box, and nothing else takes it.
    Ok(unsafe { Box::from_raw(pointer) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_while_it_lives_and_as_what_it_is() {
        let object = give(7_u64);
        // SAFETY: only this thread has it.
        unsafe {
            assert_eq!(find(object), Ok(&7));
            assert_eq!(find(object.cast::<[u8; 8]>()), Err(INVALID));
            assert_eq!(take(object.cast::<[u8; 8]>()), Err(GONE));
            assert_eq!(take(object).map(|object| *object), Ok(7));
            assert_eq!((take(object), find(object), find_last(object)), (Err(GONE), Err(INVALID), Err(GONE)));
            assert_eq!(find_last(std::ptr::null::<u64>()), Err(INVALID));
        }
    }
}

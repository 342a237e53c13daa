//! `ferroce.h`: its version, and the writing of its structures, which may grow in later versions.

use crate::errno::{Errno, INVALID};
use std::ffi::c_uint;

/// Size limit of a structure, bytes. It detects a program that has not set the size field.
const MAX_SIZE: usize = 4096;

const fn number(text: &str) -> c_uint {
    let (digits, mut number, mut at) = (text.as_bytes(), 0, 0);
    while at < digits.len() {
        number = number * 10 + (digits[at] - b'0') as c_uint;
        at += 1;
    }
    number
}

/// `FERROCE_VERSION`: 10,000 times the major version, plus 100 times the minor one, plus the patch.
pub const FERROCE_VERSION: c_uint = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + number(env!("CARGO_PKG_VERSION_PATCH"));

/// Returns the version of this library (`ferroce.h`).
#[unsafe(no_mangle)]
pub extern "C" fn ferroce_version() -> c_uint {
    FERROCE_VERSION
}

/// Writes `value` into a structure of the program, which may be of an earlier or a later version. Its first field, the size, is not
/// changed. Fields that this version does not define are set to 0. Returns `EINVAL` for a size below `min_size`, that of the first version,
/// or above [`MAX_SIZE`].
///
/// # Safety
/// The caller must pass null or a structure of the size in its first field. `T` must begin with that field, have no padding, and be valid
/// with any bytes.
pub(crate) unsafe fn write<T: Copy>(value: &T, min_size: usize, into: *mut T) -> Result<(), Errno> {
    const SIZE: usize = size_of::<u32>();
    if into.is_null() {
        return Err(INVALID);
    }
    // SAFETY: guaranteed by the caller.
    let size = unsafe { into.cast::<u32>().read() } as usize;
    if !(min_size..=MAX_SIZE).contains(&size) {
        return Err(INVALID);
    }
    let known = size.min(size_of::<T>());
    let (from, into) = (std::ptr::from_ref(value).cast::<u8>(), into.cast::<u8>());
    // SAFETY: both structures are at least `known` long, and the program's structure is `size` long.
    unsafe {
        into.add(SIZE).copy_from_nonoverlapping(from.add(SIZE), known - SIZE);
        into.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Size of the structure in the first version, which has one field less.
    const FIRST: usize = 8;
    const VALUE: [u32; 3] = [0, 7, 9];

    /// Returns the program's structure. Its unused end shows whether bytes were written beyond `size`.
    fn written(size: u32) -> Result<[u32; 5], Errno> {
        let mut program = [size, 1, 1, 1, 1];
        // SAFETY: there is room for five numbers, and no test passes a larger accepted size.
        unsafe { write(&VALUE, FIRST, program.as_mut_ptr().cast()) }.map(|()| program)
    }

    #[test]
    fn a_structure_of_any_version_gets_the_fields_that_it_has_room_for() {
        assert_eq!(written(8), Ok([8, 7, 1, 1, 1]), "the first version");
        assert_eq!(written(12), Ok([12, 7, 9, 1, 1]), "this version");
        assert_eq!(written(16), Ok([16, 7, 9, 0, 1]), "a later version");
    }

    #[test]
    fn a_size_that_the_program_has_not_set_is_refused() {
        for size in [0, 4, 7, MAX_SIZE as u32 + 1, u32::MAX] {
            assert_eq!(written(size), Err(INVALID), "{size}");
        }
        // SAFETY: null is refused.
        assert_eq!(unsafe { write(&VALUE, FIRST, std::ptr::null_mut()) }, Err(INVALID));
    }
}

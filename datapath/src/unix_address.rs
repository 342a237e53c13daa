//! Addresses of Unix sockets, for socket types and calls that the standard library lacks.

use std::io;
use std::mem::offset_of;

/// Returns a socket address and its length in bytes. `name` is a path, or an abstract name, which begins with a NUL.
///
/// # Errors
/// Returns [`io::ErrorKind::InvalidInput`] if the name is longer than 107 bytes.
pub fn unix_address(name: &[u8]) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all-zero bytes are a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if name.len() >= address.sun_path.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name is too long for a socket"));
    }
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    // A path is NUL-terminated. An abstract name is not, because every byte of it counts.
    let end = usize::from(name.first() != Some(&0));
    Ok((address, (offset_of!(libc::sockaddr_un, sun_path) + name.len() + end) as libc::socklen_t))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_length_that_the_kernel_expects() {
        assert_eq!(unix_address(b"/run/a").map(|(_, length)| length).unwrap(), 2 + 6 + 1);
        assert_eq!(unix_address(b"\0name").map(|(_, length)| length).unwrap(), 2 + 5);
        assert!(unix_address(&[b'a'; 107]).is_ok());
        assert_eq!(unix_address(&[b'a'; 108]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

//! Passes file descriptors to another process in messages over Unix sockets.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Most descriptors in one message.
pub const DESCRIPTORS: usize = 64;

#[repr(C, align(8))]
struct Ancillary([u8; 320]);

/// Sends bytes with up to [`DESCRIPTORS`] descriptors, and returns the number of bytes sent. `flags` are those of sendmsg(2).
///
/// # Errors
/// Returns [`io::ErrorKind::InvalidInput`] if there are too many descriptors, or the system's error.
pub fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: libc::c_int,
) -> io::Result<usize> {
    if descriptors.len() > DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let mut room = Ancillary([0; 320]);
    let length = size_of_val(descriptors);
    // SAFETY: all-zero bytes are a valid, empty message.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut bytes, 1);
    if length > 0 {
        header.msg_control = (&raw mut room).cast();
        // SAFETY: `room` has space for the header and `DESCRIPTORS` descriptors, and a `BorrowedFd` has the layout of its number.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(length as u32) as usize;
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(length as u32) as usize;
            std::ptr::copy_nonoverlapping(descriptors.as_ptr().cast::<u8>(), libc::CMSG_DATA(first), length);
        }
    }
    // SAFETY: everything that the header points to outlives the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &header, flags | libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes into `room`. Returns their number and the descriptors received with them. `flags` are those of recvmsg(2).
///
/// # Errors
/// Returns the system's error, for example [`io::ErrorKind::WouldBlock`] after the socket's timeout.
pub fn receive(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
    flags: libc::c_int,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut bytes = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    let mut room = Ancillary([0; 320]);
    // SAFETY: all-zero bytes are a valid, empty message.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut bytes, 1);
    (header.msg_control, header.msg_controllen) = ((&raw mut room).cast(), size_of::<Ancillary>());
    // SAFETY: the header points to writable memory that outlives the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, flags | libc::MSG_CMSG_CLOEXEC) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    Ok((length, descriptors(&header)))
}

/// Takes ownership of the descriptors received with a message.
fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    // SAFETY: the kernel wrote well-formed control messages to `header`'s buffer, which `receive` still borrows, and nothing else owns
    // these descriptors.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(part) = next.as_ref() {
            if part.cmsg_level == libc::SOL_SOCKET && part.cmsg_type == libc::SCM_RIGHTS {
                let length = part.cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(next).cast::<RawFd>();
                for at in 0..length / size_of::<RawFd>() {
                    found.push(OwnedFd::from_raw_fd(data.add(at).read_unaligned()));
                }
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    found
}

//! Messages over Unix sockets with which descriptors go to another process.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Descriptors that go with one message at most.
pub const DESCRIPTORS: usize = 64;

/// Room for the descriptors of a message, aligned as their header is.
#[repr(C, align(8))]
struct Ancillary([u8; 320]);

/// Sends bytes, with up to [`DESCRIPTORS`] descriptors, and returns the number of bytes sent. `flags` are those of `sendmsg(2)`.
///
/// # Errors
/// Returns [`io::ErrorKind::InvalidInput`] if there are more descriptors, or the system's error.
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
    // SAFETY: all-zero bytes are an empty message.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut bytes, 1);
    if length > 0 {
        header.msg_control = (&raw mut room).cast();
        // SAFETY: the room is larger than the header and that many descriptors; a descriptor is borrowed as its number.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(length as u32) as usize;
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(length as u32) as usize;
            std::ptr::copy_nonoverlapping(descriptors.as_ptr().cast::<u8>(), libc::CMSG_DATA(first), length);
        }
    }
    // SAFETY: the header names what lives through the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &header, flags | libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes into `room`, and returns their number, with the descriptors that came along. `flags` are those of `recvmsg(2)`.
///
/// # Errors
/// Returns the system's error, as [`io::ErrorKind::WouldBlock`] after the socket's timeout.
pub fn receive(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
    flags: libc::c_int,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut bytes = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    let mut room = Ancillary([0; 320]);
    // SAFETY: all-zero bytes are an empty message.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut bytes, 1);
    (header.msg_control, header.msg_controllen) = ((&raw mut room).cast(), size_of::<Ancillary>());
    // SAFETY: the header names room that lives through the call.
    let came = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, flags | libc::MSG_CMSG_CLOEXEC) };
    let came = usize::try_from(came).map_err(|_| io::Error::last_os_error())?;
    Ok((came, descriptors(&header)))
}

/// The descriptors that came with a message.
fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    // SAFETY: the kernel filled the header and its room, and each descriptor in it is this process's from now on.
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

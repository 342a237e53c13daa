//! Unix sequenced-packet sockets, whose messages may carry descriptors.

use crate::errno::check;
use crate::unix_address;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes of every memif message.
pub(super) const MESSAGE: usize = 128;
/// Most descriptors in a message. memif sends one.
const DESCRIPTORS: usize = 4;

/// Buffer for control messages, aligned for their header: room for [`DESCRIPTORS`] and the sender's credentials.
#[repr(C, align(8))]
struct ControlBuffer([u8; 128]);

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: socket takes integers.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    unix_address(path.as_os_str().as_encoded_bytes())
}

pub(super) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let (socket, (address, length)) = (socket()?, address(path)?);
    // SAFETY: the address is readable for its length.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(socket)
}

pub(super) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let (socket, (address, length)) = (socket()?, address(path)?);
    // SAFETY: the address is readable for its length.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    // SAFETY: listen takes integers.
    check(unsafe { libc::listen(socket.as_raw_fd(), 8) })?;
    Ok(socket)
}

/// Opens a handle of a socket's file. Its name in `/proc/self/fd` stays valid after the file is removed.
pub(super) fn handle(path: &Path) -> io::Result<OwnedFd> {
    Ok(OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?.into())
}

pub(super) fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: null pointers request no address.
    let accepted = unsafe {
        libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
    };
    let accepted = check(accepted)?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(accepted) })
}

/// Waits until one of these is readable or closed by its peer, up to `ms` milliseconds (-1: without limit). Returns which are.
pub(super) fn wait<const N: usize>(sockets: [&OwnedFd; N], ms: i32) -> io::Result<[bool; N]> {
    let mut polled = sockets.map(|s| libc::pollfd { fd: s.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: `polled` has N entries, borrowed exclusively for the call.
        match check(unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, ms) }) {
            Ok(_) => return Ok(polled.map(|p| p.revents != 0)),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Returns the ends of a pipe. Dropping the second wakes the thread that waits for the first.
pub(super) fn wake() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: both descriptors are new and have no other owner.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

pub(super) struct MemifMessage {
    bytes: [u8; MESSAGE],
    descriptors: Vec<OwnedFd>,
}

impl MemifMessage {
    pub(super) fn kind(&self) -> u16 {
        self.word(0)
    }

    /// Returns the 16 bits at offset `at`, at most `MESSAGE - 2`, in native order.
    pub(super) fn word(&self, at: usize) -> u16 {
        u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    pub(super) fn descriptor(&self) -> Option<OwnedFd> {
        self.descriptors.first()?.try_clone().ok()
    }

    /// Returns the next message, or `None` at the end of the connection. A message whose size is not memif's is an error.
    pub(super) fn receive(from: &OwnedFd) -> io::Result<Option<Self>> {
        let mut bytes = [0; MESSAGE];
        let mut control = ControlBuffer([0; 128]);
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: MESSAGE };
        let mut header = header(&mut part, &mut control, size_of::<ControlBuffer>());
        // SAFETY: the header points to `bytes` and `control`, both writable for their lengths.
        let len = unsafe { libc::recvmsg(from.as_raw_fd(), &mut header, libc::MSG_CMSG_CLOEXEC) };
        if len < 0 {
            return Err(io::Error::last_os_error());
        }
        // Before any return, so that no descriptor leaks.
        let descriptors = descriptors(&header);
        match len as usize {
            0 => Ok(None),
            MESSAGE if header.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) == 0 => {
                Ok(Some(Self { bytes, descriptors }))
            }
            len => Err(io::Error::other(format!("a message of {len} bytes"))),
        }
    }

    pub(super) fn send(mut self, to: &OwnedFd) -> io::Result<()> {
        let mut control = ControlBuffer([0; 128]);
        let count = self.descriptors.len().min(DESCRIPTORS);
        let size = count * size_of::<RawFd>();
        let mut part = libc::iovec { iov_base: self.bytes.as_mut_ptr().cast(), iov_len: MESSAGE };
        // SAFETY: CMSG_SPACE only computes.
        let space = if count == 0 { 0 } else { unsafe { libc::CMSG_SPACE(size as u32) as usize } };
        let header = header(&mut part, &mut control, space);
        if count > 0 {
            // SAFETY: `control` has room for `space` bytes: one header and `count` descriptors.
            unsafe {
                let first = libc::CMSG_FIRSTHDR(&header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(size as u32) as _;
                let data: *mut RawFd = libc::CMSG_DATA(first).cast();
                for (at, descriptor) in self.descriptors.iter().take(count).enumerate() {
                    data.add(at).write_unaligned(descriptor.as_raw_fd());
                }
            }
        }
        // SAFETY: the header points to one part and to `space` initialised control bytes.
        let sent = unsafe { libc::sendmsg(to.as_raw_fd(), &header, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn header(part: &mut libc::iovec, control: &mut ControlBuffer, control_len: usize) -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid, empty msghdr.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control_len as _;
    header
}

/// Takes ownership of the descriptors received with a message.
fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    // SAFETY: the kernel wrote well-formed control messages to the control bytes, which `receive` still borrows, and nothing else owns
    // these descriptors.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let size = (*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data: *const RawFd = libc::CMSG_DATA(at).cast();
                for n in 0..size / size_of::<RawFd>() {
                    found.push(OwnedFd::from_raw_fd(data.add(n).read_unaligned()));
                }
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    found
}

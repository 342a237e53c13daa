//! The socket by which processes of one interface meet: abstract, so that it belongs to a network namespace and leaves no file.

use crate::fork::Own;
use crate::passing;
use crate::unix_address;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Bytes of a message.
pub(super) const MESSAGE: usize = 64;

/// A listening socket, or one end of a connection.
#[derive(Debug)]
pub(super) struct Socket(Own);

/// The process at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) user: u32,
    /// 0 for a process of another PID namespace.
    pub(super) process: i32,
}

impl Socket {
    fn new() -> io::Result<Self> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain numbers.
        owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
    }

    /// Takes a name and listens; `AddrInUse` if another process has it.
    pub(super) fn listen(name: &str) -> io::Result<Self> {
        let socket = Self::hold(name)?;
        // SAFETY: plain numbers.
        check(unsafe { libc::listen(socket.as_raw_fd(), 64) })?;
        Ok(socket)
    }

    /// Takes a name, and does nothing with it: no other process has it meanwhile.
    pub(super) fn hold(name: &str) -> io::Result<Self> {
        let socket = Self::new()?;
        let (address, length) = address(name)?;
        // SAFETY: the address is as long as said.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
        Ok(socket)
    }

    /// Connects to a name; returns `ConnectionRefused` if no process has it.
    pub(super) fn connect(name: &str) -> io::Result<Self> {
        let socket = Self::new()?;
        let (address, length) = address(name)?;
        // SAFETY: the address is as long as said.
        check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
        Ok(socket)
    }

    /// The next connection, without a wait.
    pub(super) fn accept(&self) -> io::Result<Self> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no address is requested.
        let fd =
            unsafe { libc::accept4(self.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
        owned(fd)
    }

    /// Returns the process that connected, or listens.
    pub(super) fn peer(&self) -> io::Result<Peer> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: there is room for the structure.
        check(unsafe {
            libc::getsockopt(self.as_raw_fd(), level, name, (&raw mut peer).cast(), &mut length)
        })?;
        Ok(Peer { user: peer.uid, process: peer.pid })
    }

    /// Sends a message with descriptors, without a wait.
    pub(super) fn send(&self, message: &[u8; MESSAGE], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        passing::send(self.0.as_fd(), message, descriptors, libc::MSG_DONTWAIT).map(|_| ())
    }

    /// The next message with its descriptors, without a wait; `UnexpectedEof` if the other end has closed.
    pub(super) fn receive(&self) -> io::Result<([u8; MESSAGE], Vec<OwnedFd>)> {
        let mut message = [0; MESSAGE];
        let (came, descriptors) = passing::receive(self.0.as_fd(), &mut message, libc::MSG_DONTWAIT)?;
        match came {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            MESSAGE => Ok((message, descriptors)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Waits until a message or the end of the connection is there, or for so many ms.
    pub(super) fn wait(&self, most: i32) -> bool {
        let mut watched = libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which is open.
        unsafe { libc::poll(&mut watched, 1, most) > 0 }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The address of an abstract name.
fn address(name: &str) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    unix_address(format!("\0{name}").as_bytes())
}

fn owned(fd: RawFd) -> io::Result<Socket> {
    check(fd)?;
    // SAFETY: a fresh descriptor with no other owner.
    Ok(Socket(unsafe { OwnedFd::from_raw_fd(fd) }.into()))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

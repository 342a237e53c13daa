//! The socket by which processes of one interface exchange introductions. Its name is abstract, so it belongs to a network namespace and
//! leaves no file.
//!
//! Any user of the machine may bind an abstract name or connect to it. So a connection is [`Unknown`] until its credentials are checked, in
//! both directions. Only a [`Socket`] carries messages and descriptors.

use crate::capabilities::effective_user;
use crate::errno::check;
use crate::fork::CloseOnFork;
use crate::{scm_rights, seqpacket};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Bytes of a message.
pub(super) const MESSAGE: usize = 64;

/// Most connections queued for a process that is stopped: the limit that Linux sets by default (`net.core.somaxconn`).
pub(super) const QUEUE: libc::c_int = 4096;

/// A user of the machine, by effective user id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User(pub(super) u32);

impl User {
    /// Returns the current effective user of the calling thread.
    pub(super) fn this() -> Self {
        Self(effective_user())
    }
}

/// A process of another user at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignProcess {
    /// The user to whom the process belongs.
    pub theirs: u32,
    /// The user to whom the calling process belongs.
    pub ours: u32,
    /// The process id; 0 if the process is in another PID namespace.
    pub process: i32,
}

impl std::fmt::Display for ForeignProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { theirs, ours, process } = self;
        write!(f, "user {theirs} uses the interface ")?;
        match process {
            0 => write!(f, "(a process of another PID namespace)")?,
            _ => write!(f, "(process {process})")?,
        }
        write!(
            f,
            ", but this process belongs to user {ours}; run as that user, end that process, or use another interface"
        )
    }
}

/// A name that this process has bound only to reserve it: no other process can have it.
#[derive(Debug)]
pub(super) struct Name(CloseOnFork);

/// A name at which this process accepts connections.
#[derive(Debug)]
pub(super) struct Listener(CloseOnFork);

/// A connection to a process of any user. Nothing can be sent or received on it before [`authenticate`](Self::authenticate).
#[derive(Debug)]
pub(super) struct Unknown(CloseOnFork);

/// A connection to a process of the same user. Only [`Unknown::authenticate`] creates one.
#[derive(Debug)]
pub(super) struct Socket {
    socket: CloseOnFork,
    /// The process id; 0 for a process of another PID namespace.
    process: i32,
}

impl Name {
    /// Binds a name. Fails with `AddrInUse` if another process has it.
    pub(super) fn reserve(name: &str) -> io::Result<Self> {
        let socket = CloseOnFork::from(seqpacket::socket(libc::SOCK_NONBLOCK)?);
        seqpacket::bind(&socket, &abstract_name(name))?;
        Ok(Self(socket))
    }
}

impl Listener {
    /// Binds a name and listens. Fails with `AddrInUse` if another process has it.
    pub(super) fn new(name: &str) -> io::Result<Self> {
        let Name(socket) = Name::reserve(name)?;
        seqpacket::listen(&socket, QUEUE)?;
        Ok(Self(socket))
    }

    /// Accepts the next connection, without waiting.
    pub(super) fn accept(&self) -> io::Result<Unknown> {
        Ok(Unknown(seqpacket::accept(self, libc::SOCK_NONBLOCK)?.into()))
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Unknown {
    /// Connects to a name, without waiting. Fails with `ConnectionRefused` if no process listens there, or `WouldBlock` if the queue of the
    /// process is full.
    pub(super) fn connect(name: &str) -> io::Result<Self> {
        let socket = CloseOnFork::from(seqpacket::socket(libc::SOCK_NONBLOCK)?);
        seqpacket::connect(&socket, &abstract_name(name))?;
        Ok(Self(socket))
    }

    /// Checks that the process at the other end belongs to `user`.
    ///
    /// `SO_PEERCRED` (unix(7)) has the effective user at the time of `connect(2)` on the side that accepts, and at the time of `listen(2)`
    /// on the side that connects. Neither can be forged, and neither changes when the process changes its user:
    /// - A process that called `listen` and then dropped privileges is still seen as its former user. So is a process to which it passed
    ///   the descriptor. Here no process passes on these sockets: exec closes them, and so does a forked child (`fork`). Only the process
    ///   itself remains, which as the former user could have kept everything that it is sent.
    /// - A process that connects acts at that time as the user who is reported, even if it is setuid: it then runs for that user.
    ///
    /// A process without credentials belongs to no user.
    pub(super) fn authenticate(self, user: User) -> Result<Socket, ForeignProcess> {
        let Self(socket) = self;
        let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: there is room for the structure.
        let found = check(unsafe {
            libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut peer).cast(), &mut length)
        });
        let process = peer.pid;
        if found.is_ok() && peer.uid == user.0 && !is_ambiguous(user) {
            return Ok(Socket { socket, process });
        }
        Err(ForeignProcess { theirs: peer.uid, ours: user.0, process })
    }
}

/// Returns true if other users are also reported as `user`. In a user namespace, all users that it does not map are reported as one
/// (user_namespaces(7), `overflowuid`).
fn is_ambiguous(user: User) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let maps_all = |map: &str| map.split_whitespace().eq(["0", "0", "4294967295"]);
    let overflow = read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    user.0 == overflow && !maps_all(&read("/proc/self/uid_map"))
}

impl Socket {
    /// Returns the process id of the other end.
    pub(super) fn process(&self) -> i32 {
        self.process
    }

    /// Sends a message with descriptors, without waiting.
    pub(super) fn send(&self, message: &[u8; MESSAGE], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        scm_rights::send(self.socket.as_fd(), message, descriptors, libc::MSG_DONTWAIT).map(|_| ())
    }

    /// Returns the next message with its descriptors, without waiting. Fails with `UnexpectedEof` if the other end has closed.
    pub(super) fn receive(&self) -> io::Result<([u8; MESSAGE], Vec<OwnedFd>)> {
        let mut message = [0; MESSAGE];
        let mut receive = || scm_rights::receive(self.socket.as_fd(), &mut message, libc::MSG_DONTWAIT);
        let (length, descriptors) = match receive() {
            // The other end closed without reading everything. The kernel reports that once, and then returns what was sent before.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => receive()?,
            received => received?,
        };
        match length {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            MESSAGE => Ok((message, descriptors)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Waits until a message arrives or the connection ends, but at most `most` ms.
    #[cfg(test)]
    pub(super) fn wait(&self, most: i32) -> bool {
        let mut watched = libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which is open.
        unsafe { libc::poll(&mut watched, 1, most) > 0 }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn abstract_name(name: &str) -> Vec<u8> {
    format!("\0{name}").into_bytes()
}

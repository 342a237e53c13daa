//! The sockets of memif, whose messages may carry descriptors.

use crate::errno::check;
use crate::{scm_rights, seqpacket};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes of every memif message.
pub(super) const MESSAGE: usize = 128;
/// Most connections that wait to be accepted.
const QUEUE: libc::c_int = 8;

pub(super) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = seqpacket::socket(0)?;
    seqpacket::connect(&socket, path.as_os_str().as_encoded_bytes())?;
    Ok(socket)
}

pub(super) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = seqpacket::socket(0)?;
    seqpacket::bind(&socket, path.as_os_str().as_encoded_bytes())?;
    seqpacket::listen(&socket, QUEUE)?;
    Ok(socket)
}

/// Opens a handle of a socket's file. Its name in `/proc/self/fd` stays valid after the file is removed.
pub(super) fn handle(path: &Path) -> io::Result<OwnedFd> {
    Ok(OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?.into())
}

pub(super) fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    seqpacket::accept(listener, 0)
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

    /// Returns the next message, or `None` at the end of the connection. A message whose size is not memif's is an error, as is one with
    /// several descriptors.
    pub(super) fn receive(from: &OwnedFd) -> io::Result<Option<Self>> {
        // The additional byte detects a message that is too long.
        let mut room = [0; MESSAGE + 1];
        let (length, descriptors) = scm_rights::receive(from.as_fd(), &mut room, 0)?;
        let [bytes @ .., _] = room;
        match length {
            0 => Ok(None),
            MESSAGE if descriptors.len() <= 1 => Ok(Some(Self { bytes, descriptors })),
            _ => Err(io::Error::other(format!(
                "a message of {length} bytes with {} descriptors",
                descriptors.len()
            ))),
        }
    }

    pub(super) fn send(self, to: &OwnedFd) -> io::Result<()> {
        let descriptors: Vec<_> = self.descriptors.iter().map(OwnedFd::as_fd).collect();
        scm_rights::send(to.as_fd(), &self.bytes, &descriptors, 0).map(drop)
    }
}

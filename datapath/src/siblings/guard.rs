//! The guard of a process: another process, which sends its disconnect notices after it has ended for any reason. So the peers are also
//! informed of the end of a host's only process.
//!
//! Siblings detect the end too, and inform the peers on this host, which a guard cannot reach. A peer on another host may receive two
//! notices of one end, which the protocol allows: DREQs are repeated.
//!
//! A process under `ferroce run` starts its guard with its first connection. The guard receives the process's memory and life line, as a
//! sibling does, and a socket for sending. It has neither slot nor core, and nothing depends on it.

use super::disconnect_notices::{self, DisconnectNotice};
use super::memory::{self, PeerMemory};
use crate::capabilities::effective_user;
use crate::detached;
use crate::environment;
use crate::linux::packet::SendSocket;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::Once;

/// The environment variable with the path of `ferroce`, set by `ferroce run`.
pub const PROGRAM: &str = "FERROCE_GUARD";
/// Time between two checks of an interface that has been down, in ms.
const INTERFACE_POLL_MS: libc::c_int = 1000;
/// The command of `ferroce` that runs a guard.
const COMMAND: &std::ffi::CStr = c"guard";

/// Starts the guard of this process.
#[derive(Debug)]
pub(super) struct Guard {
    program: CString,
    /// Opened with the device, by its user. A process that has changed its user starts no guard, because the guard would pass the socket on
    /// to the new user.
    sender: SendSocket,
    user: libc::uid_t,
    start: Once,
}

impl Guard {
    /// Prepares the guard of a process that uses the interface with this index. Returns `None` if the process was not started by
    /// `ferroce run`. Also returns `None` if the process would be its guard's parent: as process 1, or as a subreaper (prctl(2)).
    pub(super) fn new(interface: u32) -> Option<Self> {
        let program = CString::new(environment::variable(PROGRAM)?.into_vec()).ok()?;
        if adopts_orphans() {
            return None;
        }
        let sender = SendSocket::open(interface);
        let sender = sender.inspect_err(|error| tracing::debug!("no guard: packet socket: {error}")).ok()?;
        Some(Self { program, sender, user: effective_user(), start: Once::new() })
    }

    /// Starts the guard on the first call.
    pub(super) fn start(&self, memory: BorrowedFd<'_>, life: BorrowedFd<'_>) {
        self.start.call_once(|| {
            if effective_user() != self.user {
                return tracing::debug!("no guard: the process has become another user's");
            }
            let descriptors = [memory, life, self.sender.as_fd()];
            if let Err(error) = detached::start(&self.program, &[COMMAND], descriptors) {
                tracing::debug!("no guard: {}: {error}", self.program.to_string_lossy());
            }
        });
    }
}

/// Returns true if processes whose parent has ended become children of this one.
fn adopts_orphans() -> bool {
    let mut is_subreaper: libc::c_int = 0;
    // SAFETY: prctl writes an int there.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut is_subreaper) };
    std::process::id() == 1 || is_subreaper != 0
}

#[derive(Debug)]
pub(crate) struct Guarded {
    memory: PeerMemory,
    life: OwnedFd,
    sender: SendSocket,
}

impl Guarded {
    /// Takes ownership of the descriptors that the guarded process has passed on.
    ///
    /// # Errors
    /// Returns an error if this process was started in another way.
    pub(crate) fn inherit() -> io::Result<Self> {
        let place = |at: usize| detached::FIRST + at as libc::c_int;
        // SAFETY: asks for the flags of a descriptor, if there is one.
        let is_open = |at: &usize| unsafe { libc::fcntl(place(*at), libc::F_GETFD) } >= 0;
        if !(0..detached::DESCRIPTORS).all(|at| is_open(&at)) {
            return Err(io::Error::other("no program has passed on its memory"));
        }
        // SAFETY: they are open, and this process was started with them, so nothing else owns them.
        let inherited = |at| unsafe { OwnedFd::from_raw_fd(place(at)) };
        let [memory, life, sender] = [0, 1, 2].map(inherited);
        Self::new(memory, life, sender)
    }

    fn new(memory: OwnedFd, life: OwnedFd, sender: OwnedFd) -> io::Result<Self> {
        memory::check_life(&life)?;
        // A guard has no slot, and reads no frames.
        Ok(Self { memory: PeerMemory::new(memory, 0)?, life, sender: sender.into() })
    }

    /// Waits until the process has ended. Returns false if its interface was removed first, so that it has no peers left.
    pub(crate) fn wait(&self) -> bool {
        // Waits without a limit until the interface goes down, which precedes its removal. The kernel reports only the first of these
        // events to a packet socket.
        let mut timeout = -1;
        let watch = |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
        loop {
            let mut watched = [watch(self.life.as_fd()), watch(self.sender.as_fd())];
            // SAFETY: the array has the given length, and its descriptors are open.
            unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, timeout) };
            if watched[0].revents != 0 {
                return true;
            }
            if watched[1].revents != 0 {
                self.sender.clear_error();
                timeout = INTERFACE_POLL_MS;
            }
            if self.sender.interface().is_none() {
                return false;
            }
        }
    }

    /// Returns the socket that sends frames from the process's interface.
    pub(crate) fn sender(&self) -> &SendSocket {
        &self.sender
    }

    pub(crate) fn notices(&self) -> Vec<DisconnectNotice> {
        disconnect_notices::of(self.memory.head())
    }
}

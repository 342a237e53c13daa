//! The observer's side of the socket: lists processes and reads their reports.

use super::{FORMAT, ProcessStatus, folder};
use datapath::capabilities::effective_user;
use datapath::unix_address;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Time limit for the answer of a process.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Limit of all reports of this user's processes together, bytes: 262,144 queue pairs of 1 KiB each.
const MAX_OWN: usize = 256 << 20;

/// Limit for each other user, bytes. Another user's process can send arbitrary data to an observer that runs as root.
pub(super) const MAX_OTHERS: usize = 16 << 20;

/// Maximum number of a user's processes that are read at once, each by its own thread.
const PROCESSES: usize = 512;

/// The number of bytes that the processes of each user may still send.
#[derive(Default)]
struct Budgets(Mutex<BTreeMap<u32, usize>>);

impl Budgets {
    /// Deducts `bytes` from the budget of user `owner`. Returns `false`, and deducts nothing, if the budget is smaller.
    fn spend(&self, owner: u32, bytes: usize) -> bool {
        let all = if owner == effective_user() { MAX_OWN } else { MAX_OTHERS };
        let mut budgets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = budgets.entry(owner).or_insert(all);
        let rest = left.checked_sub(bytes);
        *left = rest.unwrap_or(*left);
        rest.is_some()
    }
}

/// The reason why a process cannot be observed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The process does not exist.
    #[error("process {0} does not exist; `ferroce why` without a number shows those that can be observed")]
    NoProcess(u32),
    /// The process has no socket.
    #[error(
        "process {0} has no open Ferroce device, or uses another runtime folder; start both with the same XDG_RUNTIME_DIR"
    )]
    NotFerroce(u32),
    /// The process belongs to another user.
    #[error("process {pid} belongs to user {owner}; run this as that user or as root")]
    OtherUser {
        /// The process.
        pid: u32,
        /// Its user.
        owner: u32,
    },
    /// The report has a format that this program cannot read.
    #[error(
        "process {pid} reports in format {found}, but this ferroce reads format {FORMAT}; use ferroce {version}, the process's version"
    )]
    Version {
        /// The process.
        pid: u32,
        /// The format of the report.
        found: u32,
        /// The process's version of Ferroce.
        version: String,
    },
    /// The process listens but does not answer.
    #[error("process {0} does not answer within 3 s; if it is stopped, continue it: kill -CONT {0}")]
    Silent(u32),
    /// The processes of one user exceed the limit of their reports.
    #[error(
        "process {0}: all processes of its user report more than is read (16 MiB of another user, 256 MiB, 512 processes); run this as that user"
    )]
    TooLong(u32),
    /// The process refuses the request.
    #[error("process {pid}: {reason}")]
    Refused {
        /// The process.
        pid: u32,
        /// The reason, with a remedy.
        reason: String,
    },
    /// The process ended while its report was read.
    #[error("process {0} ended while its report was read; start it again")]
    Ended(u32),
    /// An I/O error of the connection to the process, or invalid data from it.
    #[error("process {pid}: {error}; try again")]
    System {
        /// The process.
        pid: u32,
        /// The I/O error.
        error: io::Error,
    },
}

impl AttachError {
    /// Returns whether no observable process listens.
    const fn is_absence(&self) -> bool {
        matches!(self, Self::NoProcess(_) | Self::NotFerroce(_) | Self::OtherUser { .. })
    }
}

/// The first fields of every format.
#[derive(Deserialize)]
pub(super) struct Head {
    format: u32,
    version: String,
}

/// Returns the report of every process whose socket this user can access, in the order of process ids. Queries all processes at once, each
/// over its own connection. Removes the sockets of processes that have ended.
#[must_use]
pub fn read_all() -> Vec<Result<ProcessStatus, AttachError>> {
    let all = folder::readable().into_iter().rev().map(|folder| sockets(&folder));
    let (mut asked, mut left) = (BTreeMap::new(), Vec::new());
    for mut of_user in all {
        left.extend(of_user.split_off(of_user.len().min(PROCESSES)).into_iter().map(|(pid, _)| pid));
        asked.extend(of_user);
    }
    let left = left.into_iter().filter(|pid| !asked.contains_key(pid)).map(AttachError::TooLong).map(Err);
    let budgets = &Budgets::default();
    thread::scope(|scope| {
        let begin = |pid, path| thread::Builder::new().spawn_scoped(scope, move || ask(pid, path, budgets));
        let asked: Vec<_> = asked.iter().map(|(&pid, path)| (pid, begin(pid, path))).collect();
        let reports = asked.into_iter().map(|(pid, asked)| match asked {
            Ok(asked) => asked.join().unwrap_or(Err(AttachError::Ended(pid))),
            Err(error) => Err(AttachError::System { pid, error }),
        });
        // A socket on which no process listens is not an error.
        reports.filter(|report| !matches!(report, Err(error) if error.is_absence())).chain(left).collect()
    })
}

fn sockets(folder: &Path) -> Vec<(u32, PathBuf)> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let sockets = names.filter_map(|name| {
        let path = name.path();
        let pid = path.file_name()?.to_str()?.strip_suffix(".sock")?.parse().ok()?;
        Some((pid, path))
    });
    sockets.collect()
}

/// Returns the report of process `pid`.
///
/// # Errors
/// Returns an [`AttachError`] if this user cannot observe the process, or it does not answer.
pub fn read(pid: u32) -> Result<ProcessStatus, AttachError> {
    ask(pid, &socket(pid)?, &Budgets::default())
}

pub(super) fn socket(pid: u32) -> Result<PathBuf, AttachError> {
    let name = format!("{pid}.sock");
    let path = folder::readable().into_iter().map(|folder| folder.join(&name)).find(|path| path.exists());
    path.ok_or_else(|| not_found(pid))
}

/// Requests the report of process `pid` over the socket `path`.
fn ask(pid: u32, path: &Path, budgets: &Budgets) -> Result<ProcessStatus, AttachError> {
    let (stream, owner) = attach(pid, path)?;
    // The process sends its report to an observer that sends no request.
    stream.shutdown(Shutdown::Write).map_err(|error| AttachError::System { pid, error })?;
    let report = receive(pid, stream, |bytes| budgets.spend(owner, bytes))?;
    // The kernel verifies the peer's process id; the id in the report could be wrong.
    Ok(ProcessStatus { pid, ..checked(pid, &report)? })
}

/// Parses the data from process `pid`, if its format is [`FORMAT`].
pub(super) fn checked<T: DeserializeOwned>(pid: u32, bytes: &[u8]) -> Result<T, AttachError> {
    let head: Head = serde_json::from_slice(bytes).map_err(|_| AttachError::Ended(pid))?;
    if head.format != FORMAT {
        return Err(AttachError::Version { pid, found: head.format, version: head.version });
    }
    serde_json::from_slice(bytes).map_err(|_| AttachError::Ended(pid))
}

/// Connects to process `pid` over the socket `path`. Returns the connection and the process's user. Removes the socket if no process
/// listens on it.
pub(super) fn attach(pid: u32, path: &Path) -> Result<(UnixStream, u32), AttachError> {
    let stream = match connect(path) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(AttachError::Silent(pid)),
        Err(error) => {
            if error.kind() == ErrorKind::ConnectionRefused {
                let _ = fs::remove_file(path);
            }
            return Err(not_found(pid));
        }
    };
    let peer = credentials(&stream).map_err(|error| AttachError::System { pid, error })?;
    // Any process could listen at this path, so the kernel's process id decides.
    if peer.pid != pid as i32 {
        return Err(not_found(pid));
    }
    Ok((stream, peer.uid))
}

/// Connects within [`ANSWER_TIMEOUT`]: a stopped process may have a full backlog, for which [`UnixStream::connect`] would wait without
/// limit.
///
/// # Errors
/// Returns [`ErrorKind::WouldBlock`] after the timeout, or the system's error.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let (address, length) = unix_address(path.as_os_str().as_bytes())?;
    // SAFETY: no memory is passed.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened above, and nothing else owns it.
    let stream = unsafe { UnixStream::from_raw_fd(socket) };
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    // SAFETY: `address` is initialized, and `length` is its length.
    match unsafe { libc::connect(socket, (&raw const address).cast(), length) } {
        0 => Ok(stream),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads a report to its end, while `spend` grants the bytes of each part.
pub(super) fn receive(
    pid: u32,
    mut stream: UnixStream,
    mut spend: impl FnMut(usize) -> bool,
) -> Result<Vec<u8>, AttachError> {
    let (mut report, mut part) = (Vec::new(), vec![0; 1 << 16]);
    let mut is_spent = false;
    read_within_timeout(
        pid,
        &stream.try_clone().map_err(|error| AttachError::System { pid, error })?,
        || {
            let read = stream.read(&mut part)?;
            report.extend_from_slice(&part[..read]);
            is_spent = !spend(read);
            Ok(read == 0 || is_spent)
        },
    )?;
    if is_spent { Err(AttachError::TooLong(pid)) } else { Ok(report) }
}

/// Calls `read` until it returns `true`, for at most [`ANSWER_TIMEOUT`].
pub(super) fn read_within_timeout(
    pid: u32,
    stream: &UnixStream,
    mut read: impl FnMut() -> io::Result<bool>,
) -> Result<(), AttachError> {
    let end = Instant::now() + ANSWER_TIMEOUT;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Err(AttachError::Silent(pid));
        }
        match read() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(AttachError::Silent(pid));
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(AttachError::Ended(pid)),
            Err(error) => return Err(AttachError::System { pid, error }),
        }
    }
}

/// Returns the error for a path on which no process listens.
fn not_found(pid: u32) -> AttachError {
    use std::os::unix::fs::MetadataExt;
    match fs::metadata(format!("/proc/{pid}")) {
        Err(_) => AttachError::NoProcess(pid),
        Ok(found) if found.uid() != effective_user() && effective_user() != 0 => {
            AttachError::OtherUser { pid, owner: found.uid() }
        }
        Ok(_) => AttachError::NotFerroce(pid),
    }
}

pub(super) fn credentials(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` has room for `length` bytes.
    let outcome = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if outcome == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_of(length: usize, budgets: &Budgets, owner: u32) -> Result<Vec<u8>, AttachError> {
        let (mut process, observer) = UnixStream::pair().unwrap();
        let writer = thread::spawn(move || io::Write::write_all(&mut process, &vec![b' '; length]));
        let report = receive(7, observer, |bytes| budgets.spend(owner, bytes));
        // Fails if the observer has closed the connection.
        let _ = writer.join().unwrap();
        report
    }

    #[test]
    fn the_processes_of_a_user_share_a_budget() {
        let budgets = Budgets::default();
        let [ours, other, another] = [0, 1, 2].map(|uid| effective_user() + uid);
        assert!(budgets.spend(ours, MAX_OWN) && !budgets.spend(ours, 1));
        assert_eq!(report_of(MAX_OTHERS - 1, &budgets, other).unwrap().len(), MAX_OTHERS - 1);
        assert!(matches!(report_of(2, &budgets, other), Err(AttachError::TooLong(7))));
        assert!(matches!(report_of(2, &budgets, other), Err(AttachError::TooLong(7))));
        assert_eq!(report_of(2, &budgets, another).unwrap().len(), 2);
    }

    #[test]
    fn reading_stops_when_the_budget_is_spent() {
        let mut budget = 1_usize << 20;
        let spend = |bytes: usize| {
            let rest = usize::checked_sub(budget, bytes);
            budget = rest.unwrap_or(budget);
            rest.is_some()
        };
        let (mut process, observer) = UnixStream::pair().unwrap();
        let writer =
            thread::spawn(move || while io::Write::write_all(&mut process, &[b' '; 4096]).is_ok() {});
        assert!(matches!(receive(7, observer, spend), Err(AttachError::TooLong(7))));
        writer.join().unwrap();
    }
}

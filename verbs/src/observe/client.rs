//! The observer's end: which processes there are, and what one of them reports.

use super::{FORMAT, ProcessStatus, folder, server};
use serde::Deserialize;
use serde_json::Value;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The longest report: 65,536 queue pairs of 1 KiB each.
const LONGEST: u64 = 64 << 20;

/// Why a process can't be observed.
#[derive(Debug, Error)]
pub enum AttachError {
    /// No such process.
    #[error(
        "process {0}: it does not exist; `ferroce why` without a number shows those that can be observed"
    )]
    NoProcess(u32),
    /// A process without a socket.
    #[error(
        "process {0}: it has no open Ferroce device, or another runtime folder; start both with the same XDG_RUNTIME_DIR"
    )]
    NotFerroce(u32),
    /// A process of another user.
    #[error("process {pid}: it belongs to user {owner}; run this as that user or as root")]
    OtherUser {
        /// The process.
        pid: u32,
        /// Its user.
        owner: u32,
    },
    /// A report that this program can't read.
    #[error(
        "process {pid}: it reports in format {found} and this is a ferroce of format {FORMAT}; use the ferroce of its version, {version}"
    )]
    Version {
        /// The process.
        pid: u32,
        /// Its format.
        found: u32,
        /// Its version.
        version: String,
    },
    /// It listens and does not answer.
    #[error("process {0}: it does not answer within 3 s; if it is stopped, continue it: kill -CONT {0}")]
    Silent(u32),
    /// It ended while it was read.
    #[error("process {0}: it ended while it was read; start it again")]
    Ended(u32),
    /// The system refused it.
    #[error("process {pid}: {error}; try again")]
    System {
        /// The process.
        pid: u32,
        /// The system's reason.
        error: io::Error,
    },
}

/// What every format begins with.
#[derive(Deserialize)]
struct Head {
    format: u32,
    version: String,
}

/// Returns the processes that can be observed, by number. Sockets of processes that are gone are removed.
#[must_use]
pub fn find() -> Vec<u32> {
    let mut found: Vec<u32> =
        folder::readable().iter().flat_map(|folder| sockets(folder)).map(|(pid, _)| pid).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn sockets(folder: &Path) -> Vec<(u32, PathBuf)> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let sockets = names.filter_map(|name| {
        let path = name.path();
        let pid = path.file_name()?.to_str()?.strip_suffix(".sock")?.parse().ok()?;
        Some((pid, path))
    });
    sockets.filter(|(_, path)| is_listened_to(path)).collect()
}

/// Whether a process listens; if not, the socket is removed.
fn is_listened_to(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => {
            if error.kind() == ErrorKind::ConnectionRefused {
                server::remove_stale(path);
            }
            false
        }
    }
}

/// Returns what process `pid` reports of itself.
///
/// # Errors
/// Returns an [`AttachError`] if the process is none that this user can observe, or does not answer.
pub fn read(pid: u32) -> Result<ProcessStatus, AttachError> {
    let name = format!("{pid}.sock");
    let path = folder::readable().into_iter().map(|folder| folder.join(&name)).find(|path| path.exists());
    let stream = match path.map(UnixStream::connect) {
        Some(Ok(stream)) => stream,
        Some(Err(_)) | None => return Err(why_not(pid)),
    };
    let peer = credentials(&stream).map_err(|error| AttachError::System { pid, error })?;
    // Anything with this name may listen: the kernel knows who does.
    if peer.pid != pid as i32 {
        return Err(why_not(pid));
    }
    let report = receive(pid, stream)?;
    let head: Head = serde_json::from_slice(&report).map_err(|_| AttachError::Ended(pid))?;
    if head.format != FORMAT {
        return Err(AttachError::Version { pid, found: head.format, version: head.version });
    }
    let mut report: Value = serde_json::from_slice(&report).map_err(|_| AttachError::Ended(pid))?;
    make_plain(&mut report);
    serde_json::from_value(report).map_err(|_| AttachError::Ended(pid))
}

/// Another user's process may say anything: nothing of it reaches a terminal but printable characters, and no key but words.
fn make_plain(report: &mut Value) {
    match report {
        Value::String(text) => *text = text.replace(char::is_control, " "),
        Value::Array(values) => values.iter_mut().for_each(make_plain),
        Value::Object(fields) => {
            fields.retain(|key, _| !key.contains(char::is_control) && !key.contains(['"', '{', '}']));
            fields.values_mut().for_each(make_plain);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn receive(pid: u32, mut stream: UnixStream) -> Result<Vec<u8>, AttachError> {
    let end = Instant::now() + PATIENCE;
    let (mut report, mut part) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Err(AttachError::Silent(pid));
        }
        match stream.read(&mut part) {
            Ok(0) => return Ok(report),
            Ok(_) if report.len() as u64 > LONGEST => return Err(AttachError::Silent(pid)),
            Ok(read) => report.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(AttachError::Silent(pid));
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(AttachError::Ended(pid)),
            Err(error) => return Err(AttachError::System { pid, error }),
        }
    }
}

/// Returns why no process listens there.
fn why_not(pid: u32) -> AttachError {
    use std::os::unix::fs::MetadataExt;
    match fs::metadata(format!("/proc/{pid}")) {
        Err(_) => AttachError::NoProcess(pid),
        Ok(found) if found.uid() != folder::user() && folder::user() != 0 => {
            AttachError::OtherUser { pid, owner: found.uid() }
        }
        Ok(_) => AttachError::NotFerroce(pid),
    }
}

/// Returns who is at the other end.
pub(super) fn credentials(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: there is room for the structure.
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

    #[test]
    fn what_a_process_says_of_itself_is_printable() {
        let mut report =
            serde_json::json!({"command": "a\u{1b}[2Jb", "x\n": 1, "counters": {"a\"} 1": 2, "sent": 3}});
        make_plain(&mut report);
        assert_eq!(report, serde_json::json!({"command": "a [2Jb", "counters": {"sent": 3}}));
    }
}

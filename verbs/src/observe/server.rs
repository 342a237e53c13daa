//! The process's side of the socket, and the thread that serves observers while a device is open.

use super::capture_server::{self, CaptureServer};
use super::{client, fault_server, folder, status::FORMAT, status::ProcessStatus};
use crate::device::Inner;
use datapath::capabilities::effective_user;
use datapath::fork::{self, CloseOnFork, Process};
use datapath::signals;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time after which an observer that does not read is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit for an observer's request. Observers send it as soon as they connect.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(200);
/// Longest time for which closing the last device waits for the thread, which may be serving an observer.
const MAX_CLOSE_TIME: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(100);

pub(super) type Devices = Arc<Mutex<Vec<Weak<Inner>>>>;

static SERVER: Mutex<Option<Server>> = Mutex::new(None);

struct Server {
    process: Process,
    devices: Devices,
    listener: Arc<CloseOnFork<UnixListener>>,
    path: PathBuf,
    is_closed: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    /// The thread holds the sender and drops it when it ends.
    ends: Receiver<()>,
}

/// Makes `device` visible to observers. If the socket cannot be created, the process runs unobserved.
pub(crate) fn publish(device: &Arc<Inner>) {
    let Some(mut server) = fork::lock(&SERVER) else { return };
    if server.as_ref().is_some_and(|server| server.process.is_parent()) {
        // A forked child must not end its parent's thread or close its socket.
        std::mem::forget(server.take());
    }
    if server.is_none() {
        match place().and_then(Server::start) {
            Ok(started) => *server = Some(started),
            Err(reason) => {
                tracing::debug!("{}: observers cannot attach: {reason}", device.info.port);
                return;
            }
        }
    }
    if let Some(server) = &*server
        && let Some(mut devices) = fork::lock(&server.devices)
    {
        devices.push(Arc::downgrade(device));
    }
}

/// Removes closed devices. Closes the socket if no device is left.
pub(crate) fn withdraw() {
    let ended = {
        let Some(mut server) = fork::lock(&SERVER) else { return };
        let is_last = server.as_ref().is_some_and(|server| {
            !server.process.is_parent()
                && fork::lock(&server.devices).is_some_and(|mut devices| {
                    devices.retain(|device| device.strong_count() > 0);
                    devices.is_empty()
                })
        });
        let ended = server.take_if(|_| is_last);
        // Closes the socket under the lock, before another device can publish a socket of the same name.
        ended.inspect(Server::close)
    };
    if let Some(server) = ended {
        server.join();
    }
}

fn place() -> Result<PathBuf, String> {
    let folder = folder::create().map_err(|error| error.to_string())?;
    Ok(folder.join(format!("{}.sock", std::process::id())))
}

impl Server {
    fn start(path: PathBuf) -> Result<Self, String> {
        // An earlier process with this process id may have left the socket.
        let _ = fs::remove_file(&path);
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let listener = UnixListener::bind(&path).map_err(failed)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let (listener, devices, is_closed) =
            (Arc::new(CloseOnFork::from(listener)), Devices::default(), Arc::default());
        let (alive, ends) = channel();
        let body = {
            let (listener, devices, is_closed) = (listener.clone(), devices.clone(), Arc::clone(&is_closed));
            move || {
                let _alive: Sender<()> = alive;
                serve(&listener, &devices, &is_closed);
            }
        };
        let thread = signals::spawn("ferroce-observe", body).map_err(|error| {
            let _ = fs::remove_file(&path);
            failed(error)
        })?;
        Ok(Self { process: Process::this(), devices, listener, path, is_closed, thread, ends })
    }

    /// Closes and removes the socket. The thread then ends.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        if self.listener.is_same_file() {
            // SAFETY: the listener owns this open descriptor. The shutdown makes the thread's accept return.
            unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        } else {
            // The program has closed the descriptor. The thread's accept still uses the socket, and a new connection makes it return.
            let _ = UnixStream::connect(&self.path);
        }
        let _ = fs::remove_file(&self.path);
    }

    /// Waits for the thread to end, for at most [`MAX_CLOSE_TIME`].
    fn join(self) {
        // The thread itself may have dropped the last device.
        if self.thread.thread().id() == std::thread::current().id() {
            return;
        }
        match self.ends.recv_timeout(MAX_CLOSE_TIME) {
            Err(RecvTimeoutError::Timeout) => tracing::debug!("the observers' thread has not ended"),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => _ = self.thread.join(),
        }
    }
}

fn serve(listener: &CloseOnFork<UnixListener>, devices: &Devices, is_closed: &AtomicBool) {
    let captured = CaptureServer::default();
    while listener.is_same_file() && !is_closed.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok(_) if is_closed.load(Ordering::Relaxed) => return,
            // Forked children close their copy, so that the connection closes when this process ends.
            Ok((stream, _)) => answer(CloseOnFork::from(stream), devices, &captured),
            // The listener was shut down.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn answer(stream: CloseOnFork<UnixStream>, devices: &Devices, captured: &CaptureServer) {
    let allowed =
        client::credentials(&stream).is_ok_and(|peer| peer.uid == 0 || peer.uid == effective_user());
    let timeouts =
        stream.set_write_timeout(Some(WRITE_TIMEOUT)).and(stream.set_read_timeout(Some(REQUEST_TIMEOUT)));
    if !allowed || timeouts.is_err() {
        return;
    }
    let Some(devices) = fork::lock(devices).map(|devices| devices.clone()) else { return };
    // Observers with a format before 2 send no request.
    let mut request = [0; 128];
    let length = (&*stream).read(&mut request).unwrap_or(0);
    if let Some(snap) = capture_server::requested(&request[..length]) {
        captured.begin(stream, devices, snap);
        return;
    }
    let devices: Vec<_> = devices.iter().filter_map(Weak::upgrade).collect();
    let report = match fault_server::requested(&request[..length]) {
        Some(text) => serde_json::to_vec(&fault_server::answer(FORMAT, text, |fault| {
            devices.iter().map(|device| device.inject(fault)).collect()
        })),
        None => serde_json::to_vec(&ProcessStatus::of(&devices)),
    };
    // Writing to a slow observer must not delay the closing of devices.
    drop(devices);
    let Ok(report) = report else { return };
    // Fails only if the observer has disconnected.
    let _ = (&*stream).write_all(&report);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{FromRawFd, OwnedFd};

    /// A daemon closes all descriptors with close_range(2). The socket's number may then belong to a file of the program.
    #[test]
    fn a_server_ends_without_touching_a_file_that_replaced_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path().join("socket")).unwrap();
        let (theirs, mut peer) = UnixStream::pair().unwrap();
        let number = server.listener.as_raw_fd();
        // SAFETY: both descriptors are open.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), number) }, number);
        drop(theirs);
        let path = server.path.clone();
        server.close();
        server.join();
        assert!(!path.exists());
        // SAFETY: since dup2, the number refers to a socket that has no other owner.
        let mut theirs = UnixStream::from(unsafe { OwnedFd::from_raw_fd(number) });
        theirs.write_all(b"there").unwrap();
        let mut read = [0; 5];
        peer.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"there");
    }
}

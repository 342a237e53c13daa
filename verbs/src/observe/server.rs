//! The process's end of the socket, and the thread that sleeps on it while a device is open.

use super::tapping::{self, Tapping};
use super::{client, folder, status::ProcessStatus};
use crate::device::Inner;
use datapath::fork::{self, Own, Process};
use datapath::signals;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The time after which an observer that does not read is disconnected.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time that an observer has to send its request: it sends that as it connects.
const REQUEST: Duration = Duration::from_millis(200);
/// The pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) type Devices = Arc<Mutex<Vec<Weak<Inner>>>>;

/// The observation server; a process has one while a device is open.
static SERVER: Mutex<Option<Server>> = Mutex::new(None);

struct Server {
    process: Process,
    devices: Devices,
    listener: Arc<UnixListener>,
    path: PathBuf,
    thread: JoinHandle<()>,
}

/// Makes `device` visible to observers. If the socket cannot be created, the process runs unobserved.
pub(crate) fn publish(device: &Arc<Inner>) {
    let Some(mut server) = fork::lock(&SERVER) else { return };
    if server.as_ref().is_some_and(|server| server.process.is_parent()) {
        // The thread and the socket are the parent's.
        std::mem::forget(server.take());
    }
    if server.is_none() {
        match Server::start() {
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

/// Removes a closed device. The socket is removed with the last one.
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
        // Before another device can publish a socket of the same name.
        ended.inspect(Server::close)
    };
    if let Some(server) = ended {
        server.join();
    }
}

impl Server {
    fn start() -> Result<Self, String> {
        let folder = folder::create().map_err(|error| error.to_string())?;
        let path = folder.join(format!("{}.sock", std::process::id()));
        // An earlier process of this number left it.
        let _ = fs::remove_file(&path);
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let listener = UnixListener::bind(&path).map_err(failed)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let listener = Arc::new(listener);
        fork::give_up(listener.as_raw_fd());
        let devices = Devices::default();
        let (there, shown) = (listener.clone(), devices.clone());
        let thread = signals::spawn("ferroce-observe", move || serve(&there, &shown)).map_err(|error| {
            fork::keep(listener.as_raw_fd());
            let _ = fs::remove_file(&path);
            failed(error)
        })?;
        Ok(Self { process: Process::this(), devices, listener, path, thread })
    }

    /// Closes the socket, which ends the thread.
    fn close(&self) {
        let _ = fs::remove_file(&self.path);
        // SAFETY: the descriptor is open. The thread's accept returns by it.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        fork::keep(self.listener.as_raw_fd());
    }

    fn join(self) {
        // The observer's thread may be the one that closes the last device.
        if self.thread.thread().id() != std::thread::current().id() {
            let _ = self.thread.join();
        }
    }
}

fn serve(listener: &UnixListener, devices: &Devices) {
    let captured = Tapping::default();
    loop {
        match listener.accept() {
            // Forked children give it up, so that the observer learns of this process's end.
            Ok((stream, _)) => answer(Own::from(stream), devices, &captured),
            // The listener was shut down.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn answer(stream: Own<UnixStream>, devices: &Devices, captured: &Tapping) {
    let allowed = client::credentials(&stream).is_ok_and(|peer| peer.uid == 0 || peer.uid == folder::user());
    let timeouts = stream.set_write_timeout(Some(PATIENCE)).and(stream.set_read_timeout(Some(REQUEST)));
    if !allowed || timeouts.is_err() {
        return;
    }
    let Some(devices) = fork::lock(devices).map(|devices| devices.clone()) else { return };
    // Observers of before format 2 sent nothing and waited.
    let mut request = [0; 64];
    let length = (&*stream).read(&mut request).unwrap_or(0);
    if let Some(snap) = tapping::requested(&request[..length]) {
        captured.begin(stream, devices, snap);
        return;
    }
    let devices: Vec<_> = devices.iter().filter_map(Weak::upgrade).collect();
    let report = serde_json::to_vec(&ProcessStatus::of(&devices));
    // However slowly the observer reads, the program closes its devices when it likes.
    drop(devices);
    let Ok(report) = report else { return };
    // An observer that is gone has no use for the rest.
    let _ = (&*stream).write_all(&report);
}

//! The process's side of a capture: a thread that installs a tap in each core, and waits until the observer disconnects.

use super::sanitize::sanitized;
use super::status::FORMAT;
use crate::device::Inner;
use datapath::capture::Tap;
use datapath::fork::CloseOnFork;
use datapath::{scm_rights, signals};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Start of a request for a capture. The number of bytes to capture of each frame follows.
const REQUEST: &str = "capture ";

/// Number of checks whether the previous capture has ended, and the pause after each check.
const CHECKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// The reply to a request: a line of JSON, accompanied by a descriptor of each core's ring.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CaptureReply {
    format: u32,
    version: String,
    /// The port of each core, in the order of their rings.
    #[serde(deserialize_with = "sanitized")]
    pub(super) ports: Vec<String>,
    /// The reason why the request is refused.
    #[serde(default, deserialize_with = "sanitized")]
    pub(super) refused: Option<String>,
}

pub(super) fn request(snap: u32) -> String {
    format!("{REQUEST}{snap}\n")
}

/// Parses a request. Returns the number of bytes to capture of each frame, or `None` if the request is not for a capture.
pub(super) fn requested(request: &[u8]) -> Option<u32> {
    std::str::from_utf8(request).ok()?.strip_prefix(REQUEST)?.trim_end().parse().ok()
}

/// Whether a capture of the process is running. There is one at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct CaptureServer(Arc<AtomicBool>);

/// Marks a capture as running until it is dropped.
struct RunningCapture(CaptureServer);

impl Drop for RunningCapture {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

impl CaptureServer {
    /// Marks a capture as running. Returns `false` if another one is running and does not end within 190 ms.
    fn try_begin(&self) -> bool {
        for check in 0..CHECKS {
            if !self.0.swap(true, Ordering::Acquire) {
                return true;
            }
            if check + 1 < CHECKS {
                std::thread::sleep(PAUSE);
            }
        }
        false
    }

    /// Starts a capture of `devices` for the observer at the other end of `stream`.
    pub(super) fn begin(&self, stream: CloseOnFork<UnixStream>, devices: Vec<Weak<Inner>>, snap: u32) {
        // The timeout applies only to the request.
        let _ = stream.set_read_timeout(None);
        if !self.try_begin() {
            refuse(&stream, "another capture of it is running; end that one first".into());
            return;
        }
        let underway = RunningCapture(self.clone());
        let stream = Arc::new(stream);
        let observer = stream.clone();
        let started = signals::spawn("ferroce-capture", move || {
            if let Err(error) = capture(&observer, &devices, snap) {
                refuse(&observer, format!("cannot capture: {error}; free memory, or raise its `ulimit -n`"));
            }
            drop(underway);
        });
        if let Err(error) = started {
            refuse(&stream, format!("cannot start a thread: {error}; raise its limit of threads"));
        }
    }
}

fn reply(
    stream: &UnixStream,
    ports: Vec<String>,
    refused: Option<String>,
    rings: &[OwnedFd],
) -> io::Result<()> {
    let offer = CaptureReply { format: FORMAT, version: env!("CARGO_PKG_VERSION").into(), ports, refused };
    let mut line = serde_json::to_vec(&offer)?;
    line.push(b'\n');
    let rings: Vec<_> = rings.iter().map(AsFd::as_fd).collect();
    let sent = scm_rights::send(stream.as_fd(), &line, &rings, 0)?;
    if sent == line.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

fn refuse(stream: &UnixStream, reason: String) {
    // Fails only if the observer has disconnected.
    let _ = reply(stream, Vec::new(), Some(reason), &[]);
}

fn capture(stream: &UnixStream, devices: &[Weak<Inner>], snap: u32) -> io::Result<()> {
    let (ports, rings) = install(devices, snap)?;
    if reply(stream, ports, None, &rings).is_ok() {
        drop(rings);
        wait(stream);
    }
    for device in devices.iter().filter_map(Weak::upgrade) {
        // The cores return their taps, so that this thread drops them.
        let _ = device.engine.call_all(|state, _| state.capture(None));
    }
    Ok(())
}

/// Installs a tap in each core. Returns the port and the ring of each core. Keeps no reference to the devices, so that the program can
/// close them.
fn install(devices: &[Weak<Inner>], snap: u32) -> io::Result<(Vec<String>, Vec<OwnedFd>)> {
    let devices: Vec<_> = devices.iter().filter_map(Weak::upgrade).collect();
    let cores = devices.iter().flat_map(|device| (0..device.engine.cores()).map(move |core| (device, core)));
    let cores: Vec<_> = cores.take(scm_rights::DESCRIPTORS).collect();
    let made: Vec<_> = cores.iter().map(|_| Tap::new(snap)).collect::<io::Result<_>>()?;
    let (taps, rings): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    for ((device, core), tap) in cores.iter().zip(taps) {
        let tap = Box::new(tap);
        // A stopped core drops its tap, which closes the ring.
        let _ = device.engine.call_on(*core, move |state, _| state.capture(Some(tap)));
    }
    Ok((cores.iter().map(|(device, _)| device.info.port.clone()).collect(), rings))
}

fn wait(stream: &UnixStream) {
    // The observer sends nothing more, so this call returns when it disconnects. Signals are blocked in this thread.
    let _ = scm_rights::receive(stream.as_fd(), &mut [0], 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written() {
        assert_eq!(requested(request(96).as_bytes()), Some(96));
        for other in ["", "capture ", "capture x\n", "capture -1\n", "report\n"] {
            assert_eq!(requested(other.as_bytes()), None, "{other}");
        }
    }
}

//! The observer's side of a capture: reads the frames of a process from shared memory.

use super::capture_server::{self, CaptureReply};
use super::client::{self, AttachError};
use datapath::capture::{Reader, Record};
use datapath::scm_rights;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Size of a read, bytes. A reply is shorter, even for 64 cores.
const PART: usize = 1 << 16;

/// The reason why [`Capture::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waited {
    /// The time has passed.
    Time,
    /// The process has ended, or has closed its devices.
    Ended,
    /// The reader of the output has closed it.
    Unread,
}

/// A running capture of another process. Dropping it ends the capture.
///
/// A capture never slows the process down: frames that do not fit into a core's ring are counted and not captured.
#[derive(Debug)]
pub struct Capture {
    pid: u32,
    connection: UnixStream,
    ports: Vec<String>,
    rings: Vec<Reader>,
}

impl Capture {
    /// Starts to capture the first `snap` bytes of each frame that process `pid` sends and receives. The capture covers all devices that
    /// the process has open at the start, up to 64 cores.
    ///
    /// # Errors
    /// Returns an [`AttachError`] if this user cannot observe the process, or if another capture of it is running.
    pub fn begin(pid: u32, snap: u32) -> Result<Self, AttachError> {
        let system = |error| AttachError::System { pid, error };
        let (mut connection, _) = client::attach(pid, &client::socket(pid)?)?;
        match connection.write_all(capture_server::request(snap).as_bytes()) {
            // A process with a format before 2 answers and closes the connection without reading the request.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written.map_err(system)?,
        }
        let (answer, files) = receive(pid, &connection)?;
        let offer: CaptureReply = client::checked(pid, &answer)?;
        if let Some(reason) = offer.refused {
            return Err(AttachError::Refused { pid, reason });
        }
        if offer.ports.len() != files.len() {
            return Err(system(io::ErrorKind::InvalidData.into()));
        }
        let rings = files.iter().map(Reader::new).collect::<Result<_, _>>().map_err(system)?;
        Ok(Self { pid, connection, ports: offer.ports, rings })
    }

    /// Returns the port of each captured core, in the order of the cores.
    #[must_use]
    pub fn ports(&self) -> &[String] {
        &self.ports
    }

    /// Moves the oldest captured frame into `frame`. Returns the index of its core in [`ports`](Self::ports), or `None` if there is no
    /// frame.
    ///
    /// # Errors
    /// Returns [`AttachError::System`] if the ring contains invalid data.
    pub fn take(&mut self, frame: &mut Vec<u8>) -> Result<Option<(usize, Record)>, AttachError> {
        let damaged = |error| AttachError::System { pid: self.pid, error };
        let mut oldest: Option<(u64, usize)> = None;
        for (core, ring) in self.rings.iter_mut().enumerate() {
            if let Some(record) = ring.peek().map_err(damaged)?
                && oldest.is_none_or(|(time, _)| record.time < time)
            {
                oldest = Some((record.time, core));
            }
        }
        let Some((_, core)) = oldest else { return Ok(None) };
        let record = self.rings[core].take(frame).map_err(damaged)?;
        Ok(record.map(|record| (core, record)))
    }

    /// Returns the number of frames of a core that were dropped because its ring was full.
    #[must_use]
    pub fn dropped(&self, core: usize) -> u64 {
        self.rings.get(core).map_or(0, Reader::dropped)
    }

    /// Requests the end of the capture. Frames in the rings can still be read.
    pub fn end(&self) {
        // Fails only if the process has ended.
        let _ = self.connection.shutdown(Shutdown::Both);
    }

    /// Waits up to `time`, rounded up to ms. Returns earlier if the process ends, or if the reader of the pipe `output` closes it.
    #[must_use]
    pub fn wait(&self, time: Duration, output: BorrowedFd<'_>) -> Waited {
        if self.rings.iter().all(Reader::is_closed) {
            return Waited::Ended;
        }
        let watch = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut watched = [watch(self.connection.as_raw_fd(), libc::POLLIN), watch(output.as_raw_fd(), 0)];
        let most = time.as_nanos().div_ceil(1_000_000) as libc::c_int;
        // SAFETY: the array has `watched.len()` elements, and poll reports a closed descriptor in `revents`.
        unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, most) };
        match watched.map(|watched| watched.revents) {
            [_, output] if output & libc::POLLERR != 0 => Waited::Unread,
            [0, _] => Waited::Time,
            [_, _] => Waited::Ended,
        }
    }
}

/// Reads the reply to a request, and the descriptors of the rings. A process with a format before 2 does not read the request: it sends a
/// report instead, and resets the connection.
fn receive(pid: u32, connection: &UnixStream) -> Result<(Vec<u8>, Vec<OwnedFd>), AttachError> {
    let (mut line, mut files, mut part) = (Vec::new(), Vec::new(), vec![0; PART]);
    client::read_within_timeout(pid, connection, || {
        let (length, more) = match scm_rights::receive(connection.as_fd(), &mut part, 0) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !line.is_empty() => {
                return Ok(true);
            }
            received => received?,
        };
        line.extend_from_slice(&part[..length]);
        files.extend(more);
        Ok(length == 0 || line.ends_with(b"\n") || line.len() > client::MAX_OTHERS)
    })?;
    Ok((line, files))
}

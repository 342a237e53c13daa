//! The relay of a memif: forwards the messages between DPDK's memif driver and its peer.

use super::gate::Gate;
use super::interrupt::{LinkSetup, RingInterrupt};
use super::socket::{self, MemifMessage};
use crate::dpdk::device;
use crate::dpdk::prepare::PortError;
use crate::dpdk::{descriptor, eal};
use crate::fork::CloseOnFork;
use crate::port_spec::SocketRole;
use crate::signals;
use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The memif message that ends the link set-up. After it, both sides may use the rings.
const CONNECTED: u16 = 7;
/// Longest wait for the driver's first message, in ms, and the most rounds through its interrupt thread until its clean-up has ended.
const DRIVER_TIMEOUT_MS: i32 = 1000;
/// Pause after a peer could not be accepted, for example because the process has no descriptor left, ms.
const PAUSE_MS: i32 = 100;
/// Fewest rounds through the interrupt thread after a connection has ended: one for each message that the driver has not read, and one for
/// the end.
const MIN_ROUNDS: u32 = 3;

pub(in crate::dpdk) enum Connection {
    Server { listener: CloseOnFork, path: PathBuf },
    Client { peer: CloseOnFork },
}

impl Connection {
    /// Connects to or listens on the socket at `name`. Removes a socket file whose process has ended.
    pub(in crate::dpdk) fn at(name: &str, wanted: SocketRole) -> Result<Self, PortError> {
        let path = Path::new(name);
        let error = |why: String, remedy| PortError::Socket { socket: name.to_owned(), why, remedy };
        let taken = "choose another path, or be its client";
        match (socket::connect(path), wanted) {
            (Ok(_), SocketRole::Server) => return Err(error("a server listens on it already".into(), taken)),
            (Ok(peer), SocketRole::Auto | SocketRole::Client) => {
                return Ok(Self::Client { peer: peer.into() });
            }
            (Err(_), SocketRole::Client) => {
                return Err(error(
                    "no server listens on it".into(),
                    "start the server first, or leave `,client` out",
                ));
            }
            (Err(e), _) if e.kind() == ErrorKind::NotFound => {}
            (Err(e), _) if e.kind() == ErrorKind::ConnectionRefused => {
                remove_dead(path).map_err(|e| error(e.to_string(), "remove it"))?;
            }
            (Err(e), _) => return Err(error(e.to_string(), "remove it, or run both sides as one user")),
        }
        let listener = socket::listen(path).map_err(|e| error(e.to_string(), taken))?;
        Ok(Self::Server { listener: listener.into(), path: path.to_owned() })
    }

    pub(in crate::dpdk) fn role(&self) -> SocketRole {
        match self {
            Self::Server { .. } => SocketRole::Server,
            Self::Client { .. } => SocketRole::Client,
        }
    }
}

fn remove_dead(path: &Path) -> io::Result<()> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::other("it exists and is not a socket"));
    }
    std::fs::remove_file(path)
}

/// A directory that only this user can enter. Dropping it removes it and its files.
struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    fn new() -> io::Result<Self> {
        let template =
            crate::environment::temporary_folder().join("ferroce-XXXXXX").into_os_string().into_vec();
        let template = CString::new(template)?.into_raw();
        // SAFETY: mkdtemp replaces the last six bytes of a NUL-terminated string, none by a NUL.
        let made = !unsafe { libc::mkdtemp(template) }.is_null();
        let error = io::Error::last_os_error();
        // SAFETY: the pointer is from `into_raw` and is taken back once; the string has the same length.
        let path = unsafe { CString::from_raw(template) }.into_bytes();
        if !made {
            return Err(error);
        }
        Ok(Self(PathBuf::from(std::ffi::OsString::from_vec(path))))
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            tracing::debug!("{} stays: {e}", self.0.display());
        }
    }
}

pub(in crate::dpdk) struct Relay {
    gate: Arc<Gate>,
    interrupt: Arc<RingInterrupt>,
    role: SocketRole,
    /// The directory of the driver's socket, until the driver has connected or listens.
    private: Option<PrivateDirectory>,
    /// The thread's state until the thread starts.
    work: Option<Work>,
    /// Dropping this end stops the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    public: Option<PathBuf>,
}

struct Work {
    connection: Connection,
    /// The socket to which the driver connects if it is the client; a handle of the socket on which it listens if it is the server.
    driver: Option<OwnedFd>,
    path: PathBuf,
    stopped: OwnedFd,
    gate: Arc<Gate>,
    interrupt: Arc<RingInterrupt>,
}

impl Relay {
    pub(in crate::dpdk) fn new(connection: Connection) -> io::Result<Self> {
        let private = PrivateDirectory::new()?;
        let path = private.0.join("s");
        let (stopped, stop) = socket::wake()?;
        let (gate, interrupt) = (Arc::new(Gate::default()), Arc::new(RingInterrupt::new()?));
        let (driver, public) = match &connection {
            Connection::Server { path, .. } => (None, Some(path.clone())),
            Connection::Client { .. } => (Some(socket::listen(&path)?), None),
        };
        let role = connection.role();
        let work = Some(Work {
            connection,
            driver,
            path,
            stopped,
            gate: gate.clone(),
            interrupt: interrupt.clone(),
        });
        Ok(Self {
            gate,
            interrupt,
            role,
            private: Some(private),
            work,
            stop: Some(stop),
            thread: None,
            public,
        })
    }

    pub(in crate::dpdk) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(in crate::dpdk) fn interrupt(&self) -> &RingInterrupt {
        &self.interrupt
    }

    /// Returns the driver's role, which is the port's, and the path of the socket on which it listens or to which it connects.
    pub(in crate::dpdk) fn driver_side(&self) -> (SocketRole, String) {
        (self.role, self.work.as_ref().map_or_else(String::new, |work| work.path.display().to_string()))
    }

    /// Starts the thread. The device `port` must have started.
    pub(in crate::dpdk) fn start(&mut self, port: u16) -> io::Result<()> {
        let Some(mut work) = self.work.take() else { return Ok(()) };
        if self.role == SocketRole::Server {
            let driver = socket::handle(&work.path)?;
            work.path = PathBuf::from(format!("/proc/self/fd/{}", driver.as_raw_fd()));
            work.driver = Some(driver);
        }
        // The driver listens or has connected by now. Without the name, a killed process leaves no file.
        self.private = None;
        self.thread = Some(signals::spawn("ferroce-memif", move || work.run(port))?);
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic.
            let _ = thread.join();
        }
        if let Some(path) = &self.public {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Work {
    fn run(self, port: u16) {
        let ended = match &self.connection {
            Connection::Server { listener, .. } => self.serve(listener, port),
            Connection::Client { peer } => self.join(peer, port),
        };
        if let Err(e) = ended {
            tracing::warn!("memif: the link ends: {e}");
        }
    }

    fn serve(&self, listener: &OwnedFd, port: u16) -> io::Result<()> {
        loop {
            if let [true, _] = socket::wait([&self.stopped, listener], -1)? {
                return Ok(());
            }
            let Err(error) = self.link_next(listener, port) else { continue };
            tracing::debug!("memif: no link: {error}");
            // A connection that was not accepted stays queued, and its listener readable. Without a pause, the thread would spin.
            if let [true] = socket::wait([&self.stopped], PAUSE_MS)? {
                return Ok(());
            }
        }
    }

    /// Accepts a peer and links it with the driver until one of them disconnects.
    fn link_next(&self, listener: &OwnedFd, port: u16) -> io::Result<()> {
        let peer = CloseOnFork::from(socket::accept(listener)?);
        let driver = socket::connect(&self.path)?;
        let driver_sent = self.forward(&peer, &driver);
        drop(peer);
        self.disconnect_driver(driver, driver_sent, port);
        Ok(())
    }

    fn join(&self, peer: &OwnedFd, port: u16) -> io::Result<()> {
        let Some(listener) = &self.driver else { return Ok(()) };
        let driver = socket::accept(listener)?;
        let driver_sent = self.forward(peer, &driver);
        self.disconnect_driver(driver, driver_sent, port);
        Ok(())
    }

    /// Forwards messages until one side disconnects. Returns whether the driver sent any. After the link is connected, the next message of
    /// a peer is its last.
    fn forward(&self, peer: &OwnedFd, driver: &OwnedFd) -> bool {
        let (mut connected, mut driver_sent) = (false, false);
        let mut setup = LinkSetup::default();
        // The drivers open the link's memory and eventfds during the set-up.
        let before = descriptor::inheritable();
        let server = matches!(self.connection, Connection::Server { .. });
        while let Ok([stopped, from_peer, from_driver]) = socket::wait([&self.stopped, peer, driver], -1) {
            if stopped || (from_peer && connected) {
                break;
            }
            let (from, to) = if from_driver { (driver, peer) } else { (peer, driver) };
            driver_sent |= from_driver;
            let Ok(Some(message)) = MemifMessage::receive(from) else { break };
            connected |= message.kind() == CONNECTED;
            setup.record(&message, server);
            if message.send(to).is_err() {
                break;
            }
            if connected {
                descriptor::close_new_on_exec(&before);
                std::mem::take(&mut setup).attach(&self.interrupt);
            }
        }
        driver_sent
    }

    /// Makes the driver clean up while the gate keeps threads from polling.
    fn disconnect_driver(&self, driver: OwnedFd, driver_sent: bool, port: u16) {
        self.interrupt.detach();
        self.gate.shut();
        // The server's driver must be able to send its first message before the connection is closed.
        if !driver_sent && matches!(self.connection, Connection::Server { .. }) {
            let _ = socket::wait([&driver], DRIVER_TIMEOUT_MS);
        }
        drop(driver);
        // The driver's handler runs on the interrupt thread between two rounds.
        for turn in 0..DRIVER_TIMEOUT_MS as u32 {
            eal::on_interrupt_thread(|| {});
            if turn >= MIN_ROUNDS && !device::link_is_up(port) {
                break;
            }
        }
        self.gate.open();
    }
}

//! Starts programs on the two sides of a figure.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A side. Each has its own CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Server,
    Client,
}

impl Side {
    /// Returns the CPU of the side.
    pub const fn cpu(self) -> usize {
        match self {
            Self::Server => 0,
            Self::Client => 1,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// The link between the two sides.
#[derive(Clone, Debug)]
pub enum Link {
    /// A memif between two processes, with its socket in this folder.
    Memif(PathBuf),
    /// A vhost-user port between two processes, with its socket in this folder.
    Virtio(PathBuf),
    /// The two ends of a veth pair.
    Veth(Veth),
}

/// The two ends of a veth pair in two network namespaces. If these are equal, two processes share one interface.
#[derive(Clone, Debug)]
pub struct Veth {
    /// The namespace of the server.
    pub server: String,
    /// The namespace of the client.
    pub client: String,
    /// The port at each end.
    pub port: &'static str,
    /// The address of the server's end.
    pub address: &'static str,
}

impl Veth {
    /// Returns the same namespaces with `eth0`, whose MTU is 4500, through DPDK's driver for packet sockets.
    pub fn af_packet(server: &str, client: &str) -> Self {
        Self { server: server.into(), client: client.into(), port: "af_packet:eth0", address: "10.77.0.1" }
    }

    /// Returns the same namespaces with another port.
    pub fn with(&self, port: &'static str, address: &'static str) -> Self {
        Self { port, address, ..self.clone() }
    }
}

impl Link {
    /// Returns the common name of this kind of link.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Memif(_) => "memif",
            Self::Virtio(_) => "vhost-user",
            Self::Veth(veth) => veth.port,
        }
    }

    /// Returns the flags of the port for `ferroce`.
    pub fn port(&self, side: Side) -> Vec<String> {
        let kind = match self {
            Self::Memif(_) => "memif",
            Self::Virtio(_) => "virtio",
            Self::Veth(veth) => return vec!["--port".into(), veth.port.into()],
        };
        let number = if side == Side::Server { 1 } else { 2 };
        let socket = self.socket();
        vec![
            "--port".into(),
            format!("{kind}:{},{}", socket.display(), side.name()),
            "--ip".into(),
            format!("10.77.0.{number}"),
        ]
    }

    /// Returns DPDK's name for the device. Its socket is in `folder`, which must be new for each run, because a process cannot bind a
    /// socket that a killed process left.
    pub fn vdev(&self, side: Side, folder: &Path) -> String {
        match self {
            Self::Memif(_) => {
                let socket = Self::testpmd_socket(folder);
                let (socket, role) = (socket.display(), side.name());
                format!("net_memif0,role={role},id=0,socket={socket},socket-abstract=no,bsize=8192")
            }
            Self::Virtio(_) => {
                let socket = Self::testpmd_socket(folder);
                let socket = socket.display();
                match side {
                    Side::Server => format!("net_vhost0,iface={socket},queues=1"),
                    Side::Client => {
                        format!("net_virtio_user0,path={socket},queues=1,packed_vq=1,mrg_rxbuf=0,in_order=1")
                    }
                }
            }
            Self::Veth(_) => {
                "net_af_packet0,iface=eth0,blocksz=65536,framesz=8192,framecnt=512,qpairs=1,qdisc_bypass=1"
                    .into()
            }
        }
    }

    /// Waits until a client can connect to a started server. A client that starts too early has no port, and does not report it. On a link
    /// without a socket, waits 0.9 s.
    pub fn wait_for_server(&self, socket: &Path) {
        let start = Instant::now();
        let mut rest = 900;
        if !matches!(self, Self::Veth(_)) {
            rest = 300;
            while !socket.exists() && start.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        std::thread::sleep(Duration::from_millis(rest));
    }

    /// Returns the socket of `ferroce`'s server.
    pub fn socket(&self) -> PathBuf {
        match self {
            Self::Memif(folder) => folder.join("memif.sock"),
            Self::Virtio(folder) => folder.join("virtio.sock"),
            Self::Veth(_) => PathBuf::new(),
        }
    }

    /// Returns the socket of testpmd's server, in the folder of its run.
    pub fn testpmd_socket(folder: &Path) -> PathBuf {
        folder.join("testpmd.sock")
    }

    /// Returns the address of the server's TCP port.
    pub const fn server_address(&self) -> &'static str {
        match self {
            Self::Memif(_) | Self::Virtio(_) => "127.0.0.1",
            Self::Veth(veth) => veth.address,
        }
    }

    /// Returns a command that runs on `side` for at most a minute. If `pin`, it is pinned to the side's CPU.
    pub fn command(&self, side: Side, program: &Path, pin: bool) -> Command {
        let mut words: Vec<String> = Vec::new();
        if let Self::Veth(Veth { server, client, .. }) = self {
            let namespace = if side == Side::Server { server } else { client };
            words.extend(["ip", "netns", "exec", namespace].map(String::from));
        }
        words.extend(["timeout", "--foreground", "60"].map(String::from));
        if pin {
            words.extend(["taskset", "-c", &side.cpu().to_string()].map(String::from));
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program).stdin(Stdio::null());
        command
    }
}

/// A process that is ended on drop.
pub struct Running(Child);

impl Running {
    pub fn start(mut command: Command) -> Result<Self, String> {
        command.spawn().map(Self).map_err(|error| format!("{command:?}: {error}"))
    }

    /// Waits for the end of the process, and returns true if it succeeded. Returns an error after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<bool, String> {
        let start = Instant::now();
        while start.elapsed() < limit {
            match self.0.try_wait() {
                Ok(Some(status)) => return Ok(status.success()),
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(format!("still running after {limit:?}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
            std::thread::sleep(Duration::from_millis(200));
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

//! The name of a port, as in options, environment variables and files.

use crate::{capabilities, linux};
use std::fmt;
use std::str::FromStr;

/// The forms of a port's name, for help texts.
pub const FORMS: &str = "\
IFACE                                   a Linux interface (veth0, eth0): packet:IFACE with CAP_NET_RAW, udp:IFACE without
packet:IFACE                            a Linux interface, by a packet socket that sends and receives large datagrams
udp:IFACE                               a Linux interface, by UDP sockets: without any privilege
af_packet:IFACE                         a Linux interface, by DPDK's driver for packet sockets
xdp:IFACE                               a Linux interface, by AF_XDP: faster, for one process
tap:NAME                                a new tap interface NAME
memif:/DIR/SOCKET[,server|,client][,id=N][,zero-copy]
                                        shared memory with another process
virtio:/DIR/SOCKET[,server|,client]     shared memory by vhost-user: the server is the device, the client the driver
ring:NAME[,a|,b]                        inside this process: a loopback, or one end of a pair
null                                    drops what is sent, receives nothing
pcap:RX.pcap,TX.pcap                    receives from a file, sends to a file; either may be empty
pcap:IFACE                              a Linux interface, by libpcap
pci:0000:01:00.0                        a NIC with a DPDK driver
eal:DEVARGS                             a device in the form of DPDK's --vdev or -a";

const FORMS_LINE: &str = "IFACE, packet:IFACE, udp:IFACE, af_packet:IFACE, xdp:IFACE, tap:NAME, memif:/DIR/SOCKET, virtio:/DIR/SOCKET, ring:NAME, null, pcap:RX.pcap,TX.pcap, pcap:IFACE, \
                          pci:0000:01:00.0, eal:DEVARGS";

/// Most bytes of a Linux interface name, without its NUL (`IFNAMSIZ` is 16).
const MAX_INTERFACE_NAME: usize = 15;
/// Most bytes of a Unix socket's path, without its NUL (`sun_path` has 108).
const MAX_SOCKET_PATH: usize = 107;
/// Most bytes of a ring's name. A DPDK ring name has 32 bytes with the prefixes of DPDK and Ferroce.
const MAX_RING_NAME: usize = 16;

/// The loopback interface. As a port's name, it means a port on UDP sockets.
const LOOPBACK: &str = "lo";

/// A parsed port name. Parsing does not check that the port can be opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PortSpec {
    /// A Linux interface, shared with the kernel. [`resolve`](Self::resolve) chooses how.
    Interface(String),
    /// A Linux interface, shared with the kernel, through a packet socket that sends and receives large datagrams.
    Packet(String),
    /// A Linux interface through UDP sockets, which need no privilege.
    Udp(String),
    /// A Linux interface, shared with the kernel, through DPDK's driver for packet sockets. It sends and receives frame by frame.
    AfPacket(String),
    /// A Linux interface through AF_XDP: the kernel passes its RoCEv2 packets to this process only.
    Xdp(String),
    /// A tap interface that the port creates. The kernel is the peer.
    Tap(String),
    /// memif: shared memory with another process.
    Memif {
        /// Path of the Unix socket over which the processes connect.
        socket: String,
        /// Whether the port listens on the socket or connects to it.
        role: SocketRole,
        /// Id of the interface, because several interfaces may use one socket.
        id: u32,
        /// Whether the client shares its packet buffers, so that it does not copy. The peer can then write to all of the client's DPDK
        /// memory.
        zero_copy: bool,
    },
    /// vhost-user: shared memory with another process, as for virtual machines.
    Virtio {
        /// Path of the Unix socket over which the processes connect.
        socket: String,
        /// The server is the device (vhost), the client the driver (virtio-user). The client shares all of its DPDK memory, and the peer
        /// can write to it.
        role: SocketRole,
    },
    /// A ring within this process: a loopback, or one end of a pair.
    Ring {
        /// The name, which is the same for both ends.
        name: String,
        /// The end of the pair, or `None` for a loopback.
        end: Option<RingEnd>,
    },
    /// Drops all frames sent, and receives none.
    Null,
    /// Capture files. Without `rx` the port receives nothing. Without `tx` it drops all frames sent.
    Pcap {
        /// The file whose frames are received.
        rx: Option<String>,
        /// The file to which sent frames are written.
        tx: Option<String>,
    },
    /// A Linux interface, through libpcap.
    PcapInterface(String),
    /// The PCI address of a NIC with a DPDK driver.
    Pci(String),
    /// DPDK device arguments.
    Eal(String),
}

impl PortSpec {
    /// Returns true if the port's peer or device can access DPDK's memory.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        matches!(
            self,
            Self::Memif { zero_copy: true, .. } | Self::Virtio { .. } | Self::Pci(_) | Self::Eal(_)
        )
    }

    /// Returns how this process can use the interface of [`Interface`](Self::Interface): by a packet socket if Linux lets it open one and
    /// the interface has an Ethernet address, otherwise by UDP sockets. Returns every other port unchanged.
    #[must_use]
    pub fn resolve(self) -> Self {
        let Self::Interface(name) = self else { return self };
        let has_no_address = linux::interface(&name).is_ok_and(|interface| interface.mac.0 == [0; 6]);
        if has_no_address || !capabilities::opens_packet_sockets() {
            Self::Udp(name)
        } else {
            Self::Packet(name)
        }
    }

    /// Returns the Linux interface that the port shares with the kernel, or `None` for other ports.
    #[must_use]
    pub fn shared_interface(&self) -> Option<&str> {
        match self {
            Self::Interface(name)
            | Self::Packet(name)
            | Self::Udp(name)
            | Self::AfPacket(name)
            | Self::Xdp(name) => Some(name),
            _ => None,
        }
    }

    /// Returns true if a forked child can open such a port, because the port needs no thread of DPDK. Only the parent has these threads.
    #[cfg(feature = "dpdk")]
    pub(crate) fn opens_in_children(&self) -> bool {
        matches!(
            self,
            Self::Interface(_)
                | Self::Packet(_)
                | Self::Udp(_)
                | Self::AfPacket(_)
                | Self::Ring { .. }
                | Self::Null
                | Self::Pcap { .. }
        )
    }
}

/// The role of a port on a memif or vhost-user socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SocketRole {
    /// The client if a process of this user or of root already listens; the server if no process does.
    #[default]
    Auto,
    /// Listens on the socket.
    Server,
    /// Connects to a listening server.
    Client,
}

/// An end of a pair of rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RingEnd {
    /// Sends to `B`.
    A,
    /// Sends to `A`.
    B,
}

/// The reason why a string is not a port's name, and a valid form: one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("port `{}`: {why}", given.escape_debug())]
pub struct PortSpecError {
    given: String,
    why: String,
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(name) => f.write_str(name),
            Self::Packet(name) => write!(f, "packet:{name}"),
            Self::Udp(name) => write!(f, "udp:{name}"),
            Self::AfPacket(name) => write!(f, "af_packet:{name}"),
            Self::Xdp(name) => write!(f, "xdp:{name}"),
            Self::Tap(name) => write!(f, "tap:{name}"),
            Self::Memif { socket, role, id, zero_copy } => {
                write!(f, "memif:{socket}{}", role.suffix())?;
                if *id != 0 {
                    write!(f, ",id={id}")?;
                }
                f.write_str(if *zero_copy { ",zero-copy" } else { "" })
            }
            Self::Virtio { socket, role } => write!(f, "virtio:{socket}{}", role.suffix()),
            Self::Ring { name, end: None } => write!(f, "ring:{name}"),
            Self::Ring { name, end: Some(RingEnd::A) } => write!(f, "ring:{name},a"),
            Self::Ring { name, end: Some(RingEnd::B) } => write!(f, "ring:{name},b"),
            Self::Null => f.write_str("null"),
            Self::Pcap { rx, tx } => {
                write!(f, "pcap:{},{}", rx.as_deref().unwrap_or(""), tx.as_deref().unwrap_or(""))
            }
            Self::PcapInterface(name) => write!(f, "pcap:{name}"),
            Self::Pci(address) => write!(f, "pci:{address}"),
            Self::Eal(arguments) => write!(f, "eal:{arguments}"),
        }
    }
}

impl SocketRole {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Auto => "",
            Self::Server => ",server",
            Self::Client => ",client",
        }
    }
}

impl FromStr for PortSpec {
    type Err = PortSpecError;

    fn from_str(given: &str) -> Result<Self, PortSpecError> {
        parse(given).map_err(|why| PortSpecError { given: given.to_owned(), why })
    }
}

fn parse(given: &str) -> Result<PortSpec, String> {
    if let Some(c) = given.chars().find(|c| c.is_control() || c.is_whitespace()) {
        return Err(format!("{c:?} is not allowed in it; remove it"));
    }
    let Some((kind, rest)) = given.split_once(':') else {
        return match given {
            "null" => Ok(PortSpec::Null),
            "packet" | "udp" | "af_packet" | "xdp" | "tap" | "memif" | "virtio" | "ring" | "pcap" | "pci"
            | "eal" => Err(format!("`{given}:` needs something after it; a port is one of {FORMS_LINE}")),
            // The loopback interface has no Ethernet address, which frames of a packet socket need.
            LOOPBACK => Ok(PortSpec::Udp(LOOPBACK.into())),
            _ => interface_name(given).map(PortSpec::Interface),
        };
    };
    match kind {
        "packet" => interface_name(rest).map(PortSpec::Packet),
        "udp" => interface_name(rest).map(PortSpec::Udp),
        "af_packet" => interface_name(rest).map(PortSpec::AfPacket),
        "xdp" => interface_name(rest).map(PortSpec::Xdp),
        "tap" => checked_name(rest).map(PortSpec::Tap).map_err(|why| format!("{why}; write tap:rdma0")),
        "memif" => memif(rest),
        "virtio" => virtio(rest),
        "ring" => ring(rest),
        "null" => Err("`null` takes nothing after it; write null".into()),
        "pcap" => pcap(rest),
        "pci" => pci(rest),
        "eal" if rest.is_empty() => Err("device arguments are missing; write eal:net_null0,size=64".into()),
        "eal" => Ok(xdp_in_full(rest).unwrap_or_else(|| PortSpec::Eal(rest.to_owned()))),
        _ => Err(format!("there is no kind `{kind}:`; a port is one of {FORMS_LINE}")),
    }
}

fn interface_name(name: &str) -> Result<String, String> {
    checked_name(name).map_err(|why| format!("{why}; name one that `ip link` shows"))
}

/// Returns the name if it is valid for an interface. The error contains no remedy, because that depends on whether the port uses an
/// existing interface or creates one.
fn checked_name(name: &str) -> Result<String, String> {
    if name.is_empty() || name == "." || name == ".." {
        return Err("the interface's name is missing".into());
    }
    if name.len() > MAX_INTERFACE_NAME {
        let length = name.len();
        return Err(format!(
            "an interface's name has at most {MAX_INTERFACE_NAME} bytes, this one has {length}"
        ));
    }
    match name.chars().find(|c| matches!(c, '/' | ',' | '=' | ':')) {
        Some(c) => Err(format!("an interface's name cannot contain `{c}`")),
        None => Ok(name.to_owned()),
    }
}

/// Returns the port `xdp:eth0` for `net_af_xdp0,iface=eth0`. DPDK handles the form with further arguments.
fn xdp_in_full(rest: &str) -> Option<PortSpec> {
    let (number, interface) = rest.strip_prefix("net_af_xdp")?.split_once(",iface=")?;
    let is_number = number.bytes().all(|digit| digit.is_ascii_digit());
    interface_name(interface).ok().filter(|_| is_number).map(PortSpec::Xdp)
}

fn socket_path(socket: &str, kind: &str) -> Result<String, String> {
    if !socket.starts_with('/') || socket.ends_with('/') || socket.rfind('/') == Some(0) {
        return Err(format!(
            "the socket `{socket}` is no full path in a directory; write {kind}:/run/x.sock"
        ));
    }
    if socket.len() > MAX_SOCKET_PATH {
        return Err(format!(
            "a socket's path has at most {MAX_SOCKET_PATH} bytes, this one has {}; choose a shorter one",
            socket.len()
        ));
    }
    Ok(socket.to_owned())
}

fn virtio(rest: &str) -> Result<PortSpec, String> {
    let (socket, role) = match rest.split_once(',') {
        None => (rest, SocketRole::Auto),
        Some((socket, "server")) => (socket, SocketRole::Server),
        Some((socket, "client")) => (socket, SocketRole::Client),
        Some((_, other)) => return Err(format!("virtio has no option `{other}`; use server or client")),
    };
    Ok(PortSpec::Virtio { socket: socket_path(socket, "virtio")?, role })
}

fn memif(rest: &str) -> Result<PortSpec, String> {
    let mut parts = rest.split(',');
    let socket = socket_path(parts.next().unwrap_or(""), "memif")?;
    let (mut role, mut id, mut zero_copy) = (SocketRole::Auto, 0, false);
    for part in parts {
        match part {
            "server" => role = SocketRole::Server,
            "client" => role = SocketRole::Client,
            "zero-copy" => zero_copy = true,
            _ => {
                let number = part.strip_prefix("id=").ok_or_else(|| {
                    format!("memif has no option `{part}`; use server, client, id=N or zero-copy")
                })?;
                id = number.parse().map_err(|_| format!("`{number}` is not an id; use 0 to {}", u32::MAX))?;
            }
        }
    }
    Ok(PortSpec::Memif { socket, role, id, zero_copy })
}

fn ring(rest: &str) -> Result<PortSpec, String> {
    let (name, end) = match rest.split_once(',') {
        None => (rest, None),
        Some((name, "a")) => (name, Some(RingEnd::A)),
        Some((name, "b")) => (name, Some(RingEnd::B)),
        Some((_, end)) => return Err(format!("a pair of rings has no end `{end}`; use a or b")),
    };
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > MAX_RING_NAME || !name.chars().all(legal) {
        return Err(format!(
            "a ring's name has 1 to {MAX_RING_NAME} letters, digits, `-`, `_` or `.`; write ring:x"
        ));
    }
    Ok(PortSpec::Ring { name: name.to_owned(), end })
}

fn pcap(rest: &str) -> Result<PortSpec, String> {
    let file = |path: &str| (!path.is_empty()).then(|| path.to_owned());
    let (rx, tx) = match rest.split_once(',') {
        Some((_, tx)) if tx.contains(',') => {
            return Err("a file's path cannot contain a `,`; rename the file".into());
        }
        Some((rx, tx)) => (file(rx), file(tx)),
        None if rest.contains('/') || rest.ends_with(".pcap") => (file(rest), None),
        None => return interface_name(rest).map(PortSpec::PcapInterface),
    };
    if rx.is_none() && tx.is_none() {
        return Err("no file; name one to receive from, one to send to, or both".into());
    }
    Ok(PortSpec::Pcap { rx, tx })
}

/// Parses `0000:01:00.0`, or `01:00.0` in domain 0.
fn pci(rest: &str) -> Result<PortSpec, String> {
    let parsed = || {
        let (head, function) = rest.rsplit_once('.')?;
        let fields: Vec<&str> = head.split(':').collect();
        let (domain, bus, device) = match fields[..] {
            [domain, bus, device] => (domain, bus, device),
            [bus, device] => ("0", bus, device),
            _ => return None,
        };
        let hex = |field: &str, most: u32| {
            let digits = !field.is_empty() && field.bytes().all(|b| b.is_ascii_hexdigit());
            u32::from_str_radix(field, 16).ok().filter(|value| digits && *value <= most)
        };
        let (domain, bus) = (hex(domain, 0xffff_ffff)?, hex(bus, 0xff)?);
        let (device, function) = (hex(device, 0x1f)?, hex(function, 7)?);
        Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
    };
    parsed().map(PortSpec::Pci).ok_or_else(|| format!("`{rest}` is no PCI address; write pci:0000:01:00.0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> PortSpec {
        text.parse().unwrap()
    }

    fn refusal(text: &str) -> String {
        let error = text.parse::<PortSpec>().unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        assert!(error.contains("; "), "the remedy is missing: {error}");
        error
    }

    #[test]
    fn the_loopback_interface_is_a_port_on_udp_sockets() {
        assert_eq!(read("lo"), PortSpec::Udp("lo".into()));
        assert_eq!(read("lo0"), PortSpec::Interface("lo0".into()));
    }

    #[test]
    fn every_form_reads_and_prints_as_it_was() {
        for text in [
            "veth0",
            "packet:eth0",
            "udp:eth0",
            "af_packet:eth0",
            "xdp:eth0",
            "tap:rdma0",
            "memif:/run/x.sock",
            "memif:/run/x.sock,server",
            "memif:/run/x.sock,client,id=7,zero-copy",
            "virtio:/run/x.sock",
            "virtio:/run/x.sock,server",
            "virtio:/run/x.sock,client",
            "ring:lo",
            "ring:pair,a",
            "ring:pair,b",
            "null",
            "pcap:rx.pcap,tx.pcap",
            "pcap:,tx.pcap",
            "pcap:rx.pcap,",
            "pcap:eth0",
            "pci:0000:01:00.0",
            "eal:net_null0,size=64",
        ] {
            assert_eq!(read(text).to_string(), text);
        }
        assert_eq!(read("eal:net_af_xdp0,iface=eth0"), PortSpec::Xdp("eth0".into()));
        let queue = "net_af_xdp0,iface=eth0,start_queue=3";
        assert_eq!(read(&format!("eal:{queue}")), PortSpec::Eal(queue.into()));
        assert_eq!(read("pci:1:0.0"), PortSpec::Pci("0000:01:00.0".into()));
        assert_eq!(read("pcap:rx.pcap"), PortSpec::Pcap { rx: Some("rx.pcap".into()), tx: None });
    }

    #[test]
    fn a_malformed_port_name_is_refused_with_a_remedy() {
        assert!(refusal("").contains("missing"));
        assert!(refusal("a-name-of-16-byte").contains("at most 15"));
        assert!(refusal("foo:bar").contains("no kind `foo:`"));
        assert!(refusal("tap").contains("after it"));
        assert!(refusal("xdp:").contains("missing"));
        assert!(refusal("tap:").contains("missing"));
        assert!(refusal("memif:x.sock").contains("full path"));
        assert!(refusal("memif:/x.sock").contains("full path"));
        assert!(refusal("memif:/run/x,fast").contains("no option `fast`"));
        assert!(refusal("memif:/run/x,id=-1").contains("`-1`"));
        assert!(refusal("virtio:x.sock").contains("full path"));
        assert!(refusal("virtio:/run/x.sock,zero-copy").contains("no option `zero-copy`"));
        assert!(refusal("ring:x,c").contains("no end `c`"));
        assert!(refusal("ring:").contains("1 to 16"));
        assert!(refusal("null:64").contains("nothing after"));
        assert!(refusal("pcap:,").contains("file"));
        assert!(refusal("pci:0000:01:20.0").contains("PCI address"));
        assert!(refusal("pci:+1:0.0").contains("PCI address"));
        assert!(refusal("eth0\n").contains("not allowed"));
    }

    proptest! {
        #[test]
        fn a_parsed_port_name_prints_to_the_same(text in "(memif:/|virtio:/|ring:|pcap:|pci:|tap:|xdp:|eal:)?[a-z0-9/,.:=-]{0,24}") {
            if let Ok(spec) = text.parse::<PortSpec>() {
                prop_assert_eq!(spec.to_string().parse::<PortSpec>(), Ok(spec));
            }
        }
    }
}

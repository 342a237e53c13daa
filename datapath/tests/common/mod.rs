//! Helpers of the port tests.
#![allow(dead_code, reason = "each test file uses its part")]

use ferroce_datapath::dpdk::{Eal, EalConfig, Hugepages, Mbuf, Port, PortConfig};
use ferroce_datapath::engine::{CoreConfig, Idle, Progress};
use ferroce_datapath::io::{Burst, PacketBuf, PacketIo};
use ferroce_datapath::port_spec::PortSpec;
use ferroce_datapath::unix_address;
use roce::wire::{self, Bth, Header, Numbers, Path};
use roce::{EndpointConfig, Psn, Qpn};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;

/// Turns of a poll loop after which a frame is considered lost.
const TURNS: u64 = 20_000_000;

/// Starts DPDK without hugepages, which works on every machine.
pub fn eal() -> Eal {
    let config = EalConfig { memory_mb: 256, hugepages: Hugepages::Never, ..EalConfig::default() };
    Eal::start(&config).unwrap()
}

pub fn small() -> PortConfig {
    PortConfig { buffers: 1024, ring_slots: 256, ..PortConfig::default() }
}

pub fn open(spec: &str) -> Port {
    open_with(spec, &small())
}

pub fn open_with(spec: &str, config: &PortConfig) -> Port {
    Port::open(eal(), &spec.parse().unwrap(), config).unwrap_or_else(|e| panic!("{e}"))
}

/// Reduces the capabilities of this thread, and of those that it starts, to a container's default.
pub fn as_in_a_container() {
    const VERSION_3: u32 = 0x2008_0522;
    const DEFAULT: u64 = 0xa804_25fb;
    let header = [VERSION_3, 0];
    let (low, high) = (DEFAULT as u32, (DEFAULT >> 32) as u32);
    // Effective, permitted and inheritable: the low words, then the high words.
    let sets = [low, low, 0, high, high, 0];
    // SAFETY: the header and both sets have the layout of capset(2) and outlive the call.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Returns the configuration of a core with a small endpoint on `port`, with IP address `address`.
pub fn core_config(port: &Port, address: &str, progress: Progress) -> CoreConfig {
    let info = port.info().clone();
    CoreConfig {
        name: info.name,
        mac: info.mac,
        vlan: None,
        interface: info.linux_interface.map(|interface| interface.index),
        peer_mac: info.peer_mac,
        addresses: vec![address.parse().unwrap()],
        addresses_chosen: false,
        gateway: None,
        progress,
        delays_acks: true,
        cores: 1,
        idle: Idle::default(),
        endpoint: EndpointConfig {
            max_qps: 4,
            max_cqs: 4,
            max_regions: 4,
            seed: [7; 32],
            process: 0,
            numbers: Numbers::DEFAULT,
        },
    }
}

/// Returns a broadcast frame of `len` bytes with the EtherType for local experiments. Its contents depend on `seed`.
pub fn frame(port: &mut Port, len: usize, seed: u8) -> Mbuf {
    let mac = port.info().mac.0;
    let mut frame = port.alloc().expect("a buffer is free");
    frame.set_len(len);
    for (at, byte) in frame.iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(7).wrapping_add(seed);
    }
    frame[..6].copy_from_slice(&[0xff; 6]);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// Sends frames of these lengths, and checks that the other port receives the same bytes in order. Ignores other frames, such as the
/// kernel's router solicitations.
pub fn carry(from: &mut Port, to: &mut Port, lengths: &[usize]) {
    let mut sent = Vec::new();
    let mut out = Burst::new();
    for (seed, len) in lengths.iter().enumerate() {
        let frame = frame(from, *len, seed as u8);
        sent.push(frame.to_vec());
        out.push(frame);
        from.transmit(&mut out);
    }
    let mut came: Vec<Vec<u8>> = Vec::new();
    let mut burst = Burst::new();
    for _ in 0..TURNS {
        from.transmit(&mut out);
        to.receive(&mut burst);
        came.extend(burst.drain(..).filter(|f| f.get(12..14) == Some(&[0x88, 0xb5])).map(|f| f.to_vec()));
        if came.len() >= sent.len() {
            break;
        }
        std::hint::spin_loop();
    }
    let lengths_came: Vec<usize> = came.iter().map(Vec::len).collect();
    assert_eq!(lengths_came, lengths, "{} to {}", from.info().name, to.info().name);
    assert_eq!(came, sent);
}

/// Moves this thread, and those that it starts, to a new network namespace, which ends with them.
pub fn own_network() {
    // SAFETY: unshare takes an integer.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    let why = std::io::Error::last_os_error();
    assert_eq!(result, 0, "these tests make a network namespace, so they run as root: {why}");
}

/// Runs `ip` with these arguments in this thread's network namespace.
pub fn ip(words: &str) {
    let done = Command::new("ip").args(words.split_whitespace()).output().expect("`ip` is there (iproute2)");
    assert!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Waits until both ends of a memif are connected.
pub fn wait_for_link(one: &Port, other: &Port) {
    for _ in 0..TURNS {
        if one.link_is_up() && other.link_is_up() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("{} and {} don't meet", one.info().name, other.info().name);
}

/// Returns the error of opening a port.
pub fn refusal(spec: &str, config: &PortConfig) -> String {
    let spec: PortSpec = spec.parse().unwrap();
    match Port::open(eal(), &spec, config) {
        Ok(_) => panic!("{spec} opens"),
        Err(e) => e.to_string(),
    }
}

/// Returns a datagram with `payload` bytes, each of which is the lower byte of the identification.
pub fn packet(port: &mut Port, path: &Path, identification: u16, qpn: u32, payload: usize) -> Mbuf {
    let bth = Bth::new(Qpn::new(qpn), Psn::new(identification.into()));
    let header = Header::Datagram { bth, queue_key: 1, source: Qpn::new(1), immediate: None };
    let mut buffer = port.alloc().expect("a buffer is free");
    buffer.set_len(buffer.capacity());
    let mut draft = wire::emit(path, identification, &header, payload, &mut buffer).unwrap();
    draft.payload().fill(identification as u8);
    let length = draft.seal();
    buffer.set_len(length);
    buffer
}

/// A client of a `SOCK_SEQPACKET` socket, such as any process could be.
pub struct SocketPeer(OwnedFd);

impl SocketPeer {
    pub fn new() -> Self {
        // SAFETY: socket takes integers, and its descriptor is new.
        Self(unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)) })
    }

    pub fn connect(&self, path: &std::path::Path) {
        let (address, length) = unix_address(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the address is readable for its length.
        assert_eq!(unsafe { libc::connect(self.0.as_raw_fd(), (&raw const address).cast(), length) }, 0);
    }

    pub fn send(&self, bytes: &[u8]) {
        // SAFETY: the bytes are readable for their length. The other side may have closed the connection.
        unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    }

    pub fn wait_until_closed(&self) {
        let mut polled = libc::pollfd { fd: self.0.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one entry, borrowed exclusively.
        assert_eq!(unsafe { libc::poll(&mut polled, 1, -1) }, 1);
        assert_ne!(polled.revents & libc::POLLHUP, 0);
    }
}

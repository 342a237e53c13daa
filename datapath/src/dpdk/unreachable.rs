//! Keeps the kernel from answering RoCEv2 packets with port-unreachable, where it has the port's address.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// RoCEv2's UDP port.
const ROCEV2: u16 = 4791;

/// Sockets bound to UDP 4791 whose filter drops everything: the kernel finds a listener, and queues nothing.
pub(super) struct Silence {
    _sockets: Vec<OwnedFd>,
}

impl Silence {
    /// In the calling thread's network namespace. A family that the machine lacks, or a port that a process without
    /// address reuse holds, is no error: then there is nothing to silence, or somebody listens already.
    pub(super) fn hold() -> Self {
        let hold = |family, name: &str| match listen(family) {
            Ok(socket) => Some(socket),
            Err(e) => {
                tracing::debug!("UDP port {ROCEV2} over {name} isn't ours to hold: {e}");
                None
            }
        };
        let sockets = [hold(libc::AF_INET, "IPv4"), hold(libc::AF_INET6, "IPv6")];
        Self { _sockets: sockets.into_iter().flatten().collect() }
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let (fd, size) = (socket.as_raw_fd(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `value` is readable for the size that is passed.
    check(unsafe { libc::setsockopt(fd, level, option, (&raw const *value).cast(), size) })
}

fn listen(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket takes plain integers.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: the descriptor is fresh and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // The filter first: between bind and filter nothing may be queued.
    let mut drop_all = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut drop_all };
    set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    // Several processes of one namespace may hold the port side by side.
    set(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1_i32)?;
    if family == libc::AF_INET6 {
        set(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1_i32)?;
    }
    // SAFETY: all-zero bytes are a legal sockaddr_in6, and a legal start for sockaddr_in, which is smaller.
    let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    // Family and port lie at the same places in both.
    address.sin6_family = family as libc::sa_family_t;
    address.sin6_port = ROCEV2.to_be();
    let size = if family == libc::AF_INET6 {
        size_of::<libc::sockaddr_in6>()
    } else {
        size_of::<libc::sockaddr_in>()
    };
    // SAFETY: the address is readable for `size` bytes, the size of its family's structure.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size as libc::socklen_t) })?;
    Ok(socket)
}

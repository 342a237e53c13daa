//! Options of sockets. Most have no meaning for RDMA, and are stored without effect.

use super::port;
use super::stream::Sizes;
use super::wire::{from_scale, to_scale};
use super::{Phase, Socket, socket};
use crate::abi::{RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR};
use crate::rdmacm::errno::{Errno, INVALID, UNSUPPORTED, count, last, out, status};
use crate::rdmacm::options::rdma_set_option;
use libc::socklen_t;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_long, c_void};

/// Options of RDMA itself (`rdma/rsocket.h`).
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;

const DEFAULT_BUFFER: usize = 1 << 17;
const DEFAULT_QUEUE: u16 = 384;
const BUFFERS: std::ops::RangeInclusive<usize> = 4096..=1 << 30;
const QUEUES: std::ops::RangeInclusive<u16> = 16..=16384;
/// Maximum number of mappings that a greeting can announce.
const MAX_MAPPINGS: u16 = 127 << 8;
/// Size limit of a stored value, bytes. No known option is longer.
const LONGEST: usize = 64;

#[derive(Clone)]
pub(super) struct Options {
    /// The flags of `F_SETFL`.
    flags: c_int,
    sizes: Sizes,
    remembered: BTreeMap<(c_int, c_int), Vec<u8>>,
}

impl Default for Options {
    fn default() -> Self {
        let sizes = Sizes {
            send_buffer: DEFAULT_BUFFER,
            receive_buffer: DEFAULT_BUFFER,
            send_queue: DEFAULT_QUEUE,
            receive_queue: DEFAULT_QUEUE,
            mappings: 0,
        };
        Self { flags: libc::O_RDWR, sizes, remembered: BTreeMap::new() }
    }
}

/// The options that are stored. Only those about binding have an effect.
const REMEMBERED: [(c_int, c_int); 12] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (SOL_RDMA, RDMA_INLINE),
    (SOL_RDMA, RDMA_ROUTE),
];

impl Options {
    pub(super) fn nonblocking(&self) -> bool {
        self.flags & libc::O_NONBLOCK != 0
    }

    pub(super) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Returns the numbers of datagrams to send and to receive for which a datagram socket has room.
    pub(super) fn places(&self) -> (u32, u32) {
        let Sizes { send_buffer, receive_buffer, send_queue, receive_queue, .. } = self.sizes;
        let places = |bytes: usize, queue: u16| ((bytes / port::LONGEST).max(1) as u32).min(queue.into());
        (places(send_buffer, send_queue), places(receive_buffer, receive_queue))
    }

    /// Returns the initial options of sockets that a listener accepts.
    pub(super) fn inherited(&self) -> Self {
        Self { flags: libc::O_RDWR, ..self.clone() }
    }

    fn set(&mut self, option: (c_int, c_int), value: &[u8], idle: bool) -> Result<(), Errno> {
        let first = || value.first_chunk().map(|word| i32::from_ne_bytes(*word)).ok_or(INVALID);
        let sizes = &mut self.sizes;
        let buffer =
            |value: c_int| usize::try_from(value).unwrap_or(0).clamp(*BUFFERS.start(), *BUFFERS.end());
        let queue = |value: c_int| {
            u16::try_from(value.max(0)).unwrap_or(u16::MAX).clamp(*QUEUES.start(), *QUEUES.end())
        };
        match option {
            // The sizes of a stream are fixed when it is created.
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if idle => sizes.send_buffer = buffer(first()?),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) if idle => sizes.receive_buffer = buffer(first()?) & !1,
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF) => {}
            (SOL_RDMA, RDMA_SQSIZE) if idle => sizes.send_queue = queue(first()?),
            (SOL_RDMA, RDMA_RQSIZE) if idle => sizes.receive_queue = queue(first()?),
            (SOL_RDMA, RDMA_IOMAPSIZE) if idle => {
                let wanted = u16::try_from(first()?.max(0)).unwrap_or(u16::MAX);
                sizes.mappings = from_scale(to_scale(wanted.min(MAX_MAPPINGS)));
            }
            (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_IOMAPSIZE) => return Err(INVALID),
            option if REMEMBERED.contains(&option) => {
                self.remembered.insert(option, value[..value.len().min(LONGEST)].to_vec());
            }
            _ => return Err(UNSUPPORTED),
        }
        Ok(())
    }

    fn get(&self, option: (c_int, c_int)) -> Result<Vec<u8>, Errno> {
        let sizes = &self.sizes;
        let value = match option {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => sizes.send_buffer as c_int,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => sizes.receive_buffer as c_int,
            (SOL_RDMA, RDMA_SQSIZE) => sizes.send_queue.into(),
            (SOL_RDMA, RDMA_RQSIZE) => sizes.receive_queue.into(),
            (SOL_RDMA, RDMA_IOMAPSIZE) => sizes.mappings.into(),
            option if REMEMBERED.contains(&option) => {
                return Ok(self
                    .remembered
                    .get(&option)
                    .cloned()
                    .unwrap_or_else(|| vec![0; size_of::<c_int>()]));
            }
            _ => return Err(UNSUPPORTED),
        };
        Ok(value.to_ne_bytes().to_vec())
    }
}

/// Sets an option of the socket's identifier that affects binding.
fn bind_as(socket: &Socket, option: u32, value: &[u8]) -> Result<(), Errno> {
    let (id, level) = (socket.id().abi(), RDMA_OPTION_ID as c_int);
    // SAFETY: the socket owns the identifier, and the call only reads the value.
    let set =
        unsafe { rdma_set_option(id, level, option as c_int, value.as_ptr().cast_mut().cast(), value.len()) };
    if set == 0 { Ok(()) } else { Err(last()) }
}

/// `rsetsockopt(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsetsockopt(
    number: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    status(|| {
        let socket = socket(number)?;
        if value.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the contract of the manual page.
        let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), length as usize) };
        let mut inner = socket.lock();
        let idle = match &inner.phase {
            Phase::Idle | Phase::Listening => true,
            Phase::Datagrams(datagrams) => datagrams.has_no_port(),
            Phase::Stream(_) | Phase::Failed => false,
        };
        inner.options.set((level, option), value, idle)?;
        let places = inner.options.places();
        if let Some(datagrams) = inner.datagrams() {
            datagrams.places = places;
            return match (level, option) {
                // The address is that of the kernel's socket.
                (libc::SOL_SOCKET, libc::SO_REUSEADDR) | (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                    datagrams.kernel.set((level, option), value)
                }
                _ => Ok(()),
            };
        }
        match (level, option) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => bind_as(&socket, RDMA_OPTION_ID_REUSEADDR, value),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => bind_as(&socket, RDMA_OPTION_ID_AFONLY, value),
            _ => Ok(()),
        }
    })
}

/// `rgetsockopt(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockopt(
    number: c_int,
    level: c_int,
    option: c_int,
    into: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    status(|| {
        let socket = socket(number)?;
        // SAFETY: the contract of the manual page.
        let room = unsafe { out(length)? };
        if into.is_null() {
            return Err(INVALID);
        }
        let mut inner = socket.lock();
        let value = match (level, option) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                inner.stream_state();
                std::mem::take(&mut inner.error).to_ne_bytes().to_vec()
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => {
                let kind = if socket.id().is_datagram() { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
                kind.to_ne_bytes().to_vec()
            }
            option => inner.options.get(option)?,
        };
        let size = value.len().min(*room as usize);
        // SAFETY: the program has room for `*room` bytes.
        unsafe { into.cast::<u8>().copy_from_nonoverlapping(value.as_ptr(), size) };
        *room = size as socklen_t;
        Ok(())
    })
}

/// `rfcntl(3)`: returns or sets whether calls block.
#[unsafe(no_mangle)]
pub extern "C" fn rfcntl(socket_number: c_int, command: c_int, argument: c_long) -> c_int {
    count(|| {
        let socket = socket(socket_number)?;
        let mut inner = socket.lock();
        match command {
            libc::F_GETFL => Ok(inner.options.flags),
            libc::F_SETFL => {
                inner.options.flags = libc::O_RDWR | argument as c_int & libc::O_NONBLOCK;
                Ok(0)
            }
            _ => Err(UNSUPPORTED),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdmacm::address;
    use crate::rdmacm::socket::{rbind, rlisten, rsocket};
    use crate::rdmacm::test_environment::device;

    fn listens(at: &str, option: Option<(c_int, c_int)>) -> bool {
        let at: std::net::SocketAddr = at.parse().unwrap();
        let family = if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let (socket, on): (c_int, c_int) = (rsocket(family, libc::SOCK_STREAM, 0), 1);
        assert!(socket >= 0);
        let size = size_of::<c_int>() as socklen_t;
        // SAFETY: all-zero bytes are a valid address, with room for either family; the option has the length that is passed.
        unsafe {
            let mut place: libc::sockaddr_storage = std::mem::zeroed();
            address::write((&raw mut place).cast(), at);
            if let Some((level, option)) = option {
                assert_eq!(rsetsockopt(socket, level, option, (&raw const on).cast(), size), 0);
            }
            rbind(socket, (&raw const place).cast(), size_of_val(&place) as socklen_t) == 0
                && rlisten(socket, 8) == 0
        }
    }

    #[test]
    fn sockets_of_both_families_listen_on_one_port() {
        device();
        assert!(listens("0.0.0.0:7101", None));
        assert!(!listens("[::]:7101", None), "it would be one of IPv4 too");
        assert!(listens("[::]:7101", Some((libc::IPPROTO_IPV6, libc::IPV6_V6ONLY))));
        assert!(!listens("[::]:7101", Some((libc::SOL_SOCKET, libc::SO_REUSEADDR))), "one listens at a time");
    }
}

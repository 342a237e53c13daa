//! Functions that create, bind, connect and close sockets.

use super::datagrams::Datagrams;
use super::options::Options;
use super::stream::{Stream, StreamState};
use super::wire::{Greeting, Message};
use super::{Phase, SOCKETS, Socket, socket};
use crate::abi::*;
use crate::rdmacm::address;
use crate::rdmacm::connect::rdma_reject;
use crate::rdmacm::device::devices;
use crate::rdmacm::errno::{Errno, INVALID, UNSUPPORTED, count, last, out, status};
use crate::rdmacm::events::{self, EventChannel};
use crate::rdmacm::id::{Id, rdma_bind_addr, rdma_listen};
use crate::rdmacm::resolve::{rdma_resolve_addr, rdma_resolve_route};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::PoisonError;

/// Timeout of the resolution of an address or a route, ms.
const RESOLVE_TIMEOUT_MS: c_int = 2000;

/// Converts the result of a function of this library, 0 or -1, into a `Result`.
fn called(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(last()) }
}

/// `rsocket(3)`: streams and datagrams of IPv4 and IPv6.
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    count(|| {
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return Err(UNSUPPORTED);
        }
        let (space, datagrams) = match (kind, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => (RDMA_PS_TCP, false),
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => (RDMA_PS_UDP, true),
            _ => return Err(UNSUPPORTED),
        };
        if is_device_thread() {
            return Err(UNSUPPORTED);
        }
        devices()?;
        let options = Options::default();
        let phase = match datagrams {
            true => Phase::Datagrams(Box::new(Datagrams::new(domain, options.places())?)),
            false => Phase::Idle,
        };
        let channel = EventChannel::create()?;
        let id = Id::create(channel, std::ptr::null_mut(), space).inspect_err(|_| {
            // SAFETY: the channel was created above.
            unsafe { events::rdma_destroy_event_channel(channel) };
        })?;
        Ok(Socket::publish(id, phase, options))
    })
}

/// Returns whether the caller is a thread of the device. While the program's first call opens the device, such a thread calls socket(2),
/// which librspreload redirects here. It would wait for that first call to return. After an error, librspreload calls the kernel.
fn is_device_thread() -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes at most 16 bytes, for which `name` has room.
    let status = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    status == 0 && name.starts_with(b"ferroce-")
}

/// `rbind(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbind(number: c_int, at: *const sockaddr, _length: libc::socklen_t) -> c_int {
    status(|| {
        let socket = socket(number)?;
        if let Some(datagrams) = socket.lock().datagrams() {
            // SAFETY: the contract of the manual page.
            return datagrams.kernel.bind(unsafe { address::read(at.cast()) }?);
        }
        // SAFETY: as above.
        called(unsafe { rdma_bind_addr(socket.id().abi(), at.cast_mut()) })
    })
}

/// `rlisten(3)`
#[unsafe(no_mangle)]
pub extern "C" fn rlisten(number: c_int, backlog: c_int) -> c_int {
    status(|| {
        let socket = socket(number)?;
        let mut inner = socket.lock();
        match inner.phase {
            // SAFETY: the identifier is the socket's own.
            Phase::Idle => called(unsafe { rdma_listen(socket.id().abi(), backlog) })?,
            Phase::Listening => return Ok(()),
            Phase::Datagrams(_) => return Err(UNSUPPORTED),
            Phase::Stream(_) | Phase::Failed => return Err(INVALID),
        }
        inner.phase = Phase::Listening;
        Ok(())
    })
}

/// Waits for the next connection request. Returns the peer's identifier and its greeting.
fn next_peer(listener: &Socket) -> Result<(*mut Id, Option<Greeting>), Errno> {
    let channel = listener.id().channel();
    loop {
        let is_blocking = {
            let inner = listener.lock();
            let Phase::Listening = inner.phase else { return Err(INVALID) };
            // The lock is held, so that each of several threads receives a different request.
            // SAFETY: the channel is alive as long as the identifier.
            if let Some(event) = unsafe { events::next_now(channel) } {
                // SAFETY: `next_now` returned the event, which is acknowledged once.
                unsafe {
                    let (kind, id) = ((*event).event, (*event).id.cast::<Id>());
                    let greeting = Greeting::read(events::private_data(event));
                    events::rdma_ack_cm_event(event);
                    if kind == RDMA_CM_EVENT_CONNECT_REQUEST {
                        return Ok((id, greeting));
                    }
                }
                continue;
            }
            !inner.options.nonblocking()
        };
        if !is_blocking {
            return Err(Errno(libc::EAGAIN));
        }
        let mut watched = libc::pollfd { fd: listener.number(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which is open as long as the socket exists.
        if unsafe { libc::poll(&mut watched, 1, -1) } < 0 {
            return Err(last());
        }
    }
}

/// Creates a socket for a peer's request.
///
/// # Safety
/// The caller must be the only owner of the identifier.
unsafe fn accept_peer(id: *mut Id, peer: &Greeting, options: &Options) -> Result<c_int, Errno> {
    let channel = EventChannel::create()?;
    // SAFETY: guaranteed by the caller; the identifier becomes the owner of the channel.
    unsafe {
        let moved = (*id).migrate(channel);
        let stream = moved.and_then(|()| Stream::accept(id, &options.sizes(), peer));
        match stream {
            Ok(stream) => Ok(Socket::publish(id, Phase::Stream(Box::new(stream)), options.inherited())),
            Err(errno) => {
                Id::destroy(id);
                events::rdma_destroy_event_channel(channel);
                Err(errno)
            }
        }
    }
}

/// `raccept(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raccept(
    listener: c_int,
    peer: *mut sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    count(|| {
        let listener = socket(listener)?;
        loop {
            let (id, greeting) = next_peer(&listener)?;
            let options = listener.lock().options.clone();
            // SAFETY: the identifier is that of the request, and no other code has it.
            unsafe {
                let Some(greeting) = greeting else {
                    // The peer is not an rsocket.
                    rdma_reject((*id).abi(), std::ptr::null(), 0);
                    Id::destroy(id);
                    continue;
                };
                let number = accept_peer(id, &greeting, &options)?;
                if !peer.is_null() {
                    show(socket(number)?.id().lock().destination, peer, length)?;
                }
                return Ok(number);
            }
        }
    })
}

/// `rconnect(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rconnect(number: c_int, to: *const sockaddr, _length: libc::socklen_t) -> c_int {
    status(|| {
        let socket = socket(number)?;
        let mut inner = socket.lock();
        if let Some(datagrams) = inner.datagrams() {
            // SAFETY: the contract of the manual page.
            return datagrams.connect(unsafe { address::read(to.cast()) }?);
        }
        match inner.phase {
            // SAFETY: the socket owns the identifier; the address fulfils the contract of the manual page. These calls do not wait, because
            // the identifier has a channel.
            Phase::Idle => unsafe {
                let id = socket.id().abi();
                called(rdma_resolve_addr(id, std::ptr::null_mut(), to.cast_mut(), RESOLVE_TIMEOUT_MS))?;
                called(rdma_resolve_route(id, RESOLVE_TIMEOUT_MS))?;
                let stream = Stream::connect(socket.id, &inner.options.sizes())?;
                inner.phase = Phase::Stream(Box::new(stream));
            },
            Phase::Stream(_) => {}
            Phase::Listening | Phase::Failed | Phase::Datagrams(_) => return Err(INVALID),
        }
        let is_blocking = !inner.options.nonblocking();
        drop(inner);
        let connected = socket.wait(is_blocking, |stream: &mut Stream| match stream.state {
            StreamState::Connecting => None,
            StreamState::Failed(errno) => Some(Err(errno)),
            StreamState::Accepting | StreamState::Up | StreamState::Down => Some(Ok(())),
        });
        match connected {
            Err(Errno(libc::EAGAIN)) => Err(Errno(libc::EINPROGRESS)),
            Err(errno) => Err(errno),
            Ok(result) => {
                socket.lock().stream_state();
                result
            }
        }
    })
}

/// Shuts down one direction or both, and waits until all sent data has arrived.
fn shut_down(socket: &Socket, how: c_int) -> Result<(), Errno> {
    let up = |stream: &Stream| matches!(stream.state, StreamState::Up | StreamState::Accepting);
    socket.wait(true, |stream: &mut Stream| (!up(stream) || stream.sender.may_control()).then_some(()))?;
    let mut inner = socket.lock();
    let stream = inner.stream()?;
    let message = match how {
        libc::SHUT_RD => {
            stream.readable = false;
            (!stream.writable).then_some(Message::Disconnect)
        }
        libc::SHUT_WR => {
            stream.writable = false;
            Some(if stream.readable { Message::Shutdown } else { Message::Disconnect })
        }
        libc::SHUT_RDWR => {
            (stream.readable, stream.writable) = (false, false);
            Some(Message::Disconnect)
        }
        _ => return Err(INVALID),
    };
    if let (true, Some(message)) = (up(stream), message) {
        stream.send_control(message);
    }
    drop(inner);
    socket.wait(true, |stream: &mut Stream| (!up(stream) || stream.sender.all_arrived()).then_some(()))?;
    if message == Some(Message::Disconnect)
        && let Ok(stream) = socket.lock().stream()
    {
        stream.state = StreamState::Down;
    }
    Ok(())
}

/// `rshutdown(3)`
#[unsafe(no_mangle)]
pub extern "C" fn rshutdown(number: c_int, how: c_int) -> c_int {
    status(|| {
        let socket = socket(number)?;
        let state = socket.lock().stream_state();
        match state {
            Some(StreamState::Up | StreamState::Accepting | StreamState::Down) => shut_down(&socket, how),
            Some(StreamState::Connecting | StreamState::Failed(_)) | None => Err(Errno(libc::ENOTCONN)),
        }
    })
}

/// `rclose(3)`
#[unsafe(no_mangle)]
pub extern "C" fn rclose(number: c_int) -> c_int {
    status(|| {
        let socket = socket(number)?;
        let state = socket.lock().stream_state();
        if matches!(state, Some(StreamState::Up | StreamState::Accepting)) {
            // The socket is closed even if the peer does not answer.
            let _ = shut_down(&socket, libc::SHUT_RDWR);
        } else if socket.lock().datagrams().is_some() {
            let _ = socket.wait(true, |datagrams: &mut Datagrams| datagrams.all_left().then_some(()));
        }
        SOCKETS.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        Ok(())
    })
}

/// Writes an address, truncated to the available room, and its full length.
///
/// # Safety
/// The caller must fulfil the contract of getsockname(2).
pub(super) unsafe fn show(
    found: Option<SocketAddr>,
    into: *mut sockaddr,
    length: *mut libc::socklen_t,
) -> Result<(), Errno> {
    let found = found.ok_or(Errno(libc::ENOTCONN))?;
    // SAFETY: all-zero bytes are a valid address, with room for either family; the program has room for `*length` bytes.
    unsafe {
        let room = out(length)?;
        out(into)?;
        let mut whole: libc::sockaddr_storage = std::mem::zeroed();
        address::write((&raw mut whole).cast(), found);
        let size =
            if found.is_ipv4() { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() };
        into.cast::<u8>().copy_from((&raw const whole).cast(), size.min(*room as usize));
        *room = size as libc::socklen_t;
    }
    Ok(())
}

/// `rgetpeername(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetpeername(
    number: c_int,
    into: *mut sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    status(|| {
        let socket = socket(number)?;
        let peer = socket.lock().datagrams().map(|datagrams| datagrams.kernel.peer());
        // SAFETY: the contract of the manual page.
        unsafe { show(peer.unwrap_or_else(|| socket.id().lock().destination), into, length) }
    })
}

/// `rgetsockname(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockname(
    number: c_int,
    into: *mut sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    status(|| {
        let socket = socket(number)?;
        let own = socket.lock().datagrams().map(|datagrams| datagrams.kernel.name());
        // SAFETY: the contract of the manual page.
        unsafe { show(own.unwrap_or_else(|| socket.id().lock().source), into, length) }
    })
}

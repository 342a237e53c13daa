//! Functions that send and receive data.

use super::calls::show;
use super::datagrams::Datagrams;
use super::port::LONGEST;
use super::stream::{Stream, StreamState};
use super::{Pollable, Socket, socket};
use crate::rdmacm::address;
use crate::rdmacm::errno::{Errno, INVALID, UNSUPPORTED, out, size};
use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

pub(super) fn is_blocking(socket: &Socket, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT == 0 && !socket.lock().options.nonblocking()
}

/// Sends all data, or, without blocking, as much as possible. A datagram is sent as a whole, to the connected peer.
fn send(socket: &Socket, data: &[u8], flags: c_int) -> Result<usize, Errno> {
    if socket.id().is_datagram() {
        return send_datagram(socket, None, data, flags);
    }
    let is_blocking = is_blocking(socket, flags);
    let mut done = 0;
    while done < data.len() {
        let sent = socket.wait(is_blocking, |stream: &mut Stream| match stream.state {
            StreamState::Connecting | StreamState::Accepting => None,
            StreamState::Failed(errno) => Some(Err(errno)),
            StreamState::Down => Some(Err(Errno(libc::ECONNRESET))),
            StreamState::Up if !stream.writable => Some(Err(Errno(libc::EPIPE))),
            StreamState::Up if stream.sender.has_room() => Some(stream.send(&data[done..])),
            StreamState::Up => None,
        });
        match sent.and_then(|sent| sent) {
            Ok(sent) => done += sent,
            // Returns the number of bytes sent. The next call returns the error.
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

fn send_datagram(socket: &Socket, to: Option<SocketAddr>, data: &[u8], flags: c_int) -> Result<usize, Errno> {
    socket.wait(is_blocking(socket, flags), |datagrams: &mut Datagrams| datagrams.send(to, data))?
}

/// Receives a datagram, truncated to the available room. Returns its length and its sender.
fn receive_datagram(socket: &Socket, into: &mut [u8], flags: c_int) -> Result<(usize, SocketAddr), Errno> {
    let peek = flags & libc::MSG_PEEK != 0;
    socket.wait(is_blocking(socket, flags), |datagrams: &mut Datagrams| datagrams.receive(into, peek))
}

/// Receives the available bytes, or with `MSG_WAITALL` as many as fit. Returns 0 at the end of the stream. On a datagram socket, receives
/// one datagram.
fn receive(socket: &Socket, into: &mut [u8], flags: c_int) -> Result<usize, Errno> {
    if socket.id().is_datagram() {
        return receive_datagram(socket, into, flags).map(|(length, _)| length);
    }
    let is_blocking = is_blocking(socket, flags);
    let (peek, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let received = socket.wait(is_blocking, |stream: &mut Stream| {
            if stream.receiver.has_data() {
                return Some(Ok(if peek {
                    stream.receiver.peek(rest)
                } else {
                    stream.receiver.receive(rest)
                }));
            }
            match stream.state {
                StreamState::Failed(errno) => Some(Err(errno)),
                StreamState::Down => Some(Ok(0)),
                StreamState::Connecting | StreamState::Accepting | StreamState::Up => {
                    (!stream.readable).then_some(Ok(0))
                }
            }
        });
        match received.and_then(|received| received) {
            Ok(0) => break,
            Ok(received) => done += received,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
        if peek || !all {
            break;
        }
    }
    // Announces the room of the bytes that were read to the peer.
    if let Ok(stream) = socket.lock().stream() {
        stream.process();
    }
    Ok(done)
}

/// # Safety
/// The caller must pass null or the program's memory, of `length` bytes.
pub(super) unsafe fn readable<'a>(start: *const c_void, length: size_t) -> Result<&'a [u8], Errno> {
    match length {
        0 => Ok(&[]),
        _ if start.is_null() => Err(Errno(libc::EFAULT)),
        // SAFETY: guaranteed by the caller.
        _ => Ok(unsafe { std::slice::from_raw_parts(start.cast(), length) }),
    }
}

/// # Safety
/// The caller must fulfil the conditions of `readable`, and nothing else may use the memory during `'a`.
unsafe fn writable<'a>(start: *mut c_void, length: size_t) -> Result<&'a mut [u8], Errno> {
    match length {
        0 => Ok(&mut []),
        _ if start.is_null() => Err(Errno(libc::EFAULT)),
        // SAFETY: guaranteed by the caller.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), length) }),
    }
}

/// `rsend(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsend(number: c_int, data: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the contract of the manual page.
    size(|| send(&*socket(number)?, unsafe { readable(data, length) }?, flags))
}

/// `rsendto(3)`: a stream sends only to its peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendto(
    number: c_int,
    data: *const c_void,
    length: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    // SAFETY: the contract of the manual page.
    size(|| unsafe {
        let (socket, data) = (socket(number)?, readable(data, length)?);
        if to.is_null() && to_length == 0 {
            return send(&socket, data, flags);
        }
        if !socket.id().is_datagram() {
            return Err(Errno(libc::EISCONN));
        }
        send_datagram(&socket, Some(address::read(to)?), data, flags)
    })
}

/// `rwrite(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite(number: c_int, data: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the contract of the manual page.
    unsafe { rsend(number, data, length, 0) }
}

/// `rrecv(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecv(number: c_int, into: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the contract of the manual page.
    size(|| receive(&*socket(number)?, unsafe { writable(into, length) }?, flags))
}

/// `rrecvfrom(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvfrom(
    number: c_int,
    into: *mut c_void,
    length: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the contract of the manual page.
    size(|| unsafe {
        let (socket, into) = (socket(number)?, writable(into, length)?);
        let (received, peer) = if socket.id().is_datagram() {
            receive_datagram(&socket, into, flags).map(|(received, sender)| (received, Some(sender)))?
        } else {
            (receive(&socket, into, flags)?, socket.id().lock().destination)
        };
        if !from.is_null() && (received > 0 || socket.id().is_datagram()) {
            show(peer, from.cast(), from_length)?;
        }
        Ok(received)
    })
}

/// `rread(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rread(number: c_int, into: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: the contract of the manual page.
    unsafe { rrecv(number, into, length, 0) }
}

/// Calls `one` for each piece of a list, until a piece is transferred only in part. Returns the number of bytes.
///
/// # Safety
/// The caller must pass null or a list of `count` pieces.
unsafe fn each(
    number: c_int,
    list: *const iovec,
    count: usize,
    mut one: impl FnMut(&Arc<Socket>, iovec, bool) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let socket = socket(number)?;
    if list.is_null() && count > 0 {
        return Err(INVALID);
    }
    let (mut done, mut whole) = (0, 0);
    for n in 0..count {
        // SAFETY: guaranteed by the caller.
        let piece = unsafe { *list.add(n) };
        if piece.iov_len == 0 {
            continue;
        }
        match one(&socket, piece, done == 0) {
            Ok(moved) => done += moved,
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
        whole += piece.iov_len;
        if done < whole {
            break;
        }
    }
    Ok(done)
}

/// Returns the pieces of a list.
///
/// # Safety
/// The caller must pass null or a list of `count` pieces.
unsafe fn pieces<'a>(list: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    match count {
        0 => Ok(&[]),
        _ if list.is_null() => Err(INVALID),
        // SAFETY: guaranteed by the caller.
        _ => Ok(unsafe { std::slice::from_raw_parts(list, count) }),
    }
}

/// Sends the pieces as one datagram.
///
/// # Safety
/// The caller must fulfil the conditions of `pieces`, with readable memory of the program, and pass null or an address as long as its
/// family requires.
unsafe fn send_pieces(
    number: c_int,
    to: *const sockaddr,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    let mut whole = Vec::new();
    // SAFETY: guaranteed by the caller.
    unsafe {
        for piece in pieces(list, count)? {
            whole.extend_from_slice(readable(piece.iov_base, piece.iov_len)?);
        }
        let to = if to.is_null() { None } else { Some(address::read(to)?) };
        send_datagram(&*socket(number)?, to, &whole, flags)
    }
}

/// Receives one datagram into the pieces.
///
/// # Safety
/// The caller must fulfil the conditions of `pieces`, with writable memory of the program.
unsafe fn receive_pieces(
    number: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Result<(usize, SocketAddr), Errno> {
    let mut whole = [0; LONGEST];
    let (received, from) = receive_datagram(&*socket(number)?, &mut whole, flags)?;
    let mut rest = &whole[..received];
    // SAFETY: guaranteed by the caller.
    for piece in unsafe { pieces(list, count) }? {
        let (first, second) = rest.split_at(rest.len().min(piece.iov_len));
        // SAFETY: guaranteed by the caller.
        unsafe { writable(piece.iov_base, piece.iov_len) }?[..first.len()].copy_from_slice(first);
        rest = second;
    }
    Ok((received - rest.len(), from))
}

/// # Safety
/// The caller must fulfil the conditions of `each`, with readable memory of the program.
unsafe fn send_list(number: c_int, list: *const iovec, count: usize, flags: c_int) -> Result<usize, Errno> {
    if socket(number)?.id().is_datagram() {
        // SAFETY: guaranteed by the caller.
        return unsafe { send_pieces(number, std::ptr::null(), list, count, flags) };
    }
    let one = |socket: &Arc<Socket>, piece: iovec, _first| {
        // SAFETY: guaranteed by the caller.
        send(socket, unsafe { readable(piece.iov_base, piece.iov_len) }?, flags)
    };
    // SAFETY: guaranteed by the caller.
    unsafe { each(number, list, count, one) }
}

/// # Safety
/// The caller must fulfil the conditions of `each`, with writable memory of the program.
unsafe fn receive_list(
    number: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    if socket(number)?.id().is_datagram() {
        // SAFETY: guaranteed by the caller.
        return unsafe { receive_pieces(number, list, count, flags) }.map(|(received, _)| received);
    }
    let one = |socket: &Arc<Socket>, piece: iovec, first: bool| {
        // After the first bytes, only the bytes that are already available are added.
        let pollable = flags & libc::MSG_WAITALL != 0;
        let flags = if first || pollable { flags } else { flags | libc::MSG_DONTWAIT };
        // SAFETY: guaranteed by the caller.
        receive(socket, unsafe { writable(piece.iov_base, piece.iov_len) }?, flags)
    };
    // SAFETY: guaranteed by the caller.
    unsafe { each(number, list, count, one) }
}

/// `rwritev(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwritev(number: c_int, list: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the contract of the manual page.
    size(|| unsafe { send_list(number, list, usize::try_from(count).map_err(|_| INVALID)?, 0) })
}

/// `rreadv(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rreadv(number: c_int, list: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the contract of the manual page.
    size(|| unsafe { receive_list(number, list, usize::try_from(count).map_err(|_| INVALID)?, 0) })
}

/// `rsendmsg(3)`: without ancillary data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendmsg(number: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    size(|| {
        // SAFETY: the contract of the manual page.
        let message = unsafe { message.as_ref() }.ok_or(INVALID)?;
        if message.msg_controllen > 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: as above.
        unsafe {
            let (list, count) = (message.msg_iov, message.msg_iovlen);
            if socket(number)?.id().is_datagram() {
                return send_pieces(number, message.msg_name.cast(), list, count, flags);
            }
            send_list(number, list, count, flags)
        }
    })
}

/// `rrecvmsg(3)`: without ancillary data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvmsg(number: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    size(|| {
        // SAFETY: the contract of the manual page.
        let message = unsafe { out(message) }?;
        if message.msg_controllen > 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: as above.
        unsafe {
            let (list, count) = (message.msg_iov, message.msg_iovlen);
            if !socket(number)?.id().is_datagram() {
                return receive_list(number, list, count, flags);
            }
            let (received, from) = receive_pieces(number, list, count, flags)?;
            if !message.msg_name.is_null() {
                show(Some(from), message.msg_name.cast(), &mut message.msg_namelen)?;
            }
            Ok(received)
        }
    })
}

//! Functions that wait for several sockets, and for plain descriptors as well.

use super::stream::StreamState;
use super::{Phase, Pollable, SPIN_TIME, Socket, SocketState, find, readable};
use crate::rdmacm::errno::{self, Errno, INVALID, last};
use crate::rdmacm::events::EventChannel;
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, fd_set, nfds_t, pollfd, timeval};
use std::ffi::{c_int, c_short};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Socket {
    fn ready(&self, wanted: c_short) -> c_short {
        let mut inner = self.lock();
        let found = match inner.stream_state() {
            Some(state) => inner.stream_ready(state),
            None => match &mut inner.phase {
                Phase::Datagrams(datagrams) => datagrams.ready(),
                // SAFETY: the channel is alive as long as the identifier.
                Phase::Listening if !unsafe { &*self.id().channel().cast::<EventChannel>() }.is_empty() => {
                    POLLIN
                }
                Phase::Listening | Phase::Stream(_) => 0,
                // As for an unconnected socket of the kernel.
                Phase::Idle => POLLOUT | POLLHUP,
                Phase::Failed => POLLOUT | POLLERR | POLLHUP,
            },
        };
        found & (wanted | POLLERR | POLLHUP)
    }

    /// Prepares the socket for a wait, and adds the descriptors to wait on.
    fn watch(&self, into: &mut Vec<pollfd>) {
        let mut inner = self.lock();
        inner.watchers += 1;
        match &mut inner.phase {
            Phase::Stream(stream) => stream.watch(into),
            Phase::Datagrams(datagrams) => datagrams.watch(into),
            Phase::Idle | Phase::Listening | Phase::Failed => into.push(readable(self.number())),
        }
    }
}

impl SocketState {
    fn stream_ready(&mut self, state: StreamState) -> c_short {
        let Ok(stream) = self.stream() else { return POLLOUT | POLLERR | POLLHUP };
        let data = stream.receiver.has_data();
        let input = if data || !stream.readable { POLLIN } else { 0 };
        match state {
            StreamState::Connecting => 0,
            StreamState::Accepting => input,
            StreamState::Up if stream.sender.has_room() || !stream.writable => input | POLLOUT,
            StreamState::Up => input,
            // The program reads the remaining data before the end of the stream.
            StreamState::Down if data => POLLIN,
            StreamState::Down => POLLIN | POLLOUT | POLLHUP,
            StreamState::Failed(_) => POLLOUT | POLLERR | POLLHUP,
        }
    }
}

/// Checks all entries without waiting. Returns the number of those with events.
fn check(watched: &mut [pollfd], sockets: &[Option<Arc<Socket>>]) -> Result<c_int, Errno> {
    let mut plain: Vec<pollfd> = watched.to_vec();
    for ((entry, plain), socket) in watched.iter_mut().zip(&mut plain).zip(sockets) {
        if let Some(socket) = socket {
            plain.fd = -1;
            entry.revents = socket.ready(entry.events);
        }
    }
    if sockets.iter().any(Option::is_none) {
        // SAFETY: the array has `plain.len()` elements.
        if unsafe { libc::poll(plain.as_mut_ptr(), plain.len() as nfds_t, 0) } < 0 {
            return Err(last());
        }
        let others = watched.iter_mut().zip(&plain).zip(sockets).filter(|(_, socket)| socket.is_none());
        others.for_each(|((entry, plain), _)| entry.revents = plain.revents);
    }
    Ok(watched.iter().filter(|entry| entry.revents != 0).count() as c_int)
}

/// Waits for a possible event, at most until `until`.
fn sleep(
    watched: &mut [pollfd],
    sockets: &[Option<Arc<Socket>>],
    until: Option<Instant>,
) -> Result<c_int, Errno> {
    let mut descriptors = Vec::new();
    for (entry, socket) in watched.iter().zip(sockets) {
        match socket {
            Some(socket) => socket.watch(&mut descriptors),
            None => descriptors.push(*entry),
        }
    }
    // Data that arrived before the queues were armed causes no event.
    let mut found = check(watched, sockets);
    if found == Ok(0) {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left =
            left.map_or(-1, |left| c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX));
        // SAFETY: the array has `descriptors.len()` elements; `sockets` keeps the descriptors open.
        if unsafe { libc::poll(descriptors.as_mut_ptr(), descriptors.len() as nfds_t, left) } < 0 {
            found = Err(last());
        }
    }
    sockets.iter().flatten().for_each(|socket| socket.lock().unwatch());
    found
}

fn poll(watched: &mut [pollfd], timeout: Option<Duration>) -> Result<c_int, Errno> {
    let sockets: Vec<_> = watched.iter().map(|entry| find(entry.fd)).collect();
    let start = Instant::now();
    let until = timeout.and_then(|timeout| start.checked_add(timeout));
    loop {
        let found = check(watched, &sockets)?;
        let now = Instant::now();
        if found > 0 || until.is_some_and(|until| until <= now) {
            return Ok(found);
        }
        if now > start + SPIN_TIME {
            let found = sleep(watched, &sockets, until)?;
            if found > 0 {
                return Ok(found);
            }
        }
    }
}

/// `rpoll(3)`: for sockets and for plain descriptors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpoll(watched: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    errno::count(|| {
        let watched = match count {
            0 => &mut [],
            _ if watched.is_null() => return Err(Errno(libc::EFAULT)),
            // SAFETY: the contract of the manual page.
            _ => unsafe { std::slice::from_raw_parts_mut(watched, count as usize) },
        };
        poll(watched, u64::try_from(timeout).ok().map(Duration::from_millis))
    })
}

/// `rselect(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rselect(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    other: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    errno::count(|| {
        if !(0..=libc::FD_SETSIZE as c_int).contains(&count) {
            return Err(INVALID);
        }
        let sets = [(readable, POLLIN), (writable, POLLOUT), (other, libc::POLLPRI)];
        // SAFETY: each set is null or the program's, with room for every number below the limit.
        let has = |set: *mut fd_set, fd| unsafe { !set.is_null() && libc::FD_ISSET(fd, set) };
        let events = |fd| sets.iter().filter(|(set, _)| has(*set, fd)).fold(0, |all, (_, event)| all | event);
        let entry = |fd| pollfd { fd, events: events(fd), revents: 0 };
        let mut watched: Vec<_> = (0..count).map(entry).filter(|entry| entry.events != 0).collect();
        // SAFETY: null, or valid by the contract of the manual page.
        let timeout = unsafe { timeout.as_ref() }.map(|timeout| {
            Duration::from_secs(timeout.tv_sec.try_into().unwrap_or(0))
                + Duration::from_micros(timeout.tv_usec.try_into().unwrap_or(0))
        });
        poll(&mut watched, timeout)?;
        let mut found = 0;
        for (set, event) in sets {
            for entry in watched.iter().filter(|entry| entry.events & event != 0) {
                if entry.revents & (event | POLLERR | POLLHUP) != 0 {
                    found += 1;
                } else {
                    // SAFETY: the set is the program's, because the event was requested through it.
                    unsafe { libc::FD_CLR(entry.fd, set) };
                }
            }
        }
        Ok(found)
    })
}

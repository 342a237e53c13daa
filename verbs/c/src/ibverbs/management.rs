//! Queue pair 1 for `librdmacm.so.1`: an interface of this project's two libraries, not of rdma-core's.

use crate::abi::ibv_context;
use crate::errno::{Errno, INVALID, at, count, out};
use crate::ibverbs::context::Context;
use crate::ibverbs::query::{gid_of, ip_of};
use crate::reserve;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use verbs::Qpn;
use verbs::management::{Mad, Sent};

/// Opens queue pair 1 until the context is closed. A descriptor that is readable while datagrams wait, or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_mad_open(context: *mut ibv_context) -> c_int {
    count(|| {
        // SAFETY: null, or an open context.
        let context = unsafe { Context::from(context) }?;
        reserve::complete()?;
        let port = context.device.open_management()?;
        let descriptor = port.as_raw_fd();
        context.management.set(port).map_err(|_| Errno(libc::EBUSY))?;
        Ok(descriptor)
    })
}

/// Sends a datagram of 256 bytes from a GID, by its index, to a GID. Returns 0; 1 if the receiver's Ethernet address was requested instead,
/// so that the datagram must be sent again; or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_mad_send(
    context: *mut ibv_context,
    from: c_int,
    to: *const [u8; 16],
    mad: *const Mad,
) -> c_int {
    count(|| {
        // SAFETY: null, or as said above.
        let (context, to, mad) = unsafe { (Context::from(context)?, at(to)?, at(mad)?) };
        let from = usize::try_from(from).map_err(|_| INVALID)?;
        let sent = context.management.get().ok_or(INVALID)?.send(from, ip_of(*to), *mad)?;
        Ok(c_int::from(sent == Sent::Asking))
    })
}

/// Returns 1 if the Ethernet address of a GID is known, 0 if it was requested, and -1 if no host answers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_mad_finds(context: *mut ibv_context, peer: *const [u8; 16]) -> c_int {
    count(|| {
        // SAFETY: null, or as said above.
        let (context, peer) = unsafe { (Context::from(context)?, at(peer)?) };
        let found = context.management.get().ok_or(INVALID)?.finds(ip_of(*peer));
        // A host that invents source addresses must not fill the log.
        found.map(c_int::from).map_err(Errno::quietly)
    })
}

/// Returns the oldest datagram that came, and its sender: 1; 0 if there is none, or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_mad_receive(
    context: *mut ibv_context,
    from: *mut [u8; 16],
    mad: *mut Mad,
) -> c_int {
    count(|| {
        // SAFETY: null, or as said above.
        let (context, from, mad) = unsafe { (Context::from(context)?, out(from)?, out(mad)?) };
        match context.management.get().ok_or(INVALID)?.receive()? {
            Some((sender, came)) => {
                (*from, *mad) = (gid_of(sender), came);
                Ok(1)
            }
            None => Ok(0),
        }
    })
}

/// Ends the queue pair of a connection that has ended, by its number: 0, or -1 if there is no such queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_mad_end(context: *mut ibv_context, qpn: u32) -> c_int {
    count(|| {
        // SAFETY: null, or an open context.
        let context = unsafe { Context::from(context) }?;
        context.management.get().ok_or(INVALID)?.end(Qpn::new(qpn & 0xff_ffff)).map_err(Errno::quietly)?;
        Ok(0)
    })
}

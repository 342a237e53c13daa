//! Socket options that the standard library does not support (setsockopt(2), getsockopt(2)).

use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;

/// The value of an option.
///
/// # Safety
/// The type must have no padding, and each pointer in a value must be valid for the kernel's reads.
pub(crate) unsafe trait Value {}

// SAFETY: one number.
unsafe impl Value for c_int {}
// SAFETY: bytes.
unsafe impl Value for [u8] {}
// SAFETY: four numbers of 32 bits.
unsafe impl Value for libc::tpacket_req {}
// SAFETY: one number of 32 bits, two of 16, and 8 bytes.
unsafe impl Value for libc::packet_mreq {}
// SAFETY: three numbers of 32 bits.
unsafe impl Value for libc::ip_mreqn {}
// SAFETY: 16 bytes and a number of 32 bits.
unsafe impl Value for libc::ipv6_mreq {}

/// Sets an option. The kernel refuses a value that is shorter than the option's type.
///
/// # Errors
/// Returns the kernel's error.
pub(crate) fn set<T: Value + ?Sized>(
    socket: &impl AsRawFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let length = size_of_val(value) as libc::socklen_t;
    // SAFETY: `value` is `length` initialised bytes, and its pointers are valid, as `Value` requires.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a packet socket receive frames for all addresses until it is closed. Unlike the interface's promiscuous flag, this needs no
/// privilege.
///
/// # Errors
/// Returns the kernel's error: `ENODEV` if no interface has this index.
pub(crate) fn receive_all_addresses(socket: &impl AsRawFd, interface: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: interface as c_int,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Returns the value of an option of type `int`.
///
/// # Errors
/// Returns the kernel's error, for example if the descriptor is not a socket.
pub(crate) fn number(socket: &impl AsRawFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `value` has `length` bytes.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &mut length) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

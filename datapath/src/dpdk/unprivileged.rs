//! Prevents DPDK's AF_PACKET driver from changing the interface, which would need CAP_NET_ADMIN, and from sharing frames with other ports.
//!
//! When a port starts, DPDK's driver sets the interface's Ethernet address, to the one it already has, and clears its promiscuous mode. A
//! refusal fails the start, unless its error is that the operation is not supported. So a seccomp(2) filter answers these calls with that
//! error. It applies to a thread that only runs the start.
//!
//! When a device is created, the driver adds its socket to a fan-out group whose number is derived from the process id and the interface.
//! The kernel distributes frames over the sockets of a group. Two containers on one interface often have processes with the same id, and
//! two ports of one process have it too. So the filter skips that call and reports success.

use std::io;

/// Offsets in `struct seccomp_data` of the system call number, and of the lower halves of the second and third argument.
const NUMBER: u32 = 0;
const SECOND: u32 = if cfg!(target_endian = "little") { 24 } else { 28 };
const THIRD: u32 = SECOND + 8;

/// Runs `f` on a thread that cannot change an interface or join a fan-out group. If the kernel rejects the filter, `f` runs without it.
pub(super) fn without_interface_changes<T: Send>(f: impl FnOnce() -> T + Send) -> io::Result<T> {
    let body = || {
        if let Err(error) = refuse_changes() {
            tracing::debug!("no filter for system calls: {error}");
        }
        f()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("ferroce-start".into()).spawn_scoped(scope, body)?;
        thread.join().map_err(|_| io::Error::other("it panicked"))
    })
}

/// Makes the calling thread's requests to change an interface fail with EOPNOTSUPP, and its requests to join a fan-out group succeed
/// without effect.
fn refuse_changes() -> io::Result<()> {
    let [load, equal, end] = [
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    ]
    .map(|code| code as u16);
    let refused = libc::SECCOMP_RET_ERRNO | libc::EOPNOTSUPP as u32;
    let mut filter = [
        (load, 0, 0, NUMBER),
        (equal, 0, 3, libc::SYS_ioctl as u32),
        (load, 0, 0, SECOND),
        (equal, 7, 0, libc::SIOCSIFFLAGS as u32),
        (equal, 6, 5, libc::SIOCSIFHWADDR as u32),
        (equal, 0, 4, libc::SYS_setsockopt as u32),
        (load, 0, 0, SECOND),
        (equal, 0, 2, libc::SOL_PACKET as u32),
        (load, 0, 0, THIRD),
        (equal, 2, 0, libc::PACKET_FANOUT as u32),
        (end, 0, 0, libc::SECCOMP_RET_ALLOW),
        (end, 0, 0, refused),
        (end, 0, 0, libc::SECCOMP_RET_ERRNO),
    ]
    .map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k });
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program points to `len` instructions that outlive the call, and both calls affect only this thread.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

//! Socket filters in classic BPF, which need no privilege (socket(7), `SO_ATTACH_FILTER`).

use crate::socket_option;
use std::io;
use std::os::fd::AsRawFd;

/// A filter's result for a packet that is received completely. Other results are the number of bytes received.
pub(crate) const WHOLE: u32 = u32::MAX;
/// A filter's result for a packet that is dropped.
pub(crate) const NONE: u32 = 0;

/// Makes the kernel pass each packet for `socket` through `filter`. Replaces the previous filter.
///
/// # Errors
/// Returns the kernel's error: `EINVAL` if the filter is not valid.
pub(crate) fn attach(socket: &impl AsRawFd, filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let length = size_of_val(&program) as libc::socklen_t;
    let value = (&raw const program).cast();
    // SAFETY: `program` is `length` readable bytes, and points to as many instructions as it says, which outlive the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the kernel drop each packet for `socket`, permanently. A process that gets the descriptor later cannot receive either.
///
/// # Errors
/// Returns the kernel's error.
pub(crate) fn drop_all(socket: &impl AsRawFd) -> io::Result<()> {
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    attach(socket, &mut [libc::sock_filter { code: answer, jt: 0, jf: 0, k: NONE }])?;
    let on: libc::c_int = 1;
    socket_option::set(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &on)
}

/// Returns a filter that receives UDP packets completely, and at most `most` bytes of any other frame.
pub(crate) fn limit_others(most: u32) -> [libc::sock_filter; 11] {
    let load = |size: u32| (libc::BPF_LD | libc::BPF_ABS | size) as u16;
    let jump = |test: u32| (libc::BPF_JMP | test | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    [
        // A load beyond the end of a frame would drop the frame.
        ((libc::BPF_LD | libc::BPF_W | libc::BPF_LEN) as u16, 0, 0, 0),
        (jump(libc::BPF_JGE), 0, 8, 14 + 10),
        (load(libc::BPF_H), 0, 0, 12),
        (jump(libc::BPF_JEQ), 0, 2, 0x0800),
        (load(libc::BPF_B), 0, 0, 14 + 9),
        (jump(libc::BPF_JEQ), 3, 4, 17),
        (jump(libc::BPF_JEQ), 0, 3, 0x86dd),
        (load(libc::BPF_B), 0, 0, 14 + 6),
        (jump(libc::BPF_JEQ), 0, 1, 17),
        (answer, 0, 0, WHOLE),
        (answer, 0, 0, most),
    ]
    .map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_socket_that_drops_all_receives_nothing_permanently() {
        let (from, to) = UnixDatagram::pair().unwrap();
        drop_all(&to).unwrap();
        assert!(attach(&to, &mut limit_others(100)).is_err(), "the filter stays");
        to.set_nonblocking(true).unwrap();
        // The kernel reports the dropped datagram to the sender of a Unix socket.
        let _ = from.send(b"frame");
        assert_eq!(to.recv(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    fn received(most: u32, frame: &[u8]) -> usize {
        let (from, to) = UnixDatagram::pair().unwrap();
        attach(&to, &mut limit_others(most)).unwrap();
        from.send(frame).unwrap();
        to.recv(&mut [0; 512]).unwrap()
    }

    #[test]
    fn udp_is_received_whole_and_all_else_up_to_the_limit() {
        let frame = |ethertype: [u8; 2], at: usize, protocol: u8| {
            let mut frame = [0; 300];
            (frame[12], frame[13], frame[at]) = (ethertype[0], ethertype[1], protocol);
            frame
        };
        for (what, frame, bytes) in [
            ("UDP over IPv4", frame([8, 0], 23, 17), 300),
            ("UDP over IPv6", frame([0x86, 0xdd], 20, 17), 300),
            ("TCP over IPv4", frame([8, 0], 23, 6), 100),
            ("TCP over IPv6", frame([0x86, 0xdd], 20, 6), 100),
            ("ARP", frame([8, 6], 23, 17), 100),
        ] {
            assert_eq!(received(100, &frame), bytes, "{what}");
        }
        for short in [1, 13, 14, 20, 23, 24] {
            assert_eq!(received(100, &frame([8, 0], 23, 17)[..short]), short);
        }
    }
}

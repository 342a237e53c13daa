//! The symbols that `librdmacm.so.1` exports, compared with those of Debian's library, and its sockets.

mod common;

use std::collections::BTreeSet;

#[test]
fn every_symbol_of_debian_is_exported() {
    let debian: BTreeSet<String> = include_str!("librdmacm.symbols").lines().map(str::to_owned).collect();
    let ours: BTreeSet<String> = common::exported(include_str!("../librdmacm.map"))
        .map(|(name, version)| format!("{name}@@{version}"))
        .collect();
    assert_eq!(ours, debian);
    assert_eq!(debian.len(), 68);
}

#[test]
fn a_number_without_a_socket_is_refused() {
    use ferroce_c::*;
    use std::ptr::null_mut;
    let errno = || std::io::Error::last_os_error().raw_os_error().unwrap();
    assert_eq!((rsocket(libc::AF_UNIX, libc::SOCK_STREAM, 0), errno()), (-1, libc::EOPNOTSUPP));
    assert_eq!(
        (rsocket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_TCP), errno()),
        (-1, libc::EOPNOTSUPP)
    );
    // Standard input is a descriptor, but not a socket of this library.
    for number in [-1, 0, 9999] {
        assert_eq!((rlisten(number, 1), errno()), (-1, libc::EBADF));
        assert_eq!((rclose(number), errno()), (-1, libc::EBADF));
        assert_eq!((rshutdown(number, libc::SHUT_RDWR), errno()), (-1, libc::EBADF));
        assert_eq!((rfcntl(number, libc::F_GETFL, 0), errno()), (-1, libc::EBADF));
        // SAFETY: no socket has this number, so nothing is read or written.
        unsafe {
            assert_eq!((rsend(number, null_mut(), 1, 0), errno()), (-1, libc::EBADF));
            assert_eq!((rrecv(number, null_mut(), 1, 0), errno()), (-1, libc::EBADF));
            assert_eq!((raccept(number, null_mut(), null_mut()), errno()), (-1, libc::EBADF));
            assert_eq!((rgetpeername(number, null_mut(), null_mut()), errno()), (-1, libc::EBADF));
        }
    }
}

#[test]
fn plain_descriptors_are_polled_beside_sockets() {
    use ferroce_c::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut watched = [libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    // SAFETY: the arrays have the lengths that are passed, and the sets contain the descriptor's number.
    unsafe {
        assert_eq!(rpoll(watched.as_mut_ptr(), 1, 0), 0);
        writer.write_all(b"x").unwrap();
        assert_eq!((rpoll(watched.as_mut_ptr(), 1, -1), watched[0].revents), (1, libc::POLLIN));
        let mut readable: libc::fd_set = std::mem::zeroed();
        libc::FD_SET(reader.as_raw_fd(), &mut readable);
        let none = std::ptr::null_mut();
        assert_eq!(rselect(reader.as_raw_fd() + 1, &mut readable, none, none, std::ptr::null_mut()), 1);
        assert!(libc::FD_ISSET(reader.as_raw_fd(), &readable));
    }
}

/// A thread of `rping` calls `rdma_get_cm_event` just after the program has destroyed the channel.
#[test]
fn a_read_of_a_destroyed_channel_blocks_as_an_earlier_one_did() {
    use ferroce_c::*;
    let late = |channel: usize| {
        let mut event = std::ptr::null_mut();
        // SAFETY: the channel was created here; this test intentionally uses it after its destruction.
        let result = unsafe { rdma_get_cm_event(std::ptr::with_exposed_provenance_mut(channel), &mut event) };
        (result, std::io::Error::last_os_error().raw_os_error().unwrap())
    };
    let gone = |nonblocking: bool| {
        let channel = rdma_create_event_channel();
        // SAFETY: the channel is alive, and destroyed once.
        unsafe {
            if nonblocking {
                assert_eq!(libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
            }
            rdma_destroy_event_channel(channel);
        }
        channel.expose_provenance()
    };
    let (blocked, never_blocked) = (gone(false), gone(true));
    assert_eq!(late(blocked), (-1, libc::EBADF), "for the thread that destroyed it");
    let other = std::thread::spawn(move || late(never_blocked));
    assert_eq!(other.join().unwrap(), (-1, libc::EBADF), "no thread has waited on it");
    let (tell, told) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || {
        // SAFETY: no arguments.
        tell.send(unsafe { libc::gettid() }).unwrap();
        late(blocked)
    });
    let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
    // The thread sleeps. If it has ended, the file does not exist.
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") S ")) {
        std::thread::yield_now();
    }
    assert!(!other.is_finished(), "{:?}", other.join());
}

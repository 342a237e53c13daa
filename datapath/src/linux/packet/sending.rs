//! Sends a burst with one system call. The kernel gathers the datagrams' bytes from the frames (sendmmsg(2)).

use crate::io::BURST;
use crate::linux::datagrams::{Group, SinglePeers, Start, VNET_LENGTH};
use arrayvec::ArrayVec;
use cc::Instant;
use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::os::fd::RawFd;

static FRAME: [u8; VNET_LENGTH] = [0; VNET_LENGTH];

pub(super) struct Sending {
    /// The number of frames of each datagram, and its headers if there are several.
    datagrams: ArrayVec<(usize, Option<(Group, Start)>), BURST>,
    /// While a peer is observed, each group: its destination, and its first frame and number of frames, at most [`BURST`].
    groups: ArrayVec<(IpAddr, u8, u8), BURST>,
}

impl Sending {
    /// Groups `frames`, at most [`BURST`], except those to `single_peers`.
    #[inline]
    pub(super) fn new<F: Deref<Target = [u8]>>(frames: &[F], single_peers: &SinglePeers) -> Self {
        let (mut datagrams, mut groups, mut rest) = (ArrayVec::new(), ArrayVec::new(), frames);
        while let Some(first) = rest.first() {
            let group = Group::first_of(rest);
            let count = group.map_or(1, |group| group.count());
            let observed = group.filter(|_| !single_peers.is_empty());
            let destination = observed.and_then(|group| group.destination(first));
            groups.extend(destination.map(|peer| (peer, (frames.len() - rest.len()) as u8, count as u8)));
            if destination.is_some_and(|peer| single_peers.must_split(peer)) {
                datagrams.extend((0..count).map(|_| (1, None)));
            } else {
                datagrams.push((count, group.map(|group| (group, group.start(first)))));
            }
            rest = &rest[count..];
        }
        Self { datagrams, groups }
    }

    /// Records in `single_peers` that the first `sent` frames were sent.
    #[cold]
    pub(super) fn record(&self, now: Instant, sent: usize, single_peers: &mut SinglePeers) {
        for &(peer, first, count) in &self.groups {
            let sent = sent.saturating_sub(first.into()).min(count.into());
            if sent > 0 {
                single_peers.on_sent(now, peer, sent);
            }
        }
    }

    /// Makes each of `frames`, at most [`BURST`], a datagram.
    pub(super) fn singly<F>(frames: &[F]) -> Self {
        Self { datagrams: frames.iter().map(|_| (1, None)).collect(), groups: ArrayVec::new() }
    }

    pub(super) fn first(&self) -> usize {
        self.datagrams.first().map_or(0, |(count, _)| *count)
    }

    /// Sends the datagrams of `frames`, from which this value was created. Returns the number of frames that the kernel accepted, at least
    /// 1.
    ///
    /// # Errors
    /// Returns the kernel's error if it did not accept the first datagram.
    pub(super) fn send<F: Deref<Target = [u8]>>(&self, socket: RawFd, frames: &[F]) -> io::Result<usize> {
        let mut pieces: ArrayVec<libc::iovec, { 2 * BURST }> = ArrayVec::new();
        let mut messages: ArrayVec<libc::mmsghdr, BURST> = ArrayVec::new();
        let mut rest = frames;
        for (count, start) in &self.datagrams {
            let (own, others) = rest.split_at(*count);
            let begin = pieces.len();
            match start {
                None => pieces.extend([piece(&FRAME), piece(&own[0])]),
                Some((group, start)) => {
                    pieces.push(piece(start));
                    pieces.extend(own.iter().map(|frame| piece(group.payload(frame))));
                }
            }
            // SAFETY: all-zero bytes are a message to the bound interface without control data.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = pieces[begin..].as_mut_ptr();
            message.msg_hdr.msg_iovlen = (pieces.len() - begin) as _;
            messages.push(message);
            rest = others;
        }
        // SAFETY: each message points to its iovecs, whose array does not move, and each iovec to bytes that outlive the call.
        let sent = unsafe {
            libc::sendmmsg(socket, messages.as_mut_ptr(), messages.len() as u32, libc::MSG_DONTWAIT)
        };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        Ok(self.datagrams[..sent].iter().map(|(count, _)| count).sum())
    }
}

/// Returns an iovec from which the kernel only reads.
fn piece(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::datagrams::tests::{burst, path};

    #[test]
    fn only_frames_that_the_kernel_accepted_count_in_a_trial() {
        let path = path(["10.0.0.1", "10.0.0.2"]);
        let frames = burst(&path, 0, &[64; BURST]);
        let mut single_peers = SinglePeers::default();
        single_peers.suspect(Instant::ZERO, path.destination, "eth0");
        let end = Instant::from_nanos(1 << 40);
        // A trial has 1024 packets.
        for trial in 0..1024 / BURST {
            for accepted in [1, BURST - 1] {
                assert!(single_peers.must_split(path.destination), "after {trial} bursts");
                let sending = Sending::new(&frames, &single_peers);
                assert_eq!((sending.datagrams.len(), sending.groups.len()), (BURST, 1));
                sending.record(end, accepted, &mut single_peers);
            }
        }
        assert!(!single_peers.must_split(path.destination));
        assert_eq!(Sending::new(&frames, &single_peers).datagrams.len(), 1);
    }
}

//! The guard of a process (`siblings::guard`): it sends the disconnect notices of the process after that has ended.

use super::management::{MAD_UDP_SOURCE, Management};
use super::siblings::find;
use crate::neighbour::Kernel;
use crate::siblings::{DisconnectNotice, Guarded};
use roce::wire::{Mac, Path};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

/// Bytes of a buffer for any management datagram with its headers.
const FRAME: usize = 512;

/// Waits for the end of the process that started this one as its guard, then sends the disconnect notices of that process. Returns after
/// that, or when the interface is gone.
///
/// # Errors
/// Returns an error if this process was started in another way, the kernel's neighbours cannot be read, or a frame cannot be sent.
pub fn guard() -> io::Result<()> {
    // Other processes of the user must not access this process's descriptors.
    // SAFETY: prctl takes integers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    let guarded = Guarded::inherit()?;
    if !guarded.wait() {
        return Ok(());
    }
    let notices = guarded.notices();
    let Some((interface, mac)) = guarded.sender().interface().filter(|_| !notices.is_empty()) else {
        return Ok(());
    };
    let kernel = Kernel::for_lookups(interface)?;
    let look_up = |peer| find(&kernel, peer, mac);
    let mut result = Ok(());
    // If a frame cannot be sent, the others are still sent.
    for frame in frames(notices, mac, look_up) {
        result = guarded.sender().send(&frame).and(result);
    }
    result
}

/// Returns the frames of the disconnect notices to peers whose Ethernet address `look_up` finds. Omits peers on this host, which siblings
/// inform.
fn frames(
    notices: Vec<DisconnectNotice>,
    mac: Mac,
    look_up: impl Fn(IpAddr) -> Option<Mac>,
) -> impl Iterator<Item = Vec<u8>> {
    let mut known = HashMap::new();
    let mut management = Management::new(None);
    notices.into_iter().filter_map(move |DisconnectNotice { source, destination, mad, .. }| {
        let to = (*known.entry(destination).or_insert_with(|| look_up(destination)))?;
        if to == mac {
            return None;
        }
        let path = Path::new((mac, source), (to, destination));
        management.send(Path { udp_source: MAD_UDP_SOURCE, ..path }, mad);
        let mut frame = vec![0; FRAME];
        let length = management.poll_transmit(&mut frame)?;
        frame.truncate(length);
        Some(frame)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::MAD_LENGTH;
    use crate::event_fd::EventFd;
    use crate::neighbour::Neighbours;
    use std::sync::Arc;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn notice(id: u8, source: &str, destination: &str) -> DisconnectNotice {
        let [source, destination] = [source, destination].map(|ip| ip.parse().unwrap());
        DisconnectNotice { id: id.into(), source, destination, mad: [id; MAD_LENGTH] }
    }

    #[test]
    fn each_reachable_peer_on_another_host_is_sent_its_disconnect_notices() {
        let notices = vec![
            notice(1, "10.0.0.1", "10.0.0.2"),
            notice(2, "10.0.0.1", "10.0.0.1"),
            notice(3, "10.0.0.1", "10.0.0.3"),
            notice(4, "fd00::1", "fd00::2"),
            notice(5, "10.0.0.1", "10.0.0.2"),
        ];
        let look_up = |peer: IpAddr| match peer.to_string().as_str() {
            "10.0.0.1" => Some(OWN),
            "10.0.0.3" => None,
            _ => Some(PEER),
        };
        let addresses = ["10.0.0.2/24", "fd00::2/64"].map(|address| address.parse().unwrap());
        let neighbours = Neighbours::with_kernel(PEER, &addresses);
        let mut peer = Management::new(Some(Arc::new(EventFd::new(0).unwrap())));
        let mut received = Vec::new();
        for frame in frames(notices, OWN, look_up) {
            assert_eq!(frame[..12], [PEER.0, OWN.0].concat());
            assert!(peer.on_frame(&frame, &neighbours), "{frame:?}");
            let (source, mad) = peer.receive().unwrap();
            received.push((source.to_string(), mad[0]));
        }
        let expected = [("10.0.0.1", 1), ("fd00::1", 4), ("10.0.0.1", 5)];
        assert_eq!(received, expected.map(|(source, id)| (source.to_owned(), id)));
    }
}

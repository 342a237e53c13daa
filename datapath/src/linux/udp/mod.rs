//! UDP sockets that send and receive RoCEv2 packets without any privilege (udp(7), `UDP_SEGMENT`, `UDP_GRO`).
//!
//! The kernel writes and removes the headers below UDP's payload. The headers of received packets are rebuilt from the kernel's control
//! messages, so that callers receive complete frames.

mod address;
mod control;
mod identification;
mod rebuild;
mod receive_socket;
mod sending;
mod socket;
mod support;
#[cfg(test)]
mod tests;

pub use socket::UdpSockets;

use super::Interface;
use super::datagrams::Front;
use control::ControlMessages;
use identification::Identifications;
use rebuild::EthernetAddresses;
use receive_socket::ReceivedDatagram;
use roce::wire::Mac;

/// The Ethernet address that represents every peer. It is locally administered, and no interface has it.
pub const PEER_MAC: Mac = Mac([0x06, b'R', b'o', b'C', b'E', 0]);

/// Returns the Ethernet address of a port on an interface: the interface's own, or a stand-in that is the same in all processes.
#[must_use]
pub fn own_address(interface: &Interface) -> Mac {
    let [.., high, low] = interface.index.to_be_bytes();
    let stand_in = Mac([0x02, b'R', b'o', b'C', high, low]);
    if interface.mac == Mac::default() { stand_in } else { interface.mac }
}

/// Passes the frames of a datagram to `take`, as a port with the Ethernet address 02:00:00:00:00:02 that receives frames of up to 16 KiB.
fn frames_of(
    identifications: &mut Identifications,
    name: &[u8; address::ROOM],
    control: &ControlMessages,
    payload: &[u8],
    mut take: impl FnMut(&[u8]),
) {
    let mut place = ReceivedDatagram::new();
    place.put(name, control, payload);
    let ethernet = EthernetAddresses { own: Mac([2, 0, 0, 0, 0, 2]), peer: PEER_MAC };
    let mut pass = |frame: &[u8]| {
        take(frame);
        true
    };
    place.pass((ethernet, &[]), (identifications, false), &mut Front::new(16 << 10), &mut pass);
}

/// Passes the frames of a datagram with arbitrary bytes to `take`, for fuzzing. `name` is the sender's address, and `control` the kernel's
/// control messages.
#[doc(hidden)]
pub fn receive_any(name: [u8; 28], control: &[u8], payload: &[u8], take: impl FnMut(&[u8])) {
    let mut messages = ControlMessages::new();
    messages.fill(control);
    frames_of(&mut Identifications::new(), &name, &messages, payload, take);
}

//! Splits a large datagram with any virtio header or control messages and any contents.
#![no_main]

use arbitrary::Arbitrary;
use datapath::linux::datagrams::{HEADROOM, Received, Segmentation, Tag, VnetHeader};
use datapath::linux::udp;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    segments: Option<u16>,
    vnet: [u8; 10],
    tag: Option<[u8; 4]>,
    /// The sender's address and the control messages, if a UDP socket receives the datagram.
    socket: Option<([u8; 28], &'a [u8])>,
    /// Bytes of the datagram beyond the received ones.
    more: u16,
    bytes: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let Input { segments, vnet, tag, socket, more, bytes } = input;
    if let Some((name, control)) = socket {
        // The parser must accept or refuse any frame.
        return udp::receive_any(name, control, bytes, |frame| _ = roce::wire::parse(frame));
    }
    let vnet = match segments {
        Some(size) => VnetHeader { segmentation: Segmentation::Udp(size), checksum: None },
        None => VnetHeader::parse(vnet),
    };
    let length = bytes.len() + usize::from(more);
    let Ok(received) = Received::parse(vnet, bytes, length, tag.map(Tag)) else { return };
    let mut room = [&[0; HEADROOM], bytes].concat();
    for number in 0..received.count() {
        let _ = received.frame(number, &mut room).map(|frame| roce::wire::parse(frame).is_ok());
    }
});

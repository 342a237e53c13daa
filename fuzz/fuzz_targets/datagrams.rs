//! A received datagram, with its virtio header, may contain anything.
#![no_main]

use arbitrary::Arbitrary;
use datapath::linux::packet::{Received, Segmentation, Tag, VnetHeader};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    segments: Option<u16>,
    vnet: [u8; 10],
    tag: Option<[u8; 4]>,
    /// Bytes of the datagram that were not received.
    more: u16,
    bytes: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let Input { segments, vnet, tag, more, bytes } = input;
    let vnet = match segments {
        Some(size) => VnetHeader { segmentation: Segmentation::Udp(size), checksum: None },
        None => VnetHeader::parse(vnet),
    };
    let length = bytes.len() + usize::from(more);
    let Ok(received) = Received::parse(vnet, bytes, length, tag.map(Tag)) else { return };
    let mut out = vec![0; bytes.len() + 4];
    for frame in (0..received.count()).filter_map(|number| received.frame(number)) {
        let out = &mut out[..frame.length()];
        frame.write(out);
        // Whatever it is, its parser survives it.
        let _ = roce::wire::parse(out);
    }
});

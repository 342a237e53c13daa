//! DPDK's device arguments for each kind of port.

use super::port_info::PortConfig;
use crate::port_spec::{PortSpec, SocketRole};

/// Bytes of an Ethernet header and one VLAN tag.
pub(super) const ETHERNET: usize = 14 + 4;

/// Most bytes before the frame in a slot of a packet socket's ring: TPACKET2_HDRLEN (52), 16 for the Ethernet header, and rounding to 16.
const SLOT_HEAD: usize = 96;
const BLOCK: usize = 65536;

/// Returns the bytes of an AF_PACKET ring's slot for frames of `max_frame` bytes: a power of two, so that slots fill their block.
pub(super) fn slot_size(max_frame: usize) -> usize {
    (max_frame + SLOT_HEAD).next_power_of_two().max(2048)
}

/// Returns the bytes of a slot of an AF_PACKET ring, and the number of slots. The slots fill whole blocks, as the kernel requires.
pub(super) fn packet_ring(max_frame: usize, config: &PortConfig) -> (usize, usize) {
    let slot = slot_size(max_frame);
    let per_block = BLOCK / slot;
    (slot, usize::from(config.ring_slots).next_multiple_of(per_block).max(per_block))
}

/// Returns the bytes of a memif buffer for frames of `max_frame` bytes: a multiple of a cache line.
pub(super) fn memif_buffer(max_frame: usize) -> usize {
    max_frame.next_multiple_of(64)
}

/// Features that the virtio-user driver requests: packed rings, and one buffer for each frame, with room for the largest.
const VIRTIO_FEATURES: &str = "packed_vq=1,mrg_rxbuf=0,in_order=1";

/// Returns the driver of `spec` and its arguments. `connection` is the driver's role and its memif or vhost-user socket. Rings are created
/// by a call, and PCI devices already have a name.
pub(super) fn devargs(
    spec: &PortSpec,
    connection: Option<&(SocketRole, String)>,
    max_frame: usize,
    config: &PortConfig,
) -> (String, String) {
    let device = |driver: &str, arguments: String| (driver.to_owned(), arguments);
    match spec {
        PortSpec::AfPacket(name) => {
            let (slot, slots) = packet_ring(max_frame, config);
            let bypass = u8::from(config.qdisc_bypass);
            device(
                "net_af_packet",
                format!(
                    "iface={name},blocksz={BLOCK},framesz={slot},framecnt={slots},qpairs=1,qdisc_bypass={bypass}"
                ),
            )
        }
        // These use no DPDK device.
        PortSpec::Interface(_) | PortSpec::Packet(_) | PortSpec::Udp(_) => device("", String::new()),
        // `Attachment` adds the arguments for the program.
        PortSpec::Xdp(name) => device("net_af_xdp", format!("iface={name},start_queue=0,queue_count=1")),
        PortSpec::Tap(name) => device("net_tap", format!("iface={name}")),
        PortSpec::Memif { id, zero_copy, .. } => {
            let (role, socket) = match connection {
                Some((SocketRole::Client, socket)) => ("client", socket.as_str()),
                Some((_, socket)) => ("server", socket.as_str()),
                None => ("server", ""),
            };
            let size = memif_buffer(max_frame);
            let slots = config.ring_slots.clamp(2, 1 << 14).next_power_of_two().ilog2();
            // memif can share only the memory of a client.
            let zero_copy = if *zero_copy && role == "client" { ",zero-copy=yes" } else { "" };
            device(
                "net_memif",
                format!(
                    "role={role},id={id},socket={socket},socket-abstract=no,bsize={size},rsize={slots}{zero_copy}"
                ),
            )
        }
        PortSpec::Virtio { .. } => match connection {
            Some((SocketRole::Client, socket)) => {
                device("net_virtio_user", format!("path={socket},queues=1,{VIRTIO_FEATURES}"))
            }
            Some((_, socket)) => device("net_vhost", format!("iface={socket},queues=1")),
            None => device("net_vhost", String::new()),
        },
        PortSpec::Null => device("net_null", "no-rx=1".into()),
        PortSpec::Pcap { rx, tx } => {
            let rx = rx.iter().map(|file| format!("rx_pcap={file}"));
            let tx = tx.iter().map(|file| format!("tx_pcap={file}"));
            device("net_pcap", rx.chain(tx).collect::<Vec<_>>().join(","))
        }
        PortSpec::PcapInterface(name) => device("net_pcap", format!("iface={name}")),
        PortSpec::Ring { name, .. } => device("net_ring", name.clone()),
        PortSpec::Pci(address) => (address.clone(), String::new()),
        PortSpec::Eal(words) => {
            let (driver, arguments) = words.split_once(',').unwrap_or((words, ""));
            (driver.to_owned(), arguments.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(spec: &str, max_frame: usize) -> String {
        let memif = (SocketRole::Client, "/run/x.sock".to_owned());
        devargs(&spec.parse().unwrap(), Some(&memif), max_frame, &PortConfig::default()).1
    }

    #[test]
    fn a_slot_holds_the_frame_and_fills_its_block() {
        assert!(arguments("af_packet:veth0", 1518).contains("blocksz=65536,framesz=2048,framecnt=1024"));
        assert!(arguments("af_packet:veth0", 4218).contains("framesz=8192"));
        for max_frame in [64, 1518, 1953, 4000, 4001, 9018, 16000] {
            let slot = slot_size(max_frame);
            assert!(slot >= max_frame + SLOT_HEAD && BLOCK.is_multiple_of(slot), "{max_frame} in {slot}");
        }
    }

    #[test]
    fn a_memif_buffer_holds_the_whole_frame() {
        assert!(arguments("memif:/run/x.sock", 4518).contains("bsize=4544,rsize=10"));
        assert!(!arguments("memif:/run/x.sock", 4518).contains("zero-copy"));
        assert!(arguments("memif:/run/x.sock,zero-copy", 4518).ends_with(",zero-copy=yes"));
    }

    #[test]
    fn one_end_of_a_vhost_user_socket_is_the_device() {
        let spec = "virtio:/run/x.sock".parse().unwrap();
        let side = |role| devargs(&spec, Some(&(role, "/run/x.sock".into())), 4518, &PortConfig::default());
        assert_eq!(side(SocketRole::Server), ("net_vhost".into(), "iface=/run/x.sock,queues=1".into()));
        let (driver, arguments) = side(SocketRole::Client);
        assert_eq!(driver, "net_virtio_user");
        assert!(arguments.starts_with("path=/run/x.sock,queues=1,packed_vq=1,mrg_rxbuf=0"), "{arguments}");
    }

    #[test]
    fn raw_device_arguments_are_passed_unchanged() {
        let split = devargs(&"eal:net_null0,size=64".parse().unwrap(), None, 64, &PortConfig::default());
        assert_eq!(split, ("net_null0".into(), "size=64".into()));
    }
}

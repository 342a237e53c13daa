use crate::Qpn;

/// The UDP source port of a connected queue pair's packets: 0xC000 and up, spread by both queue pair numbers so
/// that flows take different paths. Linux computes the same (`rdma_flow_label_to_udp_sport`).
#[must_use]
pub const fn udp_source_port(local: Qpn, remote: Qpn) -> u16 {
    let mut v = local.get() as u64 * remote.get() as u64;
    v ^= v >> 20;
    v ^= v >> 40;
    let flow_label = (v & 0xf_ffff) as u32;
    0xc000 | ((flow_label & 0x3fff) ^ (flow_label >> 14)) as u16
}

//! Keeps what is ours from the kernel's IP layer, which would look up a route and a socket for each packet only to drop it: a fifth
//! of what a frame costs over a Linux interface. The port, a packet socket, has its copy before.

use super::filter;
use crate::bpf::call::attach_at_ingress;
use crate::fork::Own;
use std::net::IpAddr;

/// Drops UDP datagrams to these `ports` and `addresses` at the interface of this index, behind its packet sockets, until the returned value
/// is dropped or the process ends. If the kernel is older than 6.6, or this process lacks `CAP_BPF` or `CAP_NET_ADMIN`, returns nothing:
/// then the datagrams take the long way.
pub(super) fn drop_at(index: u32, addresses: &[IpAddr], ports: &[u16]) -> Option<Own> {
    attach_at_ingress(&filter::program(addresses, ports), index)
        .inspect_err(|error| {
            tracing::debug!("interface {index}: the kernel handles our packets too: {error}")
        })
        .ok()
        .map(Own::from)
}

//! Drops RoCEv2 packets before the kernel's IP layer, which would look up a route and a socket for each only to drop it. That lookup is a
//! fifth of the cost of a frame on a Linux interface. The port's packet socket receives its copy earlier.

use super::filter;
use crate::bpf::call::attach_at_ingress;
use crate::fork::CloseOnFork;
use std::net::IpAddr;

/// Drops UDP datagrams to these `ports` and `addresses` at the interface with this index, after its packet sockets. Stops when the returned
/// value is dropped or the process ends. Returns `None` before Linux 6.6, or without `CAP_BPF` and `CAP_NET_ADMIN`: the kernel's IP layer
/// then drops the datagrams.
pub(super) fn drop_at(index: u32, addresses: &[IpAddr], ports: &[u16]) -> Option<CloseOnFork> {
    attach_at_ingress(&filter::program(addresses, ports), index)
        .inspect_err(|error| {
            tracing::debug!("interface {index}: the kernel handles our packets too: {error}")
        })
        .ok()
        .map(CloseOnFork::from)
}

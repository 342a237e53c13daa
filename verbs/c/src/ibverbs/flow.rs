//! Flow steering: rules for the frames that raw packet queue pairs receive, from `struct ibv_flow_attr` and the specifications that follow
//! it.

use crate::abi::*;
use crate::errno::{Errno, INVALID, UNSUPPORTED, at, created, status};
use crate::ibverbs::live_objects;
use crate::ibverbs::queue_pair::Qp;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;
use verbs::Service;
use verbs::raw::{
    EthernetSpec, FlowAction, FlowFrames, FlowRule, FlowSpec, Ipv4Spec, Ipv6Spec, Masked, PortSpec,
};

/// The maximum number of headers in a rule, as in the kernel.
const MAX_SPECS: usize = 10;
/// The first reserved flag (`IB_FLOW_ATTR_FLAGS_RESERVED`).
const RESERVED_FLAGS: c_uint = 1 << 3;

/// A rule. The program's pointer is the address of `abi`.
#[repr(C)]
pub(crate) struct Flow {
    abi: ibv_flow,
    qp: *mut ibv_qp,
    _rule: verbs::raw::Flow,
}

/// Returns `EPERM`, as the kernel does, if the process lacks CAP_NET_RAW, because a raw packet can have any source address.
pub(crate) fn check_permission() -> Result<(), Errno> {
    if datapath::capabilities::opens_packet_sockets() {
        return Ok(());
    }
    let remedy = datapath::capabilities::remedy("CAP_NET_RAW");
    tracing::warn!("raw packets: this process lacks CAP_NET_RAW; {remedy}");
    Err(Errno(libc::EPERM))
}

enum Part {
    Header(FlowSpec),
    Drop,
}

const fn masked<const N: usize>(value: [u8; N], mask: [u8; N]) -> Masked<N> {
    Masked { value, mask }
}

fn ethernet(val: ibv_flow_eth_filter, mask: ibv_flow_eth_filter) -> FlowSpec {
    FlowSpec::Ethernet(EthernetSpec {
        destination: masked(val.dst_mac, mask.dst_mac),
        source: masked(val.src_mac, mask.src_mac),
        ether_type: masked(val.ether_type.to_ne_bytes(), mask.ether_type.to_ne_bytes()),
        vlan: masked(val.vlan_tag.to_ne_bytes(), mask.vlan_tag.to_ne_bytes()),
    })
}

fn ipv4(val: ibv_flow_ipv4_ext_filter, mask: ibv_flow_ipv4_ext_filter) -> FlowSpec {
    FlowSpec::Ipv4(Ipv4Spec {
        source: masked(val.src_ip.to_ne_bytes(), mask.src_ip.to_ne_bytes()),
        destination: masked(val.dst_ip.to_ne_bytes(), mask.dst_ip.to_ne_bytes()),
        protocol: masked([val.proto], [mask.proto]),
        traffic_class: masked([val.tos], [mask.tos]),
        time_to_live: masked([val.ttl], [mask.ttl]),
        flags: masked([val.flags], [mask.flags]),
    })
}

/// Converts the shorter IPv4 filter, which has only addresses, to the extended one.
fn addresses(from: ibv_flow_ipv4_filter) -> ibv_flow_ipv4_ext_filter {
    ibv_flow_ipv4_ext_filter { src_ip: from.src_ip, dst_ip: from.dst_ip, ..Default::default() }
}

fn ipv6(val: ibv_flow_ipv6_filter, mask: ibv_flow_ipv6_filter) -> Result<FlowSpec, Errno> {
    if [val.flow_label, mask.flow_label].into_iter().any(|label| u32::from_be(label) >> 20 != 0) {
        return Err(INVALID);
    }
    Ok(FlowSpec::Ipv6(Ipv6Spec {
        source: masked(val.src_ip, mask.src_ip),
        destination: masked(val.dst_ip, mask.dst_ip),
        flow_label: masked(val.flow_label.to_ne_bytes(), mask.flow_label.to_ne_bytes()),
        next_header: masked([val.next_hdr], [mask.next_hdr]),
        traffic_class: masked([val.traffic_class], [mask.traffic_class]),
        hop_limit: masked([val.hop_limit], [mask.hop_limit]),
    }))
}

fn ports(val: ibv_flow_tcp_udp_filter, mask: ibv_flow_tcp_udp_filter) -> PortSpec {
    PortSpec {
        source: masked(val.src_port.to_ne_bytes(), mask.src_port.to_ne_bytes()),
        destination: masked(val.dst_port.to_ne_bytes(), mask.dst_port.to_ne_bytes()),
    }
}

/// Reads a specification whose header contains this `size`, in bytes.
///
/// # Safety
/// The caller must pass a pointer to `size` readable bytes.
unsafe fn read<T>(from: *const u8, size: u16) -> Result<T, Errno> {
    if usize::from(size) < size_of::<T>() {
        return Err(INVALID);
    }
    // SAFETY: `size` is large enough. All of these structures consist of numbers, and the read needs no alignment.
    Ok(unsafe { from.cast::<T>().read_unaligned() })
}

/// Returns one part of a rule, and its length in bytes.
///
/// # Safety
/// The caller must pass a pointer to a specification of the size in its header.
unsafe fn part(from: *const u8) -> Result<(Part, usize), Errno> {
    type Head = ibv_flow_spec__bindgen_ty_1__bindgen_ty_1;
    // SAFETY: each specification begins with these two fields.
    let Head { type_, size } = unsafe { from.cast::<Head>().read_unaligned() };
    // SAFETY: guaranteed by the caller; the type determines the structure.
    let part = unsafe {
        match type_ {
            IBV_FLOW_SPEC_ETH => {
                let ibv_flow_spec_eth { val, mask, .. } = read(from, size)?;
                Part::Header(ethernet(val, mask))
            }
            IBV_FLOW_SPEC_IPV4 => {
                let ibv_flow_spec_ipv4 { val, mask, .. } = read(from, size)?;
                Part::Header(ipv4(addresses(val), addresses(mask)))
            }
            IBV_FLOW_SPEC_IPV4_EXT => {
                let ibv_flow_spec_ipv4_ext { val, mask, .. } = read(from, size)?;
                Part::Header(ipv4(val, mask))
            }
            IBV_FLOW_SPEC_IPV6 => {
                let ibv_flow_spec_ipv6 { val, mask, .. } = read(from, size)?;
                Part::Header(ipv6(val, mask)?)
            }
            IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP => {
                let ibv_flow_spec_tcp_udp { val, mask, .. } = read(from, size)?;
                let ports = ports(val, mask);
                let is_tcp = type_ == IBV_FLOW_SPEC_TCP;
                Part::Header(if is_tcp { FlowSpec::Tcp(ports) } else { FlowSpec::Udp(ports) })
            }
            IBV_FLOW_SPEC_ACTION_DROP => {
                let _: ibv_flow_spec_action_drop = read(from, size)?;
                Part::Drop
            }
            other => return Err(refused(other)),
        }
    };
    Ok((part, size.into()))
}

/// Returns the error for an unsupported type of specification.
fn refused(kind: ibv_flow_spec_type) -> Errno {
    match kind & !IBV_FLOW_SPEC_INNER {
        IBV_FLOW_SPEC_ETH
        | IBV_FLOW_SPEC_IPV4
        | IBV_FLOW_SPEC_IPV6
        | IBV_FLOW_SPEC_IPV4_EXT
        | IBV_FLOW_SPEC_ESP
        | IBV_FLOW_SPEC_TCP
        | IBV_FLOW_SPEC_UDP
        | IBV_FLOW_SPEC_VXLAN_TUNNEL
        | IBV_FLOW_SPEC_GRE
        | IBV_FLOW_SPEC_MPLS
        | IBV_FLOW_SPEC_ACTION_TAG
        | IBV_FLOW_SPEC_ACTION_HANDLE
        | IBV_FLOW_SPEC_ACTION_COUNT => {
            tracing::warn!(
                "ibv_create_flow: specification {kind:#x}: not supported; use Ethernet, IPv4, IPv6, TCP, UDP or drop"
            );
            UNSUPPORTED
        }
        _ => INVALID,
    }
}

/// Checks a rule in the same order as the kernel.
fn check(wanted: &ibv_flow_attr) -> Result<(), Errno> {
    let is_default = matches!(wanted.type_, IBV_FLOW_ATTR_ALL_DEFAULT | IBV_FLOW_ATTR_MC_DEFAULT);
    let copies = wanted.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0;
    if wanted.flags >= RESERVED_FLAGS
        || (copies && is_default)
        || usize::from(wanted.num_of_specs) > MAX_SPECS
        || wanted.port != 1
        || wanted.type_ > IBV_FLOW_ATTR_SNIFFER
        || (is_default && wanted.num_of_specs > 0)
    {
        return Err(INVALID);
    }
    Ok(())
}

/// # Safety
/// The caller must pass null, or attributes that `num_of_specs` specifications follow, each of the size in its header.
unsafe fn rule(wanted: *const ibv_flow_attr) -> Result<FlowRule, Errno> {
    // SAFETY: guaranteed by the caller.
    let (attributes, mut next) = unsafe { (at(wanted)?, wanted.add(1).cast::<u8>()) };
    check(attributes)?;
    let copies = attributes.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0;
    let mut action = if copies { FlowAction::Copy } else { FlowAction::Take };
    let mut specs = Vec::new();
    for _ in 0..attributes.num_of_specs {
        // SAFETY: guaranteed by the caller.
        let (part, size) = unsafe { part(next) }?;
        match part {
            Part::Header(spec) => specs.push(spec),
            Part::Drop => action = FlowAction::Drop,
        }
        // SAFETY: the result points to the next specification, or to the end of the last one.
        next = unsafe { next.add(size) };
    }
    let frames = match attributes.type_ {
        IBV_FLOW_ATTR_NORMAL => FlowFrames::Matching(specs),
        IBV_FLOW_ATTR_ALL_DEFAULT => FlowFrames::Rest,
        IBV_FLOW_ATTR_MC_DEFAULT => FlowFrames::RestOfGroups,
        _ => {
            tracing::warn!("ibv_create_flow: IBV_FLOW_ATTR_SNIFFER: not supported; use `ferroce capture`");
            return Err(UNSUPPORTED);
        }
    };
    if attributes.flags & IBV_FLOW_ATTR_FLAGS_EGRESS != 0 {
        tracing::warn!(
            "ibv_create_flow: IBV_FLOW_ATTR_FLAGS_EGRESS: not supported; rules are for received frames"
        );
        return Err(UNSUPPORTED);
    }
    Ok(FlowRule { priority: attributes.priority, frames, action })
}

/// `ibv_create_flow(3)`
pub(crate) unsafe extern "C" fn create_flow(qp: *mut ibv_qp, wanted: *mut ibv_flow_attr) -> *mut ibv_flow {
    created(|| {
        check_permission()?;
        // SAFETY: the contract of the manual page.
        let (whole, rule) = unsafe { (Qp::find(qp), rule(wanted)) };
        let whole = whole?;
        let inner = whole.lock();
        if inner.qp.service() != Service::Raw {
            return Err(INVALID);
        }
        let _rule = inner.qp.steer(rule?)?;
        whole.flows.fetch_add(1, Ordering::AcqRel);
        let abi = ibv_flow { context: whole.base().context, ..Default::default() };
        Ok(live_objects::publish(Flow { abi, qp, _rule }).cast())
    })
}

/// `ibv_destroy_flow(3)`
pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    status(|| {
        let flow = flow.cast::<Flow>();
        // SAFETY: the contract of the manual page.
        unsafe { live_objects::find_last(flow) }?;
        // SAFETY: the program must not use the rule after this call.
        let flow = unsafe { live_objects::reclaim(flow) }?;
        // SAFETY: a queue pair lives as long as its rules.
        unsafe { Qp::find(flow.qp) }?.flows.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    })
}

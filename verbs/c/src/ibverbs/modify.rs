//! State transitions of queue pairs, from the attributes that a program sets (IBA 11.2.5.2).

use crate::abi::*;
use crate::errno::{Errno, INVALID, UNSUPPORTED, injected, out, status};
use crate::ibverbs::context::Context;
use crate::ibverbs::domain::rights;
use crate::ibverbs::query::{ip_of, mtu_of};
use crate::ibverbs::queue_pair::{Inner, Qp, discard_completions, state_code};
use crate::ibverbs::transitions::{Rule, no_attributes};
use std::ffi::{c_int, c_uint};
use verbs::congestion::{Congestion, DEFAULT_CONGESTION};
use verbs::fault::Verb;
use verbs::state::{AckTimeout, Changes, LossRecovery, Modify, RnrTimer, RtrSettings, RtsSettings, State};
use verbs::wire::{Path, udp_source_port_of_flow};
use verbs::{Psn, Qpn, Service};

/// # Safety
/// The caller must pass an open context.
unsafe fn path(context: *mut ibv_context, qpn: Qpn, peer: u32, wanted: &ibv_qp_attr) -> Result<Path, Errno> {
    let address = &wanted.ah_attr;
    if address.is_global == 0 {
        tracing::warn!("ibv_modify_qp: RoCE needs a GID, but is_global is 0");
        return Err(INVALID);
    }
    // SAFETY: guaranteed by the caller.
    let device = &unsafe { Context::from(context) }?.device;
    let info = device.query()?;
    let source = info.gids.get(usize::from(address.grh.sgid_index)).ok_or(INVALID)?;
    // SAFETY: any 16 bytes are a GID.
    let destination = ip_of(unsafe { address.grh.dgid.raw });
    if source.is_ipv4() != destination.is_ipv4() {
        tracing::warn!("ibv_modify_qp: GID {source} cannot reach {destination}; choose another GID index");
        return Err(INVALID);
    }
    // As in the kernel, the hop limit does not depend on the program's attribute. The VLAN priority is the service level.
    Ok(Path {
        destination_mac: device.resolve(destination)?,
        vlan: info.vlan.map(|vlan| vlan.with_priority(address.sl)),
        udp_source: udp_source_port_of_flow(address.grh.flow_label, source, qpn, Qpn::new(peer & 0xff_ffff)),
        flow_label: address.grh.flow_label & 0xf_ffff,
        ..info.path(source, destination, address.grh.traffic_class)
    })
}

/// # Safety
/// As [`path`].
unsafe fn to_rtr(
    context: *mut ibv_context,
    service: Service,
    qpn: Qpn,
    wanted: &ibv_qp_attr,
) -> Result<Modify, Errno> {
    // SAFETY: guaranteed by the caller.
    let info = unsafe { Context::from(context) }?.device.query()?;
    match service {
        Service::Ud => return Ok(Modify::ReadyToReceiveDatagrams { mtu: info.mtu, feedback_key: None }),
        Service::Raw => {
            return Ok(Modify::ReadyToReceiveRaw { longest: info.longest_frame.ok_or(UNSUPPORTED)? });
        }
        Service::Rc | Service::Uc | Service::Xrc => {}
    }
    // SAFETY: guaranteed by the caller.
    let path = unsafe { path(context, qpn, wanted.dest_qp_num, wanted) }?;
    let mtu = mtu_of(wanted.path_mtu)?;
    if mtu > info.mtu {
        tracing::warn!("ibv_modify_qp: the port carries a path MTU of at most {}", info.mtu.bytes());
        return Err(INVALID);
    }
    Ok(Modify::ReadyToReceive(RtrSettings {
        path,
        destination: Qpn::new(wanted.dest_qp_num & 0xff_ffff),
        mtu,
        receive_psn: Psn::new(wanted.rq_psn & 0xff_ffff),
        max_dest_rd_atomic: wanted.max_dest_rd_atomic,
        min_rnr_timer: RnrTimer::new(wanted.min_rnr_timer),
        loss_recovery: LossRecovery::Offered,
        feedback_key: None,
    }))
}

/// Returns the code of the ACK timeout. As on NICs, there is a shortest one: a program that sets 65 µs assumes a hardware peer, but the
/// kernel may not schedule a software peer for milliseconds. 0 disables the timeout.
const fn ack_timeout(wanted: u8) -> u8 {
    /// 67 ms.
    const SHORTEST: u8 = 14;
    if wanted == 0 || wanted > SHORTEST { wanted } else { SHORTEST }
}

fn to_rts(service: Service, congestion: Option<Congestion>, wanted: &ibv_qp_attr) -> Modify {
    let send_psn = Psn::new(wanted.sq_psn & 0xff_ffff);
    // The default selects the rules of the configuration.
    let congestion = congestion.unwrap_or(DEFAULT_CONGESTION);
    match service {
        Service::Ud => return Modify::ReadyToSendDatagrams { send_psn, congestion },
        Service::Raw => return Modify::ReadyToSendRaw,
        Service::Rc | Service::Uc | Service::Xrc => {}
    }
    Modify::ReadyToSend(RtsSettings {
        send_psn,
        ack_timeout: AckTimeout::new(ack_timeout(wanted.timeout)),
        retry_count: wanted.retry_cnt,
        rnr_retry: wanted.rnr_retry,
        max_rd_atomic: wanted.max_rd_atomic,
        congestion,
    })
}

/// Returns the transitions and changes for the core, in order. Optional attributes apply before or after the transition, depending on the
/// states.
///
/// # Safety
/// As [`path`].
unsafe fn steps(
    context: *mut ibv_context,
    inner: &Inner,
    from: State,
    wanted: &ibv_qp_attr,
    mask: c_uint,
) -> Result<[Option<Modify>; 2], Errno> {
    if mask & IBV_QP_CUR_STATE != 0 && wanted.cur_qp_state != state_code(from) {
        return Err(INVALID);
    }
    let (service, qpn) = (inner.qp.service(), inner.qp.qpn());
    let mask = mask & !no_attributes(&inner.qp);
    // Without IBV_QP_STATE the state is unchanged.
    let to = if mask & IBV_QP_STATE == 0 { state_code(from) } else { wanted.qp_state };
    let rule = Rule::of(&inner.qp, from, to)?;
    rule.check(mask)?;
    let wanted = &named(wanted, mask);
    // SAFETY: guaranteed by the caller.
    let besides = unsafe { changes(context, inner, wanted, mask & rule.optional) }?;
    let change = (besides != Changes::default()).then_some(Modify::Change(besides));
    Ok(match (from, to) {
        (_, IBV_QPS_RESET) => [Some(Modify::Reset), None],
        (_, IBV_QPS_ERR) => [Some(Modify::Error), None],
        (State::Reset, _) => [Some(to_init(service, wanted)?), None],
        // SAFETY: guaranteed by the caller.
        (State::Init, IBV_QPS_RTR) => [change, Some(unsafe { to_rtr(context, service, qpn, wanted) }?)],
        (State::ReadyToReceive, _) => [Some(to_rts(service, inner.congestion, wanted)), change],
        (State::ReadyToSend, IBV_QPS_SQD) => {
            let notify = mask & IBV_QP_EN_SQD_ASYNC_NOTIFY != 0 && wanted.en_sqd_async_notify != 0;
            [Some(Modify::Drain { notify }), None]
        }
        (State::SendQueueDrained | State::SendQueueError, IBV_QPS_RTS) => [change, Some(Modify::Resume)],
        _ => [change, None],
    })
}

/// Returns the attributes with those that `mask` does not select set to 0, because the program may not have initialized them.
fn named(wanted: &ibv_qp_attr, mask: c_uint) -> ibv_qp_attr {
    let mut named = *wanted;
    for (flag, attribute) in [
        (IBV_QP_MAX_DEST_RD_ATOMIC, &mut named.max_dest_rd_atomic),
        (IBV_QP_MIN_RNR_TIMER, &mut named.min_rnr_timer),
        (IBV_QP_TIMEOUT, &mut named.timeout),
        (IBV_QP_RETRY_CNT, &mut named.retry_cnt),
        (IBV_QP_RNR_RETRY, &mut named.rnr_retry),
        (IBV_QP_MAX_QP_RD_ATOMIC, &mut named.max_rd_atomic),
    ] {
        if mask & flag == 0 {
            *attribute = 0;
        }
    }
    named
}

/// Returns the changes of the attributes in `mask`.
///
/// # Safety
/// As [`path`].
unsafe fn changes(
    context: *mut ibv_context,
    inner: &Inner,
    wanted: &ibv_qp_attr,
    mask: c_uint,
) -> Result<Changes, Errno> {
    let (qpn, peer) = (inner.qp.qpn(), inner.attributes.dest_qp_num);
    let has = |flag| mask & flag != 0;
    if has(IBV_QP_PKEY_INDEX) && wanted.pkey_index != 0 || has(IBV_QP_PORT) && wanted.port_num != 1 {
        return Err(INVALID);
    }
    Ok(Changes {
        access: has(IBV_QP_ACCESS_FLAGS).then(|| rights(wanted.qp_access_flags)).transpose()?,
        // The port has only one P_Key.
        partition_key: None,
        queue_key: has(IBV_QP_QKEY).then_some(wanted.qkey),
        min_rnr_timer: has(IBV_QP_MIN_RNR_TIMER).then(|| RnrTimer::new(wanted.min_rnr_timer)),
        // SAFETY: guaranteed by the caller.
        path: has(IBV_QP_AV).then(|| unsafe { path(context, qpn, peer, wanted) }).transpose()?,
        ack_timeout: has(IBV_QP_TIMEOUT).then(|| AckTimeout::new(ack_timeout(wanted.timeout))),
        retry_count: has(IBV_QP_RETRY_CNT).then_some(wanted.retry_cnt),
        rnr_retry: has(IBV_QP_RNR_RETRY).then_some(wanted.rnr_retry),
        max_rd_atomic: has(IBV_QP_MAX_QP_RD_ATOMIC).then_some(wanted.max_rd_atomic),
        max_dest_rd_atomic: has(IBV_QP_MAX_DEST_RD_ATOMIC).then_some(wanted.max_dest_rd_atomic),
    })
}

fn to_init(service: Service, wanted: &ibv_qp_attr) -> Result<Modify, Errno> {
    // Raw packets have no partition, so programs do not set the P_Key index.
    if wanted.port_num != 1 || wanted.pkey_index != 0 && service != Service::Raw {
        return Err(INVALID);
    }
    let partition_key = 0xffff;
    Ok(match service {
        Service::Rc | Service::Uc | Service::Xrc => {
            Modify::Init { access: rights(wanted.qp_access_flags)?, partition_key }
        }
        Service::Ud => Modify::InitDatagram { queue_key: wanted.qkey, partition_key },
        Service::Raw => Modify::InitRaw,
    })
}

/// Stores the attributes in `mask` for `ibv_query_qp`.
fn remember(kept: &mut ibv_qp_attr, new: &ibv_qp_attr, mask: c_uint) {
    let mut keep = |flag: c_uint, copy: &dyn Fn(&mut ibv_qp_attr)| {
        if mask & flag != 0 {
            copy(kept);
        }
    };
    keep(IBV_QP_ACCESS_FLAGS, &|kept| kept.qp_access_flags = new.qp_access_flags);
    keep(IBV_QP_PKEY_INDEX, &|kept| kept.pkey_index = new.pkey_index);
    keep(IBV_QP_PORT, &|kept| kept.port_num = new.port_num);
    keep(IBV_QP_QKEY, &|kept| kept.qkey = new.qkey);
    keep(IBV_QP_AV, &|kept| kept.ah_attr = new.ah_attr);
    keep(IBV_QP_PATH_MTU, &|kept| kept.path_mtu = new.path_mtu);
    keep(IBV_QP_DEST_QPN, &|kept| kept.dest_qp_num = new.dest_qp_num);
    keep(IBV_QP_MAX_DEST_RD_ATOMIC, &|kept| kept.max_dest_rd_atomic = new.max_dest_rd_atomic);
    keep(IBV_QP_MIN_RNR_TIMER, &|kept| kept.min_rnr_timer = new.min_rnr_timer);
    keep(IBV_QP_TIMEOUT, &|kept| kept.timeout = new.timeout);
    keep(IBV_QP_RETRY_CNT, &|kept| kept.retry_cnt = new.retry_cnt);
    keep(IBV_QP_RNR_RETRY, &|kept| kept.rnr_retry = new.rnr_retry);
    keep(IBV_QP_MAX_QP_RD_ATOMIC, &|kept| kept.max_rd_atomic = new.max_rd_atomic);
}

/// The attributes that this library checks. It supports no later ones.
const KNOWN: c_uint = IBV_QP_RATE_LIMIT - 1;

/// `ibv_modify_qp(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, wanted: *mut ibv_qp_attr, mask: c_int) -> c_int {
    status(|| {
        injected(Verb::ModifyQp)?;
        // SAFETY: the contract of the manual page.
        let (whole, wanted) = unsafe { (Qp::find(qp)?, &*out(wanted)?) };
        let mask = mask as c_uint;
        if mask & !KNOWN != 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: the queue pair is alive, and its context never changes.
        let context = unsafe { (*qp).context };
        let mut inner = whole.lock();
        let from = inner.qp.query()?.state;
        // SAFETY: the context lives as long as its queue pairs.
        let steps = unsafe { steps(context, &inner, from, wanted, mask) }?;
        for modify in steps.into_iter().flatten() {
            inner.qp.modify(modify)?;
        }
        if mask & IBV_QP_STATE != 0 && wanted.qp_state == IBV_QPS_RESET {
            let base = whole.base();
            // SAFETY: completion queues live as long as their queue pairs.
            unsafe { discard_completions([base.send_cq, base.recv_cq], inner.qp.qpn()) }?;
        }
        remember(&mut inner.attributes, wanted, mask);
        if mask & IBV_QP_STATE != 0 {
            whole.show_state(wanted.qp_state);
        }
        Ok(())
    })
}

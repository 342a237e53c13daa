//! Queue pairs through their states, by the attributes that a program sets (IBA 11.2.5.2).

use crate::abi::*;
use crate::context::Context;
use crate::domain::rights;
use crate::errno::{Errno, INVALID, out, status};
use crate::query::{ip_of, mtu_of};
use crate::queue_pair::{Inner, Qp, state_code};
use std::ffi::{c_int, c_uint};
use verbs::{
    AckTimeout, Congestion, DEFAULT_CONGESTION, Modify, Path, Psn, Qpn, RnrTimer, RtrSettings, RtsSettings,
    Service, State, udp_source_port,
};

/// What a transition must set, and what else it may.
struct Rule {
    required: c_uint,
    optional: c_uint,
}

/// Attributes of any transition.
const ALWAYS: c_uint = IBV_QP_STATE | IBV_QP_CUR_STATE;
/// The rules of a service: to INIT, RTR and RTS.
struct Rules {
    init: Rule,
    rtr: Rule,
    rts: Rule,
}

const RC: Rules = Rules {
    init: Rule { required: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, optional: 0 },
    rtr: Rule {
        required: IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER,
        optional: IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
    },
    rts: Rule {
        required: IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC,
        optional: IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE,
    },
};

const UC: Rules = Rules {
    init: Rule { required: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, optional: 0 },
    rtr: Rule {
        required: IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
        optional: IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
    },
    rts: Rule {
        required: IBV_QP_SQ_PSN,
        optional: IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE,
    },
};

const UD: Rules = Rules {
    init: Rule { required: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, optional: 0 },
    rtr: Rule { required: 0, optional: IBV_QP_PKEY_INDEX | IBV_QP_QKEY },
    rts: Rule { required: IBV_QP_SQ_PSN, optional: IBV_QP_QKEY },
};

impl Rule {
    fn check(&self, mask: c_uint) -> Result<(), Errno> {
        let missing = self.required & !mask;
        let foreign = mask & !(self.required | self.optional | ALWAYS);
        if missing | foreign == 0 {
            return Ok(());
        }
        tracing::warn!("ibv_modify_qp: attributes {missing:#x} are missing, {foreign:#x} have no place here");
        Err(INVALID)
    }
}

/// # Safety
/// The context is open.
unsafe fn path(context: *mut ibv_context, qpn: Qpn, wanted: &ibv_qp_attr) -> Result<Path, Errno> {
    let address = &wanted.ah_attr;
    if address.is_global == 0 {
        tracing::warn!("ibv_modify_qp: RoCE needs a GID: is_global is 0");
        return Err(INVALID);
    }
    // SAFETY: passed on.
    let device = &unsafe { Context::from(context) }?.device;
    let info = device.query()?;
    let source = *info.gids.get(usize::from(address.grh.sgid_index)).ok_or(INVALID)?;
    // SAFETY: any 16 bytes are a GID.
    let destination = ip_of(unsafe { address.grh.dgid.raw });
    if source.is_ipv4() != destination.is_ipv4() {
        tracing::warn!("ibv_modify_qp: GID {source} can't reach {destination}: choose another GID index");
        return Err(INVALID);
    }
    // The hop limit is the route's, whatever the program says, as the kernel does it. A VLAN's priority is the service level.
    Ok(Path {
        destination_mac: device.resolve(destination)?,
        vlan: info.vlan.map(|vlan| vlan.with_priority(address.sl)),
        udp_source: udp_source_port(qpn, Qpn::new(wanted.dest_qp_num & 0xff_ffff)),
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
    // SAFETY: passed on.
    let info = unsafe { Context::from(context) }?.device.query()?;
    if service == Service::Ud {
        return Ok(Modify::ReadyToReceiveDatagrams { mtu: info.mtu });
    }
    // SAFETY: passed on.
    let path = unsafe { path(context, qpn, wanted) }?;
    let mtu = mtu_of(wanted.path_mtu)?;
    if mtu > info.mtu {
        tracing::warn!("ibv_modify_qp: the port carries a path MTU of {}", info.mtu.bytes());
        return Err(INVALID);
    }
    Ok(Modify::ReadyToReceive(RtrSettings {
        path,
        destination: Qpn::new(wanted.dest_qp_num & 0xff_ffff),
        mtu,
        receive_psn: Psn::new(wanted.rq_psn & 0xff_ffff),
        max_dest_rd_atomic: wanted.max_dest_rd_atomic,
        min_rnr_timer: RnrTimer::new(wanted.min_rnr_timer),
        selective_repeat: false,
    }))
}

/// As devices have it, there is a shortest timeout: whoever asks for 65 µs thinks of hardware, not of a peer whose CPU the kernel takes
/// away for milliseconds. 0 is none.
const fn ack_timeout(wanted: u8) -> u8 {
    /// 67 ms.
    const SHORTEST: u8 = 14;
    if wanted == 0 || wanted > SHORTEST { wanted } else { SHORTEST }
}

fn to_rts(service: Service, congestion: Option<Congestion>, wanted: &ibv_qp_attr) -> Modify {
    let send_psn = Psn::new(wanted.sq_psn & 0xff_ffff);
    // By the configuration's rules, unless the program chose.
    let congestion = congestion.unwrap_or(DEFAULT_CONGESTION);
    if service == Service::Ud {
        return Modify::ReadyToSendDatagrams { send_psn, congestion };
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

/// The transition that the attributes ask for.
///
/// # Safety
/// As [`path`].
unsafe fn transition(
    context: *mut ibv_context,
    inner: &Inner,
    from: State,
    wanted: &ibv_qp_attr,
    mask: c_uint,
) -> Result<Modify, Errno> {
    if mask & IBV_QP_CUR_STATE != 0 && wanted.cur_qp_state != state_code(from) {
        return Err(INVALID);
    }
    let (service, rules) = match inner.qp.service() {
        Service::Rc => (Service::Rc, RC),
        Service::Uc => (Service::Uc, UC),
        Service::Ud => (Service::Ud, UD),
    };
    match (wanted.qp_state, from) {
        (IBV_QPS_RESET, _) => Ok(Modify::Reset),
        (IBV_QPS_ERR, _) => Ok(Modify::Error),
        (IBV_QPS_INIT, _) => {
            rules.init.check(mask)?;
            to_init(service, wanted)
        }
        (IBV_QPS_RTR, _) => {
            rules.rtr.check(mask)?;
            // SAFETY: passed on.
            unsafe { to_rtr(context, service, inner.qp.qpn(), wanted) }
        }
        (IBV_QPS_RTS, State::SendQueueDrained | State::SendQueueError) => Ok(Modify::Resume),
        (IBV_QPS_RTS, _) => {
            rules.rts.check(mask)?;
            Ok(to_rts(service, inner.congestion, wanted))
        }
        (IBV_QPS_SQD, _) => Ok(Modify::Drain {
            notify: mask & IBV_QP_EN_SQD_ASYNC_NOTIFY != 0 && wanted.en_sqd_async_notify != 0,
        }),
        _ => Err(INVALID),
    }
}

fn to_init(service: Service, wanted: &ibv_qp_attr) -> Result<Modify, Errno> {
    if wanted.port_num != 1 || wanted.pkey_index != 0 {
        return Err(INVALID);
    }
    let partition_key = 0xffff;
    Ok(match service {
        Service::Rc | Service::Uc => Modify::Init { access: rights(wanted.qp_access_flags)?, partition_key },
        Service::Ud => Modify::InitDatagram { queue_key: wanted.qkey, partition_key },
    })
}

/// Keeps what was set, for `ibv_query_qp`.
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

/// `ibv_modify_qp(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, wanted: *mut ibv_qp_attr, mask: c_int) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let (whole, wanted) = unsafe { (Qp::find(qp)?, &*out(wanted)?) };
        let mask = mask as c_uint;
        if mask & IBV_QP_STATE == 0 {
            return Err(INVALID);
        }
        // SAFETY: the queue pair is alive; its context is never changed.
        let context = unsafe { (*qp).context };
        let mut inner = whole.lock();
        let from = inner.qp.query()?.state;
        // SAFETY: the context lives as long as its queue pairs.
        let modify = unsafe { transition(context, &inner, from, wanted, mask) }?;
        inner.qp.modify(modify)?;
        remember(&mut inner.attributes, wanted, mask);
        whole.show_state(wanted.qp_state);
        Ok(())
    })
}

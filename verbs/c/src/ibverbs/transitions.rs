//! The attributes that a transition of a queue pair requires, and those that it allows (IBA 11.2.5.2).

use crate::abi::*;
use crate::errno::{Errno, INVALID};
use std::ffi::c_uint;
use verbs::service::Any;
use verbs::state::State;
use verbs::{QueuePair, Service};

/// The attributes of a transition.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    required: c_uint,
    pub(crate) optional: c_uint,
}

struct Row {
    from: State,
    to: ibv_qp_state,
    /// `None` if the service has no such transition.
    rc: Option<Rule>,
    uc: Option<Rule>,
    ud: Option<Rule>,
}

const fn rule(required: c_uint, optional: c_uint) -> Option<Rule> {
    Some(Rule { required, optional })
}

/// The attributes that every transition allows.
const ALWAYS: c_uint = IBV_QP_STATE | IBV_QP_CUR_STATE;
const OPENED: c_uint = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
const CONNECTED: c_uint = OPENED | IBV_QP_ACCESS_FLAGS;
const DATAGRAM: c_uint = OPENED | IBV_QP_QKEY;
const PEER: c_uint = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
const READS_HERE: c_uint = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
const TIMEOUT_AND_RETRIES: c_uint = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
const ASKING: c_uint = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
/// Accepted and ignored, as in Linux's Soft-RoCE: the queue pair never changes to an alternate path.
const ALTERNATE: c_uint = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
const RUNNING_UC: c_uint = IBV_QP_ACCESS_FLAGS | ALTERNATE;
const RUNNING_RC: c_uint = RUNNING_UC | IBV_QP_MIN_RNR_TIMER;

const TABLE: &[Row] = &[
    Row {
        from: State::Reset,
        to: IBV_QPS_INIT,
        rc: rule(CONNECTED, 0),
        uc: rule(CONNECTED, 0),
        ud: rule(DATAGRAM, 0),
    },
    Row {
        from: State::Init,
        to: IBV_QPS_INIT,
        rc: rule(0, CONNECTED),
        uc: rule(0, CONNECTED),
        ud: rule(0, DATAGRAM),
    },
    Row {
        from: State::Init,
        to: IBV_QPS_RTR,
        rc: rule(PEER | READS_HERE, IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX),
        uc: rule(PEER, IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX),
        ud: rule(0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
    },
    Row {
        from: State::ReadyToReceive,
        to: IBV_QPS_RTS,
        rc: rule(TIMEOUT_AND_RETRIES | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC, RUNNING_RC),
        uc: rule(IBV_QP_SQ_PSN, RUNNING_UC),
        ud: rule(IBV_QP_SQ_PSN, IBV_QP_QKEY),
    },
    Row {
        from: State::ReadyToSend,
        to: IBV_QPS_RTS,
        rc: rule(0, RUNNING_RC),
        uc: rule(0, RUNNING_UC),
        ud: rule(0, IBV_QP_QKEY),
    },
    Row {
        from: State::ReadyToSend,
        to: IBV_QPS_SQD,
        rc: rule(0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        uc: rule(0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        ud: rule(0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
    },
    Row {
        from: State::SendQueueDrained,
        to: IBV_QPS_SQD,
        rc: rule(
            0,
            CONNECTED | IBV_QP_AV | READS_HERE | TIMEOUT_AND_RETRIES | IBV_QP_MAX_QP_RD_ATOMIC | ALTERNATE,
        ),
        uc: rule(0, IBV_QP_AV | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | ALTERNATE),
        ud: rule(0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
    },
    Row {
        from: State::SendQueueDrained,
        to: IBV_QPS_RTS,
        rc: rule(0, RUNNING_RC),
        uc: rule(0, RUNNING_UC),
        ud: rule(0, IBV_QP_QKEY),
    },
    Row {
        from: State::SendQueueError,
        to: IBV_QPS_RTS,
        rc: None,
        uc: rule(0, IBV_QP_ACCESS_FLAGS),
        ud: rule(0, IBV_QP_QKEY),
    },
];

/// Returns the attributes that an XRC queue pair does not use, as in the kernel: an initiator executes no requests, and a target sends
/// none. Programs may set these attributes.
pub(crate) fn no_attributes(qp: &QueuePair<Any>) -> c_uint {
    match qp.service() {
        Service::Xrc if qp.is_target() => ASKING,
        Service::Xrc => READS_HERE,
        Service::Rc | Service::Uc | Service::Ud | Service::Raw => 0,
    }
}

impl Rule {
    /// Returns the rule of a transition. Each state has transitions without attributes to RESET and, except RESET, to ERR. The kernel's
    /// `qp_state_table` has no transition from RESET to ERR.
    pub(crate) fn of(qp: &QueuePair<Any>, from: State, to: ibv_qp_state) -> Result<Self, Errno> {
        if to == IBV_QPS_RESET || to == IBV_QPS_ERR && from != State::Reset {
            return Ok(Self { required: 0, optional: 0 });
        }
        let row = TABLE.iter().find(|row| row.from == from && row.to == to);
        let rule = row.and_then(|row| match qp.service() {
            Service::Rc => row.rc,
            Service::Uc => row.uc,
            Service::Ud => row.ud,
            Service::Raw => row.ud.map(Rule::of_raw),
            Service::Xrc => row.rc.map(|rule| rule.without(no_attributes(qp))),
        });
        rule.ok_or_else(|| {
            let service = qp.service();
            tracing::warn!(
                "ibv_modify_qp: a {service:?} queue pair cannot change from {from:?} to state {to}"
            );
            INVALID
        })
    }

    /// Returns the rule of the same transition for raw packets, which have a port and no other attribute.
    const fn of_raw(self) -> Self {
        Self { required: self.required & IBV_QP_PORT, optional: 0 }
    }

    const fn without(self, attributes: c_uint) -> Self {
        Self { required: self.required & !attributes, optional: self.optional & !attributes }
    }

    pub(crate) fn check(self, mask: c_uint) -> Result<(), Errno> {
        let missing = self.required & !mask;
        let foreign = mask & !(self.required | self.optional | ALWAYS);
        if missing | foreign == 0 {
            return Ok(());
        }
        tracing::warn!("ibv_modify_qp: attributes {missing:#x} are missing, {foreign:#x} are not allowed");
        Err(INVALID)
    }
}

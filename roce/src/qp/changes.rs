//! The settings that may change without a state transition, and in which states (IBA 11.2.5.2, the table of the queue pair's transitions to
//! the state that it is in).

use super::{AckTimeout, State};
use crate::wire::{Path, RnrTimer};
use crate::{Access, ControlError, Qpn};

/// Limit of the READs and atomics that one side may have outstanding at the other.
pub(super) const MAX_RD_ATOMIC: u8 = 16;

/// Settings to change; a setting that is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Remote operations that the peer may execute.
    pub access: Option<Access>,
    /// P_Key that packets must carry.
    pub partition_key: Option<u16>,
    /// Q_Key that datagrams must carry.
    pub queue_key: Option<u32>,
    /// RNR timer that NAKs carry: how long the peer waits if no receive is posted.
    pub min_rnr_timer: Option<RnrTimer>,
    /// Path to the peer.
    pub path: Option<Path>,
    /// Timeout after which an unacknowledged request is retransmitted.
    pub ack_timeout: Option<AckTimeout>,
    /// Retries after timeouts and sequence NAKs, 0 to 7.
    pub retry_count: Option<u8>,
    /// Retries after RNR NAKs, 0 to 6; 7 means no limit.
    pub rnr_retry: Option<u8>,
    /// READs and atomics that this side may have outstanding at the peer, 0 to 16.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics that the peer may have outstanding here, 0 to 16.
    pub max_dest_rd_atomic: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    Access,
    PartitionKey,
    QueueKey,
    MinRnrTimer,
    Path,
    AckTimeout,
    RetryCount,
    RnrRetry,
    MaxRdAtomic,
    MaxDestRdAtomic,
}
use Setting as S;

impl Setting {
    const fn name(self) -> &'static str {
        match self {
            Self::Access => "access",
            Self::PartitionKey => "P_Key",
            Self::QueueKey => "Q_Key",
            Self::MinRnrTimer => "RNR timer",
            Self::Path => "path",
            Self::AckTimeout => "ACK timeout",
            Self::RetryCount => "retry count",
            Self::RnrRetry => "RNR retry count",
            Self::MaxRdAtomic => "max_rd_atomic",
            Self::MaxDestRdAtomic => "max_dest_rd_atomic",
        }
    }

    /// Returns whether this is a setting of the requester. Those may change only between two messages.
    const fn is_of_the_requester(self) -> bool {
        match self {
            Self::Path | Self::AckTimeout | Self::RetryCount | Self::RnrRetry | Self::MaxRdAtomic => true,
            Self::Access
            | Self::PartitionKey
            | Self::QueueKey
            | Self::MinRnrTimer
            | Self::MaxDestRdAtomic => false,
        }
    }
}

/// Settings that may change in each state. In a state without a row, no setting may change.
pub(super) type Table = &'static [(State, &'static [Setting])];

pub(super) const RELIABLE: Table = &[
    (State::Init, &[S::Access, S::PartitionKey]),
    (State::ReadyToSend, &[S::Access, S::MinRnrTimer]),
    (
        State::SendQueueDrained,
        &[
            S::Access,
            S::PartitionKey,
            S::MinRnrTimer,
            S::Path,
            S::AckTimeout,
            S::RetryCount,
            S::RnrRetry,
            S::MaxRdAtomic,
            S::MaxDestRdAtomic,
        ],
    ),
];

pub(super) const UNRELIABLE: Table = &[
    (State::Init, &[S::Access, S::PartitionKey]),
    (State::ReadyToSend, &[S::Access]),
    (State::SendQueueDrained, &[S::Access, S::PartitionKey, S::Path]),
    (State::SendQueueError, &[S::Access]),
];

pub(super) const DATAGRAM: Table = &[
    (State::Init, &[S::PartitionKey, S::QueueKey]),
    (State::ReadyToSend, &[S::QueueKey]),
    (State::SendQueueDrained, &[S::PartitionKey, S::QueueKey]),
    (State::SendQueueError, &[S::QueueKey]),
];

pub(super) const RAW: Table = &[];

impl Changes {
    fn settings(&self) -> impl Iterator<Item = Setting> {
        [
            self.access.map(|_| S::Access),
            self.partition_key.map(|_| S::PartitionKey),
            self.queue_key.map(|_| S::QueueKey),
            self.min_rnr_timer.map(|_| S::MinRnrTimer),
            self.path.map(|_| S::Path),
            self.ack_timeout.map(|_| S::AckTimeout),
            self.retry_count.map(|_| S::RetryCount),
            self.rnr_retry.map(|_| S::RnrRetry),
            self.max_rd_atomic.map(|_| S::MaxRdAtomic),
            self.max_dest_rd_atomic.map(|_| S::MaxDestRdAtomic),
        ]
        .into_iter()
        .flatten()
    }

    /// Checks that each setting may change in `state` and is in its range.
    pub(super) fn check(
        &self,
        table: Table,
        qpn: Qpn,
        state: State,
        is_drained: bool,
    ) -> Result<(), ControlError> {
        let legal = table.iter().find(|row| row.0 == state).map_or(&[][..], |row| row.1);
        for setting in self.settings() {
            if !legal.contains(&setting) {
                return Err(ControlError::Setting { qpn, state, setting: setting.name() });
            }
            if setting.is_of_the_requester() && !is_drained {
                return Err(ControlError::NotDrained { qpn, setting: setting.name() });
            }
        }
        limit("retry_count", self.retry_count.unwrap_or(0), 7)?;
        limit("rnr_retry", self.rnr_retry.unwrap_or(0), 7)?;
        limit("max_rd_atomic", self.max_rd_atomic.unwrap_or(0), MAX_RD_ATOMIC)?;
        limit("max_dest_rd_atomic", self.max_dest_rd_atomic.unwrap_or(0), MAX_RD_ATOMIC)
    }
}

pub(super) fn limit(what: &'static str, value: u8, limit: u8) -> Result<(), ControlError> {
    if value <= limit {
        return Ok(());
    }
    Err(ControlError::Value { what, value: u64::from(value), limit: u64::from(limit) })
}

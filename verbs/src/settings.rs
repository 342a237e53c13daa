//! The current settings of a queue pair.

use crate::{Access, QueuePair};
use roce::qp::{Changes, Congestion, Modify, RtrSettings, RtsSettings};
use roce::wire::Path;

/// The latest settings of a queue pair, from [`connect`](QueuePair::connect) or single transitions.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct QpSettings {
    /// The operations that the peer may request.
    pub access: Access,
    /// P_Key that packets must carry.
    pub partition_key: u16,
    /// The Q_Key that datagrams must carry. `None` for other services.
    pub queue_key: Option<u32>,
    /// Settings of a connection, from RTR on.
    pub receive: Option<RtrSettings>,
    /// Settings of a connection, from RTS on.
    pub send: Option<RtsSettings>,
    /// Congestion control of datagrams, from RTS on.
    pub datagrams: Option<Congestion>,
}

impl QpSettings {
    pub(crate) const fn new() -> Self {
        let access = Access::LOCAL_READ;
        Self { access, partition_key: 0, queue_key: None, receive: None, send: None, datagrams: None }
    }

    /// Returns the congestion control from RTS on, chosen by the program or the device's rules.
    #[must_use]
    pub fn congestion(&self) -> Option<Congestion> {
        self.send.map(|settings| settings.congestion).or(self.datagrams)
    }

    /// Returns the path to the peer, from RTR on.
    pub(crate) fn path(&self) -> Option<Path> {
        self.receive.map(|settings| settings.path)
    }

    /// Records a transition that the core accepted.
    pub(crate) fn record(&mut self, modify: &Modify) {
        match *modify {
            Modify::Reset => *self = Self::new(),
            Modify::Init { access, partition_key } => {
                (self.access, self.partition_key) = (access, partition_key);
            }
            Modify::InitDatagram { queue_key, partition_key } => {
                (self.queue_key, self.partition_key) = (Some(queue_key), partition_key);
            }
            Modify::ReadyToReceive(settings) => self.receive = Some(settings),
            Modify::ReadyToSend(settings) => self.send = Some(settings),
            Modify::ReadyToSendDatagrams { congestion, .. } => self.datagrams = Some(congestion),
            Modify::Change(changes) => self.change(&changes),
            Modify::ReadyToReceiveDatagrams { .. }
            | Modify::InitRaw
            | Modify::ReadyToReceiveRaw { .. }
            | Modify::ReadyToSendRaw
            | Modify::Drain { .. }
            | Modify::Resume
            | Modify::Error => {}
        }
    }

    fn change(&mut self, changes: &Changes) {
        self.access = changes.access.unwrap_or(self.access);
        self.partition_key = changes.partition_key.unwrap_or(self.partition_key);
        self.queue_key = changes.queue_key.or(self.queue_key);
        if let Some(receive) = &mut self.receive {
            receive.path = changes.path.unwrap_or(receive.path);
            receive.min_rnr_timer = changes.min_rnr_timer.unwrap_or(receive.min_rnr_timer);
            receive.max_dest_rd_atomic = changes.max_dest_rd_atomic.unwrap_or(receive.max_dest_rd_atomic);
        }
        if let Some(send) = &mut self.send {
            send.ack_timeout = changes.ack_timeout.unwrap_or(send.ack_timeout);
            send.retry_count = changes.retry_count.unwrap_or(send.retry_count);
            send.rnr_retry = changes.rnr_retry.unwrap_or(send.rnr_retry);
            send.max_rd_atomic = changes.max_rd_atomic.unwrap_or(send.max_rd_atomic);
        }
    }
}

impl<S> QueuePair<S> {
    /// Returns the latest settings of the queue pair.
    #[must_use]
    pub fn settings(&self) -> &QpSettings {
        &self.settings
    }
}

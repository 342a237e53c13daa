//! State of queue pairs of every service: identity, state, peer, congestion control.

use super::alarms::{self, Alarms};
use super::settings::busiest;
use super::{CompletionStatus, Context, Identity, LossRecovery, RtrSettings, State};
use crate::congestion::CongestionControl;
use crate::wire::{Bth, Frame, Mac, Path, Plain, Service, Template};
use crate::{
    Access, CongestionChange, ControlError, Discard, Event, FailureCause, FailureReason, Psn, QpFailure, Qpn,
};
use alloc::boxed::Box;
use core::net::IpAddr;

/// The peer's address, from RTR on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) path: Path,
    /// The path's headers, ready to be copied.
    pub(super) template: Template,
    pub(super) destination: Qpn,
    pub(super) mtu: u32,
    pub(super) loss_recovery: LossRecovery,
}

/// The address that a connected queue pair sends its packets to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// The Ethernet address of the peer, or of the router on the way.
    pub(crate) mac: Mac,
    pub(crate) qpn: Qpn,
}

impl Connection {
    /// Returns the peer that a queue pair learns of on its way to RTR.
    pub(super) fn new(settings: &RtrSettings) -> Result<Self, ControlError> {
        Ok(Self {
            path: settings.path,
            template: Self::template(&settings.path)?,
            destination: settings.destination,
            mtu: settings.mtu.bytes(),
            loss_recovery: settings.loss_recovery,
        })
    }

    fn template(path: &Path) -> Result<Template, ControlError> {
        let families = |_| ControlError::Families { from: path.source, to: path.destination };
        Template::new(path).map_err(families)
    }

    /// From now on packets carry ECT(0), so that switches mark them rather than drop them.
    fn mark_capable(&mut self) {
        let traffic_class = self.path.traffic_class & !3 | 2;
        let path = Path { traffic_class, ..self.path };
        if let Ok(template) = Template::new(&path) {
            (self.path, self.template) = (path, template);
        }
    }

    /// Another way to the peer. Whether switches may mark packets stays as it is.
    fn move_to(&mut self, path: &Path) -> Result<(), ControlError> {
        let traffic_class = path.traffic_class & !3 | self.path.traffic_class & 3;
        let path = Path { traffic_class, ..*path };
        (self.path, self.template) = (path, Self::template(&path)?);
        Ok(())
    }

    fn redirect(&mut self, peer: IpAddr, mac: Mac) -> bool {
        let is_new = self.template.redirect(peer, mac);
        if is_new {
            self.path.destination_mac = mac;
        }
        is_new
    }
}

/// The part of a queue pair that does not depend on its service.
#[derive(Debug)]
pub(crate) struct Common {
    pub(super) identity: Identity,
    pub(super) state: State,
    pub(super) access: Access,
    pub(super) partition_key: u16,
    /// The peer of a connected service.
    pub(super) connection: Option<Connection>,
    pub(super) congestion: CongestionControl,
    pub(super) alarms: Alarms,
    /// The failure that moved it to ERR or SQE; `None` if the program requested the move.
    pub(super) failure: Option<Box<QpFailure>>,
    /// The IPv4 identification of the next packet.
    pub(super) identification: u16,
}

impl Common {
    pub(super) fn new(identity: Identity) -> Self {
        Self {
            identity,
            state: State::Reset,
            access: Access::LOCAL_READ,
            partition_key: 0,
            connection: None,
            congestion: CongestionControl::new(),
            alarms: Alarms::default(),
            failure: None,
            identification: 0,
        }
    }

    #[inline]
    pub(super) const fn bth(&self, destination: Qpn, psn: Psn) -> Bth {
        Bth { partition_key: self.partition_key, ..Bth::new(destination, psn) }
    }

    /// Returns the peer to which it sends; `None` if it has no peer, or many.
    pub(super) fn peer(&self) -> Option<Peer> {
        let Connection { path, destination, .. } = self.connection.as_ref()?;
        Some(Peer { address: path.destination, mac: path.destination_mac, qpn: *destination })
    }

    pub(super) fn mtu(&self) -> u32 {
        self.connection.as_ref().map_or(0, |connection| connection.mtu)
    }

    /// Checks that the packet comes from the connection's peer (IBA 9.6.1.1).
    #[inline]
    pub(super) fn check_peer(&self, frame: &Frame<'_>) -> Result<(), Discard> {
        let Some(Connection { path, .. }) = &self.connection else { return Err(Discard::QpState) };
        if frame.network.source() != path.destination || frame.network.destination() != path.source {
            return Err(Discard::Address);
        }
        Ok(())
    }

    /// Checks that the packet is of this queue pair's partition (IBA 9.6.1.1), and that one of the two is a full member of it
    /// (IBA 10.9.3).
    #[inline]
    pub(super) fn check_partition(&self, frame: &Frame<'_>) -> Result<(), Discard> {
        let (ours, theirs) = (self.partition_key, frame.header.bth().partition_key);
        let is_same = (ours ^ theirs) & 0x7fff == 0 && (ours | theirs) & 0x8000 != 0;
        if is_same { Ok(()) } else { Err(Discard::PartitionKey) }
    }

    /// Returns whether a plain packet comes from the connection's peer, and both are full members of one partition. If this is false, the
    /// complete check finds the reason.
    #[inline(always)]
    pub(super) fn expects(&self, plain: &Plain<'_>) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.template.is_answered_by(plain.addresses()))
            && plain.partition_key() == self.partition_key
            && self.partition_key & 0x8000 != 0
            && self.identity.receives.service() == Service::Rc
    }

    /// A packet was taken in, or not: the answer to one that comes again may have been lost because the peer has moved.
    #[inline(always)]
    pub(super) fn on_taken(
        &self,
        taken: Result<(), Discard>,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        if taken == Err(Discard::Duplicate) {
            self.doubt_path(context);
        }
        taken
    }

    /// Packets are to be marked from now on.
    #[cold]
    pub(super) fn mark_capable(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.mark_capable();
            self.congestion.on_path(&connection.path);
        }
    }

    /// Reports what congestion control found out of the path, if it did.
    pub(super) fn tell_congestion_change(&mut self, context: &mut Context<'_>) {
        while let Some(news) = self.congestion.take_news() {
            context.events.change(CongestionChange { qpn: self.identity.qpn, destination: None, news });
        }
    }

    /// Moves the connection to another path.
    pub(super) fn move_to(&mut self, path: &Path) -> Result<(), ControlError> {
        self.congestion.check_path(path)?;
        if let Some(connection) = &mut self.connection {
            connection.move_to(path)?;
            self.congestion.on_path(&connection.path);
        }
        Ok(())
    }

    /// Sends packets to `peer` to this Ethernet address from now on. Returns true if that is new.
    pub(super) fn redirect(&mut self, peer: IpAddr, mac: Mac) -> bool {
        let is_new = self.connection.as_mut().is_some_and(|connection| connection.redirect(peer, mac));
        if is_new {
            self.congestion.redirect(peer, mac);
        }
        is_new
    }

    /// The peer did not answer in time: it may have moved.
    #[cold]
    pub(super) fn doubt_path(&self, context: &mut Context<'_>) {
        if let Some(connection) = &self.connection {
            context.events.doubt(connection.path.destination);
        }
    }

    /// Goes to ERR. Without a cause the program requested it.
    pub(super) fn enter_error(
        &mut self,
        why: Option<(FailureCause, FailureReason)>,
        ends: Ends,
        context: &mut Context<'_>,
    ) {
        if self.state != State::Error {
            let failure = why.map(|why| self.record(why, ends));
            alarms::on_error(failure, &self.identity, context);
        }
        self.state = State::Error;
    }

    /// Goes to SQE.
    pub(super) fn enter_send_error(
        &mut self,
        status: CompletionStatus,
        ends: Ends,
        context: &mut Context<'_>,
    ) {
        let cause = FailureCause::Request(status);
        let failure = self.record((cause, cause.reason()), ends);
        context.events.push(Event::SendQueueFailed(failure));
        self.state = State::SendQueueError;
    }

    /// Keeps how it failed, for those that ask later.
    fn record(&mut self, (cause, reason): (FailureCause, FailureReason), ends: Ends) -> QpFailure {
        let Ends { acknowledged, send, expected, retries } = ends;
        let peer = self.connection.map(|connection| (connection.path.destination, connection.destination));
        let qpn = self.identity.qpn;
        let busiest = self.congestion.algorithm().and_then(busiest);
        let failure = QpFailure { qpn, cause, reason, peer, acknowledged, send, expected, retries, busiest };
        self.failure = Some(Box::new(failure));
        failure
    }
}

/// The positions of both directions when a queue pair failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// The last PSN that the peer acknowledged.
    pub(super) acknowledged: Psn,
    /// The next PSN to send.
    pub(super) send: Psn,
    /// The next PSN expected.
    pub(super) expected: Psn,
    /// Retries since the last acknowledgement.
    pub(super) retries: u8,
}

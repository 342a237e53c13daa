//! The parts of a queue pair that all services share: identity, state, peer, congestion control.

use super::async_events::{self, AsyncEvents};
use super::settings::busiest;
use super::{CompletionStatus, Context, Identity, LossRecovery, RtrSettings, State};
use crate::congestion::CongestionControl;
use crate::wire::{Bth, FastPathPacket, Frame, Mac, Path, Service, Template};
use crate::{
    Access, CongestionChange, ControlError, Discard, Event, FailureCause, FailureReason, Psn, QpFailure, Qpn,
};
use alloc::boxed::Box;
use core::net::IpAddr;

/// Path to the peer and its settings, from RTR on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) path: Path,
    /// Headers below the BTH, prepared for copying.
    pub(super) template: Template,
    pub(super) destination: Qpn,
    pub(super) mtu: u32,
    pub(super) loss_recovery: LossRecovery,
}

/// Address to which a connected queue pair sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// Ethernet address of the peer, or of the first router.
    pub(crate) mac: Mac,
    pub(crate) qpn: Qpn,
}

impl Connection {
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

    /// Sets ECT(0), so that switches mark packets rather than drop them.
    fn set_ect(&mut self) {
        let traffic_class = self.path.traffic_class & !3 | 2;
        let path = Path { traffic_class, ..self.path };
        if let Ok(template) = Template::new(&path) {
            (self.path, self.template) = (path, template);
        }
    }

    /// Replaces the path, and keeps its ECN bits.
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

#[derive(Debug)]
pub(crate) struct Common {
    pub(super) identity: Identity,
    pub(super) state: State,
    pub(super) access: Access,
    pub(super) partition_key: u16,
    /// Connected services only, from RTR on.
    pub(super) connection: Option<Connection>,
    pub(super) congestion: CongestionControl,
    pub(super) async_events: AsyncEvents,
    /// Cause of ERR or SQE; `None` if the program requested the transition.
    pub(super) failure: Option<Box<QpFailure>>,
    /// IPv4 identification of the next packet.
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
            async_events: AsyncEvents::default(),
            failure: None,
            identification: 0,
        }
    }

    #[inline]
    pub(super) const fn bth(&self, destination: Qpn, psn: Psn) -> Bth {
        Bth { partition_key: self.partition_key, ..Bth::new(destination, psn) }
    }

    /// Returns the peer; `None` before RTR and for datagrams.
    pub(super) fn peer(&self) -> Option<Peer> {
        let Connection { path, destination, .. } = self.connection.as_ref()?;
        Some(Peer { address: path.destination, mac: path.destination_mac, qpn: *destination })
    }

    pub(super) fn mtu(&self) -> u32 {
        self.connection.as_ref().map_or(0, |connection| connection.mtu)
    }

    /// Checks that the packet's addresses are those of the connection (IBA 9.6.1.1).
    #[inline]
    pub(super) fn check_peer(&self, frame: &Frame<'_>) -> Result<(), Discard> {
        let Some(Connection { path, .. }) = &self.connection else { return Err(Discard::QpState) };
        if frame.network.source() != path.destination || frame.network.destination() != path.source {
            return Err(Discard::Address);
        }
        Ok(())
    }

    /// Checks that the packet is of the same partition (IBA 9.6.1.1), and that one side is a full member of it (IBA 10.9.3).
    #[inline]
    pub(super) fn check_partition(&self, frame: &Frame<'_>) -> Result<(), Discard> {
        let (ours, theirs) = (self.partition_key, frame.header.bth().partition_key);
        let is_same = (ours ^ theirs) & 0x7fff == 0 && (ours | theirs) & 0x8000 != 0;
        if is_same { Ok(()) } else { Err(Discard::PartitionKey) }
    }

    /// Returns whether a plain packet passes the checks of the connection: addresses, P_Key of a full member, service RC. If not, the
    /// complete checks find the reason.
    #[inline(always)]
    pub(super) fn expects(&self, packet: &FastPathPacket<'_>) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.template.is_answered_by(packet.addresses()))
            && packet.partition_key() == self.partition_key
            && self.partition_key & 0x8000 != 0
            && self.identity.receives.service() == Service::Rc
    }

    /// Returns `taken`. A duplicate makes the path suspect: its answer may have been lost because the peer has moved.
    #[inline(always)]
    pub(super) fn on_taken(
        &self,
        taken: Result<(), Discard>,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        if taken == Err(Discard::Duplicate) {
            self.suspect_path(context);
        }
        taken
    }

    /// Makes all further packets ECN-capable.
    #[cold]
    pub(super) fn set_ect(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.set_ect();
            self.congestion.on_path(&connection.path);
        }
    }

    pub(super) fn report_congestion_changes(&mut self, context: &mut Context<'_>) {
        while let Some(notice) = self.congestion.take_notice() {
            context.events.change(CongestionChange { qpn: self.identity.qpn, destination: None, notice });
        }
    }

    pub(super) fn move_to(&mut self, path: &Path) -> Result<(), ControlError> {
        self.congestion.check_path(path)?;
        if let Some(connection) = &mut self.connection {
            connection.move_to(path)?;
            self.congestion.on_path(&connection.path);
        }
        Ok(())
    }

    /// Replaces the Ethernet address of packets to `peer`. Returns whether it changed.
    pub(super) fn redirect(&mut self, peer: IpAddr, mac: Mac) -> bool {
        let is_new = self.connection.as_mut().is_some_and(|connection| connection.redirect(peer, mac));
        if is_new {
            self.congestion.redirect(peer, mac);
        }
        is_new
    }

    /// Reports the path as suspect, because the peer did not answer in time and may have moved.
    #[cold]
    pub(super) fn suspect_path(&self, context: &mut Context<'_>) {
        if let Some(connection) = &self.connection {
            context.events.suspect(connection.path.destination);
        }
    }

    /// Enters ERR. `why` is `None` if the program requested it.
    pub(super) fn enter_error(
        &mut self,
        why: Option<(FailureCause, FailureReason)>,
        psn_state: PsnState,
        context: &mut Context<'_>,
    ) {
        if self.state != State::Error {
            let failure = why.map(|why| self.record(why, psn_state));
            async_events::on_error(failure, &self.identity, context);
        }
        self.state = State::Error;
    }

    pub(super) fn enter_send_error(
        &mut self,
        status: CompletionStatus,
        psn_state: PsnState,
        context: &mut Context<'_>,
    ) {
        let cause = FailureCause::Request(status);
        let failure = self.record((cause, cause.reason()), psn_state);
        context.events.push(Event::SendQueueFailed(failure));
        self.state = State::SendQueueError;
    }

    fn record(&mut self, (cause, reason): (FailureCause, FailureReason), psn_state: PsnState) -> QpFailure {
        let PsnState { acknowledged, send, expected, retries } = psn_state;
        let peer = self.connection.map(|connection| (connection.path.destination, connection.destination));
        let qpn = self.identity.qpn;
        let busiest = self.congestion.algorithm().and_then(busiest);
        let failure = QpFailure { qpn, cause, reason, peer, acknowledged, send, expected, retries, busiest };
        self.failure = Some(Box::new(failure));
        failure
    }
}

/// PSNs of both directions, for reports and failures.
#[derive(Clone, Copy, Debug)]
pub(super) struct PsnState {
    /// Last PSN that the peer acknowledged.
    pub(super) acknowledged: Psn,
    /// Next PSN to send.
    pub(super) send: Psn,
    /// Next PSN expected from the peer.
    pub(super) expected: Psn,
    /// Retries since the last acknowledgement.
    pub(super) retries: u8,
}

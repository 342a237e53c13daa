//! The state machine step by step, for programs written for other verbs. [`QueuePair::connect`] is the short way.

use crate::congestion::choose;
use crate::device::Inner;
use crate::{DEFAULT_CONGESTION, Device, Error, QueuePair};
use roce::ControlError;
use roce::qp::{Congestion, Modify, RtsSettings, State};
use roce::wire::{Mac, Path};
use std::net::IpAddr;

impl Device {
    /// The Ethernet address to which packets for `address` go. Waits for the answer, 3 s at most.
    ///
    /// # Errors
    /// Returns an error if the peer does not answer, there is no route, or the core has stopped.
    pub fn resolve(&self, address: IpAddr) -> Result<Mac, Error> {
        Ok(self.inner.engine.resolve(address)?)
    }

    /// Returns these settings as queue pairs of this device use them: with the rate of the port's link if they name none.
    #[must_use]
    pub fn congestion_on_link(&self, congestion: Congestion) -> Congestion {
        self.inner.on_link(congestion)
    }

    /// The caller will wait for something without polling: the thread of an [`Adaptive`](crate::Progress::Adaptive) core
    /// takes over at once, not a millisecond later. Nothing changes with other cores.
    pub fn hand_over(&self) {
        self.inner.engine.hand_over();
    }
}

impl Inner {
    /// Returns these settings with the rate of the port's link if they name none. Without either, an algorithm that waits for
    /// telemetry takes the rate from there, and begins with a fixed window.
    pub(crate) fn on_link(&self, congestion: Congestion) -> Congestion {
        match self.line_rate {
            Some(rate) => congestion.on_link(rate),
            None if congestion.unknown.line_rate && congestion.upgrade.is_some() => {
                Congestion { algorithm: DEFAULT_CONGESTION.algorithm, ..congestion }
            }
            None => congestion,
        }
    }
}

impl QueuePair {
    /// Takes the queue pair to another state.
    ///
    /// # Errors
    /// A transition that there is not, a setting out of its range, or the core has stopped: the queue pair stays as
    /// it is.
    pub fn modify(&mut self, modify: Modify) -> Result<(), Error> {
        let modify = match (modify, self.settings.path()) {
            (Modify::ReadyToSend(settings), Some(path)) if settings.congestion == DEFAULT_CONGESTION => {
                let congestion = self.ruled_congestion(path);
                Modify::ReadyToSend(RtsSettings { congestion, ..settings })
            }
            (Modify::ReadyToSendDatagrams { send_psn, congestion }, _)
                if congestion == DEFAULT_CONGESTION =>
            {
                Modify::ReadyToSendDatagrams { send_psn, congestion: self.ruled_pace() }
            }
            (modify, _) => modify,
        };
        self.transition(modify)
    }

    /// What the device's rules say of a path.
    pub(crate) fn ruled_congestion(&self, path: Path) -> Congestion {
        choose(&self.device.rules, Some(path.destination), self.service, path.traffic_class)
    }

    /// What they say of datagrams, which have no one peer.
    fn ruled_pace(&self) -> Congestion {
        choose(&self.device.rules, None, self.service, 0)
    }

    pub(crate) fn transition(&mut self, modify: Modify) -> Result<(), Error> {
        let qpn = self.qpn();
        let modify = match modify {
            Modify::ReadyToSend(settings) => Modify::ReadyToSend(RtsSettings {
                congestion: self.device.on_link(settings.congestion),
                ..settings
            }),
            Modify::ReadyToSendDatagrams { send_psn, congestion } => {
                Modify::ReadyToSendDatagrams { send_psn, congestion: self.device.on_link(congestion) }
            }
            modify => modify,
        };
        let rules = self.device.engine.call(move |station, now| {
            station.endpoint.modify_qp(now, qpn, modify)?;
            Ok::<_, ControlError>(station.endpoint.post_rules(qpn))
        })??;
        if let Some(rules) = rules {
            self.rings.set_rules(rules);
        }
        self.settings.take(&modify);
        self.state = match modify {
            Modify::Reset => State::Reset,
            Modify::Init { .. } | Modify::InitDatagram { .. } => State::Init,
            Modify::ReadyToReceive(_) | Modify::ReadyToReceiveDatagrams { .. } => State::ReadyToReceive,
            Modify::ReadyToSend(_) | Modify::ReadyToSendDatagrams { .. } | Modify::Resume => {
                State::ReadyToSend
            }
            Modify::Drain { .. } => State::SendQueueDrained,
            Modify::Error => State::Error,
            Modify::Change(_) => self.state,
        };
        Ok(())
    }
}

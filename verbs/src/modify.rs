//! Single state transitions, for programs written for ibverbs. [`QueuePair::connect`] makes all of them in one call.

use crate::congestion::DEFAULT_CONGESTION;
use crate::congestion::choose;
use crate::device::Inner;
use crate::fault::{self, Verb};
use crate::{Device, Error, QueuePair};
use roce::ControlError;
use roce::qp::{Congestion, LossRecovery, Modify, RtrSettings, RtsSettings, State};
use roce::wire::{Format, Mac, Path};
use std::net::IpAddr;

impl Device {
    /// Resolves the Ethernet address for packets to `address`. Waits up to 3 s for the answer.
    ///
    /// # Errors
    /// Returns an error if the peer does not answer, there is no route, or the core has stopped.
    pub fn resolve(&self, address: IpAddr) -> Result<Mac, Error> {
        Ok(self.inner.engine.resolve(address)?)
    }

    /// Returns `congestion` as queue pairs of this device use it: with the rate of the port's link and the device's feedback key, unless it
    /// has its own.
    #[must_use]
    pub fn congestion_in_use(&self, congestion: Congestion) -> Congestion {
        self.inner.in_use(congestion)
    }

    /// Returns whether the device has a [feedback key](crate::DeviceConfig::feedback_key).
    #[must_use]
    pub fn authenticates_feedback(&self) -> bool {
        self.inner.feedback_key.is_some()
    }

    /// Announces that the caller will wait without polling. The thread of an [`Adaptive`](crate::Progress::Adaptive) core then runs the
    /// core at once instead of 1 ms later. Has no effect on other cores.
    pub fn hand_over(&self) {
        self.inner.engine.hand_over();
    }
}

impl Inner {
    /// Adds the rate of the port's link and the device's key to settings that have none. Applies to the settings of programs and of rules.
    fn in_use(&self, congestion: Congestion) -> Congestion {
        let congestion = self.line_rate.map_or(congestion, |rate| congestion.on_link(rate));
        Congestion { feedback_key: congestion.feedback_key.or(self.feedback_key), ..congestion }
    }

    /// Checks that the port carries the telemetry that a queue pair requests. A UDP socket carries no telemetry below the UDP header.
    fn check_format(&self, modify: &Modify) -> Result<(), Error> {
        let format = match modify {
            Modify::ReadyToSend(settings) => settings.congestion.format,
            Modify::ReadyToSendDatagrams { congestion, .. } => congestion.format,
            _ => return Ok(()),
        };
        if self.is_udp && format != Format::Hpcc {
            return Err(Error::Format { port: self.info.port.clone(), format });
        }
        Ok(())
    }
}

impl<S> QueuePair<S> {
    /// Moves the queue pair to another state.
    ///
    /// # Errors
    /// Returns an error if the transition does not exist, a setting is out of range, or the core has stopped. The
    /// queue pair is then unchanged.
    pub fn modify(&mut self, modify: Modify) -> Result<(), Error> {
        fault::check_call::<Error>(Verb::ModifyQp)?;
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

    /// Returns the congestion control of the device's rules for a path.
    pub(crate) fn ruled_congestion(&self, path: Path) -> Congestion {
        choose(&self.device.rules, Some(path.destination), self.service, path.traffic_class)
    }

    /// Returns the congestion control of the device's rules for datagrams, which have no single peer.
    fn ruled_pace(&self) -> Congestion {
        choose(&self.device.rules, None, self.service, 0)
    }

    pub(crate) fn transition(&mut self, modify: Modify) -> Result<(), Error> {
        let qpn = self.qpn();
        self.device.check_format(&modify)?;
        let modify = match modify {
            Modify::ReadyToSend(settings) => Modify::ReadyToSend(RtsSettings {
                congestion: self.device.in_use(settings.congestion),
                ..settings
            }),
            Modify::ReadyToSendDatagrams { send_psn, congestion } => {
                Modify::ReadyToSendDatagrams { send_psn, congestion: self.device.in_use(congestion) }
            }
            Modify::ReadyToReceiveDatagrams { mtu, feedback_key } => Modify::ReadyToReceiveDatagrams {
                mtu,
                feedback_key: feedback_key.or(self.device.feedback_key),
            },
            Modify::ReadyToReceive(settings) => Modify::ReadyToReceive(RtrSettings {
                loss_recovery: match self.device.selective_repeat {
                    true => settings.loss_recovery,
                    false => LossRecovery::GoBackN,
                },
                feedback_key: settings.feedback_key.or(self.device.feedback_key),
                ..settings
            }),
            modify => modify,
        };
        let rules = self.device.engine.call_on(self.core, move |state, now| {
            state.endpoint.modify_qp(now, qpn, modify)?;
            Ok::<_, ControlError>(state.endpoint.post_rules(qpn))
        })??;
        if let Some(rules) = rules {
            self.rings.set_rules(rules);
        }
        self.settings.record(&modify);
        self.state = match modify {
            Modify::Reset => State::Reset,
            Modify::Init { .. } | Modify::InitDatagram { .. } | Modify::InitRaw => State::Init,
            Modify::ReadyToReceive(_)
            | Modify::ReadyToReceiveDatagrams { .. }
            | Modify::ReadyToReceiveRaw { .. } => State::ReadyToReceive,
            Modify::ReadyToSend(_)
            | Modify::ReadyToSendDatagrams { .. }
            | Modify::ReadyToSendRaw
            | Modify::Resume => State::ReadyToSend,
            Modify::Drain { .. } => State::SendQueueDrained,
            Modify::Error => State::Error,
            Modify::Change(_) => self.state,
        };
        self.log_state();
        Ok(())
    }

    fn log_state(&self) {
        let (port, qpn, state) = (&self.device.info.port, self.qpn(), self.state);
        match self.settings.path() {
            Some(path) if state == State::ReadyToSend => {
                tracing::info!("{port}: QP {qpn} is connected to {}", path.destination);
            }
            _ => tracing::debug!("{port}: QP {qpn} is in state {state:?}"),
        }
    }
}

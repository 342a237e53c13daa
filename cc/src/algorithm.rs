//! Every congestion control algorithm behind one type, and the settings that build it.

use crate::{
    Ack, ConfigError, CongestionController, Dcqcn, DcqcnConfig, Dctcp, DctcpConfig, Feedback, Fixed, Hpcc,
    HpccConfig, HpccReceiver, Inflight, Instant, Parameters, PathRecords, PathTelemetry, Rate, ReceiverLink,
    RecordedHop, Registered, Registration,
};

/// An algorithm with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AlgorithmConfig {
    /// A constant window, paced only if a rate is given.
    Fixed {
        /// Payload bytes in flight; at least 1.
        window: u64,
        /// Pacing rate, if any; above 0.
        rate: Option<Rate>,
    },
    /// HPCC++, computed at the sender (rtgwg-00 4.2).
    Hpcc(HpccConfig),
    /// HPCC++ in the variant `hpcc-fair`: the receiver reports the number of flows on its link. While that link is the busiest hop, no flow
    /// falls below `eta` of its share.
    HpccFair(HpccConfig),
    /// HPCC++, computed at the receiver (rtgwg-00 6.3.2).
    HpccReceiver(HpccConfig),
    /// DCTCP (draft-bensley-tcpm-dctcp-01).
    Dctcp(DctcpConfig),
    /// DCQCN, for hardware peers.
    Dcqcn(DcqcnConfig),
    /// A registered algorithm: one of [`BUILT_IN`](crate::BUILT_IN), or of another crate.
    Registered(&'static Registration, Parameters),
}

impl AlgorithmConfig {
    /// Creates the controller.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a parameter is out of its limits.
    pub fn build(&self) -> Result<Algorithm, ConfigError> {
        Ok(match *self {
            Self::Fixed { window, rate } => Algorithm::Fixed(Fixed::new(window, rate)?),
            Self::Hpcc(config) => Algorithm::Hpcc(Hpcc::new(config)?),
            Self::HpccFair(config) => Algorithm::Hpcc(Hpcc::fair(config)?),
            Self::HpccReceiver(config) => Algorithm::HpccReceiver(HpccReceiver::new(config)?),
            Self::Dctcp(config) => Algorithm::Dctcp(Dctcp::new(config)?),
            Self::Dcqcn(config) => Algorithm::Dcqcn(Dcqcn::new(config)?),
            Self::Registered(registration, ref parameters) => {
                Algorithm::Registered(Registered::new(registration, parameters)?)
            }
        })
    }

    /// Returns whether the algorithm reacts to ECN marks. Its data is then sent with ECT(0), so that switches mark it.
    #[must_use]
    pub const fn wants_ecn(&self) -> bool {
        match self {
            Self::Dctcp(_) | Self::Dcqcn(_) => true,
            Self::Registered(registration, _) => matches!(registration.feedback, Feedback::Marks),
            Self::Fixed { .. } | Self::Hpcc(_) | Self::HpccFair(_) | Self::HpccReceiver(_) => false,
        }
    }

    /// Returns the rate of the sender's link; `None` for a fixed window.
    #[must_use]
    pub const fn line_rate(&self) -> Option<Rate> {
        match self {
            Self::Fixed { .. } => None,
            Self::Hpcc(config) | Self::HpccFair(config) | Self::HpccReceiver(config) => {
                Some(config.line_rate)
            }
            Self::Registered(_, parameters) => Some(parameters.hpcc.line_rate),
            Self::Dctcp(config) => Some(config.line_rate),
            Self::Dcqcn(config) => Some(config.line_rate),
        }
    }

    /// Returns the parameters of an algorithm that needs telemetry: HPCC++ (sender or receiver), or a registered one.
    #[must_use]
    pub const fn as_hpcc(&self) -> Option<&HpccConfig> {
        match self {
            Self::HpccReceiver(config) => Some(config),
            _ => self.as_sender_with_telemetry(),
        }
    }

    /// Returns the parameters of an algorithm that computes with telemetry at the sender.
    #[must_use]
    pub const fn as_sender_with_telemetry(&self) -> Option<&HpccConfig> {
        match self {
            Self::Hpcc(config) | Self::HpccFair(config) => Some(config),
            Self::Registered(Registration { feedback: Feedback::Telemetry, .. }, parameters) => {
                Some(&parameters.hpcc)
            }
            Self::Registered(..)
            | Self::HpccReceiver(_)
            | Self::Fixed { .. }
            | Self::Dctcp(_)
            | Self::Dcqcn(_) => None,
        }
    }

    /// Returns whether the algorithm computes with round trips, and neither with telemetry nor with marks.
    #[must_use]
    pub const fn is_by_delay(&self) -> bool {
        matches!(self, Self::Registered(Registration { feedback: Feedback::Delay, .. }, _))
    }

    /// Returns the name: `fixed`, `hpcc`, `hpcc-fair`, `hpcc-rx`, `dctcp`, `dcqcn`, or that of a registration.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fixed { .. } => "fixed",
            Self::Hpcc(_) => "hpcc",
            Self::HpccFair(_) => "hpcc-fair",
            Self::HpccReceiver(_) => "hpcc-rx",
            Self::Dctcp(_) => "dctcp",
            Self::Dcqcn(_) => "dcqcn",
            Self::Registered(registration, _) => registration.name,
        }
    }
}

/// A congestion controller of any kind, stored inline in its queue pair. Only a registered one is allocated, once.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "HPCC++ is what most queue pairs run, and is kept inline")]
pub enum Algorithm {
    /// A constant window.
    Fixed(Fixed),
    /// HPCC++ at the sender.
    Hpcc(Hpcc),
    /// HPCC++ at the receiver.
    HpccReceiver(HpccReceiver),
    /// DCTCP.
    Dctcp(Dctcp),
    /// DCQCN.
    Dcqcn(Dcqcn),
    /// A registered algorithm.
    Registered(Registered),
}

impl Algorithm {
    /// Returns the name, as [`AlgorithmConfig::name`].
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fixed(_) => "fixed",
            Self::Hpcc(hpcc) if hpcc.is_fair() => "hpcc-fair",
            Self::Hpcc(_) => "hpcc",
            Self::HpccReceiver(_) => "hpcc-rx",
            Self::Dctcp(_) => "dctcp",
            Self::Dcqcn(_) => "dcqcn",
            Self::Registered(registered) => registered.registration().name,
        }
    }

    /// Returns the rate of the sender's link, as [`AlgorithmConfig::line_rate`]; for a fixed window its pacing rate, if it has one.
    #[must_use]
    pub fn line_rate(&self) -> Option<Rate> {
        match self {
            Self::Fixed(fixed) => fixed.pacing_rate(),
            Self::Hpcc(hpcc) => Some(hpcc.config().line_rate),
            Self::HpccReceiver(hpcc) => Some(hpcc.config().line_rate),
            Self::Dctcp(dctcp) => Some(dctcp.config().line_rate),
            Self::Dcqcn(dcqcn) => Some(dcqcn.config().line_rate),
            Self::Registered(registered) => Some(registered.line_rate()),
        }
    }

    /// Returns whether the algorithm computes with round trips, as [`AlgorithmConfig::is_by_delay`].
    #[must_use]
    pub const fn is_by_delay(&self) -> bool {
        match self {
            Self::Registered(registered) => matches!(registered.registration().feedback, Feedback::Delay),
            _ => false,
        }
    }

    /// Returns whether the algorithm needs the exact number of marked bytes in each acknowledgement.
    #[must_use]
    pub const fn counts_marks(&self) -> bool {
        match self {
            Self::Dctcp(_) => true,
            Self::Registered(registered) => matches!(registered.registration().feedback, Feedback::Marks),
            _ => false,
        }
    }

    /// Returns the state of HPCC++ at the sender, if that is the algorithm.
    #[must_use]
    pub const fn as_hpcc(&self) -> Option<&Hpcc> {
        match self {
            Self::Hpcc(hpcc) => Some(hpcc),
            Self::Fixed(_)
            | Self::HpccReceiver(_)
            | Self::Dctcp(_)
            | Self::Dcqcn(_)
            | Self::Registered(_) => None,
        }
    }

    /// Continues at `rate`, that of the algorithm used before, within the configured limits. Only for HPCC++ at the sender and DCQCN;
    /// others keep their initial rate.
    pub fn continue_at(&mut self, rate: Rate) {
        match self {
            Self::Hpcc(hpcc) => *hpcc = hpcc.starting_at(rate),
            Self::Dcqcn(dcqcn) => dcqcn.continue_at(rate),
            Self::Fixed(_) | Self::HpccReceiver(_) | Self::Dctcp(_) | Self::Registered(_) => {}
        }
    }

    /// Returns the last telemetry of each hop of the path, in path order. Empty before the first telemetry, and for algorithms without
    /// [`records`](CongestionController::records).
    pub fn hops(&self) -> impl Iterator<Item = RecordedHop> {
        self.records().into_iter().flat_map(PathRecords::hops)
    }
}

macro_rules! delegate {
    ($self:ident, $controller:ident => $call:expr) => {
        match $self {
            Algorithm::Fixed($controller) => $call,
            Algorithm::Hpcc($controller) => $call,
            Algorithm::HpccReceiver($controller) => $call,
            Algorithm::Dctcp($controller) => $call,
            Algorithm::Dcqcn($controller) => $call,
            Algorithm::Registered($controller) => $call,
        }
    };
}

impl CongestionController for Algorithm {
    #[inline]
    fn on_send(&mut self, now: Instant, pn: u64, bytes: u32) {
        delegate!(self, controller => controller.on_send(now, pn, bytes));
    }

    fn on_telemetry(&mut self, ack: &Ack, path: &PathTelemetry) {
        delegate!(self, controller => controller.on_telemetry(ack, path));
    }

    fn on_inflight(&mut self, ack: &Ack, busiest: &Inflight) {
        delegate!(self, controller => controller.on_inflight(ack, busiest));
    }

    fn on_ack(&mut self, ack: &Ack) {
        delegate!(self, controller => controller.on_ack(ack));
    }

    fn on_congestion_notification(&mut self, now: Instant) {
        delegate!(self, controller => controller.on_congestion_notification(now));
    }

    fn on_window(&mut self, window: u64) {
        delegate!(self, controller => controller.on_window(window));
    }

    fn on_receiver_link(&mut self, link: ReceiverLink) {
        delegate!(self, controller => controller.on_receiver_link(link));
    }

    fn on_path_change(&mut self) {
        delegate!(self, controller => controller.on_path_change());
    }

    fn on_loss(&mut self, now: Instant) {
        delegate!(self, controller => controller.on_loss(now));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        delegate!(self, controller => controller.poll_timeout())
    }

    fn on_timeout(&mut self, now: Instant) {
        delegate!(self, controller => controller.on_timeout(now));
    }

    fn records(&self) -> Option<&PathRecords> {
        delegate!(self, controller => controller.records())
    }

    #[inline]
    fn window(&self) -> u64 {
        delegate!(self, controller => controller.window())
    }

    #[inline]
    fn pacing_rate(&self) -> Option<Rate> {
        delegate!(self, controller => controller.pacing_rate())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigError, POWERTCP, SWIFT};
    use core::num::NonZeroU32;
    use core::time::Duration;

    #[test]
    fn a_controller_keeps_the_line_rate_and_the_name_of_its_configuration() -> Result<(), ConfigError> {
        let (line, rtt) = (Rate::from_gbps(10), Duration::from_micros(20));
        let hpcc = HpccConfig::new(line, rtt, NonZeroU32::MIN);
        for config in [
            AlgorithmConfig::Hpcc(hpcc),
            AlgorithmConfig::HpccFair(hpcc),
            AlgorithmConfig::HpccReceiver(hpcc),
            AlgorithmConfig::Registered(&POWERTCP, hpcc.into()),
            AlgorithmConfig::Registered(&SWIFT, hpcc.into()),
            AlgorithmConfig::Dctcp(DctcpConfig::new(line, rtt)),
            AlgorithmConfig::Dcqcn(DcqcnConfig::new(line, Some(rtt))),
        ] {
            let algorithm = config.build()?;
            assert_eq!((algorithm.line_rate(), algorithm.name()), (Some(line), config.name()));
        }
        let paced = Algorithm::Fixed(Fixed::new(4096, Some(line))?);
        assert_eq!(paced.line_rate(), Some(line));
        Ok(())
    }
}

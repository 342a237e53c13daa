//! The setup of a receiver's answers to the sender's telemetry.

use core::time::Duration;

/// Kind of the receiver's answer to telemetry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reverse {
    /// Feedback in Acknowledges.
    #[default]
    Ack,
    /// Notification for each packet that carries telemetry.
    Notification,
    /// Window that the receiver computes, once per `T`.
    Window,
}

/// Links that answers report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReportKind {
    /// Link with the highest in-flight bytes (rtgwg-00 7.1).
    #[default]
    Busiest,
    /// The same, and the number of flows at the receiver ([`Report::Shared`](super::Report::Shared)).
    Flows,
    /// All links (rtgwg-00 3: "all the inband telemetry"; [`Report::All`](super::Report::All)).
    All,
}

/// Settings with which a receiver answers telemetry: the kind of answer, and the parameters of the flow (rtgwg-00 6.3.1). On the wire:
/// {version 8 (0), reverse 8, 0 14, reports 2}, T 32 in ns, line rate 64, lowest rate 64 and increase 64 in bit/s, eta 32 in units of
/// 2^-31, maxStage 32. With windows, `reports` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Kind of answer.
    pub reverse: Reverse,
    /// `T`; at most 4.29 s.
    pub base_rtt: Duration,
    /// Line rate of the sender, bit/s.
    pub line_rate: u64,
    /// Least rate of the sender, bit/s.
    pub min_rate: u64,
    /// `W_ai / T`, bit/s.
    pub additive_increase: u64,
    /// `eta` in units of 2^-31.
    pub target_utilisation: u32,
    /// `maxStage`.
    pub max_stage: u32,
    /// Links that answers report; [`ReportKind::Busiest`] with [`Reverse::Window`].
    pub reports: ReportKind,
}

/// Length of a [`Setup`], bytes.
pub const SETUP_LENGTH: usize = 40;

impl Setup {
    pub(crate) fn pack(&self) -> [u8; SETUP_LENGTH] {
        let mut bytes = [0; SETUP_LENGTH];
        bytes[1] = match self.reverse {
            Reverse::Ack => 0,
            Reverse::Notification => 1,
            Reverse::Window => 2,
        };
        bytes[3] = match self.reports {
            ReportKind::Busiest => 0,
            ReportKind::Flows => 1,
            ReportKind::All => 2,
        };
        let base_rtt = u32::try_from(self.base_rtt.as_nanos()).unwrap_or(u32::MAX);
        bytes[4..8].copy_from_slice(&base_rtt.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.line_rate.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.min_rate.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.additive_increase.to_be_bytes());
        bytes[32..36].copy_from_slice(&self.target_utilisation.to_be_bytes());
        bytes[36..].copy_from_slice(&self.max_stage.to_be_bytes());
        bytes
    }

    pub(super) fn unpack(bytes: &[u8; SETUP_LENGTH]) -> Option<Self> {
        let u32_at = |at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        let u64_at = |at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        let (reverse, reports) = match bytes[..4] {
            [0, 0, 0, reports] => (Reverse::Ack, reports),
            [0, 1, 0, reports] => (Reverse::Notification, reports),
            [0, 2, 0, 0] => (Reverse::Window, 0),
            _ => return None,
        };
        let reports = match reports {
            0 => ReportKind::Busiest,
            1 => ReportKind::Flows,
            2 => ReportKind::All,
            _ => return None,
        };
        Some(Self {
            reverse,
            base_rtt: Duration::from_nanos(u32_at(4)?.into()),
            line_rate: u64_at(8)?,
            min_rate: u64_at(16)?,
            additive_increase: u64_at(24)?,
            target_utilisation: u32_at(32)?,
            max_stage: u32_at(36)?,
            reports,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// rtgwg-00 6.3.1: the parameters of the flow.
        #[test]
        fn a_setup_survives_the_wire(nanos: u32, rates: [u64; 3], eta: u32, max_stage: u32, index in 0usize..7) {
            let setup = Setup {
                reverse: [Reverse::Ack, Reverse::Notification, Reverse::Window][index / 3],
                reports: [ReportKind::Busiest, ReportKind::Flows, ReportKind::All][index % 3],
                base_rtt: Duration::from_nanos(nanos.into()),
                line_rate: rates[0],
                min_rate: rates[1],
                additive_increase: rates[2],
                target_utilisation: eta,
                max_stage,
            };
            prop_assert_eq!(Setup::unpack(&setup.pack()), Some(setup));
        }
    }

    #[test]
    fn a_setup_with_an_unknown_field_value_is_refused() {
        let mut bytes = [0; SETUP_LENGTH];
        for (start, is_legal) in [
            ([0, 0, 0, 2], true),
            ([0, 1, 0, 2], true),
            ([0, 0, 0, 3], false),
            ([0, 2, 0, 2], false),
            ([0, 3, 0, 0], false),
            ([1, 0, 0, 0], false),
        ] {
            bytes[..4].copy_from_slice(&start);
            assert_eq!(Setup::unpack(&bytes).is_some(), is_legal, "{start:?}");
        }
    }
}

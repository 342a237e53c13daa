//! Scripted faults of links in a simulation, with the rules of a [`FaultLine`](crate::FaultLine). Packets of model hosts have a length and no
//! headers, so rules for them are about ports, times, lengths and counts.

use super::packet_pool::LinkPacket;
use crate::RuleReport;
use crate::fault::corrupt;
use crate::random::Random;
use crate::script::{Fate, FaultRule, Script};
use cc::Instant;
use roce::wire::parse_unverified;

/// A rule of a script in a simulation. Times of the rule are virtual times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptedFault {
    /// Port, as its node and the node at the other end of its link. Without it the rule applies to each frame once, when it leaves its host;
    /// each host then counts its frames.
    pub port: Option<[usize; 2]>,
    /// The rule. Its own `port` is ignored.
    pub rule: FaultRule,
}

/// Time after which a held frame continues, ps: 1 ms, as in [`FaultConfig`](crate::FaultConfig).
pub(super) const HOLD: u64 = 1_000_000_000;

/// A frame that a rule holds until others have overtaken it.
#[derive(Clone, Copy)]
pub(super) struct HeldPacket {
    pub(super) packet: u32,
    /// Number of frames that must still overtake it.
    pub(super) left: u32,
    /// End of the hold, and arrival of a frame that is held until then; ps.
    pub(super) until: u64,
    pub(super) arrival: u64,
}

/// The script of a port.
pub(super) struct PortScript {
    script: Script,
    random: Random,
    pub(super) held: Option<HeldPacket>,
}

/// The effect of a script on a frame. Times are ps.
pub(super) enum Departure {
    /// The frame arrives as without the script.
    Usual,
    Lost,
    Twice,
    /// The frame waits until this number of frames has overtaken it.
    Held(u32),
    /// The frame arrives at this time or, if that is later, at its usual one. Frames with the same time keep their order.
    NotBefore(u64),
}

impl PortScript {
    pub(super) fn new(rules: impl Iterator<Item = FaultRule>, seed: u64) -> Self {
        Self { script: Script::new(rules), random: Random::new(seed), held: None }
    }

    /// Applies the script to a packet that leaves at `now`, and would arrive at `due`.
    pub(super) fn judge<P: LinkPacket>(&mut self, now: Instant, due: Instant, packet: &mut P) -> Departure {
        let size = packet.size() as usize;
        let frame = packet.frame().map(|frame| &*frame);
        let length = frame.map_or(size, <[u8]>::len);
        let parse = || frame.and_then(|frame| parse_unverified(frame).ok());
        match self.script.judge((now, due), length, parse, &mut self.random) {
            None => Departure::Usual,
            Some(Fate::Lost) => Departure::Lost,
            Some(Fate::Twice) => Departure::Twice,
            Some(Fate::Held(_)) if self.held.is_some() => Departure::Usual,
            Some(Fate::Held(span)) => Departure::Held(span),
            Some(Fate::At(later)) => Departure::NotBefore(later.as_nanos().saturating_mul(1000)),
            Some(Fate::Corrupt { good_icrc }) => {
                if let Some(frame) = packet.frame() {
                    corrupt(frame, good_icrc, &mut self.random);
                }
                Departure::Usual
            }
        }
    }

    /// Adds the counts of the rules to those of the rules of other ports with the same names.
    pub(super) fn count(&self, reports: &mut Vec<RuleReport>) {
        for (name, fitted, happened) in self.script.counts() {
            match reports.iter_mut().find(|report| report.name == name) {
                Some(report) => {
                    (report.fitted, report.happened) = (report.fitted + fitted, report.happened + happened);
                }
                None => reports.push(RuleReport { name: name.into(), fitted, happened }),
            }
        }
    }
}

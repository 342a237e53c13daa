//! Faults by script: each rule has conditions on a frame, a time, and an effect. A [`FaultLine`](crate::FaultLine) checks its rules for
//! every frame, and the first rule that matches applies. [`FaultRule::overlaps`] finds rules that could match the same frame.

use crate::PortId;
use crate::fault::Probability;
use crate::random::Random;
use cc::{Instant, Rate};
use roce::wire::{Frame, Opcode};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A set of opcodes of the BTH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opcodes([u64; 4]);

impl Opcodes {
    /// Returns the opcodes for which `is_one` is true.
    #[must_use]
    pub fn of(is_one: impl Fn(Opcode) -> bool) -> Self {
        let mut set = Self::default();
        for code in (0..=u8::MAX).filter(|&code| is_one(Opcode(code))) {
            set.0[usize::from(code / 64)] |= 1 << (code % 64);
        }
        set
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns whether the set contains an opcode.
    #[must_use]
    pub const fn contains(self, Opcode(code): Opcode) -> bool {
        self.0[(code / 64) as usize] & 1 << (code % 64) != 0
    }

    fn meets(self, other: Self) -> bool {
        self.0.iter().zip(&other.0).any(|(ours, theirs)| ours & theirs != 0)
    }
}

/// The effect of a rule on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// Loses the frame.
    Drop,
    /// Duplicates the frame.
    Duplicate,
    /// Delays the frame by this time.
    Delay(Duration),
    /// Holds the frame until this number of frames has overtaken it.
    Reorder(u32),
    /// Flips one bit after the BTH.
    Corrupt {
        /// Whether to recompute the ICRC, so that the receiver cannot detect the change.
        good_icrc: bool,
    },
    /// Holds the frame until the rule ends.
    Pause,
    /// Sends the frame on a link of this rate, after the rule's earlier frames.
    Rate(Rate),
}

/// A rule of a script. A condition that is `None` matches every frame; conditions on RoCEv2 headers match only RoCEv2 frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Name in reports.
    pub name: String,
    /// Egress port.
    pub port: Option<PortId>,
    /// Start of the rule, measured from time 0 of the switch.
    pub after: Duration,
    /// End of the rule, exclusive, measured from time 0 of the switch.
    pub until: Option<Duration>,
    /// Destination queue pair.
    pub qp: Option<u32>,
    /// Opcodes.
    pub opcodes: Option<Opcodes>,
    /// PSNs.
    pub psns: Option<RangeInclusive<u32>>,
    /// Source IP address.
    pub source: Option<IpAddr>,
    /// Destination IP address.
    pub destination: Option<IpAddr>,
    /// UDP source port.
    pub udp_source: Option<u16>,
    /// Matches frames of more than this many bytes, from the Ethernet header to the ICRC.
    pub longer_than: Option<usize>,
    /// Probability that the rule affects a matching frame.
    pub probability: Probability,
    /// Limit on the number of affected frames.
    pub count: Option<u64>,
    /// Effect.
    pub action: FaultAction,
}

impl FaultRule {
    /// Creates a rule that matches every frame at any time.
    #[must_use]
    pub const fn of(action: FaultAction) -> Self {
        Self {
            name: String::new(),
            port: None,
            after: Duration::ZERO,
            until: None,
            qp: None,
            opcodes: None,
            psns: None,
            source: None,
            destination: None,
            udp_source: None,
            longer_than: None,
            probability: Probability::ALWAYS,
            count: None,
            action,
        }
    }

    /// Returns whether a frame can match both rules. Ignores `longer_than`.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        fn meet<T: PartialEq>(ours: &Option<T>, theirs: &Option<T>) -> bool {
            ours.as_ref().zip(theirs.as_ref()).is_none_or(|(ours, theirs)| ours == theirs)
        }
        let ends_before = |first: &Self, then: &Self| first.until.is_some_and(|until| until <= then.after);
        let psns = self.psns.as_ref().zip(other.psns.as_ref());
        meet(&self.port, &other.port)
            && !ends_before(self, other)
            && !ends_before(other, self)
            && meet(&self.qp, &other.qp)
            && self.opcodes.zip(other.opcodes).is_none_or(|(ours, theirs)| ours.meets(theirs))
            && psns.is_none_or(|(ours, theirs)| ours.start() <= theirs.end() && theirs.start() <= ours.end())
            && meet(&self.source, &other.source)
            && meet(&self.destination, &other.destination)
            && meet(&self.udp_source, &other.udp_source)
    }

    /// Returns the key of a condition on headers, or of an action on bytes; `None` if the rule needs only a frame's length.
    pub(crate) fn key_of_headers(&self) -> Option<&'static str> {
        [
            ("qp", self.qp.is_some()),
            ("opcode", self.opcodes.is_some()),
            ("psn", self.psns.is_some()),
            ("source", self.source.is_some()),
            ("destination", self.destination.is_some()),
            ("udp_source", self.udp_source.is_some()),
            ("action = \"corrupt\"", matches!(self.action, FaultAction::Corrupt { .. })),
        ]
        .into_iter()
        .find_map(|(key, is_set)| is_set.then_some(key))
    }

    fn fits(&self, now: Duration, length: usize, packet: Option<&Frame<'_>>) -> bool {
        fn is<T: PartialEq>(wanted: &Option<T>, found: impl FnOnce() -> Option<T>) -> bool {
            wanted.is_none() || *wanted == found()
        }
        now >= self.after
            && self.until.is_none_or(|until| now < until)
            && self.longer_than.is_none_or(|longest| length > longest)
            && is(&self.qp, || packet.map(|packet| packet.header.bth().destination.get()))
            && is(&self.source, || packet.map(|packet| packet.network.source()))
            && is(&self.destination, || packet.map(|packet| packet.network.destination()))
            && is(&self.udp_source, || packet.map(|packet| packet.network.udp_source()))
            && self
                .opcodes
                .is_none_or(|set| packet.is_some_and(|packet| set.contains(packet.header.opcode())))
            && self
                .psns
                .as_ref()
                .is_none_or(|psns| packet.is_some_and(|packet| psns.contains(&packet.header.bth().psn.get())))
    }
}

struct Acting {
    rule: FaultRule,
    /// Frames that matched.
    fitted: u64,
    /// Frames that were affected.
    happened: u64,
    /// When the link of [`FaultAction::Rate`] is free.
    free: Instant,
}

impl Acting {
    const fn new(rule: FaultRule) -> Self {
        Self { rule, fitted: 0, happened: 0, free: Instant::ZERO }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    Twice,
    Held(u32),
    Corrupt {
        good_icrc: bool,
    },
    /// The frame leaves at this time.
    At(Instant),
}

#[derive(Default)]
pub(crate) struct Script(Vec<Acting>);

impl Script {
    pub(crate) fn new(rules: impl Iterator<Item = FaultRule>) -> Self {
        Self(rules.map(Acting::new).collect())
    }

    /// Replaces the rules. An unchanged rule keeps its counts.
    pub(crate) fn change(&mut self, rules: impl Iterator<Item = FaultRule>) {
        let mut before = std::mem::take(&mut self.0);
        self.0 = rules
            .map(|rule| match before.iter().position(|acting| acting.rule == rule) {
                Some(place) => before.swap_remove(place),
                None => Acting::new(rule),
            })
            .collect();
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.0.iter().map(|Acting { rule, fitted, happened, .. }| (rule.name.as_str(), *fitted, *happened))
    }

    /// Returns the fault of a frame of `length` bytes that would leave at `due`; `None` if no rule affects it. `parse` returns its headers,
    /// and is called only if there are rules.
    pub(crate) fn judge<'f>(
        &mut self,
        (now, due): (Instant, Instant),
        length: usize,
        parse: impl FnOnce() -> Option<Frame<'f>>,
        random: &mut Random,
    ) -> Option<Fate> {
        if self.0.is_empty() {
            return None;
        }
        let packet = parse();
        let since = now.saturating_since(Instant::ZERO);
        let acting = self.0.iter_mut().find(|acting| acting.rule.fits(since, length, packet.as_ref()))?;
        let Acting { rule, fitted, happened, free } = acting;
        *fitted += 1;
        if rule.count.is_some_and(|count| *happened >= count) || !rule.probability.happens(random) {
            return None;
        }
        *happened += 1;
        Some(match rule.action {
            FaultAction::Drop => Fate::Lost,
            FaultAction::Duplicate => Fate::Twice,
            FaultAction::Delay(time) => Fate::At(due + time),
            FaultAction::Reorder(span) => Fate::Held(span),
            FaultAction::Corrupt { good_icrc } => Fate::Corrupt { good_icrc },
            FaultAction::Pause => Fate::At(due.max(Instant::ZERO + rule.until.unwrap_or_default())),
            FaultAction::Rate(rate) => {
                let start = due.max(*free);
                *free = start + rate.time_for(length as u64);
                Fate::At(*free)
            }
        })
    }
}

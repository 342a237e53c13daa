//! Faults by script: each rule names packets, a time and what happens to them. A [`FaultLine`](crate::FaultLine) asks its rules about
//! every frame; the first that fits decides, and rules that could both fit one frame are refused when they are read.

use crate::PortId;
use crate::fault::Probability;
use crate::random::Random;
use cc::{Instant, Rate};
use roce::wire::{Frame, Opcode, parse_unverified};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Opcodes of the BTH, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opcodes([u64; 4]);

impl Opcodes {
    /// Those that `is_one` accepts.
    #[must_use]
    pub fn of(is_one: impl Fn(Opcode) -> bool) -> Self {
        let mut set = Self::default();
        for code in (0..=u8::MAX).filter(|&code| is_one(Opcode(code))) {
            set.0[usize::from(code / 64)] |= 1 << (code % 64);
        }
        set
    }

    /// Returns whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns whether this is one of them.
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
    /// It is lost.
    Drop,
    /// It comes twice.
    Duplicate,
    /// It comes out so much later than it would.
    Delay(Duration),
    /// It is held back until so many frames have overtaken it.
    Reorder(u32),
    /// One bit behind its BTH is flipped.
    Corrupt {
        /// The ICRC is written anew, so that its receiver sees nothing wrong.
        good_icrc: bool,
    },
    /// It waits until the rule ends.
    Pause,
    /// It leaves on a link of this rate, behind all others of the rule.
    Rate(Rate),
}

/// One rule of a script. What is `None` fits every frame. A rule about RoCEv2 fits only frames that are RoCEv2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// The rule's name in reports. A rule that stays when others change keeps its counts if its name and all else are the same.
    pub name: String,
    /// The port by which the frame leaves.
    pub port: Option<PortId>,
    /// From when on, since the switch began.
    pub after: Duration,
    /// Until when, itself not included.
    pub until: Option<Duration>,
    /// The destination queue pair.
    pub qp: Option<u32>,
    /// The opcode.
    pub opcodes: Option<Opcodes>,
    /// The PSN.
    pub psns: Option<RangeInclusive<u32>>,
    /// The IP address of the sender.
    pub source: Option<IpAddr>,
    /// The IP address of the receiver.
    pub destination: Option<IpAddr>,
    /// The UDP source port.
    pub udp_source: Option<u16>,
    /// Frames of more bytes, from the Ethernet header to the ICRC.
    pub longer_than: Option<usize>,
    /// The probability that a matching frame suffers.
    pub probability: Probability,
    /// The number of frames that suffer at most.
    pub count: Option<u64>,
    /// The effect on them.
    pub action: FaultAction,
}

impl FaultRule {
    /// A rule about every frame, at any time.
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

    /// Returns whether a frame can match both rules.
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

/// The counts of a rule.
struct Acting {
    rule: FaultRule,
    /// Frames that fitted.
    fitted: u64,
    /// Frames that suffered.
    happened: u64,
    /// When the link of [`FaultAction::Rate`] is free again.
    free: Instant,
}

impl Acting {
    const fn new(rule: FaultRule) -> Self {
        Self { rule, fitted: 0, happened: 0, free: Instant::ZERO }
    }
}

/// The fate of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    Twice,
    Held(u32),
    Corrupt {
        good_icrc: bool,
    },
    /// It comes out at this time.
    At(Instant),
}

/// The rules of one link.
#[derive(Default)]
pub(crate) struct Script(Vec<Acting>);

impl Script {
    pub(crate) fn new(rules: impl Iterator<Item = FaultRule>) -> Self {
        Self(rules.map(Acting::new).collect())
    }

    /// Puts `rules` in the place of those before. What stays keeps its counts.
    pub(crate) fn change(&mut self, rules: impl Iterator<Item = FaultRule>) {
        let mut before = std::mem::take(&mut self.0);
        self.0 = rules
            .map(|rule| match before.iter().position(|acting| acting.rule == rule) {
                Some(place) => before.swap_remove(place),
                None => Acting::new(rule),
            })
            .collect();
    }

    /// Returns each rule's number of frames that matched, and of those that suffered.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.0.iter().map(|Acting { rule, fitted, happened, .. }| (rule.name.as_str(), *fitted, *happened))
    }

    /// Decides what happens to a frame that would come out at `due`.
    pub(crate) fn judge(
        &mut self,
        (now, due): (Instant, Instant),
        frame: &[u8],
        random: &mut Random,
    ) -> Option<Fate> {
        if self.0.is_empty() {
            return None;
        }
        let packet = parse_unverified(frame).ok();
        let since = now.saturating_since(Instant::ZERO);
        let acting =
            self.0.iter_mut().find(|acting| acting.rule.fits(since, frame.len(), packet.as_ref()))?;
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
                *free = start + rate.time_for(frame.len() as u64);
                Fate::At(*free)
            }
        })
    }
}

//! Traffic classes of an egress port, served by deficit-weighted round robin.

use cc::Instant;
use datapath::io::PacketBuf;
use roce::wire::traffic_class;
use std::collections::VecDeque;

/// A second class of service. Deficit-weighted round robin shares the link between it and the ordinary class (rtgwg-00 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondClass {
    /// DSCP of the packets of this class, 0 to 63.
    pub dscp: u8,
    /// Weights of the ordinary class and of this class, which apply while both have frames.
    pub weights: [std::num::NonZeroU8; 2],
}

/// Bytes that a class of weight 1 may send per round.
const QUANTUM: u64 = 256;

pub(crate) trait Length {
    fn length(&self) -> u64;
}

impl<B: PacketBuf> Length for B {
    fn length(&self) -> u64 {
        self.len() as u64
    }
}

pub(crate) struct Queued<B> {
    pub(crate) buf: B,
    /// Earliest time at which the link may start to send it.
    pub(crate) ready: Instant,
}

struct Class<B> {
    frames: VecDeque<Queued<B>>,
    bytes: u64,
    quantum: u64,
    /// Bytes that the class may still send in this round.
    deficit: u64,
}

impl<B: Length> Class<B> {
    fn new(limit_frames: usize, weight: u64) -> Self {
        let frames = VecDeque::with_capacity(limit_frames);
        Self { frames, bytes: 0, quantum: weight * QUANTUM, deficit: 0 }
    }

    fn first(&self, time: Instant) -> Option<u64> {
        self.frames.front().filter(|frame| frame.ready <= time).map(|frame| frame.buf.length())
    }
}

pub(crate) struct Queues<B> {
    ordinary: Class<B>,
    second: Option<(u8, Class<B>)>,
    turn: ClassId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClassId {
    Ordinary,
    Second,
}

impl<B: Length> Queues<B> {
    pub(crate) fn new(limit_frames: usize, second: Option<SecondClass>) -> Self {
        let class = |weight: std::num::NonZeroU8| Class::new(limit_frames, weight.get().into());
        Self {
            ordinary: second.map_or_else(|| Class::new(limit_frames, 1), |second| class(second.weights[0])),
            second: second.map(|second| (second.dscp, class(second.weights[1]))),
            turn: ClassId::Ordinary,
        }
    }

    pub(crate) fn class_of(&self, frame: &[u8]) -> ClassId {
        match &self.second {
            Some((dscp, _)) if traffic_class(frame).is_some_and(|class| class >> 2 == *dscp) => {
                ClassId::Second
            }
            _ => ClassId::Ordinary,
        }
    }

    pub(crate) const fn count(&self) -> u64 {
        if self.second.is_some() { 2 } else { 1 }
    }

    fn class(&mut self, class: ClassId) -> &mut Class<B> {
        match (class, &mut self.second) {
            (ClassId::Second, Some((_, second))) => second,
            _ => &mut self.ordinary,
        }
    }

    pub(crate) const fn bytes(&self, class: ClassId) -> u64 {
        match (class, &self.second) {
            (ClassId::Second, Some((_, second))) => second.bytes,
            _ => self.ordinary.bytes,
        }
    }

    pub(crate) const fn total(&self) -> u64 {
        match &self.second {
            Some((_, second)) => self.ordinary.bytes + second.bytes,
            None => self.ordinary.bytes,
        }
    }

    pub(crate) fn frames(&self) -> usize {
        self.ordinary.frames.len() + self.second.as_ref().map_or(0, |(_, second)| second.frames.len())
    }

    pub(crate) fn push(&mut self, class: ClassId, frame: Queued<B>) {
        let class = self.class(class);
        class.bytes += frame.buf.length();
        class.frames.push_back(frame);
    }

    pub(crate) fn ready(&self) -> Option<Instant> {
        let first = |class: &Class<B>| class.frames.front().map(|frame| frame.ready);
        let second = self.second.as_ref().and_then(|(_, second)| first(second));
        first(&self.ordinary).into_iter().chain(second).min()
    }

    pub(crate) fn take(&mut self, time: Instant) -> Option<(ClassId, Queued<B>)> {
        let class = if self.second.is_some() { self.choose(time)? } else { ClassId::Ordinary };
        let from = self.class(class);
        let frame = from.frames.pop_front()?;
        from.bytes -= frame.buf.length();
        Some((class, frame))
    }

    /// Chooses the next class by deficit round robin. A class without frames loses its deficit.
    fn choose(&mut self, time: Instant) -> Option<ClassId> {
        let have = [ClassId::Ordinary, ClassId::Second].map(|class| self.class(class).first(time).is_some());
        if have == [false, false] {
            return None;
        }
        loop {
            let turn = self.turn;
            let class = self.class(turn);
            match class.first(time) {
                Some(bytes) if bytes <= class.deficit => {
                    class.deficit -= bytes;
                    return Some(turn);
                }
                Some(_) => {}
                None => class.deficit = 0,
            }
            self.turn = match turn {
                ClassId::Ordinary => ClassId::Second,
                ClassId::Second => ClassId::Ordinary,
            };
            let next = self.class(self.turn);
            next.deficit += next.quantum;
        }
    }
}

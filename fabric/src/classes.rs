//! Traffic classes of an egress port, served by deficit-weighted round robin.

use cc::Instant;
use datapath::io::PacketBuf;
use roce::wire::traffic_class;
use std::collections::VecDeque;

/// A second class of service beside the ordinary one: deficit-weighted round robin shares the link between them
/// (rtgwg-00 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecondClass {
    /// IP packets of this DSCP, 0 to 63, are of the second class.
    pub dscp: u8,
    /// The shares of the link while both classes have something to send: the ordinary class's and the second one's.
    pub weights: [std::num::NonZeroU8; 2],
}

/// The bytes that a class may send per weight of 1 at each of its turns.
const QUANTUM: u64 = 256;

/// A frame's length on the link, in bytes.
pub(crate) trait Length {
    fn length(&self) -> u64;
}

impl<B: PacketBuf> Length for B {
    fn length(&self) -> u64 {
        self.len() as u64
    }
}

/// A frame that waits.
pub(crate) struct Queued<B> {
    pub(crate) buf: B,
    /// The link may start with it from here on.
    pub(crate) ready: Instant,
}

struct Class<B> {
    frames: VecDeque<Queued<B>>,
    bytes: u64,
    quantum: u64,
    /// The bytes that it may still send in its turn.
    deficit: u64,
}

impl<B: Length> Class<B> {
    fn new(limit_frames: usize, weight: u64) -> Self {
        let frames = VecDeque::with_capacity(limit_frames);
        Self { frames, bytes: 0, quantum: weight * QUANTUM, deficit: 0 }
    }

    /// The length of the first frame, if the link may start with it at `time`.
    fn first(&self, time: Instant) -> Option<u64> {
        self.frames.front().filter(|frame| frame.ready <= time).map(|frame| frame.buf.length())
    }
}

/// The frames that wait for a link, in one class or in two.
pub(crate) struct Queues<B> {
    ordinary: Class<B>,
    second: Option<(u8, Class<B>)>,
    /// The class whose turn it is.
    turn: ClassId,
}

/// One of the two classes.
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

    /// Returns the class of a frame.
    pub(crate) fn class_of(&self, frame: &[u8]) -> ClassId {
        match &self.second {
            Some((dscp, _)) if traffic_class(frame).is_some_and(|class| class >> 2 == *dscp) => {
                ClassId::Second
            }
            _ => ClassId::Ordinary,
        }
    }

    /// Returns the number of classes.
    pub(crate) const fn count(&self) -> u64 {
        if self.second.is_some() { 2 } else { 1 }
    }

    fn class(&mut self, class: ClassId) -> &mut Class<B> {
        match (class, &mut self.second) {
            (ClassId::Second, Some((_, second))) => second,
            _ => &mut self.ordinary,
        }
    }

    /// Bytes that wait in a class.
    pub(crate) const fn bytes(&self, class: ClassId) -> u64 {
        match (class, &self.second) {
            (ClassId::Second, Some((_, second))) => second.bytes,
            _ => self.ordinary.bytes,
        }
    }

    /// Bytes that wait in all.
    pub(crate) const fn total(&self) -> u64 {
        match &self.second {
            Some((_, second)) => self.ordinary.bytes + second.bytes,
            None => self.ordinary.bytes,
        }
    }

    /// Frames that wait in all.
    pub(crate) fn frames(&self) -> usize {
        self.ordinary.frames.len() + self.second.as_ref().map_or(0, |(_, second)| second.frames.len())
    }

    pub(crate) fn push(&mut self, class: ClassId, frame: Queued<B>) {
        let class = self.class(class);
        class.bytes += frame.buf.length();
        class.frames.push_back(frame);
    }

    /// From when on the link may start with some frame.
    pub(crate) fn ready(&self) -> Option<Instant> {
        let first = |class: &Class<B>| class.frames.front().map(|frame| frame.ready);
        let second = self.second.as_ref().and_then(|(_, second)| first(second));
        first(&self.ordinary).into_iter().chain(second).min()
    }

    /// The frame that is due at `time`.
    pub(crate) fn take(&mut self, time: Instant) -> Option<(ClassId, Queued<B>)> {
        let class = if self.second.is_some() { self.choose(time)? } else { ClassId::Ordinary };
        let from = self.class(class);
        let frame = from.frames.pop_front()?;
        from.bytes -= frame.buf.length();
        Some((class, frame))
    }

    /// Deficit round robin: a class sends what its deficit pays for, then the other's turn brings that one its quantum. One
    /// that has nothing to send saves nothing up.
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

//! Delivers the frames of the datagram that a port received first.

use super::slot::DatagramSlot;
use super::split::{BadDatagram, HEADROOM, Received};
use crate::io::PortCounters;

/// The datagram at the front of a queue, and the counts of dropped frames.
#[derive(Debug)]
pub(in crate::linux) struct Front {
    max_frame: usize,
    /// The datagram and the number of its next frame, after a frame was refused.
    rest: Option<(Received, usize)>,
    pub(in crate::linux) counters: PortCounters,
}

impl Front {
    pub(in crate::linux) fn new(max_frame: usize) -> Self {
        Self { max_frame, rest: None, counters: PortCounters::default() }
    }

    /// Passes the frames of `slot` to `complete`, with their numbers, and then to `take`, each only during the call. If `take` refuses a
    /// frame, the next call for this slot starts with that frame. Returns true if none is left.
    #[inline]
    pub(in crate::linux) fn pass(
        &mut self,
        slot: DatagramSlot<'_>,
        mut complete: impl FnMut(usize, &mut [u8]),
        take: &mut impl FnMut(&[u8]) -> bool,
    ) -> bool {
        let DatagramSlot { vnet, room, length, tag } = slot;
        let parsed = match self.rest.take() {
            Some(rest) => Ok(rest),
            None => Received::parse(vnet, &room[HEADROOM..], length, tag).map(|received| (received, 0)),
        };
        let (received, first) = match parsed {
            Ok(parsed) => parsed,
            Err(why) => {
                self.count(why);
                return true;
            }
        };
        for number in first..received.count() {
            match received.frame(number, room).filter(|frame| frame.len() <= self.max_frame) {
                None => self.counters.not_whole += 1,
                Some(frame) => {
                    complete(number, frame);
                    if !take(frame) {
                        self.rest = Some((received, number));
                        return false;
                    }
                }
            }
        }
        true
    }

    #[cold]
    fn count(&mut self, why: BadDatagram) {
        match why {
            BadDatagram::Type(_) => self.counters.not_udp += 1,
            _ => self.counters.malformed += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::datagrams::{Segmentation, VnetHeader};

    /// Returns the counts after a socket whose longest frame has 100 bytes received `bytes` of a frame of `length`.
    fn counted(vnet: VnetHeader, bytes: &[u8], length: usize) -> PortCounters {
        let mut front = Front::new(100);
        let mut room = [&[0; HEADROOM], bytes].concat();
        let slot = DatagramSlot { vnet, room: &mut room, length, tag: None };
        assert!(front.pass(slot, |_, _| {}, &mut |_| panic!("there is no frame")));
        front.counters
    }

    #[test]
    fn each_datagram_without_a_frame_is_counted_by_its_reason() {
        let none = PortCounters::default();
        let tcp = VnetHeader { segmentation: Segmentation::Other(1), ..VnetHeader::FRAME };
        let frame = [0; 200];
        assert_eq!(counted(tcp, &frame, 200), PortCounters { not_udp: 1, ..none });
        assert_eq!(
            counted(VnetHeader::of_datagram(34, 50), &frame, 200),
            PortCounters { malformed: 1, ..none }
        );
        assert_eq!(counted(VnetHeader::FRAME, &frame, 200), PortCounters { not_whole: 1, ..none });
        assert_eq!(counted(VnetHeader::FRAME, &frame[..60], 61), PortCounters { not_whole: 1, ..none });
    }
}

//! The receiver of DCTCP: echoes which acknowledged bytes were marked (draft-bensley-tcpm-dctcp-01, section 3.2).
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use crate::Psn;
use crate::wire::Bth;
use smallvec::SmallVec;

/// Limit of pending acknowledgements between changes of the mark. A burst with more changes is echoed less exactly: the oldest is dropped,
/// and the next one covers its packets.
const MAX_WAITING: usize = 16;

/// Acknowledgement of everything up to a packet whose successor has another mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Boundary {
    pub(crate) up_to: Psn,
    is_marked: bool,
}

/// `DCTCP.CE`, and the acknowledgements that are due because it changed.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    /// `DCTCP.CE`.
    is_marked: bool,
    /// Packets executed since the last acknowledgement was sent or became due.
    unacknowledged: u32,
    waiting: SmallVec<[Boundary; MAX_WAITING]>,
}

impl Echo {
    /// Handles an executed SEND or WRITE packet; `last` is the one before it. Rules 1 and 2: if its mark differs from that of `last`,
    /// everything up to `last` is acknowledged separately. Rule 3: otherwise nothing happens.
    #[inline]
    pub(crate) fn on_packet(&mut self, is_marked: bool, wants_exact: bool, last: Psn) {
        let is_marked = is_marked && wants_exact;
        if is_marked != self.is_marked {
            self.on_change(is_marked, last);
        }
        self.unacknowledged = self.unacknowledged.saturating_add(1);
    }

    fn on_change(&mut self, is_marked: bool, last: Psn) {
        if self.unacknowledged > 0 {
            if self.waiting.len() == MAX_WAITING {
                self.waiting.remove(0);
            }
            self.waiting.push(Boundary { up_to: last, is_marked: self.is_marked });
        }
        self.is_marked = is_marked;
        self.unacknowledged = 0;
    }

    #[inline]
    pub(crate) fn due(&self) -> Option<&Boundary> {
        self.waiting.first()
    }

    pub(crate) fn on_boundary_sent(&mut self) {
        if !self.waiting.is_empty() {
            self.waiting.remove(0);
        }
    }

    /// Handles the execution of a request whose response acknowledges it and all packets before it, otherwise as [`Self::on_packet`].
    /// Returns the congestion byte of that response.
    pub(crate) fn on_answered(&mut self, is_marked: bool, wants_exact: bool, last: Psn) -> u8 {
        self.on_packet(is_marked, wants_exact, last);
        self.unacknowledged = 0;
        self.bits()
    }

    pub(crate) fn on_acknowledged(&mut self) {
        self.unacknowledged = 0;
    }

    /// Returns the congestion byte of an acknowledgement's BTH: BECN if and only if `DCTCP.CE` is true.
    pub(crate) const fn bits(&self) -> u8 {
        bits(self.is_marked)
    }
}

impl Boundary {
    pub(crate) const fn bits(&self) -> u8 {
        bits(self.is_marked)
    }
}

const fn bits(is_marked: bool) -> u8 {
    if is_marked { Bth::BECN } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_changes_than_can_wait_lose_the_oldest() {
        let mut echo = Echo::default();
        for number in 0..40 {
            echo.on_packet(number % 2 == 1, true, Psn::new(number));
        }
        assert_eq!(echo.waiting.len(), MAX_WAITING);
        assert_eq!(echo.due().unwrap().up_to, Psn::new(40 - MAX_WAITING as u32));
    }
}

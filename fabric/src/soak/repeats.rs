//! Observes selective repeat in the frames of one side.

use super::reached::Reached;
use roce::Psn;
use roce::qp::QpReport;
use roce::wire::{Bth, Header, Operation};
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct Repeats {
    /// PSN after the highest PSN sent.
    next: Option<Psn>,
    /// Retransmitted packets.
    pub(super) count: u64,
    /// Whether a packet was retransmitted since the last new packet.
    is_repeating: bool,
    /// First PSNs of READs.
    reads: BTreeSet<u32>,
    /// The packet that this side reported as missing, and the number of the peer's retransmissions before the report.
    missing: Option<(Psn, u64)>,
}

impl Repeats {
    /// Observes a sent frame. `report` describes the queue pair after it; `again` counts the peer's retransmissions.
    pub(super) fn on_frame(
        &mut self,
        header: &Header,
        report: &QpReport,
        again: u64,
        is_lost: bool,
        reached: &mut Reached,
    ) {
        if let Some((_, before)) = self.missing.take_if(|(psn, _)| psn.distance(report.expected_psn) < 0)
            && before == again
        {
            reached.once("hole: only late");
        }
        match header {
            Header::SelectiveAcknowledge { bth, ahead, held, .. } => {
                reached.count("hole: reported", u64::from(*held != 0));
                reached.count("hole: reported beyond a gap", u64::from(*ahead > 0));
                if self.missing.is_none_or(|(psn, _)| psn != bth.psn) {
                    self.missing = Some((bth.psn, again));
                }
            }
            Header::Connected { bth, operation, .. } | Header::Extended { bth, operation, .. }
                if !operation.is_answer() =>
            {
                self.on_request(bth, operation, report, is_lost, reached);
            }
            _ => {}
        }
    }

    fn on_request(
        &mut self,
        bth: &Bth,
        operation: &Operation,
        report: &QpReport,
        is_lost: bool,
        reached: &mut Reached,
    ) {
        let (psn, is_read) = (bth.psn, matches!(operation, Operation::ReadRequest(_)));
        let next = self.next.replace(report.send_psn);
        let Some(next) = next.filter(|&next| psn.distance(next) < 0) else {
            self.is_repeating = false;
            if is_read {
                self.reads.insert(psn.get());
            }
            return;
        };
        self.count += 1;
        let oldest = report.acknowledged_psn.next();
        let is_tail = psn.next() == next && psn != oldest && !self.is_repeating;
        self.is_repeating = true;
        reached.once("hole: sent again");
        reached.count("hole: lost again", u64::from(is_lost));
        reached.count("hole: in a READ", u64::from(is_read && !self.reads.contains(&psn.get())));
        reached.count("hole: tail asked for", u64::from(is_tail));
    }
}

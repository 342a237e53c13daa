//! The flow rules of an endpoint, in the order in which they are tried.

use super::{FlowAction, FlowRule, Headers, Rss};
use crate::{ControlError, Qpn};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Limit of the rules of an endpoint, because each frame is compared with all of them.
pub const MAX_FLOWS: u32 = 256;

/// Id of a rule of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId(u64);

#[derive(Debug)]
struct Flow {
    id: FlowId,
    qpn: Qpn,
    rule: FlowRule,
}

/// Flow rules, in the order in which they are tried.
#[derive(Debug, Default)]
pub(crate) struct FlowTable {
    flows: Vec<Flow>,
    /// Distributions of frames to other queue pairs, by queue pair number.
    spreads: BTreeMap<u32, Rss>,
    added: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    next: usize,
    taken: Option<usize>,
}

impl Cursor {
    pub(crate) const fn is_taken(&self) -> bool {
        self.taken.is_some()
    }
}

impl FlowTable {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    pub(crate) fn add(&mut self, qpn: Qpn, rule: FlowRule) -> Result<FlowId, ControlError> {
        if self.flows.len() >= MAX_FLOWS as usize {
            return Err(ControlError::Limit { what: "flow rules", limit: MAX_FLOWS });
        }
        self.added += 1;
        let id = FlowId(self.added);
        let place = self.flows.partition_point(|flow| flow.rule.order() <= rule.order());
        self.flows.insert(place, Flow { id, qpn, rule });
        Ok(id)
    }

    pub(crate) fn set_rss(&mut self, qpn: Qpn, rss: Rss) {
        self.spreads.insert(qpn.get(), rss);
    }

    /// Removes a rule; does nothing if its queue pair was destroyed.
    pub(crate) fn remove(&mut self, id: FlowId) {
        self.flows.retain(|flow| flow.id != id);
    }

    pub(crate) fn forget(&mut self, qpn: Qpn) {
        self.flows.retain(|flow| flow.qpn != qpn);
        self.spreads.remove(&qpn.get());
    }

    /// Returns the next queue pair that receives the frame, and the action for it; `None` if there are no more.
    pub(crate) fn next(&self, headers: &Headers<'_>, cursor: &mut Cursor) -> Option<(Qpn, FlowAction)> {
        let taken_by = cursor.taken.and_then(|place| self.flows.get(place));
        while let Some(flow) = self.flows.get(cursor.next) {
            let place = cursor.next;
            cursor.next += 1;
            let is_turn = match taken_by {
                Some(first) => first.rule == flow.rule,
                None => flow.rule.fits(headers),
            };
            if !is_turn {
                continue;
            }
            if flow.rule.action != FlowAction::Copy {
                cursor.taken = Some(place);
            }
            let rss = self.spreads.get(&flow.qpn.get());
            let taker = rss.and_then(|rss| rss.choose(headers)).unwrap_or(flow.qpn);
            return Some((taker, flow.rule.action));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steering::{EthernetSpec, FlowFrames, FlowSpec, Masked};
    use alloc::vec;

    const GROUP: [u8; 14] = [1, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    const HOST: [u8; 14] = [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];

    fn of_type(kind: u16) -> FlowRule {
        let ether_type = Masked::exactly(kind.to_be_bytes());
        FlowRule::new(vec![FlowSpec::Ethernet(EthernetSpec { ether_type, ..EthernetSpec::default() })])
    }

    fn rest(frames: FlowFrames) -> FlowRule {
        FlowRule { frames, ..FlowRule::new(Vec::new()) }
    }

    /// Returns the queue pairs that receive a frame, and whether a rule took it.
    fn takers(table: &FlowTable, frame: &[u8]) -> (Vec<u32>, bool) {
        let (headers, mut cursor) = (Headers::of(frame).unwrap(), Cursor::default());
        let mut takers = Vec::new();
        while let Some((qpn, _)) = table.next(&headers, &mut cursor) {
            takers.push(qpn.get());
        }
        (takers, cursor.is_taken())
    }

    fn table(rules: &[(u32, FlowRule)]) -> FlowTable {
        let mut table = FlowTable::default();
        for (qpn, rule) in rules {
            table.add(Qpn::new(*qpn), rule.clone()).unwrap();
        }
        table
    }

    #[test]
    fn the_lowest_priority_number_matches_first_and_then_the_oldest_rule() {
        let (late, any) = (FlowRule { priority: 7, ..of_type(0x88b5) }, FlowRule::new(Vec::new()));
        let all = table(&[(1, late), (2, of_type(0x88b6)), (3, of_type(0x88b5)), (4, any)]);
        assert_eq!(takers(&all, &HOST), (vec![3], true));
        let none = table(&[(2, of_type(0x88b6))]);
        assert_eq!(takers(&none, &HOST), (vec![], false));
    }

    #[test]
    fn equal_rules_share_a_frame_and_copies_leave_it_to_others() {
        let copy = FlowRule { action: FlowAction::Copy, ..of_type(0x88b5) };
        let late = FlowRule { priority: 1, ..of_type(0x88b5) };
        let rules = [(1, copy.clone()), (2, of_type(0x88b5)), (3, late), (4, of_type(0x88b5))];
        assert_eq!(takers(&table(&rules), &HOST), (vec![1, 2, 4], true));
        assert_eq!(takers(&table(&rules[..1]), &HOST), (vec![1], false));
    }

    #[test]
    fn frames_without_another_rule_match_the_rest() {
        let rules = [(1, rest(FlowFrames::RestOfGroups)), (2, rest(FlowFrames::Rest)), (3, of_type(0x88b6))];
        let all = table(&rules);
        assert_eq!(takers(&all, &GROUP), (vec![1], true));
        assert_eq!(takers(&all, &HOST), (vec![2], true));
        let late = FlowRule { priority: 9, ..of_type(0x88b5) };
        let all = table(&[&rules[..], &[(4, late)]].concat());
        assert_eq!(takers(&all, &GROUP), (vec![4], true), "whatever its priority");
    }

    #[test]
    fn rules_end_by_themselves_or_with_their_queue_pair_and_have_a_limit() {
        let mut all = table(&[(1, of_type(0x88b5)), (2, of_type(0x88b5))]);
        let third = all.add(Qpn::new(2), of_type(0x88b5)).unwrap();
        all.remove(third);
        all.remove(third);
        assert_eq!(takers(&all, &HOST).0, [1, 2]);
        all.forget(Qpn::new(1));
        assert_eq!(takers(&all, &HOST).0, [2]);
        for _ in 1..MAX_FLOWS {
            all.add(Qpn::new(3), of_type(1)).unwrap();
        }
        let refused = all.add(Qpn::new(3), of_type(1)).unwrap_err();
        assert_eq!(std::string::ToString::to_string(&refused), "flow rules: the limit of 256 is reached");
        all.forget(Qpn::new(2));
        all.forget(Qpn::new(3));
        assert!(all.is_empty());
    }
}

//! Flows of a scenario that depend on others: `after` of a `[[flow]]`, and `[[collective]]`.

use super::flows::{FLOWS, FlowText, Numbering, parse_time, zero};
use super::mistake::Mistake;
use fabric::sim::{Collective, Dependency, Flow, circle};
use serde::Deserialize;
use std::ops::Range;

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CollectiveKind {
    AllToAll,
    Ring,
}

/// An entry of `[[collective]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CollectiveText {
    kind: CollectiveKind,
    /// Number of hosts, from the first host on; by default all.
    hosts: Option<u32>,
    bytes: u64,
    #[serde(default = "zero")]
    start: String,
}

/// Flows, and the dependencies between them.
#[derive(Default)]
pub(super) struct FlowPlan {
    pub(super) flows: Vec<Flow>,
    pub(super) dependencies: Vec<Dependency>,
    /// Indices of the flows of each `[[flow]]`.
    pub(super) entries: Vec<Range<u32>>,
}

impl FlowPlan {
    /// Adds the flows of `[[flow]]`.
    pub(super) fn list(&mut self, entries: &[FlowText], numbering: Numbering) -> Result<(), Mistake> {
        for (place, entry) in entries.iter().enumerate() {
            let flows = parse_time(&entry.start).and_then(|start| numbering.spell(entry, start));
            let begin = self.flows.len() as u32;
            self.flows.extend(flows.map_err(|why| Mistake::in_entry("flow", place, why))?);
            self.entries.push(begin..self.flows.len() as u32);
        }
        let ranges = &self.entries;
        for (place, entry) in entries.iter().enumerate() {
            let Some(after) = entry.after else { continue };
            let wrong = |why: String| Mistake::in_entry("flow", place, why);
            let of = after.checked_sub(1).filter(|of| *of != place).and_then(|of| ranges.get(of));
            let of = of.ok_or_else(|| {
                let entries = ranges.len();
                wrong(format!(
                    "after = {after}: not another entry; use the number of another of the {entries}, from 1, or leave after out"
                ))
            })?;
            let count = self.dependencies.len() + ranges[place].len() * of.len();
            if count > FLOWS {
                return Err(wrong(format!(
                    "after = {after}: {count} pairs of flows: at most {FLOWS}; use fewer senders"
                )));
            }
            let pairs = ranges[place].clone().flat_map(|flow| of.clone().map(move |after| (flow, after)));
            self.dependencies.extend(pairs.map(|(flow, after)| Dependency { flow, after }));
        }
        let Some(flow) = circle(self.flows.len(), &self.dependencies) else { return Ok(()) };
        let place = ranges.iter().position(|range| range.contains(&(flow as u32))).unwrap_or_default();
        let why = "begins after flows that begin after it; remove one after of the circle";
        Err(Mistake::in_entry("flow", place, why))
    }

    /// Adds the flows of `[[collective]]`.
    pub(super) fn collectives(&mut self, entries: &[CollectiveText], hosts: u32) -> Result<(), Mistake> {
        for (place, entry) in entries.iter().enumerate() {
            let wrong = |why: String| Mistake::in_entry("collective", place, why);
            let start = parse_time(&entry.start).map_err(wrong)?;
            let some = entry.hosts.unwrap_or(hosts);
            if !(2..=hosts).contains(&some) {
                return Err(wrong(format!(
                    "hosts = {some}: more than there are, or fewer than two; use 2 to {hosts}"
                )));
            }
            if entry.bytes == 0 {
                return Err(wrong("bytes = 0: nothing to send; use at least 1".into()));
            }
            let kind = match entry.kind {
                CollectiveKind::AllToAll => Collective::AllToAll,
                CollectiveKind::Ring => Collective::Ring,
            };
            let count = self.flows.len() as u64 + kind.flows(some.into());
            if count > FLOWS as u64 {
                return Err(wrong(format!("{count} flows in all: at most {FLOWS}; use fewer hosts")));
            }
            let hosts: Vec<u32> = (0..some).collect();
            let (flows, dependencies) = kind.of(&hosts, entry.bytes, start, self.flows.len() as u32);
            self.flows.extend(flows);
            self.dependencies.extend(dependencies);
        }
        Ok(())
    }
}

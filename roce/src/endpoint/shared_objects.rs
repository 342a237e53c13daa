//! Objects that the queue pairs of an endpoint share.

use super::config::EndpointConfig;
use crate::address::AddressTable;
use crate::cq::CompletionQueues;
use crate::event::Events;
use crate::qp::{Context, EarlyMemory};
use crate::srq::SharedQueues;
use crate::wire::Numbers;
use crate::xrc::XrcDomains;
use crate::{Counters, RegionTable};
use cc::{ActiveFlows, Instant};

/// Limit of the memory for early packets until [`Endpoint::set_early_budget`](super::Endpoint::set_early_budget) sets another, in bytes:
/// that of 32 queue pairs at their own limits.
const EARLY_BUDGET: usize = 64 << 20;

pub(super) struct SharedObjects {
    pub(super) cqs: CompletionQueues,
    pub(super) regions: RegionTable,
    pub(super) addresses: AddressTable,
    pub(super) srqs: SharedQueues,
    pub(super) xrc: XrcDomains,
    pub(super) counters: Counters,
    /// Flows whose telemetry arrives here.
    pub(super) flows: ActiveFlows,
    pub(super) events: Events,
    pub(super) numbers: Numbers,
    pub(super) early: EarlyMemory,
}

impl SharedObjects {
    pub(super) fn new(config: &EndpointConfig, for_keys: &[u8; 32]) -> Self {
        Self {
            cqs: CompletionQueues::new(config.max_cqs),
            regions: RegionTable::new(config.max_regions, for_keys),
            addresses: AddressTable::new(),
            srqs: SharedQueues::default(),
            xrc: XrcDomains::default(),
            counters: Counters::default(),
            flows: ActiveFlows::new(),
            events: Events::default(),
            numbers: config.numbers,
            early: EarlyMemory::new(EARLY_BUDGET),
        }
    }

    #[inline]
    pub(super) fn context(&mut self, now: Instant) -> Context<'_> {
        Context {
            now,
            regions: &mut self.regions,
            addresses: &self.addresses,
            srqs: &mut self.srqs,
            cqs: &mut self.cqs,
            counters: &mut self.counters,
            flows: &mut self.flows,
            events: &mut self.events,
            numbers: self.numbers,
            early: &mut self.early,
        }
    }
}

//! Objects of an endpoint that a queue pair borrows for one call.

use super::EarlyMemory;
use crate::address::AddressTable;
use crate::cq::CompletionQueues;
use crate::event::Events;
use crate::srq::SharedQueues;
use crate::wire::Numbers;
use crate::{Counters, RegionTable};
use cc::{ActiveFlows, Instant};

/// Shared objects of an endpoint, borrowed for one call, and the time of the call.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) regions: &'a mut RegionTable,
    pub(crate) addresses: &'a AddressTable,
    pub(crate) srqs: &'a mut SharedQueues,
    pub(crate) cqs: &'a mut CompletionQueues,
    pub(crate) counters: &'a mut Counters,
    pub(crate) flows: &'a mut ActiveFlows,
    pub(crate) events: &'a mut Events,
    pub(crate) numbers: Numbers,
    pub(crate) early: &'a mut EarlyMemory,
}

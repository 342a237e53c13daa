//! Multicast groups, and the datagram queue pairs that receive their packets (IBA 10.5).

use super::{ControlError, Endpoint};
use crate::wire::{Frame, Service};
use crate::{Discard, Memory, Qpn};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use cc::Instant;
use core::net::IpAddr;

/// Destination QP number of every packet to a multicast group (IBA 3.5.3).
pub const GROUP_QPN: Qpn = Qpn::new(0xff_ffff);
/// Limit of the multicast groups of an endpoint.
pub const MAX_GROUPS: u32 = 1024;
/// Limit of the queue pairs in one group; each receives a copy of every packet.
pub const MAX_MEMBERS: u32 = 64;

/// Members of each group, in the order of their attachment.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<IpAddr, Vec<Qpn>>);

impl Groups {
    fn member(&self, group: IpAddr, index: usize) -> Option<Qpn> {
        self.0.get(&group)?.get(index).copied()
    }

    fn add(&mut self, group: IpAddr, qpn: Qpn) -> Result<(), ControlError> {
        if self.0.len() >= MAX_GROUPS as usize && !self.0.contains_key(&group) {
            return Err(ControlError::Limit { what: "multicast groups", limit: MAX_GROUPS });
        }
        let members = self.0.entry(group).or_default();
        if members.contains(&qpn) {
            return Ok(());
        }
        if members.len() >= MAX_MEMBERS as usize {
            return Err(ControlError::Limit { what: "queue pairs in a multicast group", limit: MAX_MEMBERS });
        }
        members.push(qpn);
        Ok(())
    }

    fn remove(&mut self, group: IpAddr, qpn: Qpn) -> bool {
        let Some(members) = self.0.get_mut(&group) else { return false };
        let before = members.len();
        members.retain(|member| *member != qpn);
        let is_removed = members.len() < before;
        if members.is_empty() {
            self.0.remove(&group);
        }
        is_removed
    }

    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.0.retain(|_, members| {
            members.retain(|member| *member != qpn);
            !members.is_empty()
        });
    }
}

impl Endpoint {
    /// Attaches a datagram queue pair to a multicast group: it receives a copy of each packet. Attaching it again changes nothing.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the queue pair does not exist or is not a datagram queue pair, `group` is not a multicast address, or
    /// a limit is reached: [`MAX_GROUPS`] groups, [`MAX_MEMBERS`] queue pairs in one.
    pub fn attach(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), ControlError> {
        let index = self.qps.find(qpn).ok_or(ControlError::NoQp(qpn))?;
        let is_datagram = self.qps.at_mut(index).is_some_and(|index| index.qp.service() == Service::Ud);
        if !is_datagram {
            return Err(ControlError::NotDatagrams(qpn));
        }
        if !group.is_multicast() {
            return Err(ControlError::NoGroup(group));
        }
        self.groups.add(group, qpn)
    }

    /// Detaches a queue pair from a multicast group.
    ///
    /// # Errors
    /// Returns [`ControlError::NotAttached`] if the queue pair is not attached to the group.
    pub fn detach(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), ControlError> {
        if self.groups.remove(group, qpn) { Ok(()) } else { Err(ControlError::NotAttached { qpn, group }) }
    }

    /// Delivers a packet to a group. If no member accepts it, it is dropped with the reason of the last member.
    pub(super) fn deliver_to_group<M: Memory>(
        &mut self,
        now: Instant,
        memory: &mut M,
        frame: &Frame<'_>,
    ) -> Result<(), Discard> {
        let group = frame.network.destination();
        let mut taken = Err(Discard::UnknownGroup);
        let mut index = 0;
        while let Some(qpn) = self.groups.member(group, index) {
            index += 1;
            let delivered = match self.qps.find(qpn) {
                Some(index) => self.deliver(now, memory, frame, index),
                None => Err(Discard::UnknownQp),
            };
            taken = taken.or(delivered);
        }
        taken
    }
}

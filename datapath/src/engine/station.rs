//! All that a core owns beside its port, and the control calls that change it.

use super::CoreConfig;
use super::completion_ring::CqRing;
use super::events::Subscribers;
use super::follow::Followed;
use super::management::{Mad, Management};
use super::notify::Notifier;
use super::others::Others;
use super::queues::Queues;
use super::rings::{QpRings, SrqRings};
use crate::capture::Tap;
use crate::event_fd::EventFd;
use crate::host_memory::HostMemory;
use crate::io::PortCounters;
use crate::neighbour::Neighbours;
use crate::siblings::Lanes;
use cc::Instant;
use roce::qp::QpInit;
use roce::wire::{Mac, Path, Vlan};
use roce::{ControlError, CqId, Endpoint, Qpn, SrqId, SrqInit, XrcdId};
use std::net::IpAddr;
use std::sync::Arc;

/// Counters of a core outside its endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreCounters {
    /// Turns that found something to do.
    pub busy_turns: u64,
    /// Turns that found nothing.
    pub idle_turns: u64,
    /// Frames to another Ethernet address.
    pub not_for_us: u64,
    /// Frames to other processes of the interface.
    pub siblings: u64,
    /// Frames of another VLAN than the port's, or tagged if the port has none.
    pub other_vlan: u64,
    /// ARP and neighbour discovery packets taken in.
    pub neighbour_packets: u64,
    /// ARP and neighbour discovery packets that were malformed.
    pub neighbour_malformed: u64,
    /// Times that the port's pool had no buffer to send from.
    pub pool_dry: u64,
    /// Frames lost because the port had taken none, or had no buffer for one, for half a second.
    pub port_held: u64,
    /// Completion queues that overflowed.
    pub cq_overflows: u64,
    /// Frames that the core received and handed to that of their queue pair, or on the way there to core 0.
    pub handed_over: u64,
    /// Frames that were lost because the ring to their core was full.
    pub hand_over_full: u64,
    /// Frames that the port, or the core's queue of it, dropped. They are as old as the last control call.
    pub port: PortCounters,
}

impl CoreCounters {
    /// Adds the counts of another core of the same port.
    pub fn add(&mut self, other: &Self) {
        let Self {
            busy_turns,
            idle_turns,
            not_for_us,
            siblings,
            other_vlan,
            neighbour_packets,
            neighbour_malformed,
            pool_dry,
            port_held,
            cq_overflows,
            handed_over,
            hand_over_full,
            port,
        } = self;
        port.add(&other.port);
        for (sum, more) in [
            (busy_turns, other.busy_turns),
            (idle_turns, other.idle_turns),
            (not_for_us, other.not_for_us),
            (siblings, other.siblings),
            (other_vlan, other.other_vlan),
            (neighbour_packets, other.neighbour_packets),
            (neighbour_malformed, other.neighbour_malformed),
            (pool_dry, other.pool_dry),
            (port_held, other.port_held),
            (cq_overflows, other.cq_overflows),
            (handed_over, other.handed_over),
            (hand_over_full, other.hand_over_full),
        ] {
            *sum += more;
        }
    }
}

/// All that a core owns beside its port.
pub struct Station {
    /// Queue pairs, completion queues, regions.
    pub endpoint: Endpoint,
    /// The table of neighbours: which Ethernet address belongs to which IP address.
    pub neighbours: Neighbours,
    /// The core's counts.
    pub counters: CoreCounters,
    pub(super) queues: Queues,
    pub(super) memory: HostMemory,
    pub(super) followed: Followed,
    /// The other cores of the port, if there are any.
    pub(super) others: Option<Box<Others>>,
    /// A peer that has moved has more senders than one turn changes: the next turn goes on.
    pub(super) follows: bool,
    pub(super) management: Option<Management>,
    /// To and from the interface's other processes, if the port is on one.
    pub(super) lanes: Option<Box<Lanes>>,
    /// The tap that frames are copied to while an observer captures them.
    pub(super) tap: Option<Box<Tap>>,
    pub(super) mac: Mac,
    pub(super) vlan: Option<Vlan>,
    pub(super) subscribers: Arc<Subscribers>,
    /// The port's, for messages.
    pub(super) name: String,
}

impl Station {
    /// # Safety
    /// The caller that registers a region keeps its memory valid for reads and writes until it is deregistered.
    pub(super) unsafe fn new(
        endpoint: Endpoint,
        neighbours: Neighbours,
        config: &CoreConfig,
        subscribers: Arc<Subscribers>,
    ) -> Self {
        Self {
            endpoint,
            neighbours,
            counters: CoreCounters::default(),
            queues: Queues::new(config.endpoint.max_qps as usize),
            // SAFETY: the slices come from `endpoint`, whose regions the caller keeps valid.
            memory: unsafe { HostMemory::new() },
            followed: Followed::default(),
            others: None,
            follows: false,
            management: None,
            lanes: None,
            tap: None,
            mac: config.mac,
            vlan: config.vlan,
            subscribers,
            name: config.name.clone(),
        }
    }

    /// Returns the core's place among those of the port.
    #[must_use]
    pub fn index(&self) -> usize {
        self.others.as_ref().map_or(0, |others| others.own())
    }

    /// Makes a completion queue of exactly `depth`.
    ///
    /// # Errors
    /// As the endpoint has it.
    pub fn create_cq(&mut self, depth: u32) -> Result<(CqId, CqRing), ControlError> {
        let cq = self.endpoint.create_cq(depth)?;
        Ok((cq, self.queues.create_cq(cq, depth)))
    }

    /// Has a completion queue ring a bell.
    ///
    /// # Errors
    /// Returns [`ControlError::NoCq`] if there is none of that number.
    pub fn watch_cq(&mut self, cq: CqId, notifier: Arc<Notifier>) -> Result<(), ControlError> {
        self.queues.watch_cq(cq, notifier)
    }

    /// Changes a completion queue's depth. `ring` is its present one; the one that comes back takes its place, with all that was in it.
    ///
    /// # Errors
    /// As the endpoint has it: if more completions wait, or come when the posted sends are done, than the new depth has room for. Then the
    /// ring is as it was.
    pub fn resize_cq(
        &mut self,
        cq: CqId,
        mut ring: CqRing,
        depth: u32,
    ) -> (CqRing, Result<(), ControlError>) {
        let resized = self.queues.resize_cq(&mut self.endpoint, cq, &mut ring, depth);
        (ring, resized)
    }

    /// Removes the completions of one queue pair from a completion queue. `ring` is its present one, and comes back.
    pub fn discard_completions(&mut self, cq: CqId, mut ring: CqRing, qpn: Qpn) -> CqRing {
        self.endpoint.discard_completions(cq, qpn);
        self.queues.discard_completions(cq, &mut ring, qpn);
        ring
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// As the endpoint has it: while queue pairs use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        self.endpoint.destroy_cq(cq)?;
        self.queues.destroy_cq(cq);
        Ok(())
    }

    /// Makes a queue pair.
    ///
    /// # Errors
    /// As the endpoint has it.
    pub fn create_qp(&mut self, now: Instant, init: QpInit) -> Result<QpRings, ControlError> {
        let slot = self.queues.free_slot()?;
        let qpn = self.endpoint.create_qp(now, init)?;
        self.connect_rings(slot, qpn, &init)
    }

    /// Makes an XRC target. Its rings take nothing: it has no queues.
    ///
    /// # Errors
    /// As the endpoint has it.
    pub fn create_xrc_target(&mut self, now: Instant, domain: XrcdId) -> Result<QpRings, ControlError> {
        let slot = self.queues.free_slot()?;
        let qpn = self.endpoint.create_xrc_target(now, domain)?;
        self.connect_rings(slot, qpn, &QpInit::XRC_TARGET)
    }

    fn connect_rings(&mut self, slot: usize, qpn: Qpn, init: &QpInit) -> Result<QpRings, ControlError> {
        let rules = self.endpoint.post_rules(qpn).ok_or(ControlError::NoQp(qpn))?;
        Ok(self.queues.connect_qp(slot, qpn, init, rules))
    }

    /// Destroys a queue pair. Outstanding requests are discarded without completions.
    ///
    /// # Errors
    /// Returns [`ControlError::NoQp`] if there is none of that number.
    pub fn destroy_qp(&mut self, now: Instant, qpn: Qpn) -> Result<(), ControlError> {
        self.endpoint.destroy_qp(now, qpn)?;
        self.queues.disconnect_qp(qpn);
        Ok(())
    }

    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// As the endpoint has it.
    pub fn create_srq(&mut self, init: SrqInit) -> Result<SrqRings, ControlError> {
        let slot = self.queues.free_slot()?;
        let srq = self.endpoint.create_srq(init)?;
        let rules = self.endpoint.srq_rules(srq).ok_or(ControlError::NoSrq(srq))?;
        Ok(self.queues.connect_srq(slot, srq, init.depth, rules))
    }

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// As the endpoint has it: while queue pairs take from it.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ControlError> {
        self.endpoint.destroy_srq(srq)?;
        // With several cores, only one has its rings.
        self.queues.disconnect_srq(srq);
        Ok(())
    }

    /// Captures the station's frames into `tap` from now on, or none. Returns the tap before, whose memory the caller frees.
    pub fn capture(&mut self, tap: Option<Box<Tap>>) -> Option<Box<Tap>> {
        std::mem::replace(&mut self.tap, tap)
    }

    /// Opens queue pair 1; each management datagram that comes adds 1 to `bell`, an eventfd. `false` if it is open.
    pub fn open_management(&mut self, bell: Arc<EventFd>) -> bool {
        let free = self.management.as_ref().is_none_or(|management| !management.is_open());
        if free {
            self.management = Some(Management::new(Some(bell)));
        }
        free
    }

    /// Closes queue pair 1; its datagrams are dropped from then on.
    pub fn close_management(&mut self) {
        self.management = None;
    }

    /// Sends a management datagram; `false` if queue pair 1 is not open, or too many wait.
    pub fn send_mad(&mut self, path: Path, mad: Mad) -> bool {
        self.management.as_mut().is_some_and(|management| management.send(path, mad))
    }

    /// Sends a management datagram in the name of a process that died, whether queue pair 1 is open or not.
    pub(super) fn part(&mut self, path: Path, mad: Mad) {
        // A peer that receives nothing finds out by itself.
        self.management.get_or_insert_with(|| Management::new(None)).send(path, mad);
    }

    /// Returns the oldest received management datagram and its sender.
    pub fn receive_mad(&mut self) -> Option<(IpAddr, Mad)> {
        self.management.as_mut()?.receive()
    }

    /// The Ethernet address that the management datagram received last came from, if `ip` sent it. The way back needs no resolution, for
    /// which a stranger could make this side wait.
    #[must_use]
    pub fn way_back(&self, ip: IpAddr) -> Option<Mac> {
        self.management.as_ref()?.way_back(ip)
    }
}

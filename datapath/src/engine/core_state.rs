//! The state of a core except its port, and the control calls that change the state.

use super::CoreConfig;
use super::completion_ring::CqRing;
use super::delayed_ack::DelayedAck;
use super::events::Subscribers;
use super::management::{Mad, Management};
use super::notify::Notifier;
use super::other_cores::OtherCores;
use super::peer_moves::PeerMoves;
use super::port_flows::PortFlows;
use super::queues::Queues;
use super::rings::{QpRings, SrqRings};
use crate::capture::Tap;
use crate::event_fd::EventFd;
use crate::host_memory::HostMemory;
use crate::io::PortCounters;
use crate::neighbour::Neighbours;
use crate::siblings::MemberRings;
use cc::Instant;
use roce::qp::QpInit;
use roce::wire::{Mac, Path, Vlan};
use roce::{ControlError, CqId, Endpoint, Qpn, SrqId, SrqInit, XrcdId};
use std::net::IpAddr;
use std::sync::Arc;

/// Counters of a core outside its endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreCounters {
    /// Turns with work.
    pub busy_turns: u64,
    /// Turns without work.
    pub idle_turns: u64,
    /// Frames dropped because they are for another Ethernet address.
    pub not_for_us: u64,
    /// Frames for other processes on the interface: dropped, or on a port on UDP sockets relayed to them.
    pub siblings: u64,
    /// Frames for another process of a port on UDP sockets, dropped because the ring to it was full.
    pub siblings_full: u64,
    /// Frames dropped because they belong to another VLAN, or are tagged while the port has no VLAN.
    pub other_vlan: u64,
    /// Received ARP and neighbour discovery packets.
    pub neighbour_packets: u64,
    /// ARP and neighbour discovery packets that were malformed.
    pub neighbour_malformed: u64,
    /// Frames that could not be sent at once because the port's pool had no free buffer.
    pub pool_dry: u64,
    /// Frames dropped because the port had accepted none, or had no free buffer, for 500 ms.
    pub port_held: u64,
    /// Frames dropped, in either direction, while a [fault](super::PortFault::PortDown) held the port down.
    pub unplugged: u64,
    /// Completion queues that overflowed.
    pub cq_overflows: u64,
    /// Received frames that this core forwarded to the core of their queue pair, or to core 0, which forwards them.
    pub handed_over: u64,
    /// Frames dropped because the ring to their core was full.
    pub hand_over_full: u64,
    /// Frames that the port, or this core's queue of it, dropped. Updated only by control calls.
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
            siblings_full,
            other_vlan,
            neighbour_packets,
            neighbour_malformed,
            pool_dry,
            port_held,
            unplugged,
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
            (siblings_full, other.siblings_full),
            (other_vlan, other.other_vlan),
            (neighbour_packets, other.neighbour_packets),
            (neighbour_malformed, other.neighbour_malformed),
            (pool_dry, other.pool_dry),
            (port_held, other.port_held),
            (unplugged, other.unplugged),
            (cq_overflows, other.cq_overflows),
            (handed_over, other.handed_over),
            (hand_over_full, other.hand_over_full),
        ] {
            *sum += more;
        }
    }
}

/// The state of a core except its port.
pub struct CoreState {
    /// Queue pairs, completion queues and memory regions.
    pub endpoint: Endpoint,
    /// The Ethernet addresses of IP addresses.
    pub neighbours: Neighbours,
    /// Counters of the core.
    pub counters: CoreCounters,
    pub(super) queues: Queues,
    pub(super) memory: HostMemory,
    pub(super) peer_moves: PeerMoves,
    pub(super) delayed_ack: DelayedAck,
    pub(super) other_cores: Option<Box<OtherCores>>,
    /// The count of flows that arrive at the port, if other cores or processes can share it.
    pub(super) flows: Option<Arc<PortFlows>>,
    /// When the numbers of the others are read again.
    pub(super) next_count: Instant,
    /// Whether a peer that has moved has more queue pairs than one turn redirects, so that the next turn continues.
    pub(super) redirects: bool,
    pub(super) management: Option<Management>,
    pub(super) member_rings: Option<Box<MemberRings>>,
    /// Receives a copy of each frame while an observer captures.
    pub(super) tap: Option<Box<Tap>>,
    /// Whether a fault holds the port down: no frame leaves or arrives.
    pub(super) is_unplugged: bool,
    /// Whether this process relays received frames to the processes that own their queue pairs.
    pub(super) relays: bool,
    pub(super) mac: Mac,
    pub(super) vlan: Option<Vlan>,
    pub(super) subscribers: Arc<Subscribers>,
    pub(super) name: String,
}

impl CoreState {
    /// # Safety
    /// The caller must keep the memory of each registered region valid for reads and writes until it is deregistered.
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
            peer_moves: PeerMoves::default(),
            delayed_ack: DelayedAck::default(),
            other_cores: None,
            flows: None,
            next_count: Instant::ZERO,
            redirects: false,
            management: None,
            member_rings: None,
            tap: None,
            is_unplugged: false,
            relays: config.peer_mac.is_some(),
            mac: config.mac,
            vlan: config.vlan,
            subscribers,
            name: config.name.clone(),
        }
    }

    /// Counts frames that were dropped instead of sent. The endpoint counted `sent_before` frames before it wrote its own of them; the others
    /// are control frames.
    #[cold]
    #[expect(clippy::arithmetic_side_effects, reason = "counts of frames stay below 2^64")]
    pub(super) fn on_discarded(&mut self, frames: u64, sent_before: u64) {
        let counter =
            if self.is_unplugged { &mut self.counters.unplugged } else { &mut self.counters.port_held };
        *counter += frames;
        let own = self.endpoint.counters().tx_frames.saturating_sub(sent_before);
        self.endpoint.on_discarded(own.min(frames));
    }

    /// Returns the core's index among those of the port.
    #[must_use]
    pub fn index(&self) -> usize {
        self.other_cores.as_ref().map_or(0, |other_cores| other_cores.own())
    }

    /// Creates a completion queue of exactly `depth` completions.
    ///
    /// # Errors
    /// As [`Endpoint::create_cq`].
    pub fn create_cq(&mut self, depth: u32) -> Result<(CqId, CqRing), ControlError> {
        let cq = self.endpoint.create_cq(depth)?;
        Ok((cq, self.queues.create_cq(cq, depth)))
    }

    /// Makes the core notify `notifier` of a completion queue's completions.
    ///
    /// # Errors
    /// Returns [`ControlError::NoCq`] if there is no such queue.
    pub fn watch_cq(&mut self, cq: CqId, notifier: Arc<Notifier>) -> Result<(), ControlError> {
        self.queues.watch_cq(cq, notifier)
    }

    /// Changes a completion queue's depth. Takes the queue's ring and returns it with all its completions.
    ///
    /// # Errors
    /// As [`Endpoint::resize_cq`]. Also returns [`ControlError::CqFull`] if the new depth has no room for the completions in the ring and
    /// those of outstanding sends. The ring is then unchanged.
    pub fn resize_cq(
        &mut self,
        cq: CqId,
        mut ring: CqRing,
        depth: u32,
    ) -> (CqRing, Result<(), ControlError>) {
        let resized = self.queues.resize_cq(&mut self.endpoint, cq, &mut ring, depth);
        (ring, resized)
    }

    /// Removes the completions of one queue pair from a completion queue. Takes the queue's ring and returns it.
    pub fn discard_completions(&mut self, cq: CqId, mut ring: CqRing, qpn: Qpn) -> CqRing {
        self.endpoint.discard_completions(cq, qpn);
        self.queues.discard_completions(cq, &mut ring, qpn);
        ring
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// As [`Endpoint::destroy_cq`], for example while queue pairs use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        self.endpoint.destroy_cq(cq)?;
        self.queues.destroy_cq(cq);
        Ok(())
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    /// As [`Endpoint::create_qp`], or [`ControlError::Limit`] if all slots are in use.
    pub fn create_qp(&mut self, now: Instant, init: QpInit) -> Result<QpRings, ControlError> {
        let slot = self.queues.free_slot()?;
        let qpn = self.endpoint.create_qp(now, init)?;
        self.connect_rings(slot, qpn, &init)
    }

    /// Creates an XRC target queue pair. It has no work queues, so its rings accept no requests.
    ///
    /// # Errors
    /// As [`Endpoint::create_xrc_target`], or [`ControlError::Limit`] if all slots are in use.
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
    /// Returns [`ControlError::NoQp`] if there is no such queue pair.
    pub fn destroy_qp(&mut self, now: Instant, qpn: Qpn) -> Result<(), ControlError> {
        self.endpoint.destroy_qp(now, qpn)?;
        self.queues.disconnect_qp(qpn);
        Ok(())
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// As [`Endpoint::create_srq`], or [`ControlError::Limit`] if all slots are in use.
    pub fn create_srq(&mut self, init: SrqInit) -> Result<SrqRings, ControlError> {
        let slot = self.queues.free_slot()?;
        let srq = self.endpoint.create_srq(init)?;
        let rules = self.endpoint.srq_rules(srq).ok_or(ControlError::NoSrq(srq))?;
        Ok(self.queues.connect_srq(slot, srq, init.depth, rules))
    }

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// As [`Endpoint::destroy_srq`], for example while queue pairs use it.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ControlError> {
        self.endpoint.destroy_srq(srq)?;
        // Only one of several cores has its rings.
        self.queues.disconnect_srq(srq);
        Ok(())
    }

    /// Starts capturing frames to `tap`, or stops with `None`. Returns the previous tap, whose memory the caller frees.
    pub fn capture(&mut self, tap: Option<Box<Tap>>) -> Option<Box<Tap>> {
        std::mem::replace(&mut self.tap, tap)
    }

    /// Opens queue pair 1. Each received management datagram adds 1 to `event_fd`, an eventfd. Returns false if it is open already.
    pub fn open_management(&mut self, event_fd: Arc<EventFd>) -> bool {
        let free = self.management.as_ref().is_none_or(|management| !management.is_open());
        if free {
            self.management = Some(Management::new(Some(event_fd)));
        }
        free
    }

    /// Closes queue pair 1. Further datagrams are dropped.
    pub fn close_management(&mut self) {
        self.management = None;
    }

    /// Sends a management datagram. Returns false if queue pair 1 is not open, or its send queue is full.
    pub fn send_mad(&mut self, path: Path, mad: Mad) -> bool {
        self.management.as_mut().is_some_and(|management| management.send(path, mad))
    }

    /// Sends a management datagram on behalf of a process that has ended, whether or not queue pair 1 is open.
    pub(super) fn send_disconnect(&mut self, path: Path, mad: Mad) {
        // A peer that does not receive it detects the end when its own retries fail.
        self.management.get_or_insert_with(|| Management::new(None)).send(path, mad);
    }

    /// Removes and returns the oldest received management datagram with its sender.
    pub fn receive_mad(&mut self) -> Option<(IpAddr, Mad)> {
        self.management.as_mut()?.receive()
    }

    /// Returns the Ethernet address from which the last received management datagram was sent, if `ip` sent it. An answer to that address
    /// needs no address resolution, for which an unauthenticated sender could make this side wait.
    #[must_use]
    pub fn sender_mac(&self, ip: IpAddr) -> Option<Mac> {
        self.management.as_ref()?.sender_mac(ip)
    }
}

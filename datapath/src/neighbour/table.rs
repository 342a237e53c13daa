//! The neighbour table: the Ethernet addresses of neighbours, and pending requests for them (RFC 826, RFC 4861).

#[cfg(test)]
mod tests;

use super::arp::{self, Arp};
use super::ndp::{self, Ndp, NdpMessage};
use super::{ARP_TYPE, Address, Malformed, martian};
use cc::Instant;
use roce::wire::Mac;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use thiserror::Error;

/// RFC 4861 10: MAX_MULTICAST_SOLICIT, RETRANS_TIMER. ARP uses the same numbers.
const TRIES: u32 = 3;
const RETRY: Duration = Duration::from_secs(1);
/// RFC 4861 10: REACHABLE_TIME. A connection resolves an older entry again.
const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// Age below which an entry is not resolved again after a timeout. It limits the requests that packet loss causes.
const MIN_AGE: Duration = Duration::from_millis(100);
/// Shortest time between two unsolicited changes of a neighbour's Ethernet address.
const MIN_CHANGE_INTERVAL: Duration = Duration::from_secs(1);
const MAX_ENTRIES: usize = 1024;
/// Most packets queued to be sent. Further requests are not answered. Their senders repeat them.
const MAX_QUEUED: usize = 64;

const BROADCAST: Mac = Mac([0xff; 6]);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The result of resolving an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Packets for the address are sent to this Ethernet address.
    Resolved(Mac),
    /// A request was sent. The caller must call again.
    Pending,
}

/// Reasons why an address does not resolve.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum Unresolved {
    /// `hop` is the peer, or the router to the peer.
    #[error("no answer from {hop} after {tries} tries")]
    NoAnswer { hop: IpAddr, tries: u32 },
    #[error("no route: {0}")]
    NoRoute(String),
    /// The process or the system has no descriptor or no memory left for a request to the kernel.
    #[error("{}", std::io::Error::from_raw_os_error(*errno))]
    Exhausted { errno: i32 },
    #[error("{limit} addresses are being resolved")]
    TableFull { limit: usize },
}

#[derive(Clone, Copy, Debug)]
enum NeighbourEntry {
    /// `previous` is the last known Ethernet address.
    Incomplete {
        tries: u32,
        retry_at: Instant,
        previous: Option<Mac>,
    },
    Reachable {
        mac: Mac,
        updated_at: Instant,
    },
    Failed,
}

#[derive(Clone, Copy, Debug)]
enum Packet {
    Arp(Arp, Mac),
    Ndp(Ndp, Mac),
}

/// ARP and neighbour discovery without the kernel: answers requests for local addresses, and resolves those of others.
///
/// [`on_frame`](Self::on_frame) receives packets and [`poll_transmit`](Self::poll_transmit) sends them. The table has entries only for
/// hosts that a caller has resolved, so other hosts cannot fill it.
#[derive(Debug)]
pub struct Neighbours {
    mac: Mac,
    /// Whether the kernel answers for these addresses and resolves the peers of connections.
    passive: bool,
    addresses: Vec<Address>,
    gateway: Option<IpAddr>,
    permanent: HashMap<IpAddr, Mac>,
    /// The Ethernet address that represents every peer.
    peer_mac: Option<Mac>,
    entries: HashMap<IpAddr, NeighbourEntry>,
    tx_queue: VecDeque<Packet>,
    /// Local addresses that another host uses, with its Ethernet address. The first `reported` have been reported.
    conflicts: Vec<(IpAddr, Mac)>,
    reported: usize,
    next: Option<Instant>,
    /// Number of requests that were answered or given up.
    answers: u64,
}

impl Neighbours {
    /// Creates the table of a port without a kernel. Probes whether another host has one of `addresses`. Also announces them, so that
    /// switches learn the port of `mac`.
    ///
    /// The port works without waiting for the result, which [`poll_conflict`](Self::poll_conflict) returns.
    #[must_use]
    pub fn standalone(mac: Mac, addresses: &[Address], gateway: Option<IpAddr>) -> Self {
        let mut neighbours = Self { gateway, passive: false, ..Self::with_kernel(mac, addresses) };
        for address in addresses.iter().take(MAX_QUEUED / 2) {
            neighbours.probe(address.ip);
            neighbours.announce(address.ip);
        }
        neighbours
    }

    /// Creates the table of a port on a Linux interface. The kernel answers for `addresses`, and the table learns only hosts that it has
    /// sent requests for.
    #[must_use]
    pub fn with_kernel(mac: Mac, addresses: &[Address]) -> Self {
        Self {
            mac,
            passive: true,
            addresses: addresses.to_vec(),
            gateway: None,
            permanent: HashMap::new(),
            peer_mac: None,
            entries: HashMap::new(),
            tx_queue: VecDeque::with_capacity(MAX_QUEUED),
            conflicts: Vec::new(),
            reported: 0,
            next: None,
            answers: 0,
        }
    }

    /// Sets the Ethernet address that represents every peer, if there is one. Then no request is sent.
    #[must_use]
    pub fn with_peer_mac(self, peer_mac: Option<Mac>) -> Self {
        Self { peer_mac, ..self }
    }

    /// Replaces the local addresses of a table created by [`with_kernel`](Self::with_kernel). The kernel announces and defends them.
    pub fn set_addresses(&mut self, addresses: Vec<Address>) {
        self.addresses = addresses;
    }

    /// Adds a permanent entry.
    ///
    /// # Errors
    /// Returns [`Unresolved::TableFull`] if there are too many entries.
    pub fn set(&mut self, address: IpAddr, mac: Mac) -> Result<(), Unresolved> {
        if self.permanent.len() >= MAX_ENTRIES {
            return Err(Unresolved::TableFull { limit: MAX_ENTRIES });
        }
        self.permanent.insert(address, mac);
        Ok(())
    }

    /// Returns the address of a permanent entry.
    #[must_use]
    pub fn permanent(&self, address: IpAddr) -> Option<Mac> {
        self.permanent.get(&address).copied()
    }

    /// Returns the Ethernet address to which packets for `address` are sent. Sends a request if it is unknown. The caller must repeat the
    /// call while it returns [`Resolution::Pending`].
    ///
    /// # Errors
    /// Returns an error if the neighbour did not answer, or there is no route.
    pub fn resolve(&mut self, now: Instant, address: IpAddr) -> Result<Resolution, Unresolved> {
        if self.addresses.iter().any(|ours| ours.ip == address) {
            return Ok(Resolution::Resolved(self.mac));
        }
        if let Some(peer_mac) = self.peer_mac {
            return Ok(Resolution::Resolved(peer_mac));
        }
        let hop = self.next_hop(address)?;
        if let Some(mac) = self.permanent(address).or_else(|| self.permanent(hop)) {
            return Ok(Resolution::Resolved(mac));
        }
        match self.entries.get(&hop) {
            Some(NeighbourEntry::Reachable { mac, updated_at })
                if now.saturating_since(*updated_at) < REACHABLE_TIME =>
            {
                Ok(Resolution::Resolved(*mac))
            }
            Some(NeighbourEntry::Incomplete { .. }) => Ok(Resolution::Pending),
            Some(NeighbourEntry::Failed) => {
                self.entries.remove(&hop);
                Err(Unresolved::NoAnswer { hop, tries: TRIES })
            }
            Some(NeighbourEntry::Reachable { .. }) | None => self.start(now, hop),
        }
    }

    /// Resolves `address` again because packets to it may be lost, unless its entry is younger than 100 ms.
    pub fn resolve_again(&mut self, now: Instant, address: IpAddr) {
        let Ok(hop) = self.next_hop(address) else { return };
        if let Some(NeighbourEntry::Reachable { updated_at, .. }) = self.entries.get(&hop)
            && now.saturating_since(*updated_at) >= MIN_AGE
        {
            // Cannot fail: it replaces its own entry.
            let _ = self.start(now, hop);
        }
    }

    /// Returns a count that changes whenever [`resolve`](Self::resolve) may return a new result to a caller that waits.
    #[must_use]
    pub const fn answers(&self) -> u64 {
        self.answers
    }

    /// Returns the last known Ethernet address for `address`, even while a request for it is unanswered.
    #[must_use]
    pub fn last_known(&self, address: IpAddr) -> Option<Mac> {
        if self.peer_mac.is_some() {
            return self.peer_mac;
        }
        match self.entries.get(&self.next_hop(address).ok()?)? {
            NeighbourEntry::Incomplete { previous, .. } => *previous,
            NeighbourEntry::Reachable { mac, .. } => Some(*mac),
            NeighbourEntry::Failed => None,
        }
    }

    fn next_hop(&self, address: IpAddr) -> Result<IpAddr, Unresolved> {
        if self.addresses.iter().any(|ours| ours.reaches(address)) || self.permanent.contains_key(&address) {
            return Ok(address);
        }
        match self.gateway {
            Some(gateway) if gateway.is_ipv4() == address.is_ipv4() => Ok(gateway),
            _ => Err(Unresolved::NoRoute(
                "no local address has it in its prefix, and no gateway of its family is set".into(),
            )),
        }
    }

    fn start(&mut self, now: Instant, hop: IpAddr) -> Result<Resolution, Unresolved> {
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.retain(|_, entry| match entry {
                NeighbourEntry::Incomplete { .. } => true,
                NeighbourEntry::Reachable { updated_at, .. } => {
                    now.saturating_since(*updated_at) < REACHABLE_TIME
                }
                NeighbourEntry::Failed => false,
            });
        }
        if self.entries.len() >= MAX_ENTRIES && !self.evict_oldest() {
            return Err(Unresolved::TableFull { limit: MAX_ENTRIES });
        }
        let retry_at = now + RETRY;
        let previous = match self.entries.get(&hop) {
            Some(NeighbourEntry::Reachable { mac, .. }) => Some(*mac),
            _ => None,
        };
        self.entries.insert(hop, NeighbourEntry::Incomplete { tries: 1, retry_at, previous });
        self.next = Some(self.next.map_or(retry_at, |next| next.min(retry_at)));
        self.solicit(hop);
        Ok(Resolution::Pending)
    }

    /// Removes the entry whose request has been unanswered for the longest time. An existing host answers quickly, so addresses that a peer
    /// invents do not prevent others from being resolved. Returns false if no request is outstanding.
    fn evict_oldest(&mut self) -> bool {
        let incomplete = self.entries.iter().filter_map(|(hop, entry)| match entry {
            NeighbourEntry::Incomplete { tries, retry_at, .. } => Some((Reverse(*tries), *retry_at, *hop)),
            NeighbourEntry::Reachable { .. } | NeighbourEntry::Failed => None,
        });
        let oldest = incomplete.min().map(|(_, _, hop)| hop);
        oldest.is_some_and(|hop| self.entries.remove(&hop).is_some())
    }

    /// Handles a received packet.
    ///
    /// # Errors
    /// Returns [`Malformed`], and changes nothing, if the packet is malformed.
    pub fn on_frame(&mut self, now: Instant, frame: &[u8]) -> Result<(), Malformed> {
        if frame.get(12..14) == Some(&ARP_TYPE) {
            self.on_arp(now, Arp::parse(frame)?);
        } else {
            let from = frame.get(6..12).and_then(|mac| mac.try_into().ok()).ok_or(Malformed)?;
            self.on_ndp(now, Ndp::parse(frame)?, Mac(from));
        }
        Ok(())
    }

    fn on_arp(&mut self, now: Instant, arp: Arp) {
        // RFC 5227 2.4: ongoing address conflict detection.
        self.detect_conflict(arp.sender.into(), arp.sender_mac);
        let to_us = self.owns(arp.target.into());
        // RFC 826: a host that asks or answers this one reveals its address. An announcement does too (RFC 5227 3).
        if to_us || arp.sender == arp.target {
            self.learn(now, arp.sender.into(), arp.sender_mac);
        }
        if to_us && !self.passive && arp.operation == arp::Operation::Request && arp.sender_mac != self.mac {
            let reply = Arp {
                operation: arp::Operation::Reply,
                sender_mac: self.mac,
                sender: arp.target,
                target_mac: arp.sender_mac,
                target: arp.sender,
            };
            self.send(Packet::Arp(reply, arp.sender_mac));
        }
    }

    fn on_ndp(&mut self, now: Instant, ndp: Ndp, from: Mac) {
        // RFC 4862 5.4.4: an advertisement for an own address means that it is a duplicate.
        if let NdpMessage::Advertisement { target_mac, .. } = ndp.message {
            self.detect_conflict(ndp.target.into(), target_mac.unwrap_or(from));
        }
        match ndp.message {
            NdpMessage::Solicitation { source_mac } if self.owns(ndp.target.into()) && from != self.mac => {
                if let Some(mac) = source_mac {
                    self.learn(now, ndp.source.into(), mac);
                }
                if self.passive {
                    return;
                }
                let solicitor =
                    (!ndp.source.is_unspecified()).then_some((ndp.source, source_mac.unwrap_or(from)));
                self.advertise(ndp.target, solicitor);
            }
            NdpMessage::Advertisement { target_mac: Some(mac), solicited, override_ }
                if solicited || override_ =>
            {
                self.learn(now, ndp.target.into(), mac);
            }
            NdpMessage::Solicitation { .. } | NdpMessage::Advertisement { .. } => {}
        }
    }

    fn learn(&mut self, now: Instant, address: IpAddr, mac: Mac) {
        match self.entries.get_mut(&address) {
            Some(entry @ (NeighbourEntry::Incomplete { .. } | NeighbourEntry::Failed)) => {
                *entry = NeighbourEntry::Reachable { mac, updated_at: now };
                self.answers += 1;
            }
            Some(NeighbourEntry::Reachable { mac: known, updated_at })
                if now.saturating_since(*updated_at) >= MIN_CHANGE_INTERVAL && !self.passive =>
            {
                (*known, *updated_at) = (mac, now);
            }
            Some(NeighbourEntry::Reachable { .. }) | None => {}
        }
    }

    /// Records a conflict if `address`, which a host claims, is a local address.
    fn detect_conflict(&mut self, address: IpAddr, mac: Mac) {
        let is_known = |conflicts: &[(IpAddr, Mac)]| conflicts.iter().any(|&(known, _)| known == address);
        // On a Linux interface, the kernel detects conflicts.
        if !self.passive && mac != self.mac && self.owns(address) && !is_known(&self.conflicts) {
            self.conflicts.push((address, mac));
        }
    }

    /// Returns a local address that another host also uses, with the Ethernet address of that host. Returns each address once.
    pub fn poll_conflict(&mut self) -> Option<(IpAddr, Mac)> {
        let conflict = self.conflicts.get(self.reported).copied();
        self.reported += usize::from(conflict.is_some());
        conflict
    }

    /// Returns true if a host can have sent a frame from these addresses. A frame from one of our own IP addresses must have our own
    /// Ethernet address: the port itself sent it, or another process on the interface.
    #[must_use]
    pub fn is_source(&self, address: IpAddr, mac: Mac) -> bool {
        let is_group = mac.0[0] & 1 != 0;
        let is_forged = self.owns(address) && mac != self.mac;
        !is_group && !is_forged && !martian::is_martian(&self.addresses, address)
    }

    fn owns(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|ours| ours.ip == address)
    }

    fn solicit(&mut self, hop: IpAddr) {
        // Prefers a local address on the neighbour's own network.
        let reaching = self.addresses.iter().find(|ours| ours.reaches(hop));
        let source = reaching.or_else(|| self.addresses.iter().find(|a| a.ip.is_ipv4() == hop.is_ipv4()));
        match (hop, source.map(|source| source.ip)) {
            (IpAddr::V4(target), Some(IpAddr::V4(sender))) => {
                let request = Arp {
                    operation: arp::Operation::Request,
                    sender_mac: self.mac,
                    sender,
                    target_mac: Mac::default(),
                    target,
                };
                self.send(Packet::Arp(request, BROADCAST));
            }
            (IpAddr::V6(target), Some(IpAddr::V6(source))) => {
                let (destination, to) = ndp::solicited_node(target);
                let message = NdpMessage::Solicitation { source_mac: Some(self.mac) };
                self.send(Packet::Ndp(Ndp { source, destination, target, message }, to));
            }
            // Without a local address of the family, a request has no source address.
            (IpAddr::V4(_) | IpAddr::V6(_), _) => {}
        }
    }

    /// Probes for one of our own addresses without a sender address, so that no cache changes (RFC 5227 2.1.1, RFC 4862 5.4.2).
    fn probe(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(target) => {
                let probe = Arp {
                    operation: arp::Operation::Request,
                    sender_mac: self.mac,
                    sender: Ipv4Addr::UNSPECIFIED,
                    target_mac: Mac::default(),
                    target,
                };
                self.send(Packet::Arp(probe, BROADCAST));
            }
            IpAddr::V6(target) => {
                let (destination, to) = ndp::solicited_node(target);
                let message = NdpMessage::Solicitation { source_mac: None };
                self.send(Packet::Ndp(
                    Ndp { source: Ipv6Addr::UNSPECIFIED, destination, target, message },
                    to,
                ));
            }
        }
    }

    fn announce(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(ours) => {
                let announcement = Arp {
                    operation: arp::Operation::Request,
                    sender_mac: self.mac,
                    sender: ours,
                    target_mac: Mac::default(),
                    target: ours,
                };
                self.send(Packet::Arp(announcement, BROADCAST));
            }
            IpAddr::V6(ours) => self.advertise(ours, None),
        }
    }

    fn advertise(&mut self, target: Ipv6Addr, solicitor: Option<(Ipv6Addr, Mac)>) {
        let (destination, to) = solicitor.unwrap_or((ALL_NODES, ndp::multicast(ALL_NODES)));
        let message = NdpMessage::Advertisement {
            target_mac: Some(self.mac),
            solicited: solicitor.is_some(),
            override_: true,
        };
        self.send(Packet::Ndp(Ndp { source: target, destination, target, message }, to));
    }

    fn send(&mut self, packet: Packet) {
        if self.tx_queue.len() < MAX_QUEUED {
            self.tx_queue.push_back(packet);
        }
    }

    /// Returns true if a packet is queued.
    #[inline]
    #[must_use]
    pub fn may_transmit(&self) -> bool {
        !self.tx_queue.is_empty()
    }

    /// Writes the next packet to send, and returns its length in bytes.
    pub fn poll_transmit(&mut self, frame: &mut [u8]) -> Option<usize> {
        let packet = self.tx_queue.pop_front()?;
        match packet {
            Packet::Arp(arp, to) => {
                arp.emit(to, frame.first_chunk_mut()?);
                Some(arp::FRAME)
            }
            Packet::Ndp(ndp, to) => Some(ndp.emit(self.mac, to, frame.first_chunk_mut()?)),
        }
    }

    /// Returns the time of the next retransmission.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    /// Repeats the requests that are due at `now`, and gives up those that have had all their tries.
    pub fn on_timeout(&mut self, now: Instant) {
        let mut solicit = Vec::new();
        let mut next: Option<Instant> = None;
        for (hop, entry) in &mut self.entries {
            if let NeighbourEntry::Incomplete { tries, retry_at, .. } = entry {
                if *retry_at <= now {
                    if *tries >= TRIES {
                        *entry = NeighbourEntry::Failed;
                        self.answers += 1;
                        continue;
                    }
                    *tries += 1;
                    *retry_at = now + RETRY;
                    solicit.push(*hop);
                }
                next = Some(next.map_or(*retry_at, |next| next.min(*retry_at)));
            }
        }
        self.next = next;
        for hop in solicit {
            self.solicit(hop);
        }
    }
}

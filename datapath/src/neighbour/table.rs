//! The neighbour table: the Ethernet addresses of neighbours, and pending requests for them (RFC 826, RFC 4861).

#[cfg(test)]
mod tests;

use super::arp::{self, Arp};
use super::ndp::{self, Message, Ndp};
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
const FRESH: Duration = Duration::from_secs(30);
/// The age below which an entry is not resolved again after a timeout, which bounds the requests that packet loss causes.
const DOUBT: Duration = Duration::from_millis(100);
/// The shortest time between two unsolicited changes of a neighbour's Ethernet address.
const CHANGE: Duration = Duration::from_secs(1);
const ENTRIES: usize = 1024;
/// Most packets that wait to be sent. Further requests are not answered; their senders repeat them.
const OUTBOX: usize = 64;

const BROADCAST: Mac = Mac([0xff; 6]);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// What the table knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Packets for it are sent to this address.
    Known(Mac),
    /// A request was sent: call again.
    Asking,
}

/// Why an address does not resolve.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum Unresolved {
    /// `asked` is the peer, or the router to it.
    #[error("no answer from {asked} after {tries} tries")]
    NoAnswer { asked: IpAddr, tries: u32 },
    #[error("no route: {0}")]
    NoRoute(String),
    /// The process or the system has no descriptor or no memory left for a request to the kernel.
    #[error("{}", std::io::Error::from_raw_os_error(*errno))]
    Exhausted { errno: i32 },
    #[error("{limit} addresses are being resolved")]
    TableFull { limit: usize },
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    /// `was` is the previous address.
    Asking {
        tries: u32,
        again: Instant,
        was: Option<Mac>,
    },
    Known {
        mac: Mac,
        since: Instant,
    },
    Silent,
}

#[derive(Clone, Copy, Debug)]
enum Packet {
    Arp(Arp, Mac),
    Ndp(Ndp, Mac),
}

/// ARP and neighbour discovery without the kernel: answers requests for local addresses, and resolves those of others.
///
/// [`on_frame`](Self::on_frame) receives packets and [`poll_transmit`](Self::poll_transmit) sends them. The table has entries only for
/// hosts that a caller asked for, so others cannot fill it.
#[derive(Debug)]
pub struct Neighbours {
    mac: Mac,
    /// Whether the kernel answers for these addresses and resolves the peers of connections.
    quiet: bool,
    addresses: Vec<Address>,
    gateway: Option<IpAddr>,
    fixed: HashMap<IpAddr, Mac>,
    /// The Ethernet address that stands for every peer.
    peers: Option<Mac>,
    entries: HashMap<IpAddr, Entry>,
    outbox: VecDeque<Packet>,
    /// Local addresses that another host uses, with its Ethernet address. The first `reported` were reported.
    conflicts: Vec<(IpAddr, Mac)>,
    reported: usize,
    next: Option<Instant>,
    /// Number of answers, and of requests that got none.
    answers: u64,
}

impl Neighbours {
    /// Creates the table of a port without a kernel. Probes whether another host has one of `addresses`, and announces them, so that
    /// switches learn the port of `mac`.
    ///
    /// The port works without waiting for the result: see [`poll_conflict`](Self::poll_conflict).
    #[must_use]
    pub fn own(mac: Mac, addresses: &[Address], gateway: Option<IpAddr>) -> Self {
        let mut neighbours = Self { gateway, quiet: false, ..Self::kernels(mac, addresses) };
        for address in addresses.iter().take(OUTBOX / 2) {
            neighbours.probe(address.ip);
            neighbours.announce(address.ip);
        }
        neighbours
    }

    /// Creates the table of a port on a Linux interface: the kernel answers for `addresses`, and the table learns only hosts that it asks
    /// for.
    #[must_use]
    pub fn kernels(mac: Mac, addresses: &[Address]) -> Self {
        Self {
            mac,
            quiet: true,
            addresses: addresses.to_vec(),
            gateway: None,
            fixed: HashMap::new(),
            peers: None,
            entries: HashMap::new(),
            outbox: VecDeque::with_capacity(OUTBOX),
            conflicts: Vec::new(),
            reported: 0,
            next: None,
            answers: 0,
        }
    }

    /// Sets the Ethernet address that stands for every peer, if there is one. No request is then sent.
    #[must_use]
    pub fn standing_in(self, peers: Option<Mac>) -> Self {
        Self { peers, ..self }
    }

    /// Replaces the local addresses. For a table of [`kernels`](Self::kernels), because the kernel announces and defends them.
    pub fn set_addresses(&mut self, addresses: Vec<Address>) {
        self.addresses = addresses;
    }

    /// Adds a permanent entry.
    ///
    /// # Errors
    /// Returns [`Unresolved::TableFull`] if there are too many.
    pub fn set(&mut self, address: IpAddr, mac: Mac) -> Result<(), Unresolved> {
        if self.fixed.len() >= ENTRIES {
            return Err(Unresolved::TableFull { limit: ENTRIES });
        }
        self.fixed.insert(address, mac);
        Ok(())
    }

    /// Returns the address of a permanent entry.
    #[must_use]
    pub fn fixed(&self, address: IpAddr) -> Option<Mac> {
        self.fixed.get(&address).copied()
    }

    /// Returns the Ethernet address to which packets for `address` are sent. Sends a request if it is unknown; the caller repeats the call
    /// while it returns [`Asked::Asking`].
    ///
    /// # Errors
    /// Returns an error if the neighbour did not answer, or there is no route.
    pub fn resolve(&mut self, now: Instant, address: IpAddr) -> Result<Asked, Unresolved> {
        if self.addresses.iter().any(|ours| ours.ip == address) {
            return Ok(Asked::Known(self.mac));
        }
        if let Some(peers) = self.peers {
            return Ok(Asked::Known(peers));
        }
        let hop = self.next_hop(address)?;
        if let Some(mac) = self.fixed(address).or_else(|| self.fixed(hop)) {
            return Ok(Asked::Known(mac));
        }
        match self.entries.get(&hop) {
            Some(Entry::Known { mac, since }) if now.saturating_since(*since) < FRESH => {
                Ok(Asked::Known(*mac))
            }
            Some(Entry::Asking { .. }) => Ok(Asked::Asking),
            Some(Entry::Silent) => {
                self.entries.remove(&hop);
                Err(Unresolved::NoAnswer { asked: hop, tries: TRIES })
            }
            Some(Entry::Known { .. }) | None => self.start(now, hop),
        }
    }

    /// Resolves `address` again because its packets may not arrive, unless its entry is younger than 100 ms.
    pub fn doubt(&mut self, now: Instant, address: IpAddr) {
        let Ok(hop) = self.next_hop(address) else { return };
        if let Some(Entry::Known { since, .. }) = self.entries.get(&hop)
            && now.saturating_since(*since) >= DOUBT
        {
            // Cannot fail: it replaces its own entry.
            let _ = self.start(now, hop);
        }
    }

    /// Returns a count that changes whenever [`resolve`](Self::resolve) may return something new to a caller that waits.
    #[must_use]
    pub const fn answers(&self) -> u64 {
        self.answers
    }

    /// Returns the known Ethernet address for `address`, also while a request for it is unanswered.
    #[must_use]
    pub fn last_known(&self, address: IpAddr) -> Option<Mac> {
        if self.peers.is_some() {
            return self.peers;
        }
        match self.entries.get(&self.next_hop(address).ok()?)? {
            Entry::Asking { was, .. } => *was,
            Entry::Known { mac, .. } => Some(*mac),
            Entry::Silent => None,
        }
    }

    fn next_hop(&self, address: IpAddr) -> Result<IpAddr, Unresolved> {
        if self.addresses.iter().any(|ours| ours.reaches(address)) || self.fixed.contains_key(&address) {
            return Ok(address);
        }
        match self.gateway {
            Some(gateway) if gateway.is_ipv4() == address.is_ipv4() => Ok(gateway),
            _ => Err(Unresolved::NoRoute(
                "no local address has it in its prefix, and no gateway of its family is set".into(),
            )),
        }
    }

    fn start(&mut self, now: Instant, hop: IpAddr) -> Result<Asked, Unresolved> {
        if self.entries.len() >= ENTRIES {
            self.entries.retain(|_, entry| match entry {
                Entry::Asking { .. } => true,
                Entry::Known { since, .. } => now.saturating_since(*since) < FRESH,
                Entry::Silent => false,
            });
        }
        if self.entries.len() >= ENTRIES && !self.forget_longest_asked() {
            return Err(Unresolved::TableFull { limit: ENTRIES });
        }
        let again = now + RETRY;
        let was = match self.entries.get(&hop) {
            Some(Entry::Known { mac, .. }) => Some(*mac),
            _ => None,
        };
        self.entries.insert(hop, Entry::Asking { tries: 1, again, was });
        self.next = Some(self.next.map_or(again, |next| next.min(again)));
        self.ask(hop);
        Ok(Asked::Asking)
    }

    /// Removes the address that has been asked for longest. A host that exists answers quickly, so addresses that a peer invents do not
    /// keep others from being resolved. Returns false if no request is outstanding.
    fn forget_longest_asked(&mut self) -> bool {
        let asking = self.entries.iter().filter_map(|(hop, entry)| match entry {
            Entry::Asking { tries, again, .. } => Some((Reverse(*tries), *again, *hop)),
            Entry::Known { .. } | Entry::Silent => None,
        });
        let oldest = asking.min().map(|(_, _, hop)| hop);
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
        self.hear_owner(arp.sender.into(), arp.sender_mac);
        let to_us = self.owns(arp.target.into());
        // RFC 826: a host that asks or answers this one reveals its address. An announcement does too (RFC 5227 3).
        if to_us || arp.sender == arp.target {
            self.learn(now, arp.sender.into(), arp.sender_mac);
        }
        if to_us && !self.quiet && arp.operation == arp::Operation::Request && arp.sender_mac != self.mac {
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
        if let Message::Advertisement { target_mac, .. } = ndp.message {
            self.hear_owner(ndp.target.into(), target_mac.unwrap_or(from));
        }
        match ndp.message {
            Message::Solicitation { source_mac } if self.owns(ndp.target.into()) && from != self.mac => {
                if let Some(mac) = source_mac {
                    self.learn(now, ndp.source.into(), mac);
                }
                if self.quiet {
                    return;
                }
                let asker =
                    (!ndp.source.is_unspecified()).then_some((ndp.source, source_mac.unwrap_or(from)));
                self.advertise(ndp.target, asker);
            }
            Message::Advertisement { target_mac: Some(mac), solicited, override_ }
                if solicited || override_ =>
            {
                self.learn(now, ndp.target.into(), mac);
            }
            Message::Solicitation { .. } | Message::Advertisement { .. } => {}
        }
    }

    fn learn(&mut self, now: Instant, address: IpAddr, mac: Mac) {
        match self.entries.get_mut(&address) {
            Some(entry @ (Entry::Asking { .. } | Entry::Silent)) => {
                *entry = Entry::Known { mac, since: now };
                self.answers += 1;
            }
            Some(Entry::Known { mac: known, since })
                if now.saturating_since(*since) >= CHANGE && !self.quiet =>
            {
                (*known, *since) = (mac, now);
            }
            Some(Entry::Known { .. }) | None => {}
        }
    }

    /// Records that a host claims `address`, which is a conflict if the address is ours.
    fn hear_owner(&mut self, address: IpAddr, mac: Mac) {
        let is_known = |conflicts: &[(IpAddr, Mac)]| conflicts.iter().any(|&(known, _)| known == address);
        // On a Linux interface, conflicts are the kernel's concern.
        if !self.quiet && mac != self.mac && self.owns(address) && !is_known(&self.conflicts) {
            self.conflicts.push((address, mac));
        }
    }

    /// Returns a local address that another host uses too, with the Ethernet address of that host. Returns each address once.
    pub fn poll_conflict(&mut self) -> Option<(IpAddr, Mac)> {
        let conflict = self.conflicts.get(self.reported).copied();
        self.reported += usize::from(conflict.is_some());
        conflict
    }

    /// Returns true if another host can have sent a frame from these addresses. A frame from one of our own IP addresses must have our own
    /// Ethernet address: it is from the port itself, or from another process on the interface.
    #[must_use]
    pub fn is_source(&self, address: IpAddr, mac: Mac) -> bool {
        let is_group = mac.0[0] & 1 != 0;
        let is_forged = self.owns(address) && mac != self.mac;
        !is_group && !is_forged && !martian::is_martian(&self.addresses, address)
    }

    fn owns(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|ours| ours.ip == address)
    }

    fn ask(&mut self, hop: IpAddr) {
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
                let message = Message::Solicitation { source_mac: Some(self.mac) };
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
                let message = Message::Solicitation { source_mac: None };
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

    fn advertise(&mut self, target: Ipv6Addr, asker: Option<(Ipv6Addr, Mac)>) {
        let (destination, to) = asker.unwrap_or((ALL_NODES, ndp::multicast(ALL_NODES)));
        let message = Message::Advertisement {
            target_mac: Some(self.mac),
            solicited: asker.is_some(),
            override_: true,
        };
        self.send(Packet::Ndp(Ndp { source: target, destination, target, message }, to));
    }

    fn send(&mut self, packet: Packet) {
        if self.outbox.len() < OUTBOX {
            self.outbox.push_back(packet);
        }
    }

    /// Returns true if a packet waits to be sent.
    #[inline]
    #[must_use]
    pub fn may_transmit(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Writes the next packet to send, and returns its length in bytes.
    pub fn poll_transmit(&mut self, frame: &mut [u8]) -> Option<usize> {
        let packet = self.outbox.pop_front()?;
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

    /// Repeats the requests that are due at `now`, and gives up those that were repeated often enough.
    pub fn on_timeout(&mut self, now: Instant) {
        let mut ask = Vec::new();
        let mut next: Option<Instant> = None;
        for (hop, entry) in &mut self.entries {
            if let Entry::Asking { tries, again, .. } = entry {
                if *again <= now {
                    if *tries >= TRIES {
                        *entry = Entry::Silent;
                        self.answers += 1;
                        continue;
                    }
                    *tries += 1;
                    *again = now + RETRY;
                    ask.push(*hop);
                }
                next = Some(next.map_or(*again, |next| next.min(*again)));
            }
        }
        self.next = next;
        for hop in ask {
            self.ask(hop);
        }
    }
}

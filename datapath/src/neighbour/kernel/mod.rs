//! The kernel's addresses, routes and neighbours of a Linux interface that a port shares.

mod changes;
mod filter;
mod ingress;
mod netlink;
mod port_reservation;
#[cfg(feature = "dpdk")]
pub(crate) mod xdp;

use super::{Address, Resolution, Unresolved};
use crate::fork::CloseOnFork;
pub(crate) use changes::{Change, Notifications};
use netlink::Netlink;
use roce::wire::{Mac, Numbers, ROCE_PORT};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Number of requests and time between them, as in the table without a kernel.
const TRIES: u32 = 3;
const RETRY: Duration = Duration::from_secs(1);
/// Most addresses being resolved. A further one replaces the oldest.
const MAX_ATTEMPTS: usize = 1024;
/// The discard port. A datagram to it makes the kernel resolve the receiver's Ethernet address.
const DISCARD_PORT: u16 = 9;

/// An interface's addresses, routes and neighbours, read through rtnetlink on the control path.
#[derive(Debug)]
pub struct Kernel {
    index: u32,
    numbers: Numbers,
    pending: Mutex<HashMap<IpAddr, Attempt>>,
    /// Sockets that are never read. While they are open, the kernel sends no port-unreachable for RoCEv2 packets.
    _roce_port: Vec<CloseOnFork>,
    /// The Ethernet address that represents every peer, if the kernel addresses the port's packets.
    peer_mac: Option<Mac>,
    /// The attachment of the program that drops RoCEv2 packets before the kernel's IP layer.
    ingress: Mutex<Option<CloseOnFork>>,
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    tries: u32,
    last: Instant,
}

/// Returns the addresses of the interface with this index: IPv4, then IPv6, link-local ones last.
///
/// # Errors
/// Returns an error if netlink fails.
pub fn addresses_of(index: u32) -> io::Result<Vec<Address>> {
    let mut addresses = Netlink::open()?.addresses(index)?;
    addresses.sort_by_key(|address| match address.ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 1,
    });
    Ok(addresses)
}

impl Kernel {
    /// Opens the interface with this index, in this process's network namespace, for a port that receives frames.
    ///
    /// # Errors
    /// Returns an error if netlink fails.
    pub fn open(index: u32, numbers: Numbers) -> io::Result<Self> {
        let kernel = Self::for_lookups(index)?;
        Ok(Self { numbers, _roce_port: port_reservation::roce_port(index, numbers), ..kernel })
    }

    /// Opens the interface with this index for a port on UDP sockets. The kernel resolves its neighbours, and `peer_mac` represents all of
    /// them.
    ///
    /// # Errors
    /// Returns an error if netlink fails.
    pub fn of_sockets(index: u32, numbers: Numbers, peer_mac: Mac) -> io::Result<Self> {
        Ok(Self { numbers, peer_mac: Some(peer_mac), ..Self::for_lookups(index)? })
    }

    /// Opens the interface with this index without reserving RoCEv2's UDP port: a reservation would take packets from other processes'
    /// ports on UDP sockets.
    ///
    /// # Errors
    /// Returns an error if netlink fails.
    pub fn for_lookups(index: u32) -> io::Result<Self> {
        Netlink::open()?;
        Ok(Self {
            index,
            numbers: Numbers::DEFAULT,
            pending: Mutex::default(),
            _roce_port: Vec::new(),
            peer_mac: None,
            ingress: Mutex::default(),
        })
    }

    /// Makes the kernel drop RoCEv2 packets to the interface's current addresses early, if it supports that. Otherwise, its IP layer
    /// processes each packet before it drops it. Must be called again when the addresses have changed. Does nothing for a port on UDP
    /// sockets, which receives from that layer.
    pub fn drop_ours(&self) {
        if self.peer_mac.is_some() {
            return;
        }
        let addresses: Vec<_> = addresses_of(self.index).unwrap_or_default().iter().map(|it| it.ip).collect();
        let attached = ingress::drop_at(self.index, &addresses, &[ROCE_PORT, self.numbers.int_port()]);
        *self.ingress.lock().unwrap_or_else(PoisonError::into_inner) = attached;
    }

    /// Returns the Ethernet address to which packets for `address` are sent. `mac` is the interface's own. Does not wait. The caller must
    /// repeat the call while it returns [`Resolution::Pending`].
    ///
    /// # Errors
    /// Returns an error if the neighbour did not answer, or there is no route.
    pub fn resolve(&self, address: IpAddr, mac: Mac) -> Result<Resolution, Unresolved> {
        self.try_resolve(address, mac).unwrap_or_else(|error| Err(unresolved(&error)))
    }

    fn try_resolve(&self, address: IpAddr, mac: Mac) -> io::Result<Result<Resolution, Unresolved>> {
        let mut netlink = Netlink::open()?;
        let addresses = netlink.addresses(self.index)?;
        if addresses.iter().any(|ours| ours.ip == address) {
            return Ok(Ok(Resolution::Resolved(mac)));
        }
        let is_neighbour = addresses.iter().any(|ours| ours.reaches(address));
        let hop = match self.next_hop(&mut netlink, address, is_neighbour) {
            Ok(hop) => hop,
            Err(error) => return Ok(Err(unresolved(&error))),
        };
        if let Some(peer_mac) = self.peer_mac {
            return Ok(Ok(Resolution::Resolved(peer_mac)));
        }
        if let Some(mac) = netlink.neighbour(hop, self.index)? {
            self.attempts().remove(&hop);
            return Ok(Ok(Resolution::Resolved(mac)));
        }
        Ok(self.solicit(hop))
    }

    fn next_hop(&self, netlink: &mut Netlink, address: IpAddr, is_neighbour: bool) -> io::Result<IpAddr> {
        // Every link has its own fe80::/64, so no route lookup is needed.
        if matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            return Ok(address);
        }
        let hop = netlink.next_hop(address, self.index, Some(self.index))?;
        if hop == address && !is_neighbour {
            // If the interface is given, the kernel treats every host as a neighbour unless a route specifies a gateway.
            return netlink.next_hop(address, self.index, None);
        }
        Ok(hop)
    }

    fn attempts(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, Attempt>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn solicit(&self, hop: IpAddr) -> Result<Resolution, Unresolved> {
        let mut attempts = self.attempts();
        make_room(&mut attempts, hop);
        let attempt = attempts.entry(hop).or_insert(Attempt { tries: 0, last: Instant::now() });
        if attempt.tries > 0 && attempt.last.elapsed() < RETRY {
            return Ok(Resolution::Pending);
        }
        if attempt.tries >= TRIES {
            attempts.remove(&hop);
            return Err(Unresolved::NoAnswer { hop, tries: TRIES });
        }
        *attempt = Attempt { tries: attempt.tries + 1, last: Instant::now() };
        self.trigger(hop).map_err(|error| unresolved(&error))?;
        Ok(Resolution::Pending)
    }

    fn trigger(&self, hop: IpAddr) -> io::Result<()> {
        let (any, to) = match hop {
            IpAddr::V4(_) => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), SocketAddr::new(hop, DISCARD_PORT)),
            IpAddr::V6(ip) => {
                let scope = if ip.is_unicast_link_local() { self.index } else { 0 };
                (IpAddr::V6(Ipv6Addr::UNSPECIFIED), SocketAddrV6::new(ip, DISCARD_PORT, 0, scope).into())
            }
        };
        let socket = UdpSocket::bind((any, 0))?;
        port_reservation::bind_to_interface(&socket, self.index);
        socket.send_to(&[0], to)?;
        Ok(())
    }
}

/// Distinguishes an error of this host from a network without a route.
fn unresolved(error: &io::Error) -> Unresolved {
    match error.raw_os_error() {
        Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)) => {
            Unresolved::Exhausted { errno }
        }
        _ => Unresolved::NoRoute(error.to_string()),
    }
}

/// Removes the oldest attempt if there are too many. An attempt does not end when its caller gives up.
fn make_room(attempts: &mut HashMap<IpAddr, Attempt>, hop: IpAddr) {
    if attempts.len() < MAX_ATTEMPTS || attempts.contains_key(&hop) {
        return;
    }
    let oldest = attempts.iter().min_by_key(|(_, attempt)| attempt.last).map(|(hop, _)| *hop);
    oldest.map(|oldest| attempts.remove(&oldest));
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_attempt_is_removed_if_there_are_too_many() {
        let mut attempts = HashMap::new();
        let start = Instant::now();
        for n in 0..3 * MAX_ATTEMPTS as u32 {
            let hop = Ipv4Addr::from(n).into();
            make_room(&mut attempts, hop);
            attempts.insert(hop, Attempt { tries: 1, last: start + Duration::from_nanos(n.into()) });
        }
        assert_eq!(attempts.len(), MAX_ATTEMPTS);
        assert!(
            attempts.contains_key(&Ipv4Addr::from(3 * MAX_ATTEMPTS as u32 - 1).into()),
            "the newest stays"
        );
    }

    /// Interface 1 is the loopback interface in every namespace.
    #[test]
    fn loopback_is_read_from_the_kernel() {
        let kernel = Kernel::open(1, Numbers::DEFAULT).unwrap();
        let addresses = addresses_of(1).unwrap();
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if addresses.is_empty() {
            // In a namespace whose loopback interface is down, the list is empty.
            assert!(kernel.resolve("192.0.2.1".parse().unwrap(), Mac::default()).is_err());
            return;
        }
        assert!(addresses.contains(&Address { ip: localhost, prefix: 8 }), "{addresses:?}");
        assert_eq!(kernel.resolve(localhost, Mac([2; 6])), Ok(Resolution::Resolved(Mac([2; 6]))));
    }

    /// The sockets of a reservation join the reuseport group of other processes' ports on UDP sockets, and drop the packets that the kernel
    /// distributes to them.
    #[test]
    fn a_look_up_reserves_no_udp_port() {
        assert!(Kernel::for_lookups(1).unwrap()._roce_port.is_empty());
    }

    const CHILD: &str = "FERROCE_WITHOUT_DESCRIPTORS";

    /// Does nothing unless [`exhausted_descriptors_are_not_reported_as_a_missing_route`] started this process, because the limit applies to a
    /// process.
    #[test]
    fn child_without_descriptors() {
        if crate::environment::variable(CHILD).is_none() {
            return;
        }
        let kernel = Kernel::open(1, Numbers::DEFAULT).unwrap();
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: passes a valid structure.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) }, 0);
        let resolved = kernel.resolve("192.0.2.1".parse().unwrap(), Mac::default());
        assert_eq!(resolved, Err(Unresolved::Exhausted { errno: libc::EMFILE }));
        println!("as it should be");
    }

    #[test]
    fn exhausted_descriptors_are_not_reported_as_a_missing_route() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "neighbour::kernel::tests::child_without_descriptors", "--nocapture"])
            .env(CHILD, "")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("as it should be"), "{said}");
    }

    #[test]
    fn a_missing_interface_has_no_addresses_and_no_routes() {
        let missing = 0x7fff_fff0;
        assert_eq!(addresses_of(missing).unwrap(), []);
        let kernel = Kernel::open(missing, Numbers::DEFAULT).unwrap();
        let error = kernel.resolve("192.0.2.1".parse().unwrap(), Mac::default()).unwrap_err();
        assert!(matches!(error, Unresolved::NoRoute(_)), "{error}");
    }
}

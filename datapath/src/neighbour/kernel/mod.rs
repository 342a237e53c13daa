//! The kernel's view of a Linux interface that a port shares: its addresses, routes and neighbours.

mod filter;
mod hold;
mod ingress;
mod netlink;
#[cfg(feature = "dpdk")]
pub(crate) mod xdp;

use super::{Address, Asked, Unresolved};
use crate::fork::Own;
use netlink::Netlink;
use roce::wire::{Mac, Numbers, ROCE_PORT};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// As often and as far apart as the table asks without a kernel.
const TRIES: u32 = 3;
const RETRY: Duration = Duration::from_secs(1);
/// The limit on addresses that are being resolved; one more replaces the oldest.
const ASKED: usize = 1024;
/// A datagram to the discard port causes the kernel to look its receiver up.
const DISCARD: u16 = 9;

/// An interface's addresses, routes and neighbours, read by rtnetlink on the control path.
#[derive(Debug)]
pub struct Kernel {
    index: u32,
    numbers: Numbers,
    asking: Mutex<HashMap<IpAddr, Attempt>>,
    /// Held open, never read: while they are, the kernel sends no port-unreachable for RoCEv2 packets.
    _roce_port: Vec<Own>,
    /// The same of what drops them before the kernel's IP layer.
    _ingress: Option<Own>,
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    tries: u32,
    last: Instant,
}

/// The addresses of the interface of this index, in any order.
///
/// # Errors
/// Returns an error if netlink fails.
pub fn addresses_of(index: u32) -> io::Result<Vec<Address>> {
    Netlink::open()?.addresses(index)
}

impl Kernel {
    /// The interface of this index, in this process's network namespace.
    ///
    /// # Errors
    /// Returns an error if netlink fails.
    pub fn open(index: u32, numbers: Numbers) -> io::Result<Self> {
        Netlink::open()?;
        Ok(Self {
            index,
            numbers,
            asking: Mutex::default(),
            _roce_port: hold::roce_port(numbers),
            _ingress: None,
        })
    }

    /// From now on a port on the interface receives RoCEv2 packets to its present addresses alone, if the kernel can do that. Otherwise, it
    /// looks at each, only to drop it.
    #[must_use]
    pub fn without_ours(mut self) -> Self {
        let addresses: Vec<_> = self.addresses().unwrap_or_default().iter().map(|it| it.ip).collect();
        self._ingress = ingress::drop_at(self.index, &addresses, &[ROCE_PORT, self.numbers.int_port()]);
        self
    }

    /// The interface's addresses, global ones first.
    ///
    /// # Errors
    /// Returns an error if netlink fails.
    pub fn addresses(&self) -> io::Result<Vec<Address>> {
        let mut addresses = addresses_of(self.index)?;
        addresses.sort_by_key(|address| match address.ip {
            IpAddr::V4(_) => 0,
            IpAddr::V6(ip) if ip.is_unicast_link_local() => 2,
            IpAddr::V6(_) => 1,
        });
        Ok(addresses)
    }

    /// Returns the way of packets to `address`; `mac` is the interface's own. It does not wait: the caller repeats the call until the way
    /// is known.
    ///
    /// # Errors
    /// Returns an error if the neighbour did not answer, or there is no route.
    pub fn resolve(&self, address: IpAddr, mac: Mac) -> Result<Asked, Unresolved> {
        self.look(address, mac).unwrap_or_else(|error| Err(unresolved(&error)))
    }

    fn look(&self, address: IpAddr, mac: Mac) -> io::Result<Result<Asked, Unresolved>> {
        let mut netlink = Netlink::open()?;
        let addresses = netlink.addresses(self.index)?;
        if addresses.iter().any(|ours| ours.ip == address) {
            return Ok(Ok(Asked::Known(mac)));
        }
        let is_neighbour = addresses.iter().any(|ours| ours.reaches(address));
        let hop = match self.next_hop(&mut netlink, address, is_neighbour) {
            Ok(hop) => hop,
            Err(error) => return Ok(Err(unresolved(&error))),
        };
        if let Some(mac) = netlink.neighbour(hop, self.index)? {
            self.attempts().remove(&hop);
            return Ok(Ok(Asked::Known(mac)));
        }
        Ok(self.ask(hop))
    }

    fn next_hop(&self, netlink: &mut Netlink, address: IpAddr, is_neighbour: bool) -> io::Result<IpAddr> {
        // Every link has its own fe80::/64, so there is no route to look up.
        if matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            return Ok(address);
        }
        let hop = netlink.next_hop(address, self.index, Some(self.index))?;
        if hop == address && !is_neighbour {
            // With a given interface, the kernel treats every host as a neighbour unless a route says otherwise.
            return netlink.next_hop(address, self.index, None);
        }
        Ok(hop)
    }

    fn attempts(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, Attempt>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, hop: IpAddr) -> Result<Asked, Unresolved> {
        let mut attempts = self.attempts();
        make_room(&mut attempts, hop);
        let attempt = attempts.entry(hop).or_insert(Attempt { tries: 0, last: Instant::now() });
        if attempt.tries > 0 && attempt.last.elapsed() < RETRY {
            return Ok(Asked::Asking);
        }
        if attempt.tries >= TRIES {
            attempts.remove(&hop);
            return Err(Unresolved::NoAnswer { asked: hop, tries: TRIES });
        }
        *attempt = Attempt { tries: attempt.tries + 1, last: Instant::now() };
        self.trigger(hop).map_err(|error| unresolved(&error))?;
        Ok(Asked::Asking)
    }

    fn trigger(&self, hop: IpAddr) -> io::Result<()> {
        let (any, to) = match hop {
            IpAddr::V4(_) => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), SocketAddr::new(hop, DISCARD)),
            IpAddr::V6(ip) => {
                let scope = if ip.is_unicast_link_local() { self.index } else { 0 };
                (IpAddr::V6(Ipv6Addr::UNSPECIFIED), SocketAddrV6::new(ip, DISCARD, 0, scope).into())
            }
        };
        let socket = UdpSocket::bind((any, 0))?;
        hold::bind_to_interface(&socket, self.index);
        socket.send_to(&[0], to)?;
        Ok(())
    }
}

/// Tells what is missing on this host from a network without a route.
fn unresolved(error: &io::Error) -> Unresolved {
    match error.raw_os_error() {
        Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)) => {
            Unresolved::Exhausted { errno }
        }
        _ => Unresolved::NoRoute(error.to_string()),
    }
}

/// Removes the oldest attempt: its caller may have lost interest, so an attempt does not end by itself.
fn make_room(attempts: &mut HashMap<IpAddr, Attempt>, hop: IpAddr) {
    if attempts.len() < ASKED || attempts.contains_key(&hop) {
        return;
    }
    let oldest = attempts.iter().min_by_key(|(_, attempt)| attempt.last).map(|(hop, _)| *hop);
    oldest.map(|oldest| attempts.remove(&oldest));
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn strangers_that_nobody_asks_for_again_are_forgotten() {
        let mut attempts = HashMap::new();
        let start = Instant::now();
        for n in 0..3 * ASKED as u32 {
            let hop = Ipv4Addr::from(n).into();
            make_room(&mut attempts, hop);
            attempts.insert(hop, Attempt { tries: 1, last: start + Duration::from_nanos(n.into()) });
        }
        assert_eq!(attempts.len(), ASKED);
        assert!(attempts.contains_key(&Ipv4Addr::from(3 * ASKED as u32 - 1).into()), "the newest stays");
    }

    /// Every namespace has a loopback interface, and it is the first.
    #[test]
    fn loopback_is_read_from_the_kernel() {
        let kernel = Kernel::open(1, Numbers::DEFAULT).unwrap();
        let addresses = kernel.addresses().unwrap();
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if addresses.is_empty() {
            // A namespace with its loopback down still answers, with an empty list.
            assert!(kernel.resolve("192.0.2.1".parse().unwrap(), Mac::default()).is_err());
            return;
        }
        assert!(addresses.contains(&Address { ip: localhost, prefix: 8 }), "{addresses:?}");
        assert_eq!(kernel.resolve(localhost, Mac([2; 6])), Ok(Asked::Known(Mac([2; 6]))));
    }

    const CHILD: &str = "FERROCE_WITHOUT_DESCRIPTORS";

    /// Nothing, unless [`missing_descriptors_are_no_missing_route`] started it: the limit is that of a process.
    #[test]
    fn child_without_descriptors() {
        if crate::environment::variable(CHILD).is_none() {
            return;
        }
        let kernel = Kernel::open(1, Numbers::DEFAULT).unwrap();
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structure is complete, and the limit is that of this process alone.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) }, 0);
        let resolved = kernel.resolve("192.0.2.1".parse().unwrap(), Mac::default());
        assert_eq!(resolved, Err(Unresolved::Exhausted { errno: libc::EMFILE }));
        println!("as it should be");
    }

    #[test]
    fn missing_descriptors_are_no_missing_route() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "neighbour::kernel::tests::child_without_descriptors", "--nocapture"])
            .env(CHILD, "")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("as it should be"), "{said}");
    }

    #[test]
    fn an_interface_that_is_none_has_no_addresses_and_no_routes() {
        let kernel = Kernel::open(0x7fff_fff0, Numbers::DEFAULT).unwrap();
        assert_eq!(kernel.addresses().unwrap(), []);
        let error = kernel.resolve("192.0.2.1".parse().unwrap(), Mac::default()).unwrap_err();
        assert!(matches!(error, Unresolved::NoRoute(_)), "{error}");
    }
}

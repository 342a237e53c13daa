//! Which process has which service of the interface's connection managers: one each, as on a NIC whose ports all processes share.

use super::memory::{CLAIM, CLAIMS, Head, Own};
use super::socket::Stranger;
#[cfg(all(test, loom))]
use loom::sync::atomic::{Ordering, fence};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{Ordering, fence};

/// States of an entry, in its lowest bits; above them is the claim's number.
const FREE: u64 = 0;
const ASKED: u64 = 1;
const HELD: u64 = 2;
const STATE: u64 = 3;

/// A service at an address, as a process binds it or listens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The service (IBA A11.2).
    pub service: u64,
    /// An address of the interface, or the unspecified one of a family for all.
    pub at: IpAddr,
    /// It meets only others of its family. An IPv4 address always does.
    pub family_only: bool,
    /// Others that are shared too may have the same place.
    pub shared: bool,
    /// The process answers requests for the service.
    pub listens: bool,
}

/// Why a process does not get a service.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Another process has it.
    #[error("another process of the interface has it; choose another port, or end that process")]
    Taken {
        /// `EADDRINUSE` or `EADDRNOTAVAIL`, as Linux distinguishes them.
        errno: i32,
    },
    /// This process has too many services.
    #[error("this process has {CLAIMS} services, which is the limit; release one")]
    Full,
    /// A process of another user has the name by which the processes of the interface meet.
    #[error("@{name}: {stranger}")]
    Stranger {
        /// The name.
        name: String,
        /// The process.
        stranger: Stranger,
    },
    /// The process that decides does not answer.
    #[error(
        "@{name}: the process that has this name does not answer; continue or end the process that `ss -xap | grep {name}` shows"
    )]
    Silent {
        /// The name.
        name: String,
    },
}

impl ClaimError {
    /// Returns the errno for C programs.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Taken { errno } => *errno,
            Self::Full => libc::ENOBUFS,
            Self::Stranger { .. } => libc::EACCES,
            Self::Silent { .. } => libc::ETIMEDOUT,
        }
    }
}

impl Claim {
    pub(super) fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let (address, v4) = match self.at {
            IpAddr::V4(at) => (at.to_ipv6_mapped(), true),
            IpAddr::V6(at) => (at, false),
        };
        // A service takes 56 bits at the most here: RDMA_PS and a port.
        bytes[..7].copy_from_slice(&self.service.to_le_bytes()[..7]);
        let flags = [v4, self.family_only, self.shared, self.listens];
        bytes[7] = flags.iter().enumerate().map(|(at, flag)| u8::from(*flag) << at).sum();
        bytes[8..].copy_from_slice(&address.octets());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; 24]) -> Self {
        let mut service = [0; 8];
        service[..7].copy_from_slice(&bytes[..7]);
        let has = |bit: u8| bytes[7] >> bit & 1 == 1;
        let mut address = [0; 16];
        address.copy_from_slice(&bytes[8..]);
        let address = Ipv6Addr::from(address);
        let v4 = || IpAddr::from(address.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED));
        Self {
            service: u64::from_le_bytes(service),
            at: if has(0) { v4() } else { address.into() },
            family_only: has(1),
            shared: has(2),
            listens: has(3),
        }
    }

    /// Returns Linux's errno if two processes cannot have both claims. Bound addresses conflict with bound addresses, and listeners with
    /// listeners.
    #[must_use]
    pub fn conflict(&self, other: &Self) -> Option<i32> {
        let only = |claim: &Self| claim.family_only || claim.at.is_ipv4();
        let apart = only(self) && only(other) && self.at.is_ipv4() != other.at.is_ipv4();
        // Those that share a port cannot both listen.
        let shared = self.shared && other.shared && !self.listens;
        if self.service != other.service || self.listens != other.listens || apart || shared {
            None
        } else if self.at.is_unspecified() || other.at.is_unspecified() {
            Some(libc::EADDRNOTAVAIL)
        } else {
            (self.at.to_canonical() == other.at.to_canonical()).then_some(libc::EADDRINUSE)
        }
    }

    /// Returns whether requests for a service at an address are for this claim's program.
    #[must_use]
    pub fn hears(&self, service: u64, at: IpAddr) -> bool {
        let all = self.at.is_unspecified() && (self.at.is_ipv4() == at.is_ipv4() || !self.family_only);
        self.listens && self.service == service && (all || self.at.to_canonical() == at.to_canonical())
    }
}

/// Reads an entry that its process may change meanwhile: `load` loads its state, `copy` the rest. Returns nothing if these may belong to
/// different claims.
fn read<T>(load: impl Fn(Ordering) -> u64, copy: impl FnOnce() -> T) -> Option<(u64, T)> {
    let before = load(Ordering::Acquire);
    let rest = copy();
    fence(Ordering::Acquire);
    let after = load(Ordering::Relaxed);
    (before & !STATE == after & !STATE).then_some((after, rest))
}

/// Writes a free entry: `put` writes all but its state, which `store` then sets to `state`.
fn write(store: impl FnOnce(u64, Ordering), put: impl FnOnce(), state: u64) {
    // A reader that copies some of what is put then loads a state that is no older than "free".
    fence(Ordering::Release);
    put();
    store(state, Ordering::Release);
}

/// The claims in a process's memory, with their numbers, and whether they are granted or requested.
fn entries(head: &Head) -> impl Iterator<Item = (u64, bool, Claim)> + '_ {
    let used = (head.claims_used().load(Ordering::Acquire) as usize).min(CLAIMS);
    (0..used).filter_map(move |at| {
        let (state, bytes) = read(|order| head.claim_state(at).load(order), || head.claim(at))?;
        let claim = Claim::from_bytes(bytes.first_chunk()?);
        (state & STATE != FREE).then_some((state >> 2, state & STATE == HELD, claim))
    })
}

/// Returns true if a process listens to a service at an address.
pub(super) fn hears(head: &Head, service: u64, at: IpAddr) -> bool {
    entries(head).any(|(_, held, claim)| held && claim.hears(service, at))
}

/// Claims that the owner granted, and that their processes have not noted yet, each with its slot and number.
#[derive(Debug, Default)]
pub(super) struct Granted(Vec<(u8, u64)>);

impl Granted {
    /// After a takeover: what the last owner may have granted counts as granted.
    pub(super) fn after_takeover<'a>(members: impl Iterator<Item = (u8, &'a Head)>) -> Self {
        let asked = |(slot, head)| entries(head).map(move |(number, ..)| (slot, number)).collect::<Vec<_>>();
        Self(members.flat_map(asked).collect())
    }

    /// Decides whether the process in `slot` may have `claim`; returns 0, or an errno.
    pub(super) fn decide<'a>(
        &mut self,
        (slot, number): (u8, u64),
        claim: &Claim,
        members: impl Iterator<Item = (u8, &'a Head)>,
    ) -> i32 {
        let mut known = Vec::new();
        let mut errno = 0;
        for (theirs, head) in members {
            for (n, held, other) in entries(head) {
                let granted = self.0.contains(&(theirs, n));
                if granted && !held {
                    known.push((theirs, n));
                }
                // A claim of another process that was not granted is decided later. A process knows its own.
                if errno == 0 && theirs != slot && (held || granted) {
                    errno = claim.conflict(&other).unwrap_or(0);
                }
            }
        }
        self.0 = known;
        if errno == 0 {
            self.0.push((slot, number));
        }
        errno
    }
}

/// A process's own claims: which entries it uses.
#[derive(Debug, Default)]
pub(super) struct Claimed {
    next: u64,
}

impl Claimed {
    /// Notes a requested claim; returns its place and number, or nothing if the table is full.
    pub(super) fn ask(&mut self, own: &Own, claim: &Claim) -> Option<(usize, u64)> {
        let head = own.head();
        let free = |at: &usize| head.claim_state(*at).load(Ordering::Relaxed) & STATE == FREE;
        let at = (0..CLAIMS).find(free)?;
        self.next += 1;
        let mut bytes = [0; CLAIM - 8];
        bytes[..24].copy_from_slice(&claim.to_bytes());
        let state = head.claim_state(at);
        write(|next, order| state.store(next, order), || own.write_claim(at, &bytes), self.next << 2 | ASKED);
        let used = head.claims_used().load(Ordering::Relaxed).max(at as u32 + 1);
        head.claims_used().store(used, Ordering::Release);
        Some((at, self.next))
    }

    /// The owner has decided.
    pub(super) fn decided(&self, own: &Own, at: usize, number: u64, granted: bool) {
        let state = if granted { number << 2 | HELD } else { number << 2 | FREE };
        own.head().claim_state(at).store(state, Ordering::Release);
    }

    /// Withdraws one such claim.
    pub(super) fn release(&self, own: &Own, claim: &Claim) {
        let head = own.head();
        let used = head.claims_used().load(Ordering::Relaxed) as usize;
        let is_it = |at: &usize| {
            let state = head.claim_state(*at).load(Ordering::Relaxed);
            state & STATE == HELD && head.claim(*at)[..24] == claim.to_bytes()
        };
        if let Some(at) = (0..used).find(is_it) {
            let state = head.claim_state(at);
            state.store(state.load(Ordering::Relaxed) & !STATE, Ordering::Release);
        }
    }
}

/// `ci/loom` runs it.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    /// A process releases a claim and asks for another by the same entry, while a sibling reads it: it never finds the state of one with
    /// the bytes of the other.
    #[test]
    fn an_entry_that_is_used_again_is_read_whole_or_not_at_all() {
        loom::model(|| {
            let entry = Arc::new((AtomicU64::new(1 << 2 | HELD), [AtomicU64::new(1), AtomicU64::new(1)]));
            let theirs = entry.clone();
            let process = thread::spawn(move || {
                let (state, bytes) = &*theirs;
                state.store(1 << 2 | FREE, Ordering::Release);
                let put = || bytes.iter().for_each(|byte| byte.store(2, Ordering::Relaxed));
                write(|next, order| state.store(next, order), put, 2 << 2 | ASKED);
            });
            let (state, bytes) = &*entry;
            let copy = || [0, 1].map(|at: usize| bytes[at].load(Ordering::Relaxed));
            if let Some((state, bytes)) = read(|order| state.load(order), copy)
                && state & STATE != FREE
            {
                assert_eq!(bytes, [state >> 2; 2]);
            }
            process.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn claim(at: &str) -> Claim {
        let at = at.parse().unwrap();
        Claim { service: 0x0106_1d2f, at, family_only: false, shared: false, listens: false }
    }

    #[test]
    fn two_processes_share_a_service_only_as_linux_lets_programs() {
        let listens = |claim: Claim| Claim { listens: true, ..claim };
        let shared = |claim: Claim| Claim { shared: true, ..claim };
        let only = |claim: Claim| Claim { family_only: true, ..claim };
        let other_service = Claim { service: 0x0106_1d30, ..claim("10.0.0.1") };
        for (one, other, errno) in [
            (claim("10.0.0.1"), claim("10.0.0.1"), Some(libc::EADDRINUSE)),
            (claim("10.0.0.1"), claim("::ffff:10.0.0.1"), Some(libc::EADDRINUSE)),
            (claim("10.0.0.1"), claim("10.0.0.2"), None),
            (claim("10.0.0.1"), other_service, None),
            (claim("0.0.0.0"), claim("10.0.0.1"), Some(libc::EADDRNOTAVAIL)),
            (claim("::"), claim("10.0.0.1"), Some(libc::EADDRNOTAVAIL)),
            (only(claim("::")), claim("10.0.0.1"), None),
            (shared(claim("10.0.0.1")), shared(claim("10.0.0.1")), None),
            (shared(claim("10.0.0.1")), claim("10.0.0.1"), Some(libc::EADDRINUSE)),
            (listens(shared(claim("10.0.0.1"))), listens(shared(claim("10.0.0.1"))), Some(libc::EADDRINUSE)),
            (listens(claim("10.0.0.1")), claim("10.0.0.1"), None),
        ] {
            assert_eq!(one.conflict(&other), errno, "{one:?} {other:?}");
            assert_eq!(other.conflict(&one), errno, "{other:?} {one:?}");
        }
        assert!(listens(claim("::")).hears(0x0106_1d2f, "10.0.0.9".parse().unwrap()));
        assert!(!listens(only(claim("::"))).hears(0x0106_1d2f, "10.0.0.9".parse().unwrap()));
        assert!(!claim("10.0.0.9").hears(0x0106_1d2f, "10.0.0.9".parse().unwrap()), "bound is not heard");
    }

    #[test]
    fn of_two_that_ask_at_once_one_gets_it() {
        let members = [1, 2].map(|identity| Own::new(identity).unwrap());
        let heads = || members.iter().enumerate().map(|(slot, own)| (slot as u8, own.head()));
        let mut own = [Claimed::default(), Claimed::default()];
        let wanted = claim("10.0.0.1");
        let asked: Vec<_> = (0..2).map(|n| own[n].ask(&members[n], &wanted).unwrap()).collect();
        let mut granted = Granted::default();
        assert_eq!(granted.decide((1, asked[1].1), &wanted, heads()), 0);
        // The first has received no answer yet, or it has.
        assert_eq!(granted.decide((0, asked[0].1), &wanted, heads()), libc::EADDRINUSE);
        assert_eq!(Granted::default().decide((0, asked[0].1), &wanted, heads()), 0, "an owner that forgot");
        let mut next = Granted::after_takeover(heads());
        assert_eq!(next.decide((0, asked[0].1), &wanted, heads()), libc::EADDRINUSE, "the next owner");
        own[0].decided(&members[0], asked[0].0, asked[0].1, false);
        own[1].decided(&members[1], asked[1].0, asked[1].1, true);
        let (at, number) = own[0].ask(&members[0], &wanted).unwrap();
        assert_eq!(granted.decide((0, number), &wanted, heads()), libc::EADDRINUSE);
        own[0].decided(&members[0], at, number, false);
        own[1].release(&members[1], &wanted);
        let (_, number) = own[0].ask(&members[0], &wanted).unwrap();
        assert_eq!(granted.decide((0, number), &wanted, heads()), 0);
    }
}

//! Claims: the process that has each service of the interface's connection managers. One process has a service, as on a NIC whose ports all
//! processes share.

use super::memory::{CLAIM, CLAIMS, OwnMemory, SharedHeader};
#[cfg(all(test, loom))]
use loom::sync::atomic::{Ordering, fence};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// States of an entry, in its lowest bits. The bits above contain the claim's number.
const FREE: u64 = 0;
const REQUESTED: u64 = 1;
const GRANTED: u64 = 2;
/// Withdrawn: the process requests the claim again after the rival claim is decided.
const WITHDRAWN: u64 = 3;
const STATE: u64 = 3;

/// A service at an address, which a process has bound or listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The service (IBA A11.2).
    pub service: u64,
    /// An address of the interface, or the unspecified address of a family for all addresses.
    pub at: IpAddr,
    /// Whether the claim conflicts only with claims of its address family, as an IPv4 address always does.
    pub family_only: bool,
    /// Whether other shared claims may have the same service and address.
    pub shared: bool,
    /// Whether the process answers requests for the service.
    pub listens: bool,
}

/// Reasons why a process does not get a service.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Another process has it.
    #[error("another process of the interface has it; choose another port, or end that process")]
    Taken {
        /// `EADDRINUSE` or `EADDRNOTAVAIL`, as Linux distinguishes them.
        errno: i32,
    },
    /// This process has reached its limit of services.
    #[error("this process has {CLAIMS} services, which is the limit; release one")]
    Full,
}

impl ClaimError {
    /// Returns the errno for C programs.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Taken { errno } => *errno,
            Self::Full => libc::ENOBUFS,
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
        // A service identifier has at most 56 bits here: RDMA_PS and a port.
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
        // Processes that share a port cannot both listen.
        let shared = self.shared && other.shared && !self.listens;
        if self.service != other.service || self.listens != other.listens || apart || shared {
            None
        } else if self.at.is_unspecified() || other.at.is_unspecified() {
            Some(libc::EADDRNOTAVAIL)
        } else {
            (self.at.to_canonical() == other.at.to_canonical()).then_some(libc::EADDRINUSE)
        }
    }

    /// Returns true if requests for a service at an address are for this claim's program.
    #[must_use]
    pub fn matches(&self, service: u64, at: IpAddr) -> bool {
        let all = self.at.is_unspecified() && (self.at.is_ipv4() == at.is_ipv4() || !self.family_only);
        self.listens && self.service == service && (all || self.at.to_canonical() == at.to_canonical())
    }
}

/// Reads an entry that its process may be changing: `load` loads its state, `copy` copies the rest. Returns `None` if the two may belong to
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
    // A reader that copies a part of what `put` writes then loads a state that is no older than `FREE`.
    fence(Ordering::Release);
    put();
    store(state, Ordering::Release);
}

struct ClaimEntry {
    at: usize,
    state: u64,
    claim: Claim,
}

impl ClaimEntry {
    fn is_granted(&self) -> bool {
        self.state & STATE == GRANTED
    }
}

/// Returns the claims in a process's memory that are granted or requested.
fn entries(head: &SharedHeader) -> impl Iterator<Item = ClaimEntry> + '_ {
    let used = (head.claims_used().load(Ordering::Acquire) as usize).min(CLAIMS);
    (0..used).filter_map(move |at| {
        let (state, bytes) = read(|order| head.claim_state(at).load(order), || head.claim(at))?;
        let claim = Claim::from_bytes(bytes.first_chunk()?);
        matches!(state & STATE, REQUESTED | GRANTED).then_some(ClaimEntry { at, state, claim })
    })
}

pub(super) fn matches(head: &SharedHeader, service: u64, at: IpAddr) -> bool {
    entries(head).any(|entry| entry.is_granted() && entry.claim.matches(service, at))
}

/// The result of comparing a claim with those in the memory of all other processes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// No other process has the service or requests it.
    Free,
    /// Another process has the service. Contains the errno.
    Taken(i32),
    /// Another process requests it too.
    Undecided(Rival),
}

/// A conflicting claim of another process that is not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rival {
    pub(super) slot: u8,
    at: usize,
    state: u64,
    /// The errno if the other process gets the service.
    pub(super) errno: i32,
}

impl Rival {
    /// Waits until the claim is decided or withdrawn, but at most `most`.
    pub(super) fn wait(&self, head: &SharedHeader, most: Duration) {
        head.wait_for_claim(self.at, self.state, most);
    }
}

/// Decides the requested claim of the process in `slot`. Of several rivals, returns the one with the lowest slot.
///
/// All processes decide by the one-bit algorithm (L. Lamport, "The mutual exclusion problem, part II", 1986). It provides mutual exclusion
/// between processes that each write only their own memory. A process first requests, then reads. While a process with a lower slot
/// requests the same service, it withdraws its claim, waits, and requests again. While one with a higher slot does, it waits with its
/// request in place.
pub(super) fn decide<'a>(
    slot: u8,
    claim: &Claim,
    members: impl Iterator<Item = (u8, &'a SharedHeader)>,
) -> Decision {
    let mut rival: Option<Rival> = None;
    for (theirs, head) in members.filter(|(theirs, _)| *theirs != slot) {
        for entry in entries(head) {
            let Some(errno) = claim.conflict(&entry.claim) else { continue };
            if entry.is_granted() {
                return Decision::Taken(errno);
            }
            if rival.is_none_or(|rival| theirs < rival.slot) {
                rival = Some(Rival { slot: theirs, at: entry.at, state: entry.state, errno });
            }
        }
    }
    rival.map_or(Decision::Free, Decision::Undecided)
}

#[derive(Debug, Default)]
pub(super) struct OwnClaims {
    next: u64,
}

impl OwnClaims {
    /// Requests a claim. Returns the index of its entry, or `None` if the table is full.
    pub(super) fn ask(&mut self, own: &OwnMemory, claim: &Claim) -> Option<usize> {
        let head = own.head();
        let free = |at: &usize| head.claim_state(*at).load(Ordering::Relaxed) & STATE == FREE;
        let at = (0..CLAIMS).find(free)?;
        self.next += 1;
        let mut bytes = [0; CLAIM - 8];
        bytes[..24].copy_from_slice(&claim.to_bytes());
        let used = head.claims_used().load(Ordering::Relaxed).max(at as u32 + 1);
        head.claims_used().store(used, Ordering::Release);
        let state = head.claim_state(at);
        write(
            |next, order| state.store(next, order),
            || own.write_claim(at, &bytes),
            self.next << 2 | REQUESTED,
        );
        // Of two processes that each write a request and then read, at least one reads the other's request.
        fence(Ordering::SeqCst);
        Some(at)
    }

    /// Releases one granted claim that equals `claim`.
    pub(super) fn release(&self, own: &OwnMemory, claim: &Claim) {
        let head = own.head();
        let used = head.claims_used().load(Ordering::Relaxed) as usize;
        let is_it = |at: &usize| {
            let state = head.claim_state(*at).load(Ordering::Relaxed);
            state & STATE == GRANTED && head.claim(*at)[..24] == claim.to_bytes()
        };
        if let Some(at) = (0..used).find(is_it) {
            let state = head.claim_state(at);
            state.store(state.load(Ordering::Relaxed) & !STATE, Ordering::Release);
        }
    }
}

pub(super) fn request_again(own: &OwnMemory, at: usize) {
    set(own, at, REQUESTED);
    fence(Ordering::SeqCst);
}

/// Withdraws a request, so that a process with a lower slot decides first.
pub(super) fn withdraw(own: &OwnMemory, at: usize) {
    set(own, at, WITHDRAWN);
}

/// Ends a request: the claim is granted, or its entry becomes free.
pub(super) fn decided(own: &OwnMemory, at: usize, granted: bool) {
    set(own, at, if granted { GRANTED } else { FREE });
}

/// Changes the state of an entry, and wakes the processes that wait for a change.
fn set(own: &OwnMemory, at: usize, state: u64) {
    let entry = own.head().claim_state(at);
    entry.store(entry.load(Ordering::Relaxed) & !STATE | state, Ordering::Release);
    own.head().wake_for_claim(at);
}

/// Run by `ci/loom`.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    /// A process releases a claim and requests another one in the same entry, while a sibling reads the entry. The sibling never sees the
    /// state of one claim with the bytes of the other.
    #[test]
    fn a_reused_entry_is_never_read_half_written() {
        loom::model(|| {
            let entry = Arc::new((AtomicU64::new(1 << 2 | GRANTED), [AtomicU64::new(1), AtomicU64::new(1)]));
            let theirs = entry.clone();
            let process = thread::spawn(move || {
                let (state, bytes) = &*theirs;
                state.store(1 << 2 | FREE, Ordering::Release);
                let put = || bytes.iter().for_each(|byte| byte.store(2, Ordering::Relaxed));
                write(|next, order| state.store(next, order), put, 2 << 2 | REQUESTED);
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
        assert!(listens(claim("::")).matches(0x0106_1d2f, "10.0.0.9".parse().unwrap()));
        assert!(!listens(only(claim("::"))).matches(0x0106_1d2f, "10.0.0.9".parse().unwrap()));
        assert!(!claim("10.0.0.9").matches(0x0106_1d2f, "10.0.0.9".parse().unwrap()), "it does not listen");
    }

    #[test]
    fn of_two_simultaneous_claims_that_of_the_lower_slot_is_granted() {
        let members = [1, 2].map(|identity| OwnMemory::new(identity).unwrap());
        let heads = || members.iter().enumerate().map(|(slot, own)| (slot as u8, own.head()));
        let mut own = [OwnClaims::default(), OwnClaims::default()];
        let wanted = claim("10.0.0.1");
        let at = [0, 1].map(|n| own[n].ask(&members[n], &wanted).unwrap());
        let rival = |slot| match decide(slot, &wanted, heads()) {
            Decision::Undecided(rival) => rival.slot,
            other => panic!("{other:?}"),
        };
        assert_eq!([rival(0), rival(1)], [1, 0]);
        withdraw(&members[1], at[1]);
        assert_eq!(decide(0, &wanted, heads()), Decision::Free);
        decided(&members[0], at[0], true);
        request_again(&members[1], at[1]);
        assert_eq!(decide(1, &wanted, heads()), Decision::Taken(libc::EADDRINUSE));
        decided(&members[1], at[1], false);
        own[0].release(&members[0], &wanted);
        let at = own[1].ask(&members[1], &wanted).unwrap();
        assert_eq!(decide(1, &wanted, heads()), Decision::Free);
        decided(&members[1], at, true);
    }

    /// Processes that request the same service in a loop: at most one has it at a time, and each gets it.
    #[test]
    fn processes_that_race_for_a_service_have_it_one_after_the_other() {
        let members = [1, 2, 3].map(|identity| OwnMemory::new(identity).unwrap());
        let holders = std::sync::atomic::AtomicU32::new(0);
        let race = |slot: u8| {
            let (own, mut claimed) = (&members[usize::from(slot)], OwnClaims::default());
            let wanted = claim("10.0.0.1");
            for _ in 0..2000 {
                let at = claimed.ask(own, &wanted).unwrap();
                let heads = || members.iter().enumerate().map(|(slot, own)| (slot as u8, own.head()));
                let granted = loop {
                    match decide(slot, &wanted, heads()) {
                        Decision::Free => break true,
                        Decision::Taken(_) => break false,
                        Decision::Undecided(rival) => {
                            if rival.slot < slot {
                                withdraw(own, at);
                            }
                            rival.wait(members[usize::from(rival.slot)].head(), Duration::from_secs(60));
                            request_again(own, at);
                        }
                    }
                };
                decided(own, at, granted);
                if granted {
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two processes have the claim");
                    holders.fetch_sub(1, Ordering::SeqCst);
                    claimed.release(own, &wanted);
                }
            }
        };
        std::thread::scope(|scope| (0..3).for_each(|slot| _ = scope.spawn(move || race(slot))));
    }
}

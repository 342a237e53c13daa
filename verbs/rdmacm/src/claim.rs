//! A service at an address that a program binds or listens to.

use crate::address;
use crate::errno::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A service at an address, as an identifier binds it or listens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) service: u64,
    /// An address of ours, or the unspecified one of a family for all.
    pub(crate) at: IpAddr,
    /// It meets only others of its address family.
    pub(crate) family_only: bool,
    /// Others that are shared too may have the same place.
    pub(crate) shared: bool,
    pub(crate) listens: bool,
}

impl Claim {
    /// Returns the claim of an identifier that is bound to `at`, or listens there. An IPv4 address is never one of IPv6. Two that share a
    /// port cannot both listen.
    pub(crate) fn new(service: u64, at: IpAddr, family_only: bool, shared: bool, listens: bool) -> Self {
        let at = match (address::is_any(at), at) {
            (true, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
            (true, IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            (false, at) => at,
        };
        Self { service, at, family_only: family_only || at.is_ipv4(), shared: shared && !listens, listens }
    }

    /// Returns the error, as Linux has it, if one program cannot have both claims. Bound addresses conflict with bound addresses, and
    /// listeners with listeners.
    pub(crate) fn conflict(&self, other: &Self) -> Option<Errno> {
        let apart = self.family_only && other.family_only && self.at.is_ipv4() != other.at.is_ipv4();
        let shared = self.shared && other.shared;
        if self.service != other.service || self.listens != other.listens || apart || shared {
            None
        } else if self.at.is_unspecified() || other.at.is_unspecified() {
            Some(Errno(libc::EADDRNOTAVAIL))
        } else {
            (self.at == other.at).then_some(Errno(libc::EADDRINUSE))
        }
    }

    /// Returns whether requests for a service at an address are for this claim's listener.
    pub(crate) fn hears(&self, service: u64, at: IpAddr) -> bool {
        let all = self.at.is_unspecified() && (self.at.is_ipv4() == at.is_ipv4() || !self.family_only);
        self.listens && self.service == service && (all || address::gid(self.at) == address::gid(at))
    }
}

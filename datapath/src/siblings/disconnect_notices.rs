//! Disconnect notices of a process: a datagram for each of its connections, which another process sends after this one has ended.

use super::memory::{NOTICE, NOTICES, OwnMemory, SharedHeader};
use crate::engine::{MAD_LENGTH, Mad};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering;

/// A datagram that ends a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisconnectNotice {
    /// The connection's communication id.
    pub id: u32,
    /// The local address from which it is sent.
    pub source: IpAddr,
    /// The peer's address.
    pub destination: IpAddr,
    /// The datagram.
    pub mad: Mad,
}

impl DisconnectNotice {
    fn to_bytes(&self) -> [u8; NOTICE - 8] {
        let mut bytes = [0; NOTICE - 8];
        let octets = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        bytes[..4].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..24].copy_from_slice(&octets(self.source));
        bytes[24..40].copy_from_slice(&octets(self.destination));
        bytes[40..40 + MAD_LENGTH].copy_from_slice(&self.mad);
        bytes
    }

    fn from_bytes(bytes: &[u8; NOTICE - 8]) -> Option<Self> {
        let ip = |at: usize| {
            let octets: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
            Some(IpAddr::V6(Ipv6Addr::from(octets)).to_canonical())
        };
        Some(Self {
            id: u32::from_le_bytes(*bytes.first_chunk()?),
            source: ip(8)?,
            destination: ip(24)?,
            mad: *bytes.get(40..)?.first_chunk()?,
        })
    }
}

/// Returns all notices of a process, whether it runs or not.
pub(super) fn of(head: &SharedHeader) -> Vec<DisconnectNotice> {
    let used = (head.notices_used().load(Ordering::Acquire) as usize).min(NOTICES);
    let there = |at: &usize| head.notice_state(*at).load(Ordering::Acquire) != 0;
    (0..used).filter(there).filter_map(|at| DisconnectNotice::from_bytes(&head.notice(at))).collect()
}

/// The entries that this process uses. Connections for which the table has no room have no notice. Their peers detect the end by
/// themselves.
#[derive(Debug, Default)]
pub(super) struct DisconnectNotices {
    places: HashMap<u32, usize>,
    free: Vec<usize>,
}

impl DisconnectNotices {
    pub(super) fn register_disconnect(&mut self, own: &OwnMemory, notice: &DisconnectNotice) {
        let head = own.head();
        let used = head.notices_used().load(Ordering::Relaxed) as usize;
        let known = self.places.get(&notice.id).copied();
        let Some(at) = known.or_else(|| self.free.pop()).or((used < NOTICES).then_some(used)) else {
            return;
        };
        head.notice_state(at).store(0, Ordering::Release);
        std::sync::atomic::fence(Ordering::SeqCst);
        own.write_notice(at, &notice.to_bytes());
        head.notice_state(at).store(1, Ordering::Release);
        head.notices_used().store(used.max(at + 1) as u32, Ordering::Release);
        self.places.insert(notice.id, at);
    }

    pub(super) fn unregister_disconnect(&mut self, own: &OwnMemory, id: u32) {
        if let Some(at) = self.places.remove(&id) {
            own.head().notice_state(at).store(0, Ordering::Release);
            self.free.push(at);
        }
    }
}

//! Encodes and decodes the messages of the connection manager (IBA 12.6), which are management datagrams.

pub mod key;
mod pending;
pub mod service;

pub use key::{Key, PeerMessage};
pub use pending::{FIRST_CHECK, Pending};

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// A management datagram.
pub type Mad = [u8; 256];

/// The outcome of sending a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Sent {
    /// The datagram was sent. It may be lost, so the sender must retry.
    Done,
    /// The datagram was dropped, because the receiver's Ethernet address is being resolved. Send it again soon.
    Resolving,
}

/// Offset of a message's body, after the datagram's header (IBA 13.4.3).
pub const BODY: usize = 24;
/// Base version, class (connection management), class version and method (send).
const HEADER: [u8; 4] = [1, 0x07, 2, 3];
/// Length of the address header at the start of a request's private data (IBA A11.4.3).
const ADDRESS_HEADER: usize = 36;
/// Version of the address header. Linux accepts no other (`CMA_VERSION`).
const ADDRESS_VERSION: u8 = 0;

/// Default P_Key of RoCE, and the bit of a full member (IBA 10.9.2). Limited members cannot communicate with each other, but this side is a
/// full member.
const PARTITION: u16 = 0xffff;
const FULL_MEMBER: u16 = 0x8000;

/// Code of the smallest path MTU, 256 bytes.
pub const SMALLEST_MTU: u8 = 1;

/// Code of the service timeout in an MRA, as Linux sends it (`CMA_CM_MRA_SETTING`): 4.096 µs × 2^24, 69 s.
const SERVICE_TIMEOUT: u8 = 24;

/// Offset of the Q_Key, which requests and replies of a reliable connection do not use. Other peers ignore it.
const REQUEST_OFFER: usize = 28;
const REPLY_OFFER: usize = 8;
/// Value of that field if the sender offers selective repeat (`docs/reference/wire.md`).
const SELECTIVE_REPEAT: u32 = u32::from_be_bytes(*b"FRsr");

/// Transport service for the extended transport type, and the extended type of XRC (IBA A14.6).
const OTHER_SERVICE: u8 = 3;
const XRC: u8 = 1;

/// The kind of a message, as its attribute (IBA 12.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Request = 0x10,
    /// Message receipt acknowledgement (MRA): the answer will be late.
    MessageReceipt = 0x11,
    Reject = 0x12,
    Reply = 0x13,
    ReadyToUse = 0x14,
    DisconnectRequest = 0x15,
    DisconnectReply = 0x16,
    ServiceRequest = 0x17,
    ServiceReply = 0x18,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Request,
        Self::MessageReceipt,
        Self::Reject,
        Self::Reply,
        Self::ReadyToUse,
        Self::DisconnectRequest,
        Self::DisconnectReply,
        Self::ServiceRequest,
        Self::ServiceReply,
    ];

    /// Returns whether the message contains both sides' communication ids.
    fn has_remote(self) -> bool {
        !matches!(self, Self::Request | Self::ServiceRequest | Self::ServiceReply)
    }
}

/// The reason of a rejection (IBA 12.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The sender's timeout has expired.
    Timeout = 4,
    InvalidService = 8,
    InvalidMtu = 26,
    Consumer = 28,
}

/// The parameters of one side's queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpParameters {
    pub qpn: u32,
    /// First PSN that the other side sends (IBA 12.7.31).
    pub psn: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub rnr_retry: u8,
    pub srq: bool,
    /// Whether the queue pair is an XRC initiator or target (IBA A14.6).
    pub xrc: bool,
    /// Whether the side offers selective repeat. A reply does so only if the request did.
    pub selective_repeat: bool,
}

/// A request for a connection (IBA 12.6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    pub service: u64,
    pub guid: [u8; 8],
    pub qp: QpParameters,
    pub retry_count: u8,
    /// Path MTU code, 1 to 5.
    pub mtu: u8,
    /// Local ACK timeout code.
    pub ack_timeout: u8,
    /// Traffic class of both directions: DSCP and ECN.
    pub traffic_class: u8,
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

pub fn put<const N: usize>(mad: &mut Mad, at: usize, bytes: [u8; N]) {
    mad[BODY + at..BODY + at + N].copy_from_slice(&bytes);
}

pub fn get<const N: usize>(mad: &Mad, at: usize) -> [u8; N] {
    std::array::from_fn(|n| mad[BODY + at + n])
}

pub fn word(mad: &Mad, at: usize) -> u32 {
    u32::from_be_bytes(get(mad, at))
}

/// Writes a field of 24 bits, and the field of 8 bits after it.
fn put_split(mad: &mut Mad, at: usize, high: u32, low: u8) {
    put(mad, at, (high << 8 | u32::from(low)).to_be_bytes());
}

fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Returns a datagram with the header of `kind` and both sides' communication ids.
pub fn message(kind: Kind, transaction: u64, local: u32, remote: u32) -> Mad {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&HEADER);
    mad[8..16].copy_from_slice(&transaction.to_be_bytes());
    mad[16..18].copy_from_slice(&(kind as u16).to_be_bytes());
    put(&mut mad, 0, local.to_be_bytes());
    if kind.has_remote() {
        put(&mut mad, 4, remote.to_be_bytes());
    }
    mad
}

/// Returns the kind of a datagram, or `None` if it has another class or attribute.
pub fn kind(mad: &Mad) -> Option<Kind> {
    let attribute = u16::from_be_bytes([mad[16], mad[17]]);
    Kind::ALL.into_iter().find(|kind| mad[..4] == HEADER && *kind as u16 == attribute)
}

pub fn transaction(mad: &Mad) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|n| mad[8 + n]))
}

/// Returns the communication ids of the sender and the receiver, as the sender wrote them.
pub fn ids(mad: &Mad) -> (u32, u32) {
    (word(mad, 0), word(mad, 4))
}

fn private_range(kind: Kind) -> std::ops::Range<usize> {
    let (start, length) = match kind {
        Kind::Request => (140 + ADDRESS_HEADER, 92 - ADDRESS_HEADER),
        Kind::Reply => (36, 196),
        Kind::MessageReceipt => (10, 222),
        Kind::Reject => (84, 148),
        Kind::ReadyToUse => (8, 224),
        Kind::DisconnectRequest => (12, 220),
        Kind::DisconnectReply => (8, 224),
        Kind::ServiceRequest => (16 + ADDRESS_HEADER, 216 - ADDRESS_HEADER),
        Kind::ServiceReply => (96, 136),
    };
    BODY + start..BODY + start + length
}

pub fn private_data(mad: &Mad, kind: Kind) -> &[u8] {
    &mad[private_range(kind)]
}

/// Writes private data. Returns `false` if it does not fit.
pub fn put_private_data(mad: &mut Mad, kind: Kind, data: &[u8]) -> bool {
    let place = &mut mad[private_range(kind)];
    let fits = data.len() <= place.len();
    if fits {
        place[..data.len()].copy_from_slice(data);
    }
    fits
}

/// Writes an address header, of either family.
pub fn put_addresses(mad: &mut Mad, at: usize, source: SocketAddr, destination: SocketAddr) {
    let version = if source.is_ipv4() { 4 } else { 6 };
    let place = |ip| match ip {
        IpAddr::V4(ip) => Ipv6Addr::from(u128::from(u32::from(ip))).octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    put(mad, at, [ADDRESS_VERSION, version << 4]);
    put(mad, at + 2, source.port().to_be_bytes());
    put(mad, at + 4, place(source.ip()));
    put(mad, at + 20, place(destination.ip()));
}

/// Returns the source and destination of an address header. The destination's port is that of `service`. Returns `None` if the header has
/// another version or address family.
pub fn addresses(mad: &Mad, at: usize, service: u64) -> Option<(SocketAddr, SocketAddr)> {
    if mad[BODY + at] != ADDRESS_VERSION {
        return None;
    }
    let ip = |place: usize| {
        let bytes: [u8; 16] = get(mad, place);
        match mad[BODY + at + 1] >> 4 {
            4 => Some(IpAddr::from([bytes[12], bytes[13], bytes[14], bytes[15]])),
            6 => Some(IpAddr::from(bytes)),
            _ => None,
        }
    };
    let source = SocketAddr::new(ip(at + 4)?, u16::from_be_bytes(get(mad, at + 2)));
    Some((source, SocketAddr::new(ip(at + 20)?, service as u16)))
}

impl ConnectRequest {
    pub fn write(&self, mad: &mut Mad) {
        let QpParameters { qpn, psn, responder_resources, initiator_depth, rnr_retry, srq, xrc, .. } =
            self.qp;
        /// Response timeout as Linux sends it: 4.096 µs × 2^20, 4.3 s.
        const RESPONSE_TIMEOUT: u8 = 20;
        const MAX_RETRIES: u8 = 15;
        put(mad, 8, self.service.to_be_bytes());
        put(mad, 16, self.guid);
        put_offer(mad, REQUEST_OFFER, &self.qp);
        put_split(mad, 32, qpn, responder_resources);
        put_split(mad, 36, 0, initiator_depth);
        // Reliable connection, or the extended type; without end-to-end flow control.
        let (service, extended) = if xrc { (OTHER_SERVICE, XRC) } else { (0, 0) };
        put_split(mad, 40, 0, RESPONSE_TIMEOUT << 3 | service << 1);
        put_split(mad, 44, psn, RESPONSE_TIMEOUT << 3 | self.retry_count & 7);
        put(mad, 48, PARTITION.to_be_bytes());
        put(mad, 50, [self.mtu << 4 | rnr_retry & 7, MAX_RETRIES << 4 | u8::from(srq) << 3 | extended]);
        // LIDs are not used on Ethernet.
        put(mad, 52, [0xff; 4]);
        put(mad, 56, gid(self.source.ip()));
        put(mad, 72, gid(self.destination.ip()));
        put(mad, 92, [self.traffic_class, 64, 0, self.ack_timeout << 3]);
        put_addresses(mad, 140, self.source, self.destination);
    }

    /// Parses a request. Returns `None` for another transport, partition or version, which no listener could accept.
    pub fn read(mad: &Mad) -> Option<Self> {
        if u16::from_be_bytes(get(mad, 48)) | FULL_MEMBER != PARTITION {
            return None;
        }
        let [service_type, retries, mtu_rnr, srq] = [43, 47, 50, 51].map(|at: usize| mad[BODY + at]);
        let xrc = match (service_type >> 1 & 3, srq & 7) {
            (0, _) => false,
            (OTHER_SERVICE, XRC) => true,
            _ => return None,
        };
        let service = u64::from_be_bytes(get(mad, 8));
        let (source, destination) = addresses(mad, 140, service)?;
        Some(Self {
            service,
            guid: get(mad, 16),
            qp: QpParameters {
                qpn: word(mad, 32) >> 8,
                psn: word(mad, 44) >> 8,
                responder_resources: mad[BODY + 35],
                initiator_depth: mad[BODY + 39],
                rnr_retry: mtu_rnr & 7,
                srq: srq >> 3 & 1 != 0,
                xrc,
                selective_repeat: word(mad, REQUEST_OFFER) == SELECTIVE_REPEAT,
            },
            retry_count: retries & 7,
            mtu: mtu_rnr >> 4,
            ack_timeout: mad[BODY + 95] >> 3,
            traffic_class: mad[BODY + 92],
            source,
            destination,
        })
    }
}

/// Replaces the path MTU of a request.
pub fn put_mtu(mad: &mut Mad, mtu: u8) {
    let rnr_retry = mad[BODY + 50] & 0xf;
    put(mad, 50, [mtu << 4 | rnr_retry]);
}

fn put_offer(mad: &mut Mad, at: usize, qp: &QpParameters) {
    if qp.selective_repeat {
        put(mad, at, SELECTIVE_REPEAT.to_be_bytes());
    }
}

/// Writes the fields of a reply (IBA 12.6.8).
pub fn write_reply(mad: &mut Mad, qp: &QpParameters, guid: [u8; 8]) {
    /// Target ACK delay, as Linux sends it for a software device.
    const ACK_DELAY: u8 = 15;
    put_offer(mad, REPLY_OFFER, qp);
    // The QPN of an XRC target is in the field of the end-to-end context.
    put_split(mad, if qp.xrc { 16 } else { 12 }, qp.qpn, 0);
    put_split(mad, 20, qp.psn, 0);
    put(mad, 24, [qp.responder_resources, qp.initiator_depth, ACK_DELAY << 3]);
    put(mad, 27, [qp.rnr_retry << 5 | u8::from(qp.srq) << 4]);
    put(mad, 28, guid);
}

/// Reads a reply. `xrc` is whether the request was an XRC initiator's.
pub fn read_reply(mad: &Mad, xrc: bool) -> QpParameters {
    let last = mad[BODY + 27];
    QpParameters {
        qpn: word(mad, if xrc { 16 } else { 12 }) >> 8,
        psn: word(mad, 20) >> 8,
        responder_resources: mad[BODY + 24],
        initiator_depth: mad[BODY + 25],
        rnr_retry: last >> 5,
        srq: last >> 4 & 1 != 0,
        xrc,
        selective_repeat: word(mad, REPLY_OFFER) == SELECTIVE_REPEAT,
    }
}

/// Returns a rejection (IBA 12.6.7) of a request or, with [`Reason::Timeout`], the withdrawal of the sender's own message.
pub fn reject(transaction: u64, local: u32, remote: u32, reason: Reason, guid: [u8; 8]) -> Mad {
    /// Code for a rejected message that is neither a request nor a reply.
    const NO_MESSAGE: u8 = 2;
    let mut mad = message(Kind::Reject, transaction, local, remote);
    put(&mut mad, 10, (reason as u16).to_be_bytes());
    if reason == Reason::Timeout {
        // The receiver finds the request by the sender's GUID.
        put(&mut mad, 8, [NO_MESSAGE << 6, (guid.len() as u8) << 1]);
        put(&mut mad, 12, guid);
    }
    mad
}

pub fn read_reject(mad: &Mad) -> u16 {
    u16::from_be_bytes(get(mad, 10))
}

/// Returns an MRA for a repeated request that the program has not answered yet (IBA 12.6.6, "Message MRAed" 0).
pub fn mra(transaction: u64, local: u32, remote: u32) -> Mad {
    let mut mad = message(Kind::MessageReceipt, transaction, local, remote);
    put(&mut mad, 9, [SERVICE_TIMEOUT << 3]);
    mad
}

/// Returns the service timeout of an MRA for a message of `kind`. Returns `None` if the MRA is for another message.
pub fn read_mra(mad: &Mad, kind: Kind) -> Option<Duration> {
    let [message, timeout] = get(mad, 8);
    let received = match message >> 6 {
        0 => Kind::Request,
        1 => Kind::Reply,
        _ => return None,
    };
    // Limits the delay that a peer can cause.
    let code = (timeout >> 3).min(SERVICE_TIMEOUT);
    (received == kind).then(|| Duration::from_nanos(4096 << code))
}

/// Returns a request to disconnect the peer's queue pair `qpn` (IBA 12.6.10).
pub fn disconnect_request(transaction: u64, local: u32, remote: u32, qpn: u32) -> Mad {
    let mut mad = message(Kind::DisconnectRequest, transaction, local, remote);
    put_split(&mut mad, 8, qpn, 0);
    mad
}

#[cfg(test)]
pub(crate) mod tests;

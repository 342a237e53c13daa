//! Service resolution: requests for the queue pair of a datagram service, and their answers (IBA 12.11).

use super::{BODY, Mad, addresses, get, put, put_addresses, word};
use std::net::SocketAddr;

/// Offset of the request's private data.
const PRIVATE: usize = 16;

/// The status in the answer to a request (IBA 12.11.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceStatus {
    Valid = 0,
    NotSupported = 1,
    Rejected = 2,
}

/// A request for the queue pair of a service (IBA 12.11.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRequest {
    pub service: u64,
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

impl ServiceRequest {
    pub fn write(&self, mad: &mut Mad) {
        put(mad, 4, 0xffff_u16.to_be_bytes());
        put(mad, 8, self.service.to_be_bytes());
        put_addresses(mad, PRIVATE, self.source, self.destination);
    }

    pub fn read(mad: &Mad) -> Option<Self> {
        let service = u64::from_be_bytes(get(mad, 8));
        let (source, destination) = addresses(mad, PRIVATE, service)?;
        Some(Self { service, source, destination })
    }
}

/// The answer to a [`ServiceRequest`] (IBA 12.11.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceReply {
    /// A [`ServiceStatus`], or another code of the specification.
    pub status: u8,
    pub qpn: u32,
    pub service: u64,
    pub qkey: u32,
}

impl ServiceReply {
    pub fn write(&self, mad: &mut Mad) {
        put(mad, 4, [self.status]);
        put(mad, 8, (self.qpn << 8).to_be_bytes());
        put(mad, 12, self.service.to_be_bytes());
        put(mad, 20, self.qkey.to_be_bytes());
    }

    pub fn read(mad: &Mad) -> Self {
        Self {
            status: mad[BODY + 4],
            qpn: word(mad, 8) >> 8,
            service: u64::from_be_bytes(get(mad, 12)),
            qkey: word(mad, 20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::machine::message::tests::mads;
    use crate::cm::machine::message::{self, Kind, ids, kind, transaction};
    use std::net::IpAddr;

    /// IBA 12.11.1, 12.11.2, 12.11.2.2.
    #[test]
    fn service_requests_and_replies_equal_those_of_linux() {
        // Linux answered first, and then sent a request.
        let [answer, question] =
            mads(include_bytes!("../../../../tests/captures/udaddy.pcap")).try_into().unwrap();
        assert_eq!((kind(&answer), kind(&question)), (Some(Kind::ServiceReply), Some(Kind::ServiceRequest)));
        let reply = ServiceReply::read(&answer);
        assert_eq!((reply.status, reply.qkey, reply.service), (0, 0x0123_4567, 0x0111_1c06));
        let mut ours = message::message(Kind::ServiceReply, transaction(&answer), ids(&answer).0, 0);
        reply.write(&mut ours);
        assert_eq!(ours, answer);
        let request = ServiceRequest::read(&question).unwrap();
        assert_eq!(request.destination, "10.77.0.1:7174".parse().unwrap());
        assert_eq!(request.source.ip(), "10.77.0.9".parse::<IpAddr>().unwrap());
        let mut ours = message::message(Kind::ServiceRequest, transaction(&question), ids(&question).0, 0);
        request.write(&mut ours);
        assert_eq!(ours, question);
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        for seed in 0..=255_u8 {
            let mad: Mad = std::array::from_fn(|n| (n as u8).wrapping_mul(31) ^ seed);
            let _ = (ServiceRequest::read(&mad), ServiceReply::read(&mad));
        }
    }
}

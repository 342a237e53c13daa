//! What stands on the wire: Ethernet II (VLAN), IPv4 or IPv6, UDP 4791, BTH, extension headers, ICRC.
//!
//! [`Frame`] is a parsed packet whose fields can only hold legal values; what is parsed and emitted again is the
//! same bytes.

mod header;
mod path;

pub use header::{
    Aeth, AtomicEth, Bth, CompareSwap, FetchAdd, Header, Immediate, NakCode, Operation, Reth, RnrTimer,
    SendTail, Service, Syndrome,
};
pub use path::{Mac, Mtu, Path, Vlan};

/// UDP destination port of RoCEv2 (IBA annex A17).
pub const ROCE_PORT: u16 = 4791;

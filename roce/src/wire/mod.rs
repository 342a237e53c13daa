//! The wire format: Ethernet II (VLAN), IPv4 or IPv6, UDP 4791, BTH, extension headers, ICRC.
//!
//! [`parse`] returns a [`Frame`] whose fields have only legal values; [`emit`] writes one. Parsing an emitted frame returns the same
//! values.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

mod amend;
mod constants;
mod crc;
mod ecn;
mod emit;
mod fast_path;
mod feedback;
pub mod format;
mod frame;
mod header;
mod icmp;
mod icrc;
mod identification;
mod inband;
#[cfg(test)]
mod inband_tests;
mod layers;
mod locate;
mod opcode;
mod parse;
mod path;
mod records;
mod setup;
mod subscription;
mod tcp_probe;
pub mod telemetry;
mod template;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod xrc_tests;

pub use amend::{IcrcAmender, SourceFields};
pub(crate) use constants::ETHERNET_LENGTH;
pub use constants::{MAX_OVERHEAD, MAX_PAYLOAD, ROCE_PORT};
pub use ecn::{Ecn, ecn, mark_ce, traffic_class};
pub use emit::{Draft, EmitError, emit};
pub(crate) use fast_path::FastPathPacket;
pub use feedback::{Feedback, MAX_FEEDBACK, Report, SEAL_LENGTH, Seal};
pub use format::{Format, Numbers, Reading};
pub use frame::{Frame, Network};
pub use header::{
    Aeth, AtomicEth, Bth, CompareSwap, FetchAdd, Feth, Header, Immediate, NakCode, Operation, Reth, RnrTimer,
    SendTail, Service, Syndrome,
};
pub(crate) use icmp::unreachable;
pub use identification::solve_identification;
pub use inband::{IN_BAND_ROOM, InBand, MAX_IN_BAND};
pub use opcode::{Opcode, Shape};
pub use parse::{body, destination, opcode_and_destination, parse, parse_unverified, reseal, verify};
pub use path::{Mac, Mtu, Path, Vlan};
pub use records::Records;
pub use setup::{ReportKind, Reverse, SETUP_LENGTH, Setup};
pub use subscription::{SUBSCRIPTION_LENGTH, Subscription};
pub use tcp_probe::{
    AnswerLimit, OwnProbe, TCP_PROBE_LENGTH, TCP_PROBE_MARK, TcpArrival, TcpProbe, TcpTelemetry,
};
pub use template::Template;

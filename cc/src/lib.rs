//! Congestion control as arithmetic: no I/O, no clock. The algorithms of this crate do not allocate after they are created.
//!
//! The transport reports to a [`CongestionController`] the packets sent and acknowledged, and the telemetry of switches. The controller
//! returns a window and a pacing rate. A queue pair contains an [`Algorithm`], which stores a controller inline, or on the heap if it is
//! [`Registered`].
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod algorithm;
mod built_in;
mod dcqcn;
mod dctcp;
mod error;
mod fixed;
mod hpcc;
mod learned;
mod limits;
mod rate;
mod registered;
mod telemetry;
mod time;

pub use algorithm::{Algorithm, AlgorithmConfig};
pub use built_in::{BUILT_IN, POWERTCP, SWIFT};
pub use dcqcn::{Dcqcn, DcqcnConfig};
pub use dctcp::{Dctcp, DctcpConfig};
pub use error::ConfigError;
pub use fixed::Fixed;
pub use hpcc::{
    ActiveFlows, FlowMark, Hpcc, HpccConfig, HpccReceiver, Inflight, PathRecords, PublishedFlows,
    ReceiverLink, RecordedHop, RxHpcc,
};
pub use rate::Rate;
pub use registered::{Feedback, Parameters, Registered, Registration};
pub use telemetry::{Counter, Hop, HopIndex, MAX_HOPS, PathTelemetry};
pub use time::Instant;

use core::fmt;
use core::time::Duration;

/// An acknowledgement as a congestion controller receives it.
///
/// `seq` and `next` count in one unit that never decreases (packets, bytes or probes); only their order matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// When the acknowledgement arrived.
    pub now: Instant,
    /// First number that is not acknowledged.
    pub seq: u64,
    /// Next number to send (`snd_nxt` in rtgwg-00 4.2).
    pub next: u64,
    /// Payload bytes newly acknowledged.
    pub acked_bytes: u32,
    /// Bytes of `acked_bytes` that arrived with an ECN congestion mark.
    pub ce_bytes: u32,
    /// Round trip that this acknowledgement measures, if any.
    pub rtt: Option<Duration>,
}

/// A congestion controller of one queue pair.
///
/// Calls are in the order of events; `now` never decreases. An algorithm of another crate implements this trait and is used by its
/// [`Registration`]. What it does not use has a default that does nothing.
pub trait CongestionController: fmt::Debug {
    /// Handles a sent data packet of `bytes` payload bytes; `pn` counts packets.
    fn on_send(&mut self, now: Instant, pn: u64, bytes: u32) {
        let _ = (now, pn, bytes);
    }
    /// Handles telemetry. Called before [`on_ack`](Self::on_ack) if one packet carries both.
    fn on_telemetry(&mut self, ack: &Ack, path: &PathTelemetry) {
        let _ = (ack, path);
    }
    /// Handles a measurement of the busiest hop by the receiver or a switch, which contains only its load (rtgwg-00 9.1). Called for
    /// algorithms that compute with telemetry at the sender.
    fn on_inflight(&mut self, ack: &Ack, busiest: &Inflight) {
        let _ = (ack, busiest);
    }
    /// Handles an acknowledgement of data.
    fn on_ack(&mut self, ack: &Ack) {
        let _ = ack;
    }
    /// Handles a congestion notification packet (CNP).
    fn on_congestion_notification(&mut self, now: Instant) {
        let _ = now;
    }
    /// Handles a window, in payload bytes, that the receiver computed (rtgwg-00 6.3.2). Only [`HpccReceiver`] uses it.
    fn on_window(&mut self, window: u64) {
        let _ = window;
    }
    /// Handles the receiver's report of its own link. Called before the telemetry of the same packet. Only [`Hpcc`] uses it: `hpcc-fair`, and
    /// `hpcc` if it is set to use the reported number of flows.
    fn on_receiver_link(&mut self, link: ReceiverLink) {
        let _ = link;
    }
    /// Handles a change of the path; no packet is in flight on the old one (rtgwg-00 9.4).
    fn on_path_change(&mut self) {}
    /// Handles a loss of data: a NAK for a sequence gap, or a timeout.
    fn on_loss(&mut self, now: Instant) {
        let _ = now;
    }
    /// Returns when [`on_timeout`](Self::on_timeout) must be called, if at all.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    /// Handles the timeout of [`poll_timeout`](Self::poll_timeout).
    fn on_timeout(&mut self, now: Instant) {
        let _ = now;
    }
    /// Changes the base RTT, because another one was measured. Called for a [`Registered`] algorithm only if none is configured.
    fn set_base_rtt(&mut self, base_rtt: Duration) {
        let _ = base_rtt;
    }
    /// Returns the last telemetry of the path's hops, which observers show; `None` if the algorithm keeps none.
    fn records(&self) -> Option<&PathRecords> {
        None
    }
    /// Returns the limit on in-flight payload bytes. The sender stops when they reach it.
    fn window(&self) -> u64;
    /// Returns the pacing rate, in bytes on the wire; with `None` the sender is limited by the window alone.
    fn pacing_rate(&self) -> Option<Rate>;
}

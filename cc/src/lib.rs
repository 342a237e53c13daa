//! Congestion control as arithmetic: no I/O, no clock, no allocation.
//!
//! A [`CongestionController`] receives reports of what was sent, what came back and what the network's telemetry says; it answers with a
//! window and a pacing rate. [`Algorithm`] contains any of them inline in a queue pair.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
#![no_std]
#![forbid(unsafe_code)]

mod algorithm;
mod dcqcn;
mod dctcp;
mod error;
mod fixed;
mod hpcc;
mod learned;
mod limits;
mod powertcp;
mod rate;
mod swift;
mod telemetry;
mod time;

pub use algorithm::{Algorithm, AlgorithmConfig};
pub use dcqcn::{Dcqcn, DcqcnConfig};
pub use dctcp::{Dctcp, DctcpConfig};
pub use error::ConfigError;
pub use fixed::Fixed;
pub use hpcc::{
    ActiveFlows, FlowMark, HeardHop, Hpcc, HpccConfig, HpccReceiver, Inflight, PathRecords, ReceiverLink,
    RxHpcc,
};
pub use powertcp::PowerTcp;
pub use rate::Rate;
pub use swift::{Swift, SwiftConfig};
pub use telemetry::{Counter, Hop, HopIndex, MAX_HOPS, PathTelemetry};
pub use time::Instant;

use core::time::Duration;

/// An acknowledgement, as the congestion controller sees it.
///
/// `seq` and `next` count in one unit that only ever grows (packets, bytes or probes): the controller compares
/// them with each other and with nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// When the acknowledgement arrived.
    pub now: Instant,
    /// The first number that is not yet acknowledged.
    pub seq: u64,
    /// The next number to be sent (`snd_nxt` in rtgwg-00 4.2).
    pub next: u64,
    /// Payload bytes newly acknowledged.
    pub acked_bytes: u32,
    /// Of these, bytes that arrived with an ECN congestion mark.
    pub ce_bytes: u32,
    /// A round trip measured by this acknowledgement, if it measures one.
    pub rtt: Option<Duration>,
}

/// One queue pair's congestion controller.
///
/// Calls come in the order in which things happen; `now` never goes back.
pub trait CongestionController {
    /// A data packet with `bytes` of payload left; `pn` counts packets.
    fn on_send(&mut self, now: Instant, pn: u64, bytes: u32);
    /// Telemetry came back. Called before [`on_ack`](Self::on_ack) if one packet brings both.
    fn on_telemetry(&mut self, ack: &Ack, path: &PathTelemetry);
    /// The receiver measured the busiest hop and reports only how busy it is (rtgwg-00 9.1). [`Hpcc`] and [`PowerTcp`] listen.
    fn on_inflight(&mut self, ack: &Ack, busiest: &Inflight) {
        let _ = (ack, busiest);
    }
    /// Data was acknowledged.
    fn on_ack(&mut self, ack: &Ack);
    /// A congestion notification packet (CNP) came.
    fn on_congestion_notification(&mut self, now: Instant);
    /// The receiver computed a window, in payload bytes, and sent it (rtgwg-00 6.3.2). Only [`HpccReceiver`] listens.
    fn on_window(&mut self, window: u64) {
        let _ = window;
    }
    /// The receiver reported its own link. Called before the telemetry that came along. Only the variant `hpcc-fair` of [`Hpcc`] listens.
    fn on_receiver_link(&mut self, link: ReceiverLink) {
        let _ = link;
    }
    /// From now on packets take another path, and none is on its way on the old one (rtgwg-00 9.4).
    fn on_path_change(&mut self) {}
    /// Data was lost: a NAK for a sequence gap, or a timeout.
    fn on_loss(&mut self, now: Instant);
    /// When [`on_timeout`](Self::on_timeout) wants to be called, if ever.
    fn poll_timeout(&self) -> Option<Instant>;
    /// The time of [`poll_timeout`](Self::poll_timeout) has come.
    fn on_timeout(&mut self, now: Instant);
    /// Bytes of payload that may be in flight. The sender stops when in-flight bytes reach it.
    fn window(&self) -> u64;
    /// Pacing rate, counted in bytes on the wire; `None` sends as fast as the window allows.
    fn pacing_rate(&self) -> Option<Rate>;
}

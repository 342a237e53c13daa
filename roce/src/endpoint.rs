use crate::qp::{Completion, Modify, PostError, QpInit, QpReport, RecvRequest, SendRequest};
use crate::{Access, Counters, Discard, Lkey, Memory, Qpn, Region};
use cc::Instant;
use thiserror::Error;

/// A protection domain: queue pairs and regions of different domains don't meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// A completion queue of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// Limits and secrets of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// Queue pairs it may hold.
    pub max_qps: u32,
    /// Completion queues it may hold.
    pub max_cqs: u32,
    /// Memory regions it may hold.
    pub max_regions: u32,
    /// Unpredictable: keys, queue pair numbers and initial PSNs are drawn from it.
    pub seed: [u8; 32],
    /// Put into the top bits of every queue pair's number, so that any core sees whose a packet is.
    pub core: u8,
}

/// Why a control call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum ControlError {
    #[error("no more than {limit} {what} on one core")]
    Limit { what: &'static str, limit: u32 },
    #[error("there is no QP {0}")]
    NoQp(Qpn),
    #[error("there is no CQ {}", .0.0)]
    NoCq(CqId),
    #[error("there is no region with lkey {0}")]
    NoRegion(Lkey),
    #[error("QP {qpn} can't go from {from:?} to {to}")]
    Transition { qpn: Qpn, from: crate::qp::State, to: &'static str },
    #[error("{what} is {value}: the limit is {limit}")]
    Value { what: &'static str, value: u64, limit: u64 },
    #[error("CQ {} still serves {qps} queue pairs", .cq.0)]
    CqBusy { cq: CqId, qps: u32 },
    #[error("service {0:?} is not supported")]
    Service(crate::wire::Service),
}

/// All queue pairs, completion queues and memory regions of one poll-mode core.
pub struct Endpoint {}

#[allow(missing_docs, unused_variables, clippy::missing_errors_doc, clippy::todo)]
impl Endpoint {
    pub fn new(config: EndpointConfig) -> Self {
        todo!()
    }

    /// Makes a protection domain.
    pub fn create_pd(&mut self) -> PdId {
        todo!()
    }

    /// Makes a completion queue that holds `depth` completions not yet polled.
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId, ControlError> {
        todo!()
    }

    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        todo!()
    }

    /// Moves completions out, oldest first, until `into` takes no more (`false`) or none are left.
    pub fn poll_cq(&mut self, cq: CqId, into: &mut dyn FnMut(&Completion) -> bool) -> usize {
        todo!()
    }

    /// Whether the queue lost completions because nobody polled; its queue pairs are in ERR.
    pub fn cq_overflowed(&self, cq: CqId) -> bool {
        todo!()
    }

    pub fn register(
        &mut self,
        pd: PdId,
        address: u64,
        length: u64,
        access: Access,
    ) -> Result<Region, ControlError> {
        todo!()
    }

    pub fn deregister(&mut self, lkey: Lkey) -> Result<(), ControlError> {
        todo!()
    }

    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, ControlError> {
        todo!()
    }

    pub fn modify_qp(&mut self, now: Instant, qpn: Qpn, modify: Modify) -> Result<(), ControlError> {
        todo!()
    }

    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ControlError> {
        todo!()
    }

    pub fn report(&self, qpn: Qpn) -> Option<QpReport> {
        todo!()
    }

    pub fn post_send(&mut self, now: Instant, qpn: Qpn, request: SendRequest) -> Result<(), PostError> {
        todo!()
    }

    pub fn post_recv(&mut self, qpn: Qpn, request: RecvRequest) -> Result<(), PostError> {
        todo!()
    }

    /// Send requests that the queue pair would still take now; 0 means that `post_send` answers `QueueFull`. Requests
    /// that are done, signalled or not, take no room.
    pub fn send_room(&self, qpn: Qpn) -> u32 {
        todo!()
    }

    /// Receive requests that the queue pair would still take now.
    pub fn recv_room(&self, qpn: Qpn) -> u32 {
        todo!()
    }

    /// Takes in one Ethernet frame. Answers leave by `poll_transmit`. What is dropped is counted here.
    pub fn on_frame<M: Memory>(&mut self, now: Instant, memory: &mut M, frame: &[u8]) -> Result<(), Discard> {
        todo!()
    }

    /// Writes the next frame that may leave now to the start of `frame`, ICRC and all, and gives its length.
    /// `frame` must have room for the largest packet: MTU + 128.
    pub fn poll_transmit<M: Memory>(&mut self, now: Instant, memory: &M, frame: &mut [u8]) -> Option<usize> {
        todo!()
    }

    /// When something happens without a packet: a retry, a pacing gap that ends, a probe. `None`: never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        todo!()
    }

    /// Time has come to at least `now`.
    pub fn on_timeout(&mut self, now: Instant) {
        todo!()
    }

    pub fn counters(&self) -> &Counters {
        todo!()
    }
}

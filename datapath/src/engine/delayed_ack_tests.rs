//! Tests of delayed acknowledgements: decisions about bursts, and two connected cores.

use super::delayed_ack::DelayedAck;
use super::pending_frames_tests::{create, ready};
use super::tests::config;
use super::*;
use crate::io::{self, Burst, Loopback, LoopbackBuf, PacketBuf, PacketIo};
use cc::Instant;
use roce::qp::{CompletionOpcode, Data, RecvRequest, SendRequest};
use roce::wire::Path;
use std::net::IpAddr;
use std::time::Duration;

// Opcodes of RC (IBA table 38).
const SEND: u8 = 0x04;
const READ_RESPONSE: u8 = 0x10;
const ACK: u8 = 0x11;

/// The first byte of the BTH.
const BTH: usize = 42;

/// A program's bursts in virtual time.
struct Program {
    delayed: DelayedAck,
    port: Loopback,
    burst: Burst<LoopbackBuf>,
    now: Instant,
}

impl Program {
    fn new(delayed: DelayedAck) -> Self {
        let (port, _) = io::pair(64, 64);
        Self { delayed, port, burst: Burst::new(), now: Instant::from_nanos(1_000_000) }
    }

    /// Adds frames to the burst `us` microseconds later. Returns the opcodes of what leaves.
    fn sends(&mut self, us: u64, opcodes: &[u8]) -> Vec<u8> {
        self.now = self.now + Duration::from_micros(us);
        for opcode in opcodes {
            let frame = self.frame(*opcode);
            self.burst.push(frame);
        }
        match self.delayed.leaves(self.now, &self.burst) {
            true => self.burst.drain(..).map(|frame| frame[BTH]).collect(),
            false => vec![],
        }
    }

    /// Returns a frame over IPv4 with four bytes between BTH and ICRC, to queue pair 0.
    fn frame(&mut self, opcode: u8) -> LoopbackBuf {
        let mut frame = self.port.alloc().unwrap();
        frame.set_len(62);
        frame.fill(0);
        frame[12..18].copy_from_slice(&[0x08, 0x00, 0x45, 0, 0, 48]);
        frame[23] = 17;
        frame[36..38].copy_from_slice(&4791_u16.to_be_bytes());
        frame[39] = 28;
        frame[BTH] = opcode;
        frame
    }
}

#[test]
fn an_acknowledgement_waits_after_eight_quick_replies_and_leaves_with_the_ninth() {
    let mut program = Program::new(DelayedAck::new(true));
    for _ in 0..8 {
        assert_eq!(program.sends(100, &[ACK]), [ACK]);
        assert_eq!(program.sends(5, &[SEND]), [SEND]);
    }
    assert_eq!(program.sends(100, &[ACK]), []);
    assert_eq!(program.sends(5, &[]), []);
    assert_eq!(program.sends(5, &[SEND, SEND]), [ACK, SEND, SEND]);
    assert_eq!(program.sends(100, &[ACK]), [], "the reply was quick");
}

#[test]
fn an_acknowledgement_without_a_reply_leaves_after_10_us_and_the_next_ones_at_once() {
    let mut program = Program::new(DelayedAck::after_replies());
    assert_eq!(program.sends(0, &[ACK]), []);
    assert_eq!(program.sends(10, &[]), []);
    assert_eq!(program.sends(1, &[]), [ACK]);
    assert_eq!(program.sends(1, &[ACK]), [ACK]);
}

#[test]
fn a_late_reply_does_not_count() {
    let mut program = Program::new(DelayedAck::after_replies());
    assert_eq!(program.sends(0, &[ACK]), []);
    assert_eq!(program.sends(11, &[SEND]), [ACK, SEND]);
    assert_eq!(program.sends(100, &[ACK]), [ACK]);
}

#[test]
fn acknowledgements_of_a_stream_do_not_wait() {
    let mut program = Program::new(DelayedAck::after_replies());
    assert_eq!(program.sends(0, &[ACK]), []);
    assert_eq!(program.sends(1, &[ACK]), [ACK, ACK]);
    assert_eq!(program.sends(1, &[ACK]), [ACK]);
    let mut program = Program::new(DelayedAck::after_replies());
    assert_eq!(program.sends(0, &[ACK; 5]), [ACK; 5]);
}

#[test]
fn requests_of_another_queue_pair_and_frames_that_are_no_requests_are_no_replies() {
    let mut program = Program::new(DelayedAck::after_replies());
    assert_eq!(program.sends(0, &[ACK]), []);
    assert_eq!(program.sends(1, &[READ_RESPONSE]), [ACK, READ_RESPONSE]);
    assert_eq!(program.sends(100, &[ACK]), [ACK]);
    let mut program = Program::new(DelayedAck::after_replies());
    assert_eq!(program.sends(0, &[ACK]), []);
    let mut other = program.frame(SEND);
    other[BTH + 7] = 1;
    program.burst.push(other);
    assert_eq!(program.sends(1, &[]), [ACK, SEND]);
    assert_eq!(program.sends(100, &[ACK]), [ACK]);
}

#[test]
fn a_nak_does_not_wait() {
    let mut program = Program::new(DelayedAck::after_replies());
    let mut nak = program.frame(ACK);
    nak[BTH + 12] = 0x60;
    program.burst.push(nak);
    assert_eq!(program.sends(0, &[]), [ACK]);
}

#[test]
fn the_acks_of_a_program_that_may_not_poll_never_wait() {
    let mut program = Program::new(DelayedAck::new(false));
    for _ in 0..20 {
        assert_eq!(program.sends(100, &[ACK]), [ACK]);
        assert_eq!(program.sends(1, &[SEND]), [SEND]);
    }
}

/// One of two connected cores, which the test runs.
struct Side {
    engine: Engine,
    qp: QpRings,
    cq: CqRing,
}

impl Side {
    fn new(port: Loopback, mac: Mac) -> Self {
        let config = CoreConfig { mac, ..config(Progress::Inline) };
        // SAFETY: this test registers no memory.
        let engine = unsafe { Engine::start(port, &config).unwrap() };
        let (qp, cq) = engine.call(create).unwrap();
        Self { engine, qp, cq }
    }

    fn connect(&mut self, path: Path, other: &Self) {
        let (qpn, destination) = (self.qp.qpn(), other.qp.qpn());
        let rules = self.engine.call(move |state, now| {
            ready(state, now, qpn, path, destination);
            state.delayed_ack = DelayedAck::after_replies();
            state.endpoint.post_rules(qpn).unwrap()
        });
        self.qp.set_rules(rules.unwrap());
        self.qp.push_recv(RecvRequest::scatter(0, &[])).unwrap();
        self.qp.ring_doorbell();
        self.engine.progress();
    }

    fn send(&mut self) {
        self.qp.push_send(SendRequest::send(0, Data::inline(&[]))).unwrap();
        self.qp.ring_doorbell();
        self.engine.progress();
    }

    /// Runs a turn. Returns what has completed.
    fn completed(&mut self) -> Vec<CompletionOpcode> {
        self.engine.progress();
        let mut completed = vec![];
        self.cq.pop_each(64, &mut |completion| completed.push(completion.opcode));
        completed
    }
}

fn connected() -> [Side; 2] {
    let addresses = [1, 2].map(|last| (Mac([2, 0, 0, 0, 0, last]), IpAddr::from([10, 0, 0, last])));
    let (left, right) = io::pair(64, 2048);
    let [mut a, mut b] = [Side::new(left, addresses[0].0), Side::new(right, addresses[1].0)];
    a.connect(Path::new(addresses[0], addresses[1]), &b);
    b.connect(Path::new(addresses[1], addresses[0]), &a);
    [a, b]
}

#[test]
fn a_reply_arrives_after_the_request_is_complete() {
    let [mut a, mut b] = connected();
    a.send();
    assert_eq!(b.completed(), [CompletionOpcode::Recv]);
    assert_eq!(a.completed(), []);
    b.send();
    assert_eq!(a.completed(), [CompletionOpcode::Send, CompletionOpcode::Recv]);
}

#[test]
fn an_acknowledgement_leaves_before_its_queue_pair_is_destroyed() {
    let [mut a, mut b] = connected();
    a.send();
    assert_eq!(b.completed(), [CompletionOpcode::Recv]);
    let qpn = b.qp.qpn();
    b.engine.call(move |state, now| state.destroy_qp(now, qpn).unwrap()).unwrap();
    assert_eq!(a.completed(), [CompletionOpcode::Send]);
}

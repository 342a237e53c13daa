//! Packet scripts: one endpoint whose peer is the test.

use super::{BASE, Host, Options, path};
use cc::Instant;
use core::time::Duration;
use roce::qp::State;
use roce::wire::{
    Aeth, Bth, Header, MAX_IN_BAND, MAX_OVERHEAD, NakCode, Operation, Path, Reth, RnrTimer, SendTail,
    Service, Syndrome, emit, parse,
};
use roce::{Discard, Psn, Qpn, Rkey};

/// The first PSN of both directions.
pub const PSN: u32 = 1000;

/// The queue pair number of the test's side.
pub const PEER: u32 = 0x4711;

pub struct Script {
    pub host: Host,
    pub now: Instant,
    pub path: Path,
    pub partition_key: u16,
}

impl Script {
    /// Creates a script whose queue pair is in RTS.
    pub fn new(options: Options) -> Self {
        let mut script = Self::receiving(options);
        script.host.ready_to_send(&Options { send_psn: PSN, ..options });
        script
    }

    /// Creates a script whose queue pair is in RTR.
    pub fn receiving(options: Options) -> Self {
        let options = Options { send_psn: PSN, ..options };
        let mut host = Host::new(2, &options);
        host.ready_to_receive(path(2, 1), Qpn::new(PEER), PSN, &options);
        Self { host, now: Instant::from_nanos(1), path: path(1, 2), partition_key: 0xffff }
    }

    pub fn bth(&self, psn: u32) -> Bth {
        Bth { partition_key: self.partition_key, ack_request: true, ..Bth::new(self.host.qpn, Psn::new(psn)) }
    }

    /// Delivers a packet from the peer.
    pub fn send(&mut self, psn: u32, operation: Operation, payload: &[u8]) -> Result<(), Discard> {
        let header = Header::Connected { service: Service::Rc, bth: self.bth(psn), operation };
        self.send_header(&header, payload)
    }

    pub fn send_header(&mut self, header: &Header, payload: &[u8]) -> Result<(), Discard> {
        let frame = self.frame(header, payload);
        self.host.endpoint.on_frame(self.now, &mut self.host.ram, &frame)
    }

    pub fn frame(&self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; payload.len() + MAX_OVERHEAD + MAX_IN_BAND];
        let mut draft = emit(&self.path, 0, header, payload.len(), &mut frame).unwrap();
        draft.payload().copy_from_slice(payload);
        let length = draft.seal();
        frame.truncate(length);
        frame
    }

    /// Returns the next packet that the endpoint sends, if any.
    pub fn next_header(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut frame = vec![0; 4096 + MAX_OVERHEAD + MAX_IN_BAND];
        let length = self.host.endpoint.poll_transmit(self.now, &self.host.ram, &mut frame)?;
        let packet = parse(&frame[..length]).unwrap();
        assert_eq!(packet.header.bth().destination, Qpn::new(PEER));
        Some((packet.header, packet.payload.to_vec()))
    }

    /// Returns the PSN and operation of the next packet that the endpoint sends.
    pub fn next(&mut self) -> Option<(u32, Operation)> {
        match self.next_header()? {
            (Header::Connected { bth, operation, .. }, _) => Some((bth.psn.get(), operation)),
            (other, _) => panic!("{other:?}"),
        }
    }

    /// Returns all packets that the endpoint sends now.
    pub fn drain(&mut self) -> Vec<(u32, Operation)> {
        core::iter::from_fn(|| self.next()).collect()
    }

    pub fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.host.endpoint.on_timeout(self.now);
    }

    pub fn state(&self) -> State {
        self.host.endpoint.report(self.host.qpn).unwrap().state
    }

    pub fn reth(&self, offset: u64, length: u32) -> Reth {
        Reth { address: BASE + offset, rkey: self.host.region.rkey, length }
    }

    pub fn rkey(&self) -> Rkey {
        self.host.region.rkey
    }

    pub fn discarded(&self, reason: Discard) -> u64 {
        self.host.endpoint.counters().discarded(reason)
    }
}

pub const fn ack(msn: u32) -> Operation {
    Operation::Acknowledge(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn })
}

pub const fn nak(code: NakCode, msn: u32) -> Operation {
    Operation::Acknowledge(Aeth { syndrome: Syndrome::Nak(code), msn })
}

pub const fn rnr(timer: u8, msn: u32) -> Operation {
    Operation::Acknowledge(Aeth { syndrome: Syndrome::RnrNak(RnrTimer::new(timer)), msn })
}

pub const SEND: Operation = Operation::SendOnly(SendTail::Plain);
pub const LAST: Operation = Operation::SendLast(SendTail::Plain);

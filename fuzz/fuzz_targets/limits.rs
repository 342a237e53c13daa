//! Checks limits. A reliable responder remembers no more READs and atomics than its limit, which the program changes. No request of a
//! shared receive queue is lost or added, whichever messages of an unreliable peer are abandoned.
#![no_main]

use arbitrary::Arbitrary;
use harness::script::{LAST, PEER, PSN, SEND, Script};
use harness::{Options, path};
use libfuzzer_sys::fuzz_target;
use roce::qp::{Changes, Modify, QpInit, RecvRequest, State};
use roce::wire::{AtomicEth, Bth, FetchAdd, Header, MAX_OVERHEAD, Operation, Service, emit};
use roce::{Psn, Qpn, SrqId, SrqInit};

use testkit::harness;

const DEPTH: u32 = 4;
/// Bytes of each receive: three packets.
const ROOM: u64 = 3000;
/// Most READs and atomics that are repeated to find out which are remembered.
const ASKED_AGAIN: usize = 24;

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Input {
    /// Sends a READ or an atomic with a PSN `ahead` of the expected one, or behind it.
    Ask { atomic: bool, ahead: i8, length: u16 },
    /// Changes the limit on outstanding READs and atomics.
    Limit { reads: u8 },
    /// Sends a packet of a message to the unreliable queue pair, with a PSN `ahead` of the expected one.
    Message { part: Part, ahead: u8, length: u16 },
    Post,
    /// Resets the unreliable queue pair, after it has failed if `fails`.
    Restart { fails: bool },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Part {
    First,
    Middle,
    Last,
    Only,
}

struct World {
    /// The endpoint with the reliable queue pair.
    script: Script,
    unreliable: Qpn,
    srq: SrqId,
    limit: u8,
    /// First PSNs of the accepted READs and atomics.
    taken: Vec<(u32, Operation)>,
    posted: u64,
    received: u64,
}

impl World {
    fn new() -> Self {
        let mut script =
            Script::new(Options { memory: 1 << 13, max_dest_rd_atomic: 4, ..Options::default() });
        let pd = script.host.pd;
        let shared = SrqInit { pd, depth: DEPTH, max_sge: 1, xrc: None };
        let srq = script.host.endpoint.create_srq(shared).expect("the first");
        let init = QpInit { service: Service::Uc, srq: Some(srq), ..script.host.init(&Options::default()) };
        let unreliable = script.host.endpoint.create_qp(script.now, init).expect("the second");
        let mut world = Self { script, unreliable, srq, limit: 4, taken: Vec::new(), posted: 0, received: 0 };
        world.connect();
        world
    }

    fn connect(&mut self) {
        let reliable = core::mem::replace(&mut self.script.host.qpn, self.unreliable);
        self.script.host.ready_to_receive(path(2, 1), Qpn::new(PEER), PSN, &Options::default());
        self.script.host.qpn = reliable;
    }

    fn modify(&mut self, qpn: Qpn, modify: Modify) {
        self.script.host.endpoint.modify_qp(self.script.now, qpn, modify).expect("legal in its state");
    }

    fn ask(&mut self, atomic: bool, ahead: i8, length: u16) {
        let (rkey, script) = (self.script.rkey(), &mut self.script);
        let expected = script.host.endpoint.report(script.host.qpn).expect("it is there").expected_psn.get();
        let psn = expected.wrapping_add_signed(ahead.into()) & 0xff_ffff;
        let operation = if atomic {
            let address = script.reth(0, 8).address;
            Operation::FetchAdd(AtomicEth { address, rkey, operands: FetchAdd { add: 1 } })
        } else {
            Operation::ReadRequest(script.reth(0, u32::from(length) % 3000))
        };
        let is_new = script.send(psn, operation, &[]).is_ok() && psn == expected;
        script.drain();
        let now_expected = script.host.endpoint.report(script.host.qpn).expect("it is there").expected_psn;
        if is_new && now_expected.get() != expected {
            self.taken.push((psn, operation));
        }
    }

    fn limit(&mut self, reads: u8) {
        if self.script.state() != State::ReadyToSend {
            return;
        }
        let qpn = self.script.host.qpn;
        self.limit = reads % 5;
        self.modify(qpn, Modify::Drain { notify: false });
        let changes = Changes { max_dest_rd_atomic: Some(self.limit), ..Changes::default() };
        self.modify(qpn, Modify::Change(changes));
        self.modify(qpn, Modify::Resume);
    }

    fn message(&mut self, part: Part, ahead: u8, length: u16) {
        let operation = match part {
            Part::First => Operation::SendFirst,
            Part::Middle => Operation::SendMiddle,
            Part::Last => LAST,
            Part::Only => SEND,
        };
        let whole = matches!(part, Part::First | Part::Middle);
        let length = if whole { 1024 } else { usize::from(length) % 1025 };
        let host = &mut self.script.host;
        let Some(report) = host.endpoint.report(self.unreliable) else { return };
        let psn = Psn::new(report.expected_psn.get() + u32::from(ahead % 4));
        let header =
            Header::Connected { service: Service::Uc, bth: Bth::new(self.unreliable, psn), operation };
        let mut frame = vec![0; length + MAX_OVERHEAD];
        let length = emit(&path(1, 2), 0, &header, length, &mut frame).expect("a legal packet").seal();
        // A dropped frame is counted, and its message is abandoned.
        let _ = host.endpoint.on_frame(self.script.now, &mut host.ram, &frame[..length]);
    }

    fn post(&mut self) {
        let room = self.script.host.endpoint.srq_room(self.srq);
        let sge = self.script.host.sge(0, ROOM as u32);
        let request = RecvRequest::new(self.posted, sge);
        let posted = self.script.host.endpoint.post_srq_recv(self.srq, request);
        assert_eq!(posted.is_ok(), room > 0, "{posted:?} with room for {room}");
        self.posted += u64::from(posted.is_ok());
    }

    /// Checks that each posted request waits, belongs to the one message in progress, or has completed.
    fn check_receives(&mut self) {
        self.received += self.script.host.received().len() as u64;
        let waiting = self.script.host.endpoint.srq_report(self.srq).expect("it is there").waiting;
        let room = self.script.host.endpoint.srq_room(self.srq);
        let lent = self.posted.checked_sub(self.received + u64::from(waiting)).expect("none comes twice");
        assert!(lent <= 1, "{lent} vanished");
        assert_eq!(u64::from(DEPTH), u64::from(waiting + room) + lent, "{waiting} wait");
    }

    /// Checks that no more repeated requests are answered than the limit.
    fn check_kept(&mut self) {
        let newest: Vec<_> = self.taken.iter().rev().take(ASKED_AGAIN).copied().collect();
        let mut kept = 0;
        for (psn, operation) in newest {
            let _ = self.script.send(psn, operation, &[]);
            kept += usize::from(!self.script.drain().is_empty());
        }
        assert!(kept <= usize::from(self.limit), "{kept} kept, the limit is {}", self.limit);
    }
}

fuzz_target!(|inputs: Vec<Input>| {
    let mut world = World::new();
    for input in inputs.iter().take(128) {
        match *input {
            Input::Ask { atomic, ahead, length } => world.ask(atomic, ahead, length),
            Input::Limit { reads } => world.limit(reads),
            Input::Message { part, ahead, length } => world.message(part, ahead, length),
            Input::Post => world.post(),
            Input::Restart { fails } => {
                if fails {
                    world.modify(world.unreliable, Modify::Error);
                }
                world.modify(world.unreliable, Modify::Reset);
                world.connect();
            }
        }
        world.check_receives();
    }
    if world.script.state() == State::ReadyToSend {
        world.check_kept();
    }
});

//! The responder against Linux's requester (`harness/linux.rs`), which accepts every ACK: sequences of requests of all kinds, with each
//! frame of either direction lost, delayed or duplicated. In every case a READ or an atomic that completes has its data.

use crate::harness::linux::{LinuxRequester, Packet, Work};
use crate::harness::script::{PSN, Script};
use crate::harness::{BASE, Options};
use roce::qp::RecvRequest;
use roce::wire::{AtomicEth, CompareSwap, FetchAdd, Feth, Operation, Reth, Syndrome};
use roce::{Access, Region};
use std::collections::VecDeque;

/// Bytes of memory for each request in each area: sources of READs, targets of WRITEs, receives of SENDs, and words.
const ROOM: u64 = 4096;
const AREA: u64 = 4 * ROOM;
const WRITES: u64 = AREA;
const RECEIVES: u64 = 2 * AREA;
const WORDS: u64 = 3 * AREA;
/// The initial value of each word that atomics change.
const BEFORE: u64 = 1000;
/// Length in bytes of messages of three packets.
const LONG: usize = 2500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    SendImmediate,
    LongSend,
    Write,
    WriteImmediate,
    LongWrite,
    Read,
    LongRead,
    FetchAdd,
    CompareSwap,
    Flush,
    AtomicWrite,
}

use Kind::{
    AtomicWrite as AtomicWriteKind, CompareSwap as CompareSwapKind, FetchAdd as FetchAddKind, Flush,
    LongRead, LongSend, LongWrite, Read, Send, SendImmediate, Write, WriteImmediate,
};

const KINDS: [Kind; 12] = [
    Send,
    SendImmediate,
    LongSend,
    Write,
    WriteImmediate,
    LongWrite,
    Read,
    LongRead,
    FetchAddKind,
    CompareSwapKind,
    Flush,
    AtomicWriteKind,
];

impl Kind {
    const fn is_received(self) -> bool {
        matches!(self, Send | SendImmediate | LongSend | WriteImmediate)
    }

    const fn is_written(self) -> bool {
        matches!(self, Write | WriteImmediate | LongWrite)
    }

    const fn length(self) -> usize {
        match self {
            LongSend | LongWrite | LongRead => LONG,
            _ => 40,
        }
    }

    fn bytes(self, index: usize) -> Vec<u8> {
        vec![index as u8 + 1; self.length()]
    }

    fn work(self, index: usize, region: &Region) -> Work {
        let (rkey, at) = (region.rkey, index as u64);
        let reth = |address, length| Reth { address: BASE + address, rkey, length };
        let length = self.length() as u32;
        let immediate = matches!(self, SendImmediate | WriteImmediate).then_some([7; 4]);
        let word = BASE + WORDS + 8 * at;
        match self {
            Send | SendImmediate | LongSend => Work::Send(self.bytes(index), immediate),
            Write | WriteImmediate | LongWrite => {
                Work::Write(reth(WRITES + ROOM * at, length), self.bytes(index), immediate)
            }
            Read | LongRead => Work::Read(reth(ROOM * at, length)),
            FetchAddKind => {
                Work::FetchAdd(AtomicEth { address: word, rkey, operands: FetchAdd { add: at + 1 } })
            }
            CompareSwapKind => {
                let operands = CompareSwap { compare: BEFORE, swap: BEFORE + at + 1 };
                Work::CompareSwap(AtomicEth { address: word, rkey, operands })
            }
            Flush => Work::Flush(Feth::new(true, false, false), reth(0, 64)),
            AtomicWriteKind => Work::AtomicWrite(reth(WORDS + 8 * at, 8), (BEFORE + at + 1).to_ne_bytes()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Lost,
    /// The frame arrives after this number of later frames.
    Late(usize),
    /// A copy arrives after this number of later frames.
    Twice(usize),
}

const FAULTS: [Fault; 8] = [
    Fault::Lost,
    Fault::Late(1),
    Fault::Late(2),
    Fault::Late(4),
    Fault::Twice(0),
    Fault::Twice(1),
    Fault::Twice(2),
    Fault::Twice(4),
];

#[derive(Default)]
struct Wire {
    frames: VecDeque<Packet>,
    count: usize,
    fault: Option<(usize, Fault)>,
    late: Option<(usize, Packet)>,
    /// Whether the fault delayed an ACK: no responder can prevent that it arrives between the responses of a READ.
    delayed_ack: bool,
}

impl Wire {
    fn push(&mut self, packet: Packet) {
        let fault = self.fault.filter(|&(index, _)| index == self.count).map(|(_, fault)| fault);
        self.count += 1;
        match fault {
            None => self.frames.push_back(packet),
            Some(Fault::Lost) => return,
            Some(Fault::Late(behind)) => self.delay(behind, packet),
            Some(Fault::Twice(0)) => self.frames.extend([packet.clone(), packet]),
            Some(Fault::Twice(behind)) => {
                self.frames.push_back(packet.clone());
                self.delay(behind, packet);
            }
        }
        if fault.is_none()
            && let Some((behind, _)) = &mut self.late
        {
            *behind -= 1;
            if *behind == 0 {
                self.release();
            }
        }
    }

    fn delay(&mut self, behind: usize, packet: Packet) {
        let ack =
            matches!(packet.1, Operation::Acknowledge(aeth) if matches!(aeth.syndrome, Syndrome::Ack { .. }));
        self.delayed_ack |= ack;
        self.late = Some((behind, packet));
    }

    /// Delivers the delayed frame. Returns `false` if there is none.
    fn release(&mut self) -> bool {
        let late = self.late.take();
        self.frames.extend(late.iter().map(|(_, packet)| packet.clone()));
        late.is_some()
    }
}

/// The speed of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// All requests arrive in one burst.
    Burst,
    /// Each request is answered before the next arrives.
    Each,
    /// The responder sends one packet for each one that arrives.
    Interleaved,
}

const PACES: [Pace; 3] = [Pace::Burst, Pace::Each, Pace::Interleaved];

struct Simulation<'a> {
    kinds: &'a [Kind],
    script: Script,
    linux: LinuxRequester,
    requests: Wire,
    answers: Wire,
}

impl<'a> Simulation<'a> {
    fn new(kinds: &'a [Kind], requests: Option<(usize, Fault)>, answers: Option<(usize, Fault)>) -> Self {
        let access = Access::ALL | Access::REMOTE_FLUSH;
        let mut script = Script::new(Options { memory: 1 << 16, access, ..Options::default() });
        let region = script.windowed(access);
        for (index, byte) in script.host.ram.0[..AREA as usize].iter_mut().enumerate() {
            *byte = (index / 7) as u8;
        }
        for index in 0..kinds.len() {
            let at = WORDS as usize + 8 * index;
            script.host.ram.0[at..at + 8].copy_from_slice(&BEFORE.to_ne_bytes());
        }
        let works = kinds.iter().enumerate().map(|(index, kind)| kind.work(index, &region)).collect();
        Self {
            kinds,
            script,
            linux: LinuxRequester::new(PSN, works),
            requests: Wire { fault: requests, ..Wire::default() },
            answers: Wire { fault: answers, ..Wire::default() },
        }
    }

    fn post_receives(&mut self) {
        for index in 0..self.kinds.iter().filter(|kind| kind.is_received()).count() {
            let sge = self.script.host.sge(RECEIVES + ROOM * index as u64, ROOM as u32);
            let request = RecvRequest::new(index as u64, sge);
            self.script.host.endpoint.post_recv(self.script.host.qpn, request).unwrap();
        }
    }

    /// Delivers requests, and sends responses.
    fn respond(&mut self, pace: Pace) {
        let requests = if pace == Pace::Burst { self.requests.frames.len() } else { 1 };
        for (psn, operation, payload) in
            self.requests.frames.drain(..requests.min(self.requests.frames.len()))
        {
            // Some are duplicates, or follow a gap.
            let _ = self.script.send(psn, operation, &payload);
        }
        let answers = if pace == Pace::Interleaved { 1 } else { usize::MAX };
        for _ in 0..answers {
            let Some((roce::wire::Header::Connected { bth, operation, .. }, payload)) =
                self.script.next_header()
            else {
                break;
            };
            self.answers.push((bth.psn.get(), operation, payload));
        }
    }

    /// Runs until all requests have completed, or for 400 steps. Receives are posted at once, or only when no packet is in flight.
    fn run(&mut self, pace: Pace, mut receives_late: bool) {
        if !receives_late {
            self.post_receives();
        }
        for _ in 0..400 {
            self.linux.transmit().into_iter().for_each(|packet| self.requests.push(packet));
            self.respond(pace);
            let is_quiet = self.requests.frames.is_empty() && self.answers.frames.is_empty();
            while let Some(packet) = self.answers.frames.pop_front() {
                self.linux.on_answer(packet);
            }
            if !is_quiet || self.requests.release() || self.answers.release() {
                continue;
            }
            if self.linux.is_done() {
                return;
            }
            if core::mem::take(&mut receives_late) {
                self.post_receives();
            }
            self.linux.on_timeout();
        }
    }

    /// Checks that each request is complete, with its data and its effect.
    fn verdict(&mut self) -> Result<(), String> {
        let completed: Vec<Vec<u8>> = self.linux.completed().map(<[u8]>::to_vec).collect();
        for (index, data) in completed.iter().enumerate() {
            let expected = match self.kinds[index] {
                kind @ (Read | LongRead) => {
                    self.script.host.bytes(index * ROOM as usize, kind.length()).to_vec()
                }
                FetchAddKind | CompareSwapKind => BEFORE.to_ne_bytes().to_vec(),
                _ => Vec::new(),
            };
            if *data != expected {
                return Err(format!("request {index} completed with {} of {} B", data.len(), expected.len()));
            }
        }
        if self.linux.failed || completed.len() < self.kinds.len() {
            return Err(format!("{} completed, failed: {}", completed.len(), self.linux.failed));
        }
        let received = self.script.host.received().len();
        let is_done = |(index, kind): (usize, &Kind)| {
            let word = self.script.host.bytes(WORDS as usize + 8 * index, 8);
            let written = self.script.host.bytes(WRITES as usize + ROOM as usize * index, kind.length());
            match kind {
                FetchAddKind | CompareSwapKind | AtomicWriteKind => {
                    word == (BEFORE + index as u64 + 1).to_ne_bytes()
                }
                _ => !kind.is_written() || written == kind.bytes(index),
            }
        };
        let is_executed = self.kinds.iter().enumerate().all(is_done);
        match is_executed && received == self.kinds.iter().filter(|kind| kind.is_received()).count() {
            true => Ok(()),
            false => Err("not executed once".into()),
        }
    }
}

/// The faults of requests, and of responses.
type Faults = [Option<(usize, Fault)>; 2];

/// Runs `kinds` with the faults. Returns the number of frames in each direction.
fn run(kinds: &[Kind], faults: Faults, pace: Pace, receives_late: bool) -> [usize; 2] {
    let mut simulation = Simulation::new(kinds, faults[0], faults[1]);
    simulation.run(pace, receives_late);
    if let Err(what) = simulation.verdict()
        && !(simulation.answers.delayed_ack && simulation.linux.interrupted)
    {
        panic!(
            "{kinds:?}, faults of requests and answers {faults:?}, {pace:?}, receives late {receives_late}: {what}"
        );
    }
    [simulation.requests.count, simulation.answers.count]
}

fn run_each_fault(kinds: &[Kind], receives_late: bool) {
    for pace in PACES {
        let counts = run(kinds, [None, None], pace, receives_late);
        for fault in FAULTS {
            for index in 0..counts[0] {
                run(kinds, [Some((index, fault)), None], pace, receives_late);
            }
            for index in 0..counts[1] {
                run(kinds, [None, Some((index, fault))], pace, receives_late);
            }
        }
    }
}

/// IBA 9.7.5.1: for any two consecutive requests and any frame that is lost, late or duplicated.
#[test]
fn linux_reads_and_atomics_in_any_pair_have_their_data_with_any_fault() {
    for first in KINDS {
        for second in KINDS {
            run_each_fault(&[first, second], false);
            if first.is_received() || second.is_received() {
                run_each_fault(&[first, second], true);
            }
        }
    }
}

#[test]
fn linux_reads_and_atomics_in_any_three_have_their_data_with_any_fault() {
    let kinds = [Send, Write, LongRead, FetchAddKind];
    for first in kinds {
        for second in kinds {
            for third in kinds {
                run_each_fault(&[first, second, third], false);
            }
        }
    }
}

/// A request and a response each have a fault.
#[test]
fn linux_reads_and_atomics_have_their_data_with_any_fault_each_way() {
    let kinds = [Send, LongWrite, LongRead, FetchAddKind];
    for (first, second) in kinds.into_iter().flat_map(|first| kinds.map(|second| (first, second))) {
        for pace in PACES {
            let counts = run(&[first, second], [None, None], pace, false);
            for (request, answer) in (0..counts[0]).flat_map(|r| (0..counts[1]).map(move |a| (r, a))) {
                for (there, back) in FAULTS.into_iter().flat_map(|there| FAULTS.map(|back| (there, back))) {
                    run(&[first, second], [Some((request, there)), Some((answer, back))], pace, false);
                }
            }
        }
    }
}

//! The requester of Linux's Soft-RoCE (`drivers/infiniband/sw/rxe` of Linux 6.12), as a peer for tests of the responder.
//!
//! It follows these rules of the completer of Soft-RoCE (`rxe_comp.c`), including the faulty ones. The *oldest* request is the first that
//! is not completed; the *next* PSN is that of the response that the requester waits for.
//! 1. A response after the last PSN of the oldest request completes this request, and then applies to the following one. If the oldest is a
//!    READ or an atomic, its response was lost: the requester retransmits everything from the next PSN on.
//! 2. A response before the next PSN is ignored, with two exceptions. With the last PSN of the oldest request, it completes this request.
//!    Between the responses of a READ, an Acknowledge is processed.
//! 3. A response after the next PSN is ignored if the oldest is a READ or an atomic.
//! 4. An ACK with the last PSN of the oldest request completes it **whatever it is: a READ or an atomic with success and without data**.
//! 5. Any other ACK, also one under exception 2, **ends the sequence of a READ's responses**: a middle or last response after it is an
//!    error. The error has no status of its own, so that the READ completes with success and the queue pair fails.
//! 6. A NAK for a sequence error acknowledges all PSNs before it and causes one retransmission of the rest until there is progress; an RNR
//!    NAK causes it after its timer.
//! 7. A READ that is retransmitted requests only the missing bytes.
//!
//! All packets of a request are sent at once, and PSNs do not wrap.

use roce::wire::{
    AtomicEth, CompareSwap, FetchAdd, Feth, Immediate, NakCode, Operation, Reth, SendTail, Syndrome,
};

/// Payload bytes of a packet.
pub const MTU: usize = 1024;

pub type Packet = (u32, Operation, Vec<u8>);

/// A request with the data that it sends.
#[derive(Clone, Debug)]
pub enum Work {
    Send(Vec<u8>, Option<Immediate>),
    Write(Reth, Vec<u8>, Option<Immediate>),
    Read(Reth),
    FetchAdd(AtomicEth<FetchAdd>),
    CompareSwap(AtomicEth<CompareSwap>),
    Flush(Feth, Reth),
    AtomicWrite(Reth, [u8; 8]),
}

impl Work {
    const fn is_fetched(&self) -> bool {
        matches!(self, Self::Read(_) | Self::FetchAdd(_) | Self::CompareSwap(_))
    }

    const fn brings(&self) -> usize {
        match self {
            Self::Read(reth) => reth.length as usize,
            _ => 0,
        }
    }

    fn payload(&self) -> &[u8] {
        match self {
            Self::Send(data, _) | Self::Write(_, data, _) => data,
            Self::AtomicWrite(_, word) => word,
            _ => &[],
        }
    }

    /// Returns the operation of packet `index` of `count`, of a READ that has received `done` bytes.
    fn operation(&self, index: usize, count: usize, done: usize) -> Operation {
        let ends = index + 1 == count;
        match *self {
            Self::Send(_, immediate) => {
                let tail = immediate.map_or(SendTail::Plain, SendTail::Immediate);
                match (index, ends) {
                    (0, true) => Operation::SendOnly(tail),
                    (0, false) => Operation::SendFirst,
                    (_, false) => Operation::SendMiddle,
                    (_, true) => Operation::SendLast(tail),
                }
            }
            Self::Write(reth, _, immediate) => match (index, ends) {
                (0, true) => Operation::WriteOnly(reth, immediate),
                (0, false) => Operation::WriteFirst(reth),
                (_, false) => Operation::WriteMiddle,
                (_, true) => Operation::WriteLast(immediate),
            },
            Self::Read(reth) => Operation::ReadRequest(Reth {
                address: reth.address + done as u64,
                length: reth.length - done as u32,
                ..reth
            }),
            Self::FetchAdd(eth) => Operation::FetchAdd(eth),
            Self::CompareSwap(eth) => Operation::CompareSwap(eth),
            Self::Flush(feth, reth) => Operation::Flush(feth, reth),
            Self::AtomicWrite(reth, _) => Operation::AtomicWrite(reth),
        }
    }
}

#[derive(Debug)]
struct Request {
    work: Work,
    first: u32,
    last: u32,
    is_sent: bool,
    /// Packets that are not retransmitted.
    skipped: usize,
    data: Vec<u8>,
}

/// A requester: its requests, the PSNs of both directions, and the completions.
#[derive(Debug)]
pub struct LinuxRequester {
    requests: Vec<Request>,
    oldest: usize,
    unsent: usize,
    psn: u32,
    next_psn: u32,
    is_within_read: bool,
    is_retrying: bool,
    waits_for_receive: bool,
    /// Whether an error ended the queue pair.
    pub failed: bool,
    /// Whether an ACK was processed between the responses of a READ (exception 2).
    pub interrupted: bool,
}

impl LinuxRequester {
    pub fn new(psn: u32, works: Vec<Work>) -> Self {
        let new = |work| Request { work, first: 0, last: 0, is_sent: false, skipped: 0, data: Vec::new() };
        Self {
            requests: works.into_iter().map(new).collect(),
            oldest: 0,
            unsent: 0,
            psn,
            next_psn: psn,
            is_within_read: false,
            is_retrying: false,
            waits_for_receive: false,
            failed: false,
            interrupted: false,
        }
    }

    /// Returns the response data of each completed request; all completed with success.
    pub fn completed(&self) -> impl Iterator<Item = &[u8]> {
        self.requests.iter().take(self.oldest).map(|request| &request.data[..])
    }

    pub fn is_done(&self) -> bool {
        self.failed || self.oldest == self.requests.len()
    }

    pub fn transmit(&mut self) -> Vec<Packet> {
        let mut packets = Vec::new();
        while !self.waits_for_receive && !self.failed && self.unsent < self.requests.len() {
            let request = &mut self.requests[self.unsent];
            let done = request.data.len();
            let count = match &request.work {
                Work::Read(_) => 1,
                work => work.payload().len().div_ceil(MTU).max(1),
            };
            if request.skipped == 0 {
                let answers = (request.work.brings() - done).div_ceil(MTU).max(1).max(count);
                (request.first, request.last) = (self.psn, self.psn + answers as u32 - 1);
            }
            for index in request.skipped..count {
                let payload = request.work.payload().chunks(MTU).nth(index).unwrap_or_default();
                let psn = request.first + index as u32;
                packets.push((psn, request.work.operation(index, count, done), payload.to_vec()));
            }
            self.psn = request.last + 1;
            request.is_sent = true;
            self.unsent += 1;
        }
        packets
    }

    /// Fires the timer: no more responses arrive.
    pub fn on_timeout(&mut self) {
        if core::mem::take(&mut self.waits_for_receive) {
            self.send_again();
        } else {
            self.is_retrying = false;
            self.retry();
        }
    }

    fn retry(&mut self) {
        let is_sent = self.requests.get(self.oldest).is_some_and(|oldest| oldest.is_sent);
        if is_sent && !self.is_retrying && self.psn > self.next_psn {
            self.is_retrying = true;
            self.send_again();
        }
    }

    fn send_again(&mut self) {
        (self.psn, self.unsent) = (self.next_psn, self.oldest);
        for (index, request) in self.requests.iter_mut().enumerate().skip(self.oldest) {
            if !core::mem::take(&mut request.is_sent) {
                break;
            }
            request.skipped = 0;
            match request.work {
                Work::Read(_) if index == self.oldest => {}
                Work::Send(..) | Work::Write(..) if index == self.oldest => {
                    request.skipped = (self.next_psn - request.first) as usize;
                }
                _ => request.data.clear(),
            }
        }
    }

    pub fn on_answer(&mut self, (psn, operation, payload): Packet) {
        while let Some(oldest) = self.requests.get(self.oldest).filter(|_| !self.failed) {
            if !oldest.is_sent {
                return;
            }
            if psn <= oldest.last {
                return self.on_answer_to_oldest(psn, operation, &payload);
            }
            if oldest.work.is_fetched() {
                return self.retry();
            }
            self.is_retrying = false;
            if oldest.last >= self.next_psn {
                (self.next_psn, self.is_within_read) = (oldest.last + 1, false);
            }
            self.oldest += 1;
        }
    }

    fn on_answer_to_oldest(&mut self, psn: u32, operation: Operation, payload: &[u8]) {
        let oldest = &self.requests[self.oldest];
        if psn < self.next_psn {
            if psn == oldest.last {
                self.oldest += 1;
                return;
            }
            let Operation::Acknowledge(aeth) = operation else { return };
            if !self.is_within_read {
                return;
            }
            self.interrupted |= matches!(aeth.syndrome, Syndrome::Ack { .. });
        } else if psn > self.next_psn && oldest.work.is_fetched() {
            return;
        }
        let fits = match operation {
            Operation::Acknowledge(_) => true,
            Operation::ReadResponseMiddle | Operation::ReadResponseLast(_) => self.is_within_read,
            Operation::ReadResponseFirst(_) => !self.is_within_read || psn == oldest.first,
            Operation::ReadResponseOnly(_) => !self.is_within_read || oldest.first == oldest.last,
            _ => !self.is_within_read,
        };
        if !fits {
            return self.fail();
        }
        match operation {
            Operation::Acknowledge(aeth) => self.on_acknowledge(psn, aeth.syndrome),
            Operation::AtomicAcknowledge { original, .. } => {
                if !matches!(oldest.work, Work::FetchAdd(_) | Work::CompareSwap(_)) {
                    return self.fail();
                }
                self.requests[self.oldest].data = original.to_ne_bytes().to_vec();
                self.advance(psn, true, false);
            }
            _ => self.on_read_response(psn, operation, payload),
        }
    }

    fn on_read_response(&mut self, psn: u32, operation: Operation, payload: &[u8]) {
        let oldest = &mut self.requests[self.oldest];
        let continues = matches!(operation, Operation::ReadResponseFirst(_) | Operation::ReadResponseMiddle);
        match oldest.work {
            Work::AtomicWrite(..) => {
                let completes = psn == oldest.last;
                return self.advance(psn, completes, continues);
            }
            Work::Read(_) | Work::Flush(..) => {}
            _ => return self.fail(),
        }
        oldest.data.extend_from_slice(payload);
        let left = oldest.work.brings().checked_sub(oldest.data.len());
        match left {
            None => self.fail(),
            Some(left) => self.advance(psn, left == 0 && !continues, continues),
        }
    }

    fn on_acknowledge(&mut self, psn: u32, syndrome: Syndrome) {
        let last = self.requests[self.oldest].last;
        match syndrome {
            Syndrome::Ack { .. } => self.advance(psn, psn == last, false),
            Syndrome::RnrNak(_) => self.waits_for_receive = true,
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                self.next_psn = self.next_psn.max(psn);
                self.retry();
            }
            Syndrome::Nak(_) => self.fail(),
        }
    }

    fn advance(&mut self, psn: u32, completes: bool, continues: bool) {
        self.is_retrying = false;
        self.oldest += usize::from(completes);
        // A completion by an older response changes nothing else.
        if !completes || psn >= self.next_psn {
            self.is_within_read = continues;
            self.next_psn = self.next_psn.max(psn + 1);
        }
    }

    /// Completes the oldest request with its status, which is still success.
    fn fail(&mut self) {
        self.oldest += 1;
        self.failed = true;
    }
}

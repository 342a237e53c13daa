//! The programs of the soak test, which post requests and poll completions.

use super::connection::{Area, Connection, DEPTH, Host, QUEUE_KEY, SUM, SWAPPED};
use super::memory::BASE;
use super::reached::Reached;
use super::requests::{PostedRequest, rule};
use super::verdict;
use cc::Instant;
use roce::qp::{Completion, CompletionOpcode, Data, Datagram, RecvRequest, Remote, SendRequest, Sge};
use roce::wire::{Feth, Service};

pub(super) struct PlannedRequest {
    pub(super) request: SendRequest,
    pub(super) kind: CompletionOpcode,
    pub(super) length: u32,
    pub(super) consumes: bool,
    pub(super) finds: u64,
    /// Whether the request invalidates the peer's window.
    pub(super) returns: bool,
}

impl PlannedRequest {
    const fn new(
        request: SendRequest,
        kind: CompletionOpcode,
        length: u32,
        consumes: bool,
        finds: u64,
    ) -> Self {
        Self { request, kind, length, consumes, finds, returns: false }
    }
}

impl Connection {
    /// Posts the next send request, if a place for it is left.
    pub(super) fn post_next_request(
        &mut self,
        now: u64,
        side: usize,
        hosts: &mut [Host],
    ) -> Result<(), String> {
        let index = self.sides[side].requests.posted.len();
        if self.is_gone(side) || index >= self.places || !self.talk.sends_requests(side) {
            return Ok(());
        }
        let kind = match self.talk.service {
            Service::Rc | Service::Xrc => self.random.below(12),
            Service::Uc => self.random.below(4),
            Service::Ud | Service::Raw => 0,
        };
        self.post_request(now, side, kind, hosts)
    }

    pub(super) fn post_last_request(
        &mut self,
        now: u64,
        side: usize,
        hosts: &mut [Host],
    ) -> Result<(), String> {
        if self.is_gone(side) || !self.talk.sends_requests(side) {
            Ok(())
        } else {
            self.post_request(now, side, 0, hosts)
        }
    }

    fn post_request(&mut self, now: u64, side: usize, kind: u64, hosts: &mut [Host]) -> Result<(), String> {
        let host = &mut hosts[self.sides[side].host];
        let PlannedRequest { mut request, kind, length, consumes, finds, returns } =
            self.planned_request(side, kind, host);
        // Bind and local invalidate need a completion, from which the model of the window derives its state.
        let is_local = matches!(kind, CompletionOpcode::Bind | CompletionOpcode::LocalInvalidate);
        let signalled = self.random.below(3) > 0 || is_local;
        request.signalled = signalled;
        request.fence = self.random.below(6) == 0 && self.talk.is_reliable();
        request.solicited = self.random.below(3) == 0;
        request.srq = self.sides[1 - side].number;
        let reliable = self.talk.is_reliable();
        let requests = &mut self.sides[side].requests;
        let receive = (consumes && reliable).then_some(requests.consuming);
        requests.consuming += usize::from(consumes);
        requests.posted.push(PostedRequest { kind, length, signalled, receive, finds, returns });
        let qpn = self.sides[side].qpn;
        let endpoint = host.endpoint_mut(&self.sides[side]);
        let posted = endpoint.post_send(Instant::from_nanos(now), qpn, request);
        posted.map_err(|error| format!("a request was refused: {error}"))
    }

    fn planned_request(&mut self, side: usize, kind: u64, host: &Host) -> PlannedRequest {
        let length = self.random.below(u64::from(self.talk.longest) + 1) as u32;
        let special = match kind {
            5..=8 => Some(self.planned_word_access(side, kind, length)),
            9 | 10 => self.planned_window_change(side),
            11 => self.planned_return(side, length, host),
            _ => None,
        };
        // Without a window in the required state, the request is a message.
        special.unwrap_or_else(|| self.planned_message(side, kind, length, host))
    }

    fn planned_message(&mut self, side: usize, kind: u64, length: u32, host: &Host) -> PlannedRequest {
        let (index, peer) = (self.sides[side].requests.posted.len(), 1 - side);
        let (id, number) = (index as u64, (index as u32).to_be_bytes());
        let from = self.offset(side, Area::Outgoing, index);
        match kind {
            2 | 3 => {
                let to = self.remote(peer, self.offset(peer, Area::Written, index));
                let to = self.writes_by(side, to);
                let request = SendRequest::write(id, self.outgoing(side, from, length, host), to);
                let consumes = kind == 3;
                let request = if consumes { request.with_immediate(number) } else { request };
                PlannedRequest::new(request, CompletionOpcode::Write, length, consumes, 0)
            }
            4 => {
                let into = self.offset(side, Area::Fetched, index);
                let from = self.remote(peer, self.offset(peer, Area::Offered, index));
                let request = SendRequest::read(id, self.pieces(side, into, length).as_slice(), from);
                PlannedRequest::new(request, CompletionOpcode::Read, length, false, 0)
            }
            _ => {
                let data = self.outgoing(side, from, length, host);
                let request = match self.sides[side].address {
                    Some(address) => {
                        let qpn = self.sides[peer].qpn;
                        SendRequest::send_to(id, data, Datagram { address, qpn, queue_key: QUEUE_KEY })
                    }
                    None => SendRequest::send(id, data),
                };
                PlannedRequest::new(request.with_immediate(number), CompletionOpcode::Send, length, true, 0)
            }
        }
    }

    fn planned_word_access(&mut self, side: usize, kind: u64, length: u32) -> PlannedRequest {
        let (index, peer) = (self.sides[side].requests.posted.len(), 1 - side);
        let id = index as u64;
        let into = self.sge(side, self.offset(side, Area::Fetched, index), 8);
        match kind {
            5 => {
                let add = self.random.next();
                let requests = &mut self.sides[side].requests;
                let finds = requests.added;
                requests.added = finds.wrapping_add(add);
                let sum = self.remote(peer, self.word(peer, SUM));
                let request = SendRequest::fetch_add(id, into, sum, add);
                PlannedRequest::new(request, CompletionOpcode::FetchAdd, 8, false, finds)
            }
            6 => {
                let (new, right) = (self.random.next(), self.random.below(2) == 0);
                let requests = &mut self.sides[side].requests;
                let finds = requests.swapped;
                let compare = if right { finds } else { !finds };
                requests.swapped = if right { new } else { finds };
                let swapped = self.remote(peer, self.word(peer, SWAPPED));
                let request = SendRequest::compare_swap(id, into, swapped, compare, new);
                PlannedRequest::new(request, CompletionOpcode::CompareSwap, 8, false, finds)
            }
            7 => {
                let to = self.remote(peer, self.offset(peer, Area::Written, index));
                let from = self.sge(side, self.offset(side, Area::Outgoing, index), 8);
                let request = SendRequest::atomic_write(id, from, to);
                PlannedRequest::new(request, CompletionOpcode::AtomicWrite, 8, false, 0)
            }
            _ => {
                let from = self.remote(peer, self.offset(peer, Area::Written, 0));
                let to = Feth::new(true, false, self.random.below(2) == 0);
                PlannedRequest::new(
                    SendRequest::flush(id, from, length, to),
                    CompletionOpcode::Flush,
                    0,
                    false,
                    0,
                )
            }
        }
    }

    fn remote(&self, side: usize, offset: u64) -> Remote {
        Remote { address: BASE + offset, rkey: self.sides[side].region.rkey }
    }

    pub(super) fn outgoing(&mut self, side: usize, from: u64, length: u32, host: &Host) -> Data {
        if length <= 200 && self.random.below(3) == 0 {
            return Data::inline(host.ram.bytes(from, length));
        }
        Data::from(self.pieces(side, from, length).as_slice())
    }

    /// Splits `length` bytes into one to three scatter/gather elements.
    fn pieces(&mut self, side: usize, from: u64, length: u32) -> Vec<Sge> {
        let mut pieces = Vec::new();
        let mut done = 0;
        while pieces.len() < 2 && self.random.below(3) == 0 {
            let some = self.random.below(u64::from(length - done) + 1) as u32;
            pieces.push(self.sge(side, from + u64::from(done), some));
            done += some;
        }
        pieces.push(self.sge(side, from + u64::from(done), length - done));
        pieces
    }

    pub(super) fn receive(&mut self, side: usize, hosts: &mut [Host]) -> Result<(), String> {
        let index = self.sides[side].requests.receives;
        let waiting = index - self.sides[side].requests.received;
        if self.is_gone(side) || index >= self.places || waiting >= DEPTH as usize || !self.talk.takes(side) {
            return Ok(());
        }
        let length = self.place() as u32;
        let into = self.offset(side, Area::Received, index);
        // One element must hold a datagram's global header.
        let pieces = match self.talk.service {
            Service::Ud => vec![self.sge(side, into, length)],
            Service::Rc | Service::Uc | Service::Xrc | Service::Raw => self.pieces(side, into, length),
        };
        let request = RecvRequest::scatter(index as u64, &pieces);
        let endpoint = hosts[self.sides[side].host].endpoint_mut(&self.sides[side]);
        let posted = match self.sides[side].srq {
            Some(srq) => endpoint.post_srq_recv(srq, request),
            None => endpoint.post_recv(self.sides[side].qpn, request),
        };
        posted.map_err(|error| format!("a receive was refused: {error}"))?;
        self.sides[side].requests.receives += 1;
        Ok(())
    }

    pub(super) fn poll(
        &mut self,
        side: usize,
        hosts: &mut [Host],
        reached: &mut Reached,
    ) -> Result<(), String> {
        if self.is_gone(side) {
            return Ok(());
        }
        let endpoint = hosts[self.sides[side].host].endpoint_mut(&self.sides[side]);
        let (send_cq, recv_cq) = (self.sides[side].send_cq, self.sides[side].recv_cq);
        let mut take = |cq| {
            let mut completions: Vec<Completion> = Vec::new();
            endpoint.poll_cq(cq, &mut |completion| {
                completions.push(*completion);
                true
            });
            completions
        };
        let (sent, received) = (take(send_cq), take(recv_cq));
        for completion in &sent {
            reached.ended(completion.status);
            let begin = self.sides[side].requests.done;
            let qpn = self.sides[side].qpn;
            rule(completion.qpn == qpn, || format!("a completion of {}, not {qpn}", completion.qpn))?;
            self.sides[side].requests.on_sent(completion)?;
            self.follow_window(side, completion, reached);
            if self.talk.is_reliable() {
                for index in begin..self.sides[side].requests.done {
                    verdict::arrived(self, side, index, None, hosts)?;
                }
            }
        }
        for completion in &received {
            reached.ended(completion.status);
            let [one, two] = &mut self.sides;
            let (ours, theirs) = if side == 0 { (one, two) } else { (two, one) };
            let brought =
                ours.requests.on_received(completion, &theirs.requests.posted, self.talk.service)?;
            self.follow_return(side, completion, reached)?;
            if let Some(number) = brought {
                verdict::arrived(self, 1 - side, number, Some(completion.id as usize), hosts)?;
            }
        }
        Ok(())
    }
}

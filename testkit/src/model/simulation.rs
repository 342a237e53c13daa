//! Both hosts, the link, and the model's record of them.

use super::network::{Observations, T};
use super::request_log::{PostedRequest, RequestLog};
use super::{LONGEST, Operation, REQUESTS, Reached, Setting, With};
use crate::harness::xrc::Inbox;
use crate::harness::{self, BASE, Faults, Options, Pair, Random, path_over};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{
    Capabilities, Completion, CompletionOpcode, CompletionStatus, Congestion, Modify, PathChoice,
    RecvRequest, Remote, SendRequest, State,
};
use roce::wire::{self, Aeth, Bth, Feth, Header, Mtu, NakCode, RnrTimer, Service, Syndrome};
use roce::{Access, Counters, Psn, Rkey};
use windows::Window;

/// Bytes of memory for one request in an area.
const PLACE: u64 = LONGEST as u64 + 8;
/// The offset of the first area: before it are two counters of 8 bytes, the targets of the peer's FETCH_ADDs.
const AREAS: u64 = 64;
/// 8 µs, against a round trip of 10 µs.
const HASTY: u8 = 1;
/// Attempts without progress that end a queue pair: the first and 7 retries.
const ROUNDS: u32 = 8;

/// The areas of a host's memory; each has a part for each request.
#[derive(Clone, Copy)]
enum Area {
    /// The bytes that this side sends.
    Outgoing,
    /// The bytes of the peer's SENDs, by the number of the receive.
    Received,
    /// The bytes of the peer's WRITEs, by the number of its request.
    Written,
    /// The results of this side's READs and atomics.
    Fetched,
    /// The bytes that the peer's READs return.
    Offered,
}

const fn offset(area: Area, index: usize) -> u64 {
    AREAS + (area as u64 * REQUESTS as u64 + index as u64) * PLACE
}

fn spray(congestion: &mut Congestion) {
    congestion.paths = Some(PathChoice { count: 3, interval: T, spray: true });
}

/// Runs `operations` on two queue pairs; panics if the result differs from the model. Returns the counters of both endpoints, and the
/// counts of rare requests.
pub fn run(setting: Setting, operations: &[Operation]) -> ([Counters; 2], Reached) {
    let mut simulation = Simulation::new(setting);
    for operation in operations {
        simulation.apply(*operation);
    }
    simulation.converge();
    simulation.check_end();
    simulation.reached.holes = simulation.observations.holes.get();
    simulation.reached.answers = simulation.observations.answers.get();
    simulation.reached.sprayed = simulation.observations.sprayed.get();
    (simulation.pair.hosts.map(|host| host.endpoint.counters().clone()), simulation.reached)
}

struct Simulation {
    pair: Pair,
    logs: [RequestLog; 2],
    /// The initial bytes of both memories.
    before: [Vec<u8>; 2],
    /// Frames lost or delayed, and injected answers, each of which may use a retry.
    excuses: u32,
    deregistered: [bool; 2],
    /// Whether an operation moved the queue pair to ERR or destroyed it.
    killed: [bool; 2],
    destroyed: [bool; 2],
    windows: [Window; 2],
    /// The newest key of each window.
    keys: [Rkey; 2],
    /// Of an XRC connection: the shared receive queue for host 1's messages.
    inbox: Option<Inbox>,
    sends: [u32; 2],
    reached: Reached,
    v6: bool,
    observations: Observations,
}

impl Simulation {
    fn new(setting: Setting) -> Self {
        let mtu = if setting.small_packets { Mtu::M256 } else { Mtu::M1024 };
        let window = (u64::from(setting.window) * u64::from(mtu.bytes())).max(1);
        let reads = setting.reads % 4 + 1;
        let capabilities = Capabilities { max_send: 64, max_recv: 64, ..Capabilities::default() };
        let options = Options {
            mtu,
            send_psn: Psn::new(u32::from(setting.psn).wrapping_neg()).get(),
            congestion: setting.congestion(window),
            probe_interval: setting.congestion(window).as_hpcc().map(|_| T),
            format: setting.format(),
            in_band: setting.in_band.then_some(NonZeroU32::MIN),
            v6: setting.v6(),
            ack_timeout: if setting.hasty { HASTY } else { 5 },
            selective_repeat: setting.selective_repeat,
            offered: setting.window.is_multiple_of(2),
            adjust: if setting.sprays() { spray } else { |_| {} },
            max_rd_atomic: reads,
            max_dest_rd_atomic: reads,
            capabilities,
            cq_depth: match setting.completions {
                255 => 2 * REQUESTS as u32,
                few => 4 + u32::from(few) % 8,
            },
            access: Access::ALL | Access::REMOTE_FLUSH,
            memory: offset(Area::Offered, REQUESTS) as usize,
            ..Options::default()
        };
        let (mut pair, inbox) = match setting.xrc {
            false => (Pair::connect(options), None),
            true => {
                let (mut pair, _, [inbox, _]) = harness::xrc::connected(options);
                // All memory that the target's peer accesses belongs to the shared receive queue's protection domain.
                let host = &mut pair.hosts[1];
                (host.pd, host.recv_cq, host.region) = (inbox.pd, inbox.cq, inbox.region);
                (pair, Some(inbox))
            }
        };
        let keys = Self::prepare_windows(&mut pair);
        let mut random = Random(7);
        for host in &mut pair.hosts {
            for word in host.ram.0.chunks_exact_mut(8) {
                word.copy_from_slice(&random.next().to_ne_bytes());
            }
            host.ram.0[..AREAS as usize].fill(0);
        }
        let before = [0, 1].map(|host: usize| pair.hosts[host].ram.0.clone());
        let observations = Observations::default();
        pair.filter = Some(setting.network(&observations));
        Self {
            pair,
            logs: Default::default(),
            before,
            excuses: 0,
            deregistered: [false; 2],
            killed: [false; 2],
            destroyed: [false; 2],
            windows: [Window::Free; 2],
            keys,
            inbox,
            sends: [64, if setting.xrc { 0 } else { 64 }],
            reached: Reached::default(),
            observations,
            v6: setting.v6(),
        }
    }

    fn apply(&mut self, operation: Operation) {
        use Operation as Op;
        match operation {
            Op::Send { host, length, with } => self.send(self.asker(host), length, with),
            Op::Write { host, length, immediate, by_window, with } => {
                self.write(self.asker(host), length, (immediate, by_window), with);
            }
            Op::Read { host, length, with } => self.read(self.asker(host), length, with),
            Op::FetchAdd { host, add, with } => self.fetch_add(self.asker(host), add, with),
            Op::AtomicWrite { host, with } => self.atomic_write(self.asker(host), with),
            Op::Flush { host, whole_region, with } => self.flush(self.asker(host), whole_region, with),
            Op::Bind { host, with } => self.bind(self.asker(host), with),
            Op::Invalidate { host, with } => self.invalidate(self.asker(host), with),
            Op::SendInvalidate { host, length, with } => {
                self.send_invalidate(self.asker(host), length, with);
            }
            Op::Receive { host, count } => (0..count % 8).for_each(|_| self.receive(host.into())),
            Op::Step { count } => {
                for _ in 0..count {
                    self.pair.step();
                }
            }
            Op::Pass { micros } => {
                let end = self.pair.now + Duration::from_micros(u64::from(micros % 4096));
                self.pair.run_until(end);
            }
            Op::Lose { frame } => self.excuses += u32::from(self.pair.lose(frame.into())),
            Op::Duplicate { frame, micros } => {
                self.pair.duplicate(frame.into(), Duration::from_micros(micros.into()));
            }
            Op::Delay { frame, micros } => {
                let late = Duration::from_micros(micros.into());
                self.excuses += u32::from(self.pair.delay(frame.into(), late));
            }
            Op::Flip { frame, bit } => self.excuses += u32::from(self.pair.flip(frame.into(), bit.into())),
            Op::Acknowledge { host } => self.answer(host.into(), Syndrome::Ack { credits: 31 }),
            Op::Gap { host } => self.answer(host.into(), Syndrome::Nak(NakCode::PsnSequenceError)),
            Op::NotReady { host } => self.answer(host.into(), Syndrome::RnrNak(RnrTimer::new(1))),
            Op::Notify { host } => {
                let host = usize::from(host);
                let bth = self.bth(host, 0);
                self.inject(host, &Header::CongestionNotification { bth });
            }
            Op::Poll { host } => self.poll(host.into()),
            Op::Deregister { host } => self.deregister(host.into()),
            Op::Fail { host } => self.fail(host.into()),
            Op::Destroy { host } => self.destroy(host.into()),
        }
    }

    /// Returns the side that posts a request meant for `host`.
    fn asker(&self, host: bool) -> usize {
        usize::from(host && self.inbox.is_none())
    }

    fn state(&self, host: usize) -> Option<State> {
        self.pair.reports()[host].map(|report| report.state)
    }

    fn remote(&self, host: usize, offset: u64) -> Remote {
        Remote { address: BASE + offset, rkey: self.pair.hosts[1 - host].region.rkey }
    }

    fn send(&mut self, host: usize, length: u16, with: With) {
        let (index, length) = (self.logs[host].posted.len(), u32::from(length) % (LONGEST + 1));
        let sge = self.pair.hosts[host].sge(offset(Area::Outgoing, index % REQUESTS), length);
        let request = SendRequest::send(index as u64, sge).with_immediate((index as u32).to_be_bytes());
        self.post(host, request, with, (CompletionOpcode::Send, length, true, 0));
    }

    fn write(&mut self, host: usize, length: u16, (immediate, by_window): (bool, bool), with: With) {
        let (index, length) = (self.logs[host].posted.len(), u32::from(length) % (LONGEST + 1));
        let sge = self.pair.hosts[host].sge(offset(Area::Outgoing, index % REQUESTS), length);
        let remote = self.remote_by(host, by_window, offset(Area::Written, index % REQUESTS));
        let request = SendRequest::write(index as u64, sge, remote);
        let request = match immediate {
            true => request.with_immediate((index as u32).to_be_bytes()),
            false => request,
        };
        self.post(host, request, with, (CompletionOpcode::Write, length, immediate, 0));
    }

    fn read(&mut self, host: usize, length: u16, with: With) {
        let (index, length) = (self.logs[host].posted.len(), u32::from(length) % (LONGEST + 1));
        let sge = self.pair.hosts[host].sge(offset(Area::Fetched, index % REQUESTS), length);
        let remote = self.remote(host, offset(Area::Offered, index % REQUESTS));
        let request = SendRequest::read(index as u64, sge, remote);
        self.post(host, request, with, (CompletionOpcode::Read, length, false, 0));
    }

    fn fetch_add(&mut self, host: usize, add: u8, with: With) {
        let index = self.logs[host].posted.len();
        let sge = self.pair.hosts[host].sge(offset(Area::Fetched, index % REQUESTS), 8);
        let remote = self.remote(host, 0);
        let request = SendRequest::fetch_add(index as u64, sge, remote, add.into());
        self.post(host, request, with, (CompletionOpcode::FetchAdd, 8, false, add.into()));
    }

    fn atomic_write(&mut self, host: usize, with: With) {
        let index = self.logs[host].posted.len();
        let sge = self.pair.hosts[host].sge(offset(Area::Outgoing, index % REQUESTS), 8);
        let remote = self.remote(host, offset(Area::Written, index % REQUESTS));
        let request = SendRequest::atomic_write(index as u64, sge, remote);
        self.post(host, request, with, (CompletionOpcode::AtomicWrite, 8, false, 0));
    }

    fn flush(&mut self, host: usize, whole_region: bool, with: With) {
        let remote = self.remote(host, offset(Area::Written, 0));
        let to = Feth::new(true, false, whole_region);
        let request = SendRequest::flush(self.logs[host].posted.len() as u64, remote, 4096, to);
        self.post(host, request, with, (CompletionOpcode::Flush, 0, false, 0));
    }

    fn post(
        &mut self,
        host: usize,
        request: SendRequest,
        with: With,
        (kind, length, consumes, add): (CompletionOpcode, u32, bool, u64),
    ) {
        if self.destroyed[host] || !self.logs[host].room() {
            return;
        }
        let request = SendRequest {
            signalled: with.signalled,
            fence: with.fence,
            solicited: with.solicited,
            srq: self.inbox.map(|inbox| inbox.number),
            ..request
        };
        let request_log = &mut self.logs[host];
        let receive = consumes.then_some(request_log.consuming);
        request_log.consuming += usize::from(consumes);
        let (signalled, finds) = (with.signalled, request_log.added);
        request_log.posted.push(PostedRequest { kind, length, signalled, receive, finds, returns: None });
        request_log.added += add;
        self.pair.post(host, request);
    }

    fn receive(&mut self, host: usize) {
        // An initiator receives no messages.
        let takes = self.inbox.is_none() || host == 1;
        if !takes || self.destroyed[host] || self.logs[host].receives == REQUESTS {
            return;
        }
        let index = self.logs[host].receives;
        self.logs[host].receives += 1;
        let sge = self.pair.hosts[host].sge(offset(Area::Received, index), LONGEST);
        let qpn = self.pair.hosts[host].qpn;
        let (request, endpoint) = (RecvRequest::new(index as u64, sge), &mut self.pair.hosts[host].endpoint);
        match self.inbox {
            Some(inbox) if host == 1 => endpoint.post_srq_recv(inbox.srq, request).unwrap(),
            _ => endpoint.post_recv(qpn, request).unwrap(),
        }
    }

    fn bth(&self, to: usize, psn: u32) -> Bth {
        Bth::new(self.pair.hosts[to].qpn, Psn::new(psn))
    }

    /// Sends an acknowledgement from `host` about the PSN that it expects: correct, but superfluous.
    fn answer(&mut self, host: usize, syndrome: Syndrome) {
        if self.inbox.is_some() && host == 0 {
            return;
        }
        let Some(report) = self.pair.reports()[host] else { return };
        let expected = report.expected_psn;
        let psn = match syndrome {
            Syndrome::Ack { .. } => expected.plus(Psn::CIRCLE - 1),
            Syndrome::RnrNak(_) | Syndrome::Nak(_) => expected,
        };
        let bth = self.bth(1 - host, psn.get());
        let operation = wire::Operation::Acknowledge(Aeth { syndrome, msn: 0 });
        let service = if self.inbox.is_some() { Service::Xrc } else { Service::Rc };
        self.inject(1 - host, &Header::Connected { service, bth, operation });
        self.excuses += 1;
    }

    fn inject(&mut self, to: usize, header: &Header) {
        let mut frame = vec![0; wire::MAX_OVERHEAD];
        let (here, there) = (to as u8 + 1, 2 - to as u8);
        let length = wire::emit(&path_over(self.v6, there, here), 0, header, 0, &mut frame).unwrap().seal();
        frame.truncate(length);
        self.pair.inject(to, frame);
    }

    fn deregister(&mut self, host: usize) {
        if !core::mem::replace(&mut self.deregistered[host], true) {
            let lkey = self.pair.hosts[host].region.lkey;
            self.pair.hosts[host].endpoint.deregister_with_windows(lkey).unwrap();
        }
    }

    fn fail(&mut self, host: usize) {
        if !self.destroyed[host] {
            let (now, qpn) = (self.pair.now, self.pair.hosts[host].qpn);
            self.pair.hosts[host].endpoint.modify_qp(now, qpn, Modify::Error).unwrap();
            self.killed[host] = true;
        }
    }

    fn destroy(&mut self, host: usize) {
        if !self.destroyed[host] {
            self.poll(host);
            let qpn = self.pair.hosts[host].qpn;
            self.pair.hosts[host].endpoint.destroy_qp(self.pair.now, qpn).unwrap();
            (self.killed[host], self.destroyed[host]) = (true, true);
        }
    }

    fn overflowed(&self, host: usize) -> bool {
        let host = &self.pair.hosts[host];
        host.endpoint.cq_overflowed(host.send_cq) || host.endpoint.cq_overflowed(host.recv_cq)
    }

    fn poll(&mut self, host: usize) {
        let (sent, received) = (self.pair.hosts[host].sent(), self.pair.hosts[host].received());
        for completion in &sent {
            self.logs[host].on_sent(completion);
            self.follow_window(host, completion);
            self.count(completion);
        }
        for completion in &received {
            let [one, two] = &mut self.logs;
            let (ours, theirs) = if host == 0 { (one, two) } else { (two, one) };
            ours.on_received(completion, &theirs.posted);
            self.follow_return(host, completion);
        }
        if !sent.is_empty() || !received.is_empty() {
            self.check_memory(host);
        }
    }

    fn count(&mut self, completion: &Completion) {
        if completion.status == CompletionStatus::Success {
            self.reached.words += u64::from(completion.opcode == CompletionOpcode::AtomicWrite);
            self.reached.flushes += u64::from(completion.opcode == CompletionOpcode::Flush);
            self.reached.taken_back += u64::from(completion.opcode == CompletionOpcode::LocalInvalidate);
            self.reached.extended += u64::from(self.inbox.is_some());
        }
    }

    /// Runs without faults until no event is left.
    fn converge(&mut self) {
        self.pair.faults = Faults::default();
        let end = self.pair.now + Duration::from_secs(2);
        for host in [0, 1] {
            while self.logs[host].receives < self.logs[1 - host].consuming && !self.destroyed[host] {
                self.receive(host);
            }
        }
        loop {
            let busy = self.pair.step();
            self.poll(0);
            self.poll(1);
            if !busy {
                return;
            }
            assert!(self.pair.now <= end, "no end: {:?}", self.pair.reports());
        }
    }
}

mod verdict;
mod windows;

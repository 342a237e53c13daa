//! Executes a request packet that passed its checks (IBA 9.7.4).

use super::check::{
    check_atomic, check_flush, check_payload_right, check_range, check_room, check_sequence,
    check_write_length,
};
use super::resources::{Kind, Resource};
use super::{Arrival, Message, PendingAcknowledge, Refusal, Responder};
use crate::qp::{
    Completion, CompletionOpcode, CompletionStatus, Context, Identity, LossRecovery, buffers, wqe,
};
use crate::wire::{Feth, Immediate, NakCode, Operation, Reth, SendTail, Syndrome};
use crate::{Access, AccessError, Discard, Memory, Psn, Rkey, Slice};

/// The parts of a message that are not its bytes.
#[derive(Clone, Copy)]
struct Extra {
    immediate: Option<Immediate>,
    invalidated: Option<Rkey>,
}

impl Responder {
    /// Checks a request packet, then executes it. If a check fails, no byte of it is written.
    #[inline(always)]
    pub(in crate::qp) fn on_request<M: Memory>(
        &mut self,
        operation: Operation,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Refusal> {
        match arrival.bth.psn.distance(self.expected) {
            0 => {}
            1.. => return self.on_early(operation, arrival),
            _ => return Err(self.on_duplicate(operation, arrival)),
        }
        self.execute(operation, arrival)?;
        if self.holds_early() { self.catch_up(arrival) } else { Ok(()) }
    }

    #[inline(always)]
    pub(super) fn execute<M: Memory>(
        &mut self,
        operation: Operation,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Refusal> {
        match arrival.srq {
            None => self.execute_here(operation, arrival),
            Some(number) => self.execute_xrc(number, operation, arrival),
        }
    }

    /// Executes a packet with the protection domain and completion queue of `arrival.identity`.
    #[inline(always)]
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    pub(super) fn execute_here<M: Memory>(
        &mut self,
        operation: Operation,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Refusal> {
        check_sequence(operation, self.message.as_ref())?;
        check_payload_right(operation, arrival.length(), arrival.rights)?;
        match operation {
            Operation::SendFirst | Operation::SendMiddle => self.on_send(None, arrival)?,
            Operation::SendLast(tail) | Operation::SendOnly(tail) => self.on_send(Some(tail), arrival)?,
            Operation::WriteFirst(reth) => self.on_write(Some(reth), None, arrival)?,
            Operation::WriteMiddle => self.on_write(None, None, arrival)?,
            Operation::WriteLast(immediate) => self.on_write(None, Some(immediate), arrival)?,
            Operation::WriteOnly(reth, immediate) => {
                self.on_write(Some(reth), Some(immediate), arrival)?;
            }
            Operation::ReadRequest(reth) => return self.on_read(reth, arrival),
            Operation::CompareSwap(eth) => {
                let place = (eth.address, eth.rkey, Access::REMOTE_ATOMIC);
                return self.on_atomic(place, arrival, |memory: &mut M, at| {
                    memory.compare_swap(at, eth.operands.compare, eth.operands.swap).map(Kind::Atomic)
                });
            }
            Operation::FetchAdd(eth) => {
                let place = (eth.address, eth.rkey, Access::REMOTE_ATOMIC);
                return self.on_atomic(place, arrival, |memory: &mut M, at| {
                    memory.fetch_add(at, eth.operands.add).map(Kind::Atomic)
                });
            }
            Operation::AtomicWrite(reth) => {
                let place = (reth.address, reth.rkey, Access::REMOTE_WRITE);
                let word = *arrival.payload.first_chunk().ok_or(Refusal::invalid(Discard::Length))?;
                return self.on_atomic(place, arrival, |memory: &mut M, at| {
                    memory.store(at, word).map(|()| Kind::Done)
                });
            }
            Operation::Flush(feth, reth) => return self.on_flush(feth, reth, arrival),
            Operation::ReadResponseFirst(_)
            | Operation::ReadResponseMiddle
            | Operation::ReadResponseLast(_)
            | Operation::ReadResponseOnly(_)
            | Operation::Acknowledge(_)
            | Operation::AtomicAcknowledge { .. } => return Err(Refusal::Drop(Discard::Opcode)),
        }
        self.echo.on_packet(arrival.is_marked, arrival.wants_exact_echo(), self.acknowledgeable);
        self.advance_acknowledgeable();
        arrival.context.counters.rx_payload_bytes += arrival.payload.len() as u64;
        if arrival.bth.ack_request {
            self.pending_acknowledge = Some(PendingAcknowledge::Acknowledge);
        }
        Ok(())
    }

    /// Requests the missing packets, once (IBA 9.7.5).
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    pub(super) fn on_gap(&mut self, context: &mut Context<'_>) -> Refusal {
        if !self.nak_sent {
            self.nak_sent = true;
            context.counters.naks_sent += 1;
            self.pending_acknowledge =
                Some(PendingAcknowledge::Nak(self.expected, Syndrome::Nak(NakCode::PsnSequenceError)));
        }
        Refusal::Drop(Discard::PsnGap)
    }

    /// Handles a duplicate: its answer was lost, or the network duplicated it (IBA 9.7.5).
    fn on_duplicate<M>(&mut self, operation: Operation, arrival: &Arrival<'_, '_, M>) -> Refusal {
        let psn = arrival.bth.psn;
        match operation {
            Operation::ReadRequest(reth) => {
                if let Some((resource, index)) = self.resources.find(psn)
                    && let Kind::Read(_, first) = resource.kind
                {
                    let rest = rest(first, index, arrival.rights.mtu);
                    // A peer that offers selective repeat may request part of an answer before this side has accepted, if it has
                    // received a wrong acceptance.
                    if self.reorder.is_none() && reth == rest {
                        resource.answer_from(index);
                    } else if self.recovery != LossRecovery::GoBackN {
                        self.answer_part(psn, reth, rest, arrival.rights.mtu);
                    }
                }
            }
            Operation::CompareSwap(_)
            | Operation::FetchAdd(_)
            | Operation::AtomicWrite(_)
            | Operation::Flush(..) => {
                if let Some((resource, index)) = self.resources.find(psn)
                    && let Kind::Atomic(_) | Kind::Done = resource.kind
                {
                    resource.answer_from(index);
                }
            }
            _ => self.acknowledge_duplicate(psn, arrival.payload.is_empty()),
        }
        Refusal::Drop(Discard::Duplicate)
    }

    /// Acknowledges a duplicate SEND or WRITE. A pending ACK of something newer, or a pending NAK, takes precedence.
    fn acknowledge_duplicate(&mut self, psn: Psn, is_keep_alive: bool) {
        let is_newer = match self.pending_acknowledge {
            None => true,
            Some(
                PendingAcknowledge::AcknowledgeDuplicate(before)
                | PendingAcknowledge::ReplyToKeepAlive(before),
            ) => psn.distance(before) > 0,
            Some(PendingAcknowledge::Acknowledge | PendingAcknowledge::Nak(..)) => false,
        };
        if !is_newer {
            return;
        }
        if self.reorder.is_some() {
            self.pending_acknowledge = Some(PendingAcknowledge::Acknowledge);
        } else if is_keep_alive {
            self.pending_acknowledge = Some(PendingAcknowledge::ReplyToKeepAlive(psn));
        } else if !self.is_withheld(psn) {
            self.pending_acknowledge = Some(PendingAcknowledge::AcknowledgeDuplicate(psn));
        }
    }

    /// Returns whether the ACK of a duplicate is withheld, because a READ of several packets follows. Its responses may be in flight, and
    /// the ACK would arrive after them (see `drop_implied`). A peer that needs the ACK also requests that READ again, and its response
    /// acknowledges. If the peer's window has no room for the READ, the peer goes back once more. It repeats a packet that is not newer,
    /// which is then acknowledged.
    fn is_withheld(&mut self, psn: Psn) -> bool {
        let is_first =
            psn.distance(self.withheld) > 0 && self.resources.has_long_read_after(psn, self.expected);
        if is_first {
            self.withheld = psn;
        }
        is_first
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`check_room` found that both together fit, or the sum is not taken"
    )]
    fn on_send<M: Memory>(
        &mut self,
        tail: Option<SendTail>,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Refusal> {
        let (request, received) = match self.message.take() {
            Some(Message::Send { request, received }) => (request, received),
            // The sequence was checked: this packet begins a message.
            _ => match self.queue.pop(arrival.context.srqs) {
                Some(request) => (request, 0),
                None => return Err(self.not_ready(arrival.context)),
            },
        };
        let length = arrival.length();
        let outcome = check_room(&request, received, length);
        let outcome = match tail {
            Some(SendTail::Invalidate(rkey)) => outcome.and_then(|()| self.invalidate(rkey, arrival)),
            _ => outcome,
        };
        let outcome = outcome.and_then(|()| {
            let Arrival { memory, context, identity, payload, .. } = arrival;
            buffers::place(*memory, context.regions, identity.pd, &request.buffers, received, payload)
                .map_err(|_| Refusal::operational(CompletionStatus::LocalProtection))
        });
        let received = received + if outcome.is_ok() { length } else { 0 };
        match tail {
            Some(tail) if outcome.is_ok() => {
                let (immediate, invalidated) = match tail {
                    SendTail::Plain => (None, None),
                    SendTail::Immediate(immediate) => (Some(immediate), None),
                    SendTail::Invalidate(rkey) => (None, Some(rkey)),
                };
                let extra = Extra { immediate, invalidated };
                self.deliver(request.id, CompletionOpcode::Recv, received, extra, arrival);
            }
            // Unfinished, or to be flushed with the error.
            _ => self.message = Some(Message::Send { request, received }),
        }
        outcome
    }

    /// Invalidates the key that a SEND with invalidate names (IBA 9.4.1.1.3). A wrong key is an error of this side alone, of class J, as in
    /// Linux. The packet is acknowledged, the message does not count, and no byte of the packet is placed.
    fn invalidate<M>(&mut self, rkey: Rkey, arrival: &mut Arrival<'_, '_, M>) -> Result<(), Refusal> {
        let Identity { pd, qpn, .. } = *arrival.identity;
        arrival.context.regions.invalidate(rkey, pd, qpn).map_err(|error| {
            self.advance_acknowledgeable();
            if arrival.bth.ack_request {
                self.pending_acknowledge = Some(PendingAcknowledge::Acknowledge);
            }
            let receive = CompletionStatus::RemoteInvalidRequest;
            Refusal::FatalWithoutNak { discard: error.discard(), receive }
        })
    }

    /// Places a packet of a WRITE. `begin` is `Some` in the first packet, `end` in the last, with its immediate data if any.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`check_range` found the whole range in a region, and `check_write_length` that the packet is in the range"
    )]
    fn on_write<M: Memory>(
        &mut self,
        begin: Option<Reth>,
        end: Option<Option<Immediate>>,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Refusal> {
        let Arrival { context, identity, .. } = &*arrival;
        let (reth, received, range) = match (begin, &self.message) {
            (Some(reth), _) => {
                let range = check_range(reth, Access::REMOTE_WRITE, context.regions, identity)?;
                (reth, 0, range)
            }
            (None, Some(Message::Write { reth, received })) => (*reth, *received, None),
            (None, _) => return Err(Refusal::invalid(Discard::Sequence)),
        };
        let length = arrival.length();
        check_write_length(reth, received, length, end.is_some())?;
        if let Some(Some(_)) = end
            && self.queue.is_empty(arrival.context.srqs)
        {
            return Err(self.not_ready(arrival.context));
        }
        if length > 0 {
            let address = reth.address + u64::from(received);
            // Checked for each packet: the region may have been deregistered since the first.
            let Identity { pd, qpn, .. } = *arrival.identity;
            let regions = &arrival.context.regions;
            let slice = match range {
                Some(whole) if whole.len() == length => whole,
                _ => regions
                    .remote(reth.rkey, pd, qpn, address, length, Access::REMOTE_WRITE)
                    .map_err(|error| Refusal::access(error.discard()))?,
            };
            let placed = arrival.memory.place(slice, arrival.payload);
            placed.map_err(|error| Refusal::access(error.discard()))?;
        }
        match end {
            None => self.message = Some(Message::Write { reth, received: received + length }),
            Some(immediate) => {
                self.message = None;
                let request = if immediate.is_some() { self.queue.pop(arrival.context.srqs) } else { None };
                match request {
                    Some(request) => {
                        let opcode = CompletionOpcode::RecvWithWrite;
                        let extra = Extra { immediate, invalidated: None };
                        self.deliver(request.id, opcode, reth.length, extra, arrival);
                    }
                    None => self.count_message(),
                }
            }
        }
        Ok(())
    }

    fn on_read<M>(&mut self, reth: Reth, arrival: &Arrival<'_, '_, M>) -> Result<(), Refusal> {
        if !self.resources.has_room() {
            return Err(Refusal::invalid(Discard::ResponderResources));
        }
        let Arrival { context, identity, rights, .. } = arrival;
        check_range(reth, Access::REMOTE_READ, context.regions, identity)?;
        self.count_message();
        let packets = wqe::packets(reth.length, rights.mtu);
        let kind = Kind::Read(identity.pd, reth);
        self.record(kind, packets, arrival);
        Ok(())
    }

    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    fn on_atomic<M: Memory>(
        &mut self,
        (address, rkey, access): (u64, Rkey, Access),
        arrival: &mut Arrival<'_, '_, M>,
        run: impl FnOnce(&mut M, Slice) -> Result<Kind, AccessError>,
    ) -> Result<(), Refusal> {
        if !self.resources.has_room() {
            return Err(Refusal::invalid(Discard::ResponderResources));
        }
        let at = check_atomic(address, rkey, access, arrival.context.regions, arrival.identity)?;
        let kind = run(arrival.memory, at).map_err(|error| Refusal::access(error.discard()))?;
        arrival.context.counters.rx_payload_bytes += arrival.payload.len() as u64;
        self.answer_at_once(kind, arrival);
        Ok(())
    }

    fn on_flush<M: Memory>(
        &mut self,
        feth: Feth,
        reth: Reth,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Refusal> {
        if !self.resources.has_room() {
            return Err(Refusal::invalid(Discard::ResponderResources));
        }
        check_flush(feth, reth, arrival.context.regions, arrival.identity)?;
        arrival.memory.flush();
        self.answer_at_once(Kind::Done, arrival);
        Ok(())
    }

    /// Records an executed request with an answer of one packet, so that it is answered, and answered again if it is a duplicate.
    fn answer_at_once<M>(&mut self, kind: Kind, arrival: &Arrival<'_, '_, M>) {
        self.count_message();
        self.record(kind, 1, arrival);
    }

    /// Records a request whose answer has `packets` packets, the first of which acknowledges all requests before it.
    fn record<M>(&mut self, kind: Kind, packets: u32, arrival: &Arrival<'_, '_, M>) {
        let last = self.acknowledgeable;
        let congestion = self.echo.on_answered(arrival.is_marked, arrival.wants_exact_echo(), last);
        let answer = (arrival.bth.psn, packets);
        self.resources.push(Resource::new(kind, answer, self.msn, last, congestion));
        self.advance(packets);
    }

    /// Makes an RNR NAK due, because no receive is posted (IBA 9.7.5.2.8).
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    fn not_ready(&mut self, context: &mut Context<'_>) -> Refusal {
        // The packets after this one reveal no other gap.
        self.nak_sent = true;
        context.counters.rnr_naks_sent += 1;
        self.pending_acknowledge =
            Some(PendingAcknowledge::Nak(self.expected, Syndrome::RnrNak(self.min_rnr_timer)));
        Refusal::Drop(Discard::ReceiverNotReady)
    }

    fn deliver<M>(
        &mut self,
        id: u64,
        opcode: CompletionOpcode,
        length: u32,
        extra: Extra,
        arrival: &mut Arrival<'_, '_, M>,
    ) {
        self.count_message();
        let Extra { immediate, invalidated } = extra;
        let completion = Completion {
            id,
            status: CompletionStatus::Success,
            opcode,
            qpn: arrival.identity.qpn,
            length,
            immediate,
            invalidated,
            solicited: arrival.bth.solicited,
            source: None,
            srq: self.queue.shared(),
        };
        arrival.context.cqs.push(arrival.identity.recv_cq, completion);
    }

    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "the sum of 24 bits and 1 fits into 32 bits")]
    fn count_message(&mut self) {
        self.msn = (self.msn + 1) & 0xff_ffff;
    }

    /// Records that a SEND or WRITE packet was executed.
    #[inline]
    fn advance_acknowledgeable(&mut self) {
        self.acknowledgeable = self.expected;
        self.advance(1);
    }

    #[inline]
    fn advance(&mut self, packets: u32) {
        self.expected = self.expected.plus(packets);
        self.nak_sent = false;
    }
}

/// Returns the range of a READ from packet `index` of its answer on.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "`index` is below the packets of the answer, whose bytes are at most 2^31"
)]
pub(super) fn rest(first: Reth, index: u32, mtu: u32) -> Reth {
    let offset = u64::from(index) * u64::from(mtu);
    Reth {
        address: first.address.wrapping_add(offset),
        length: (u64::from(first.length) - offset) as u32,
        ..first
    }
}

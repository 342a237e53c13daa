//! What a queue pair sends next.

use super::flow::Flow;
use super::queue_pair::{Connection, QueuePair};
use super::responder::Answered;
use super::telemetry::PROBE_ROOM;
use super::upgrade::Seen;
use super::{Books, CompletionStatus, State, buffers};
use crate::wire::telemetry::IntHeader;
use crate::wire::{
    Bth, Format, Header, MAX_IN_BAND, MAX_OVERHEAD, NakCode, Operation, Report, SUBSCRIPTION_LENGTH, Service,
    Subscription, Template,
};
use crate::{Access, AccessError, FailureCause, Memory, Psn, Qpn};
use cc::{CongestionController, Instant};

/// What telemetry a data packet brings, and where.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Brings {
    /// An INT header behind the BTH.
    InBand,
    /// Another format; none in that of HPCC INT.
    Format(Format),
    /// A subscription to direct responses.
    Subscription,
}

/// Why a packet that was planned can't be made.
pub(super) enum Failure {
    /// A buffer is not, or no longer, allowed.
    Access,
    /// `frame` is too short for it. A bug of the caller: nothing is sent.
    Frame,
}

impl From<AccessError> for Failure {
    fn from(_: AccessError) -> Self {
        Self::Access
    }
}

impl QueuePair {
    /// Writes the next packet that may leave: answers first, then telemetry, then requests.
    pub(crate) fn poll_transmit<M: Memory>(
        &mut self,
        memory: &M,
        books: &mut Books<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        self.paced_until = None;
        let waits = self.paths.is_some() && self.migrate(books);
        let mut length = None;
        if self.may_owe(books.now) {
            length = self.transmit_owed(memory, books, frame);
        }
        if length.is_none() && !waits {
            length = self.transmit_request(memory, books, frame);
        }
        let length = length?;
        self.identification = self.identification.wrapping_add(1);
        books.counters.tx_frames += 1;
        Some(length)
    }

    /// Whether anything but a request may leave: few packets are anything else, so this must cost little. It may say yes
    /// where there is nothing.
    #[inline]
    fn may_owe(&self, now: Instant) -> bool {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        self.responder.has_answer()
            || self.notifier.is_due()
            || self.collector.as_ref().is_some_and(|collector| collector.may_have_due())
            || due(self.prober.due_at())
            || due(self.sampler.setup_due_at())
            || self.paths.is_some()
    }

    /// What leaves before requests.
    #[inline(never)]
    fn transmit_owed<M: Memory>(
        &mut self,
        memory: &M,
        books: &mut Books<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let connection = self.connection?;
        let elsewhere;
        let requests = match &self.paths {
            None => &connection,
            Some(paths) => {
                elsewhere = Connection { template: *paths.template(), ..connection };
                &elsewhere
            }
        };
        self.transmit_answer(&connection, memory, books, frame)
            .or_else(|| self.transmit_notification(&connection, books, frame))
            .or_else(|| self.transmit_feedback(&connection, books, frame))
            .or_else(|| self.transmit_setup(&connection, books, frame))
            .or_else(|| self.transmit_path_probe(&connection, books, frame))
            .or_else(|| self.transmit_probe(requests, books, frame))
    }

    fn transmit_answer<M: Memory>(
        &mut self,
        connection: &Connection,
        memory: &M,
        books: &mut Books<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let Answered { operation, psn, congestion, held, read } = self.responder.plan(connection.mtu)?;
        if read.is_some() {
            self.paced_until = held_until(self.flow.as_ref(), books.now);
            if self.paced_until.is_some() {
                return None;
            }
        }
        let mut bth = Bth { congestion, ..self.bth(connection.destination, psn) };
        if let Operation::Acknowledge(_) = operation
            && held.is_none()
            && let Some(report) = self.collector.as_ref().and_then(|collector| collector.rider())
        {
            bth.congestion |= Bth::TELEMETRY;
            return self.transmit_riding(connection, operation, bth, report, books, frame);
        }
        let header = match (held, operation) {
            (Some(held), Operation::Acknowledge(aeth)) => {
                Header::SelectiveAcknowledge { bth, msn: aeth.msn, held }
            }
            _ => Header::Connected { service: self.identity.receives.service(), bth, operation },
        };
        let payload = read.map_or(0, |(_, read)| read.length);
        let qpn = self.identity.qpn;
        let written = self.write(connection, &header, payload, frame, |into| {
            match read.filter(|(_, read)| read.length > 0) {
                None => Ok(()),
                Some((pd, read)) => {
                    let (regions, access) = (&*books.regions, Access::REMOTE_READ);
                    let slice = regions.remote(read.rkey, pd, qpn, read.address, read.length, access)?;
                    memory.gather(slice, into);
                    Ok(())
                }
            }
        });
        match written {
            Ok(length) => {
                self.responder.commit();
                if read.is_some() {
                    books.counters.tx_payload_bytes += u64::from(payload);
                    if let Some(flow) = &mut self.flow {
                        flow.on_wire(books.now, length);
                    }
                }
                Some(length)
            }
            Err(Failure::Frame) => None,
            Err(Failure::Access) => {
                self.responder.refuse_response(psn);
                let cause = FailureCause::Refused(NakCode::RemoteAccessError);
                self.fail(Some(cause), CompletionStatus::Flushed, books);
                // Now the NAK is what comes next.
                self.transmit_answer(connection, memory, books, frame)
            }
        }
    }

    /// An Acknowledge with feedback behind it.
    fn transmit_riding(
        &mut self,
        connection: &Connection,
        operation: Operation,
        bth: Bth,
        report: Report,
        books: &mut Books<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let header = Header::Connected { service: self.identity.receives.service(), bth, operation };
        let feedback = self.feedback(header.opcode(), &bth, report);
        let written = self.write(connection, &header, feedback.length() as u32, frame, |into| {
            feedback.write(into);
            Ok(())
        });
        self.responder.commit();
        self.collector().on_sent(report);
        books.counters.feedback_sent += 1;
        written.ok()
    }

    /// A CNP: BECN set, PSN 0 (IBA A17.9.3).
    fn transmit_notification(
        &mut self,
        connection: &Connection,
        books: &mut Books<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        if !self.notifier.is_due() || self.state == State::Error {
            return None;
        }
        let bth = Bth { congestion: Bth::BECN, ..self.bth(connection.destination, Psn::new(0)) };
        self.notifier.on_sent();
        books.counters.notifications_sent += 1;
        self.write(connection, &Header::CongestionNotification { bth }, 0, frame, |_| Ok(())).ok()
    }

    fn transmit_probe(
        &mut self,
        connection: &Connection,
        books: &mut Books<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let due = self.prober.due_at().is_some_and(|at| at <= books.now);
        if !due || self.state != State::ReadyToSend || self.requester.in_flight() == 0 {
            return None;
        }
        let length = self.write_probe(connection.destination, &connection.template, frame)?;
        self.prober.on_sent(books.now);
        books.counters.probes_sent += 1;
        self.consider(Seen::Probes(self.prober.sent()));
        Some(length)
    }

    /// The next telemetry request, in this queue pair's format, with these headers.
    pub(super) fn write_probe(
        &self,
        destination: Qpn,
        template: &Template,
        frame: &mut [u8],
    ) -> Option<usize> {
        let int = IntHeader::with_room(if self.format == Format::Hpcc { PROBE_ROOM } else { 0 });
        let header = Header::TelemetryRequest { bth: self.bth(destination, self.prober.psn()), int };
        let fill = |_: &mut [u8]| Ok(());
        let brings = Brings::Format(self.format);
        self.write_behind(brings, template, &header, int.room_bytes() as u32, frame, fill).ok()
    }

    fn transmit_request<M: Memory>(
        &mut self,
        memory: &M,
        books: &mut Books<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        match self.state {
            State::ReadyToSend => {}
            // What has begun is sent to its end, and again where it was lost; nothing new begins (IBA 10.3.1.5).
            State::SendQueueDrained if self.requester.has_begun() => {}
            _ => return None,
        }
        let begin = self.state == State::ReadyToSend;
        if self.requester.is_at_local()
            && let Err(status) = self.requester.run_local(begin, books, &self.identity)
        {
            self.fail_request(status, books);
            return None;
        }
        let (flow, connection) = (self.flow.as_ref()?, self.connection.as_ref()?);
        let window = self.requester.within_reach(flow.algorithm().window());
        if self.requester.is_mute(window) {
            self.requester.ask_again();
        }
        let plan = self.requester.plan(window)?;
        if flow.free_at() > books.now {
            self.paced_until = Some(flow.free_at());
            return None;
        }
        let mut bth = self.bth(connection.destination, plan.psn);
        bth.ack_request = plan.ack_request;
        bth.solicited = plan.solicited;
        bth.congestion = flow.data_bits();
        // Where the frame has no room for it, the packet leaves without.
        let room = frame.len().saturating_sub(plan.length as usize + MAX_OVERHEAD);
        let brings = self.telemetry_of_data(room);
        if brings == Brings::InBand {
            bth.congestion |= Bth::TELEMETRY;
        }
        let header = match plan.srq {
            None => Header::Connected { service: Service::Rc, bth, operation: plan.operation },
            Some(srq) => Header::Extended { bth, srq, operation: plan.operation },
        };
        let fill = |into: &mut [u8]| {
            Ok(buffers::gather(memory, books.regions, self.identity.pd, plan.data, plan.offset, into)?)
        };
        let template = self.paths.as_ref().map_or(&connection.template, |paths| paths.template());
        let written = match brings {
            Brings::InBand | Brings::Format(Format::Hpcc) => {
                write_packet(template, self.identification, &header, plan.length, frame, fill)
            }
            Brings::Format(_) | Brings::Subscription => {
                self.write_behind(brings, template, &header, plan.length, frame, fill)
            }
        };
        let (payload, ack_request, is_oldest) = (plan.length, plan.ack_request, plan.is_oldest);
        match written {
            Ok(length) => {
                let number = self.requester.commit(payload, ack_request, books);
                books.counters.tx_payload_bytes += u64::from(payload);
                self.sampler.on_data_sent();
                let flow = self.flow.as_mut()?;
                flow.algorithm_mut().on_send(books.now, number, payload);
                flow.on_wire(books.now, length);
                Some(length)
            }
            Err(Failure::Access) if is_oldest => {
                self.fail_request(CompletionStatus::LocalProtection, books);
                None
            }
            // Requests before this one come to their end first; their acknowledgements lead back here.
            Err(Failure::Access | Failure::Frame) => None,
        }
    }

    #[inline]
    pub(super) const fn bth(&self, destination: Qpn, psn: Psn) -> Bth {
        Bth {
            solicited: false,
            migration: false,
            partition_key: self.partition_key,
            congestion: 0,
            destination,
            ack_request: false,
            psn,
        }
    }

    /// What the next data packet brings, where the frame has `room` for it beside the rest.
    #[inline]
    fn telemetry_of_data(&self, room: usize) -> Brings {
        if self.sampler.is_due() {
            return match self.format {
                Format::Hpcc if room >= MAX_IN_BAND => Brings::InBand,
                format if room >= format.longest() => Brings::Format(format),
                _ => Brings::Format(Format::Hpcc),
            };
        }
        let subscribes = self.sampler.subscribes() && room >= SUBSCRIPTION_LENGTH;
        if subscribes { Brings::Subscription } else { Brings::Format(Format::Hpcc) }
    }

    /// A packet with telemetry that is put in once the packet is sealed.
    fn write_behind(
        &self,
        brings: Brings,
        template: &Template,
        header: &Header,
        payload: u32,
        frame: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let gap = match brings {
            Brings::InBand => 0,
            Brings::Format(format) => format.inserted(),
            Brings::Subscription => SUBSCRIPTION_LENGTH,
        };
        let behind = frame.get_mut(gap..).ok_or(Failure::Frame)?;
        let length = write_packet(template, self.identification, header, payload, behind, fill)?;
        let whole = match brings {
            Brings::Subscription => Subscription::insert(frame, length, self.identity.qpn),
            Brings::InBand | Brings::Format(Format::Hpcc) => Ok(length),
            Brings::Format(format) => format.insert(frame, length),
        };
        whole.map_err(|_| Failure::Frame)
    }

    pub(super) fn write(
        &self,
        connection: &Connection,
        header: &Header,
        payload: u32,
        frame: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        write_packet(&connection.template, self.identification, header, payload, frame, fill)
    }
}

/// Headers, payload, ICRC.
#[inline(always)]
fn write_packet(
    template: &Template,
    identification: u16,
    header: &Header,
    payload: u32,
    frame: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
) -> Result<usize, Failure> {
    let draft = template.emit_here(identification, header, payload as usize, frame);
    let mut draft = draft.map_err(|error| {
        debug_assert!(false, "{error}");
        Failure::Frame
    })?;
    fill(draft.payload())?;
    Ok(draft.seal())
}

/// Until when the pacer holds packets back, if it does.
fn held_until(flow: Option<&Flow>, now: Instant) -> Option<Instant> {
    flow.map(Flow::free_at).filter(|&at| at > now)
}

use super::super::wqe::Position;
use super::super::{Books, CompletionStatus, SendOperation, State, buffers, requester};
use super::{Kind, Unreliable, sent};
use crate::wire::{Bth, Header, Service, Template};
use crate::{Memory, Psn, Qpn};
use cc::CongestionController;

/// A Q_Key with this bit set in a request stands for the queue pair's own (IBA 10.2.5): only who may set the queue pair's
/// can send such a key.
const CONTROLLED: u32 = 1 << 31;

/// The next packet, and the headers below it.
struct Planned<'a> {
    header: Header,
    template: &'a Template,
    offset: u32,
    length: u32,
    /// It ends its message.
    ends: bool,
}

impl Unreliable {
    /// Writes the next packet that may leave: a congestion notification first, then requests.
    pub(crate) fn poll_transmit<M: Memory>(
        &mut self,
        memory: &M,
        books: &mut Books<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        self.paced_until = None;
        let length = self
            .transmit_notification(books, frame)
            .or_else(|| self.transmit_request(memory, books, frame))?;
        self.identification = self.identification.wrapping_add(1);
        books.counters.tx_frames += 1;
        Some(length)
    }

    /// A CNP: BECN set, PSN 0 (IBA A17.9.3). Only a connection knows whom to tell.
    fn transmit_notification(&mut self, books: &mut Books<'_>, frame: &mut [u8]) -> Option<usize> {
        let Kind::Connected(Some(connection)) = &self.kind else { return None };
        if !self.notifier.is_due() || self.state == State::Error {
            return None;
        }
        let bth = Bth { congestion: Bth::BECN, ..self.bth(connection.destination, Psn::new(0)) };
        let header = Header::CongestionNotification { bth };
        let draft = connection.template.emit(self.identification, &header, 0, frame).ok()?;
        let length = draft.seal();
        self.notifier.on_sent();
        books.counters.notifications_sent += 1;
        Some(length)
    }

    fn transmit_request<M: Memory>(
        &mut self,
        memory: &M,
        books: &mut Books<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        match self.state {
            State::ReadyToSend => {}
            // What has begun ends; nothing new begins.
            State::SendQueueDrained if self.has_begun() => {}
            _ => return None,
        }
        if let Err(status) = self.run_local(books) {
            self.fail_send(status, books);
        }
        self.queue.front()?;
        self.paced_until = self.flow.as_ref().map(super::Flow::free_at).filter(|&at| at > books.now);
        if self.paced_until.is_some() {
            return None;
        }
        let Some(planned) = self.plan(books) else {
            // Its address handle is gone.
            self.fail_send(CompletionStatus::LocalQpOperation, books);
            return None;
        };
        let Planned { header, template, offset, length, ends } = planned;
        let data = &self.queue.front()?.request.data;
        let mut draft = template.emit(self.identification, &header, length as usize, frame).ok()?;
        let pd = self.identity.pd;
        if buffers::gather(memory, books.regions, pd, data, offset, draft.payload()).is_err() {
            self.fail_send(CompletionStatus::LocalProtection, books);
            return None;
        }
        let on_wire = draft.seal();
        books.counters.tx_payload_bytes += u64::from(length);
        if let Some(flow) = &mut self.flow {
            flow.algorithm_mut().on_send(books.now, self.next, length);
            flow.on_wire(books.now, on_wire);
        }
        self.next += 1;
        if ends
            && let Some(wqe) = self.queue.pop_front()
            && (wqe.request.signalled || self.identity.signal_all)
        {
            books.cqs.push(self.identity.send_cq, sent(&wqe, &self.identity));
        }
        self.look_whether_drained(books);
        Some(on_wire)
    }

    /// Runs the requests that no packet carries, as far as they are the oldest.
    fn run_local(&mut self, books: &mut Books<'_>) -> Result<(), CompletionStatus> {
        while let Some(wqe) = self.queue.front()
            && wqe.is_local()
        {
            requester::run(&wqe.request.operation, books, &self.identity)?;
            if wqe.request.signalled || self.identity.signal_all {
                books.cqs.push(self.identity.send_cq, sent(wqe, &self.identity));
            }
            self.queue.pop_front();
        }
        Ok(())
    }

    /// The next packet of the oldest request; `None` where there is no way to its destination.
    fn plan<'a>(&'a self, books: &'a Books<'_>) -> Option<Planned<'a>> {
        let wqe = self.queue.front()?;
        let psn = self.psn(self.next);
        match (&self.kind, wqe.request.operation) {
            (Kind::Datagram { queue_key, .. }, SendOperation::SendTo { to, immediate }) => {
                let template = books.addresses.get(to.address, self.identity.pd)?;
                let mut bth = self.bth(to.qpn, psn);
                bth.solicited = wqe.request.solicited;
                let queue_key = if to.queue_key & CONTROLLED == 0 { to.queue_key } else { *queue_key };
                let header = Header::Datagram { bth, queue_key, source: self.identity.qpn, immediate };
                Some(Planned { header, template, offset: 0, length: wqe.length, ends: true })
            }
            (Kind::Connected(Some(connection)), _) => {
                let offset = wqe.offset(self.next, connection.mtu);
                let length = (wqe.length - offset).min(connection.mtu);
                let position = Position::of((self.next - wqe.first) as u32, wqe.packets);
                let ends = matches!(position, Position::Last | Position::Only);
                let mut bth = self.bth(connection.destination, psn);
                bth.solicited = ends && wqe.request.solicited;
                let operation = requester::operation(wqe, position, offset, offset + length)?;
                let header = Header::Connected { service: Service::Uc, bth, operation };
                Some(Planned { header, template: &connection.template, offset, length, ends })
            }
            _ => None,
        }
    }

    const fn bth(&self, destination: Qpn, psn: Psn) -> Bth {
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
}

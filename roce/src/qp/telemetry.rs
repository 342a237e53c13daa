//! Dedicated probes and their answers (rtgwg-00 6.2.1, 7.1).

use crate::wire::telemetry::{HopRecord, IntHeader};
use crate::{Discard, Psn};
use cc::{Ack, Hop, Instant, MAX_HOPS, PathTelemetry};
use core::time::Duration;

/// Hops that a probe leaves room for.
pub(super) const PROBE_ROOM: u8 = 8;

/// Half of what a record's 24-bit clock tells apart, in ns.
const COMPARABLE: Duration = Duration::from_nanos(1 << 23);

/// The requester's side: probes sent, answers awaited.
#[derive(Debug, Default)]
pub(super) struct Prober {
    interval: Option<Duration>,
    /// The next probe's number. Numbers never wrap here; their low 24 bits travel as a PSN.
    next: u64,
    /// Answers below this number are old.
    awaited: u64,
    last_sent: Option<Instant>,
}

impl Prober {
    pub(super) fn new(interval: Option<Duration>) -> Self {
        Self { interval, ..Self::default() }
    }

    /// When the next probe may leave while data is in flight. A lost probe doesn't stop the next.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let interval = self.interval?;
        Some(self.last_sent.map_or(Instant::ZERO, |last| last + interval))
    }

    pub(super) const fn psn(&self) -> Psn {
        Psn::new((self.next & (Psn::CIRCLE as u64 - 1)) as u32)
    }

    pub(super) fn on_sent(&mut self, now: Instant) {
        self.next += 1;
        self.last_sent = Some(now);
    }

    /// Takes an answer in: once, and none older than one taken before.
    pub(super) fn on_response(
        &mut self,
        now: Instant,
        psn: Psn,
        path_id: u16,
        busiest: Option<(u8, HopRecord)>,
    ) -> Result<(Ack, PathTelemetry), Discard> {
        let number = self
            .next
            .checked_add_signed(i64::from(psn.distance(self.psn())))
            .filter(|number| (self.awaited..self.next).contains(number))
            .ok_or(Discard::Telemetry)?;
        self.awaited = number + 1;
        let newest = number + 1 == self.next;
        let rtt = self.last_sent.filter(|_| newest).map(|sent| now.saturating_since(sent));
        let mut path = PathTelemetry::new(path_id);
        if let Some((index, record)) = busiest {
            path.set(index, record.into());
        }
        Ok((Ack { now, seq: number + 1, next: self.next, acked_bytes: 0, ce_bytes: 0, rtt }, path))
    }
}

/// An answer to a probe, not yet sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Response {
    pub(super) psn: Psn,
    pub(super) path_id: u16,
    pub(super) hops: u8,
    pub(super) busiest: Option<(u8, HopRecord)>,
}

/// The responder's side: the last record of each hop, and the answer that is due.
#[derive(Debug)]
pub(super) struct HopLog {
    path_id: u16,
    last: [Option<(Hop, Instant)>; MAX_HOPS],
    due: Option<Response>,
}

impl HopLog {
    pub(super) const fn new() -> Self {
        Self { path_id: 0, last: [None; MAX_HOPS], due: None }
    }

    /// A probe came. Where an earlier one is not answered yet, only the newer is.
    pub(super) fn on_probe(&mut self, now: Instant, psn: Psn, int: IntHeader, payload: &[u8]) {
        if int.path_id() != self.path_id {
            self.last = [None; MAX_HOPS];
            self.path_id = int.path_id();
        }
        let busiest = self.busiest(now, int, payload);
        for (last, record) in self.last.iter_mut().zip(int.records(payload)) {
            *last = Some((record.into(), now));
        }
        self.due = Some(Response { psn, path_id: int.path_id(), hops: int.hops(), busiest });
    }

    pub(super) const fn due(&self) -> Option<Response> {
        self.due
    }

    pub(super) const fn on_answered(&mut self) {
        self.due = None;
    }

    /// The hop with the highest normalised in-flight bytes. The draft divides by B * T; the responder doesn't know the
    /// sender's T, so the time between the two records stands for it: what the link sent in it and what still waits,
    /// over what it could have sent. Where not every hop has a record to compare with, the longest queue is taken.
    fn busiest(&self, now: Instant, int: IntHeader, payload: &[u8]) -> Option<(u8, HopRecord)> {
        let comparable = int
            .records(payload)
            .zip(&self.last)
            .all(|(record, last)| last.is_some_and(|last| in_flight(record, last, now).is_some()));
        let load = |record: HopRecord, last: &Option<(Hop, Instant)>| match last {
            Some(last) if comparable => in_flight(record, *last, now).unwrap_or(0.0),
            _ => f64::from(record.queue_bytes()),
        };
        (0u8..)
            .zip(int.records(payload).zip(&self.last))
            .map(|(index, (record, last))| (load(record, last), index, record))
            .reduce(|most, hop| if hop.0 > most.0 { hop } else { most })
            .map(|(_, index, record)| (index, record))
    }
}

/// In-flight bytes of a link over what it can carry in the time between two records, where they can be compared.
fn in_flight(record: HopRecord, (last, seen): (Hop, Instant), now: Instant) -> Option<f64> {
    let hop = Hop::from(record);
    let nanos = hop.time.since(last.time);
    let carries = hop.bandwidth.bytes_in(Duration::from_nanos(nanos));
    let comparable = now.saturating_since(seen) < COMPARABLE
        && hop.bandwidth == last.bandwidth
        && carries > 0
        && carries < hop.tx_bytes.period();
    let bytes = hop.tx_bytes.since(last.tx_bytes) + hop.queue.min(last.queue);
    comparable.then(|| bytes as f64 / carries as f64)
}

//! Dedicated probes and their answers (rtgwg-00 6.2.1, 7.1).

use crate::wire::telemetry::{HopRecord, IntHeader};
use crate::{Discard, Psn};
use cc::{Ack, Instant, PathRecords, PathTelemetry};
use core::time::Duration;

/// Hops that a probe leaves room for.
pub(super) const PROBE_ROOM: u8 = 8;

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
    records: PathRecords,
    last_probe: Option<Instant>,
    due: Option<Response>,
}

impl HopLog {
    pub(super) const fn new() -> Self {
        Self { records: PathRecords::new(), last_probe: None, due: None }
    }

    /// A probe came. Where an earlier one is not answered yet, only the newer is.
    ///
    /// The busiest hop is that of the highest normalised in-flight bytes. They are counted over the sender's `T`, which
    /// the responder isn't told: the time between two probes, about a round trip, stands for it.
    pub(super) fn on_probe(&mut self, now: Instant, psn: Psn, int: IntHeader, payload: &[u8]) {
        let mut path = PathTelemetry::new(int.path_id());
        for (index, record) in (0u8..).zip(int.records(payload)) {
            path.set(index, record.into());
        }
        let since = self.last_probe.replace(now).map_or(Duration::ZERO, |last| now.saturating_since(last));
        let busiest = self.records.busiest(now, &path, since.max(Duration::from_nanos(1)));
        let busiest = busiest.and_then(|(index, _)| {
            int.records(payload).nth(usize::from(index)).map(|record| (index, record))
        });
        self.due = Some(Response { psn, path_id: int.path_id(), hops: int.hops(), busiest });
    }

    pub(super) const fn due(&self) -> Option<Response> {
        self.due
    }

    pub(super) const fn on_answered(&mut self) {
        self.due = None;
    }
}

//! The sending side of a reliable connection: send queue, go-back-N, retries (IBA 9.7.5, 9.7.6).

mod acknowledge;
mod holes;
mod join;
mod limits;
mod local;
mod offer;
mod plan;
mod round_trip;
mod selective;
mod send;
mod spray;
mod suspicion;
mod trouble;
mod waiting;
mod why;

use super::super::send_queue::SendQueue;
use super::super::wqe::{self, Wqe};
use super::super::{
    AckTimeout, Changes, CheckedSend, Completion, CompletionStatus, Context, Identity, LossRecovery,
    RtsSettings, SendOperation,
};
use crate::Psn;
use crate::congestion::Progress;
use crate::wheel::sooner;
use alloc::boxed::Box;
use cc::Instant;
use core::num::NonZeroU32;
use core::time::Duration;
use holes::Selective;
use limits::{ACKS_PER_WINDOW, ANSWERS_PER_WINDOW, FEWEST, MOST_PATIENT, MOST_PROBES};
use offer::Offer;
use round_trip::RoundTrip;
use spray::Spray;
use suspicion::Suspicion;

pub(super) use trouble::Trouble;

/// Send queue and connection state of the requester. All numbers are packet numbers (see [`Wqe`]):
/// `una` ≤ `next` ≤ `sent` ≤ `end`.
#[derive(Debug)]
pub(super) struct Requester {
    /// Requests not yet done, oldest first. The front one contains `una`.
    queue: SendQueue,
    /// Index of the request that contains `next`; the queue's length if all is sent.
    cursor: usize,
    /// The oldest packet not yet acknowledged.
    una: u64,
    /// The next packet to send. With go-back-N it goes back to `una` when something was lost; with selective repeat it never does.
    next: u64,
    /// One more than the highest packet ever sent. This, not `next`, bounds what a peer may acknowledge: after
    /// `next` went back, packets of the round before may still be acknowledged, and refusing that would livelock a
    /// window of one packet.
    sent: u64,
    /// One more than the last packet of the last request.
    end: u64,
    /// Payload bytes of all requests ever posted.
    stream_end: u64,
    /// READs and atomics between `una` and `next`.
    outstanding_reads: u32,
    /// One more than the newest packet of this round that requests an answer; below `una` if none does.
    asked: u64,
    /// When the last packet left that asks for an answer.
    asked_at: Instant,
    /// Packets and payload bytes sent since then: 63 packets at most.
    unasked: (u32, u32),
    origin: Psn,
    mtu: u32,
    timeout: Option<Duration>,
    /// Requests for an acknowledgement in a window, as a power of two.
    acks_per_window: u8,
    retry_count: u8,
    retries_left: u8,
    rnr_retry: u8,
    rnr_left: u8,
    max_reads: u8,
    /// The number of READs requested at a time. A loss halves it, and each one that is done adds one. A peer that answers slowly, as
    /// Soft-RoCE does, would have more and more rounds of all of them before it, and drop what does not fit its own queues.
    reads_at_once: u32,
    /// When the oldest packet counts as lost.
    deadline: Option<Instant>,
    /// The number of times that answers about the past have started the retry timer again, since something was acknowledged or the timer
    /// fired.
    waits: u8,
    /// Timeouts in a row, [`MOST_PATIENT`] at most.
    patience: u8,
    /// Bytes that may be in flight after a loss, with go-back-N, and as many more as come to be acknowledged. After a timeout it is one
    /// packet: a peer that drops what it has no time for would drop it again if all of it came at once, and those of its other queue
    /// pairs with it. After another loss it is twice what came between losses lately: what is sent behind that is sent in vain.
    reach: u64,
    /// Packets acknowledged since the last loss, with go-back-N.
    run: u32,
    /// The smoothed value of `run` at recent losses.
    bears: Option<NonZeroU32>,
    /// When something is requested again because nothing was answered for as long as two round trips take.
    probe_at: Option<Instant>,
    /// The number of such requests since a round trip was measured: each time the wait is twice as long.
    probes: u8,
    /// The round trip, once one was measured.
    trip: Option<RoundTrip>,
    /// The peer has no receive posted: until then nothing is sent.
    rnr_until: Option<Instant>,
    /// An implied NAK was acted upon and nothing moved since: answers of the round before say nothing new.
    recovering: bool,
    /// One more than the last packet that was sent before the last loss: until it is acknowledged, the loss is not made up for.
    recovers_to: u64,
    /// The last answer that came too early, with go-back-N.
    ahead: u64,
    /// The packet whose round trip is being measured.
    sample: Option<(u64, Instant)>,
    /// Evidence that may explain a failure, once something was wrong.
    suspicion: Option<Box<Suspicion>>,
    /// With selective repeat; few have it, and it is large.
    selective: Option<Box<Selective>>,
    /// The offer to the peer, as long as it is go-back-N.
    offer: Offer,
}

impl Requester {
    pub(super) const fn new() -> Self {
        Self {
            queue: SendQueue::new(),
            cursor: 0,
            una: 0,
            next: 0,
            sent: 0,
            end: 0,
            stream_end: 0,
            outstanding_reads: 0,
            asked: 0,
            asked_at: Instant::ZERO,
            unasked: (0, 0),
            origin: Psn::new(0),
            mtu: 256,
            timeout: None,
            acks_per_window: ACKS_PER_WINDOW,
            retry_count: 0,
            retries_left: 0,
            rnr_retry: 0,
            rnr_left: 0,
            max_reads: 0,
            reads_at_once: 0,
            deadline: None,
            waits: 0,
            patience: 0,
            reach: u64::MAX,
            run: 0,
            bears: None,
            probe_at: None,
            probes: 0,
            trip: None,
            rnr_until: None,
            recovering: false,
            recovers_to: 0,
            ahead: 0,
            sample: None,
            suspicion: None,
            selective: None,
            offer: Offer::NONE,
        }
    }

    /// RTR to RTS.
    pub(super) fn connect(&mut self, mtu: u32, recovery: LossRecovery, settings: &RtsSettings) {
        self.mtu = mtu;
        let paths = settings.congestion.paths.filter(|paths| paths.spray);
        let spray = paths.map(|paths| Box::new(Spray::new(paths.count)));
        let is_agreed = recovery == LossRecovery::SelectiveRepeat;
        self.selective = is_agreed.then(|| Box::new(Selective::new(spray)));
        self.offer = Offer::new(recovery);
        self.origin = settings.send_psn;
        self.timeout = AckTimeout::duration(settings.ack_timeout);
        let brings = settings.congestion.computed_by_data().is_some();
        self.acks_per_window = if brings { ANSWERS_PER_WINDOW } else { ACKS_PER_WINDOW };
        self.retry_count = settings.retry_count;
        self.retries_left = settings.retry_count;
        self.rnr_retry = settings.rnr_retry;
        self.rnr_left = settings.rnr_retry;
        self.max_reads = settings.max_rd_atomic;
        self.reads_at_once = self.max_reads.into();
    }

    /// Changes the settings that count from the next message on.
    pub(super) fn change(&mut self, changes: &Changes) {
        self.timeout = changes.ack_timeout.map_or(self.timeout, AckTimeout::duration);
        if let Some(count) = changes.retry_count {
            (self.retry_count, self.retries_left) = (count, count);
        }
        if let Some(count) = changes.rnr_retry {
            (self.rnr_retry, self.rnr_left) = (count, count);
        }
        if let Some(most) = changes.max_rd_atomic {
            (self.max_reads, self.reads_at_once) = (most, most.into());
        }
    }

    /// Forgets everything; the queue keeps its room.
    pub(super) fn reset(&mut self) {
        let mut queue = core::mem::take(&mut self.queue);
        queue.clear();
        *self = Self { queue, ..Self::new() };
    }

    /// Appends a request that was checked. The first makes room for `most`.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers and byte counts stay far below 2^64")]
    pub(super) fn post(&mut self, checked: &mut CheckedSend, most: u32) {
        let wqe = self.queue.push(checked, most);
        let packets = match wqe.request.operation {
            SendOperation::Bind(_) | SendOperation::LocalInvalidate { .. } => 0,
            SendOperation::FetchAdd { .. }
            | SendOperation::CompareSwap { .. }
            | SendOperation::AtomicWrite { .. }
            | SendOperation::Flush { .. } => 1,
            SendOperation::Send { .. }
            | SendOperation::SendInvalidate { .. }
            | SendOperation::SendTo { .. }
            | SendOperation::Write { .. }
            | SendOperation::Read { .. } => wqe::packets(wqe.length, self.mtu),
        };
        let sends = wqe.begin(self.end, packets, self.stream_end);
        self.end += u64::from(packets);
        self.stream_end += u64::from(sends);
    }

    /// The next packet is not the first of a request that was never sent.
    pub(super) fn has_begun(&self) -> bool {
        self.next < self.sent
            || self.is_repeating()
            || self.queue.get(self.cursor).is_some_and(|wqe| wqe.first < self.next)
    }

    /// The window that there is while a timeout is not forgotten.
    #[inline]
    pub(super) fn within_reach(&self, window: u64) -> u64 {
        window.min(self.reach)
    }

    /// Nothing that is in flight asks for an acknowledgement, and the window, which has shrunk since it was sent, lets no other packet
    /// ask: neither side would ever send again, not even by a timer.
    #[inline]
    pub(super) fn is_mute(&self, window: u64) -> bool {
        self.asked <= self.una
            && self.una < self.next
            && self.in_flight() >= window.max(1)
            && !self.is_repeating()
    }

    /// Sends again from the oldest packet on, without a loss: a window's last packet asks.
    #[cold]
    pub(super) fn ask_again(&mut self, now: Instant) {
        if self.selective.is_some() {
            self.lose_blameless(now);
        } else {
            self.rewind();
        }
    }

    /// Returns whether something waits to be sent again, with selective repeat.
    #[inline]
    fn is_repeating(&self) -> bool {
        self.selective.as_ref().is_some_and(|selective| selective.has_lost())
    }

    /// Returns whether a whole timeout has passed since something was acknowledged.
    pub(super) const fn is_unanswered(&self) -> bool {
        self.patience > 0
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Payload bytes sent and not acknowledged; with selective repeat without those that the peer holds or that are lost.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight_of(self.stream_at(self.cursor, self.next))
    }

    /// The same if `sent` payload bytes were sent since the connection began.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`una` is not beyond the packets that were sent, and `min` keeps the difference from going below 0"
    )]
    fn in_flight_of(&self, sent: u64) -> u64 {
        let sent = sent - self.stream_at(0, self.una);
        self.selective.as_ref().map_or(sent, |selective| sent - selective.away_bytes().min(sent))
    }

    /// The oldest packet not acknowledged, the next to send, and one more than the highest ever sent.
    pub(super) const fn bounds(&self) -> (u64, u64, u64) {
        (self.una, self.next, self.sent)
    }

    /// Returns true if no packet that was sent still waits for its answer.
    pub(super) const fn is_answered(&self) -> bool {
        self.una == self.sent
    }

    /// Returns true if all that was sent will be acknowledged without another packet, and nothing is sent again: new packets can wait here.
    pub(super) const fn all_is_asked_for(&self) -> bool {
        self.next == self.sent && self.asked == self.sent && self.probes == 0
    }

    /// The last PSN that was acknowledged; one before the first if none was.
    pub(super) fn acknowledged_psn(&self) -> Psn {
        self.psn(self.una).plus(Psn::CIRCLE - 1)
    }

    /// The PSN that the next packet sent for the first time will have.
    pub(super) fn send_psn(&self) -> Psn {
        self.psn(self.sent)
    }

    /// Returns the time that an answer may take from now on. It doubles after each timeout, up to the 4 `T` that a requester may take to
    /// see one (IBA 9.7.6.1.3): a slow peer gets time before all retries are spent.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`patience` is at most MOST_PATIENT, and a timeout at most 3 hours"
    )]
    pub(super) fn wait(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout * (1 << self.patience))
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        // While a receiver is not ready nothing is sent, and nothing is outstanding.
        let due = self.selective.as_ref().and_then(|selective| selective.due());
        self.rnr_until.or_else(|| sooner(sooner(self.deadline, self.probe_at), due))
    }

    /// Time has come to `now`; `window` is the congestion controller's.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "64-bit counters never wrap; the sum is at most MOST_PATIENT + 1"
    )]
    pub(super) fn on_timeout(&mut self, window: u64, context: &mut Context<'_>) -> Result<Progress, Trouble> {
        let now = context.now;
        self.rnr_until = self.rnr_until.filter(|&until| until > now);
        if self.rnr_until.is_some() {
            return Ok(Progress::default());
        }
        if self.deadline.is_none_or(|deadline| deadline > now) {
            if self.probe_at.is_some_and(|at| at <= now) {
                self.ask(window, now);
            }
            return Ok(Progress { lost: self.detect(now), ..Progress::default() });
        }
        context.counters.timeouts += 1;
        self.waits = 0;
        self.retry(now)?;
        self.patience = (self.patience + 1).min(MOST_PATIENT);
        if self.selective.is_none() {
            self.reach = self.mtu.into();
        }
        Ok(Progress { lost: true, ..Progress::default() })
    }

    /// Ends the oldest request with `status` and all others as flushed.
    pub(super) fn flush(&mut self, status: CompletionStatus, context: &mut Context<'_>, identity: &Identity) {
        let mut status = status;
        while let Some(wqe) = self.queue.pop() {
            let failed = Completion { status, length: 0, ..success(wqe, identity) };
            context.cqs.push(identity.send_cq, failed);
            status = CompletionStatus::Flushed;
        }
        self.una = self.end;
        self.next = self.end;
        self.sent = self.end;
        self.cursor = 0;
        self.outstanding_reads = 0;
        self.deadline = None;
        self.rnr_until = None;
        self.sample = None;
        self.probe_at = None;
        self.selective = None;
        self.offer = Offer::NONE;
    }

    /// Goes back to the oldest packet, if a retry is left: the retry counter counts rounds without progress.
    fn retry(&mut self, now: Instant) -> Result<(), Trouble> {
        if self.outstanding_reads > 0 && self.selective.is_none() {
            self.reads_at_once = (self.reads_at_once / 2).max(2).min(self.max_reads.into());
        }
        self.retries_left =
            self.retries_left.checked_sub(1).ok_or(Trouble::Fail(CompletionStatus::RetryExceeded))?;
        self.go_back(now);
        Ok(())
    }

    /// Sends again what may be lost: all from the oldest packet on, or all that is missing.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "three quarters and a quarter of 32 bits fit into 32 bits; 33 bits times an MTU fit into 64 bits"
    )]
    fn go_back(&mut self, now: Instant) {
        self.recovers_to = self.sent;
        if self.selective.is_some() {
            self.lose_all(now);
            self.deadline = None;
        } else {
            let bears = self.bears.map_or(self.run, |bears| bears.get() - bears.get() / 4 + self.run / 4);
            (self.bears, self.run) = (NonZeroU32::new(bears), 0);
            self.reach = (2 * u64::from(bears)).max(FEWEST) * u64::from(self.mtu);
            self.offer_at_loss();
            self.rewind();
        }
    }

    /// Nothing was answered for as long as [`Self::probe_wait`] says: asks again, by one packet. This costs no retry, the timer of the
    /// retries goes on, and nothing counts as lost: the peer may only be slow.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the sum is at most MOST_PROBES + 1; adding to an `Instant` saturates"
    )]
    fn ask(&mut self, window: u64, now: Instant) {
        self.probe_at = None;
        if self.una == self.sent {
            self.probes = (self.probes + 1).min(MOST_PROBES);
            return;
        }
        if self.selective.is_some() {
            self.probe(window, now);
            self.probe_at = self.probe_wait().map(|wait| now + wait);
            return;
        }
        self.probes = (self.probes + 1).min(MOST_PROBES);
        let deadline = self.deadline;
        self.recovers_to = self.sent;
        self.offer_at_loss();
        self.rewind();
        self.reach = self.mtu.into();
        self.deadline = deadline;
    }

    /// Returns the time without an answer after which something is requested again: never longer than the timeout.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`probes` is at most MOST_PROBES; seconds times 128 are far below the longest Duration"
    )]
    fn probe_wait(&self) -> Option<Duration> {
        // With go-back-N asking means sending all again: only what is surely lost is worth that.
        let doublings = self.probes + u8::from(self.selective.is_none());
        let wait = self.trip?.patience().max(self.spray_patience()) * (1 << doublings);
        Some(self.wait().map_or(wait, |timeout| timeout.min(wait)))
    }

    /// When something is requested again if nothing more is answered. With selective repeat that is when nothing was requested for as long
    /// as [`Self::probe_wait`] says, and nothing was answered for half as long (RFC 9002 6.2.1 has it since the last packet). An answer to
    /// packets before a lost tail postpones nothing. The answers of a READ may come slowly.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "adding to an `Instant` saturates; the divisor is a constant"
    )]
    fn probe_due(&self, now: Instant) -> Option<Instant> {
        let wait = self.probe_wait()?;
        if self.selective.is_none() || self.outstanding_reads > 0 {
            return Some(now + wait);
        }
        Some((self.asked_at + wait).max(now + wait / 2))
    }

    /// The packet that measures the round trip may be acknowledged. Returns the round trip if it is.
    fn take_sample(&mut self, now: Instant) -> Option<Duration> {
        let (number, since) = self.sample?;
        let is_there =
            number < self.una || self.selective.as_ref().is_some_and(|selective| selective.has(number));
        if !is_there {
            return None;
        }
        self.sample = None;
        self.probes = 0;
        let rtt = now.saturating_since(since);
        self.trip = Some(RoundTrip::measured(self.trip, rtt));
        Some(rtt)
    }

    fn rewind(&mut self) {
        self.next = self.una;
        self.cursor = 0;
        self.outstanding_reads = 0;
        self.asked = self.una;
        self.unasked = (0, 0);
        self.deadline = None;
        self.probe_at = None;
        // A packet that is sent again measures nothing: its acknowledgement may be of either (Karn).
        self.sample = None;
    }

    fn psn(&self, number: u64) -> Psn {
        self.origin.plus((number & u64::from(Psn::CIRCLE - 1)) as u32)
    }

    /// The number of the packet that an answer with this PSN is about, `None` if it was acknowledged before or never sent.
    fn answered(&self, psn: Psn) -> Option<u64> {
        let ahead = psn.distance(self.psn(self.una));
        let number = self.una.checked_add_signed(i64::from(ahead))?;
        (self.una..self.sent).contains(&number).then_some(number)
    }

    /// The first PSN of the connection.
    pub(super) const fn first(&self) -> Psn {
        self.origin
    }

    #[inline]
    fn stream_at(&self, index: usize, number: u64) -> u64 {
        self.queue.get(index).map_or(self.stream_end, |wqe| wqe.stream_at(number, self.mtu))
    }
}

/// A request's completion when all goes well.
fn success(wqe: &Wqe, identity: &Identity) -> Completion {
    let length = if wqe.is_fetched() { wqe.length } else { 0 };
    let (id, ok) = (wqe.request.id, CompletionStatus::Success);
    Completion { length, ..Completion::new(id, ok, wqe.opcode(), identity.qpn) }
}

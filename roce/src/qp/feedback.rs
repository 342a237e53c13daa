//! A queue pair's telemetry, both ways: what it answers its peer, and what its peer's answers do to its flow.

use super::collector::{Collector, RATIO_ONE, Way};
use super::queue_pair::{Connection, QueuePair};
use super::seal::Sealed;
use super::upgrade::Seen;
use super::{Books, State};
use crate::wheel::sooner;
use crate::wire::{Bth, Feedback, Frame, Header, MAX_FEEDBACK, Opcode, Report, SETUP_LENGTH, Seal, Setup};
use crate::{Discard, Psn};
use alloc::boxed::Box;
use cc::{Ack, CongestionController, Inflight, Instant, ReceiverLink};

impl QueuePair {
    /// A data packet may have brought telemetry, an Acknowledge feedback. Either is taken in before the packet itself.
    #[inline]
    pub(super) fn on_riding_telemetry(&mut self, frame: &Frame<'_>, books: &mut Books<'_>) {
        let bth = frame.header.bth();
        let flagged = bth.congestion & Bth::TELEMETRY != 0;
        if self.collector.is_some() || frame.in_band.is_some() || frame.carried.is_some() || flagged {
            self.on_telemetry(frame, bth, books);
        }
    }

    fn on_telemetry(&mut self, frame: &Frame<'_>, bth: &Bth, books: &mut Books<'_>) {
        let opcode = frame.header.opcode();
        if !opcode.is_acknowledge() {
            if self.collector.is_some() || frame.in_band.is_some() || frame.carried.is_some() {
                self.collector().on_frame(books.now, frame, books.flows);
            }
            return;
        }
        if bth.congestion & Bth::TELEMETRY != 0 && !frame.payload.is_empty() {
            let taken = Feedback::read(frame.payload)
                .and_then(|feedback| self.on_feedback(bth, opcode, &feedback, books));
            // The Acknowledge itself is good, whatever rides behind it.
            if let Err(discard) = taken {
                books.counters.discard(discard);
            }
        }
    }

    /// The answer to a probe.
    pub(super) fn on_response(
        &mut self,
        bth: &Bth,
        feedback: &Feedback,
        books: &mut Books<'_>,
    ) -> Result<(), Discard> {
        self.check_seal(bth, Opcode::TELEMETRY_RESPONSE, feedback)?;
        if let Some(paths) = &mut self.paths
            && paths.on_response(books.now, bth.psn, feedback.report)
        {
            books.counters.probe_responses += 1;
            return Ok(());
        }
        let ack = self.prober.on_response(books.now, bth.psn)?;
        books.counters.probe_responses += 1;
        if let Some(hops) = feedback.report.hops() {
            self.consider(Seen::Telemetry(hops));
        }
        self.on_report(&ack, feedback.report);
        Ok(())
    }

    /// Feedback about a packet of ours.
    pub(super) fn on_feedback(
        &mut self,
        bth: &Bth,
        opcode: Opcode,
        feedback: &Feedback,
        books: &mut Books<'_>,
    ) -> Result<(), Discard> {
        self.check_seal(bth, opcode, feedback)?;
        let (_, next) = self.requester.bounds();
        let seq = match feedback.report {
            Report::Ready => {
                self.sampler.on_ready();
                return Ok(());
            }
            Report::Window(_) => 0,
            Report::Busiest { .. }
            | Report::Hop { .. }
            | Report::Shared { .. }
            | Report::All { .. }
            | Report::Ratio { .. } => self.requester.sent_number(bth.psn).ok_or(Discard::Telemetry)? + 1,
        };
        let ack = Ack { now: books.now, seq, next, acked_bytes: 0, ce_bytes: 0, rtt: None };
        books.counters.feedback_received += 1;
        self.on_report(&ack, feedback.report);
        Ok(())
    }

    /// A switch says that a packet of ours met congestion.
    pub(super) fn on_direct(
        &mut self,
        bth: &Bth,
        feedback: &Feedback,
        books: &mut Books<'_>,
    ) -> Result<(), Discard> {
        let (content, length) = bytes(feedback.report);
        self.seals.open(&Sealed::direct(bth), &content[..length], feedback.seal)?;
        if !matches!(feedback.report, Report::Ratio { .. }) {
            return Err(Discard::Telemetry);
        }
        let seq = self.requester.sent_number(bth.psn).ok_or(Discard::Telemetry)? + 1;
        let (_, next) = self.requester.bounds();
        books.counters.feedback_received += 1;
        self.on_report(
            &Ack { now: books.now, seq, next, acked_bytes: 0, ce_bytes: 0, rtt: None },
            feedback.report,
        );
        Ok(())
    }

    fn on_report(&mut self, ack: &Ack, report: Report) {
        let Some(flow) = &mut self.flow else { return };
        let algorithm = flow.algorithm_mut();
        match report {
            Report::Shared { hops, flows, .. } => {
                algorithm.on_receiver_link(ReceiverLink { hop: hops - 1, flows });
            }
            Report::Ratio { utilisation, interval, .. } => {
                let utilisation = f64::from(utilisation) / RATIO_ONE;
                algorithm.on_inflight(ack, &Inflight { utilisation, interval: interval.into() });
            }
            Report::Window(window) => algorithm.on_window(window),
            Report::Busiest { .. } | Report::Hop { .. } | Report::All { .. } | Report::Ready => {}
        }
        if let Some(path) = report.path() {
            algorithm.on_telemetry(ack, &path);
        }
    }

    pub(super) fn on_setup(&mut self, bth: &Bth, setup: Setup, seal: Option<Seal>) -> Result<(), Discard> {
        let from = self.connection.as_ref().map(|connection| connection.destination);
        let sealed = Sealed {
            to: self.identity.qpn,
            ..Sealed::new(Opcode::TELEMETRY_SETUP, from.ok_or(Discard::QpState)?, bth, self.responder.first())
        };
        self.seals.open(&sealed, &setup.pack(), seal)?;
        self.collector().on_setup(setup)
    }

    /// What answers the peer's telemetry, made when the first comes.
    pub(super) fn collector(&mut self) -> &mut Collector {
        let ratio_only = self.ratio_only;
        self.collector.get_or_insert_with(|| {
            let mut collector = Box::new(Collector::new());
            collector.only_ratios(ratio_only);
            collector
        })
    }

    fn check_seal(&mut self, bth: &Bth, opcode: Opcode, feedback: &Feedback) -> Result<(), Discard> {
        if !self.seals.is_used() {
            return Ok(());
        }
        let from = self.connection.as_ref().map(|connection| connection.destination);
        let sealed = Sealed::new(opcode, from.ok_or(Discard::QpState)?, bth, self.requester.first());
        let (content, length) = bytes(feedback.report);
        self.seals.open(&sealed, &content[..length], feedback.seal)
    }

    /// Seals what this side says about the peer's data.
    pub(super) fn feedback(&mut self, opcode: Opcode, bth: &Bth, report: Report) -> Feedback {
        if !self.seals.is_used() {
            return Feedback { report, seal: None };
        }
        let sealed = Sealed::new(opcode, self.identity.qpn, bth, self.responder.first());
        let (content, length) = bytes(report);
        Feedback { report, seal: self.seals.seal(&sealed, &content[..length]) }
    }

    /// Feedback that leaves by itself.
    pub(super) fn transmit_feedback(
        &mut self,
        connection: &Connection,
        books: &mut Books<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let due = self.collector.as_ref()?.due().filter(|_| self.state != State::Error)?;
        let bth = self.bth(connection.destination, due.psn);
        let header = match due.way {
            Way::Response => {
                let feedback = self.feedback(Opcode::TELEMETRY_RESPONSE, &bth, due.report);
                Header::TelemetryResponse { bth, feedback }
            }
            Way::Notification | Way::Either | Way::Acknowledge => {
                let feedback = self.feedback(Opcode::TELEMETRY_NOTIFICATION, &bth, due.report);
                Header::TelemetryNotification { bth, feedback }
            }
        };
        self.collector().on_sent(due.report);
        books.counters.feedback_sent += 1;
        self.write(connection, &header, 0, frame, |_| Ok(())).ok()
    }

    /// Tells the peer how to answer telemetry, while data is in flight and it has not said that it heard.
    pub(super) fn transmit_setup(
        &mut self,
        connection: &Connection,
        books: &Books<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let is_due = self.sampler.setup_due_at().is_some_and(|at| at <= books.now);
        if !is_due || self.state != State::ReadyToSend || self.requester.in_flight() == 0 {
            return None;
        }
        let setup = self.sampler.setup()?;
        let bth = self.bth(connection.destination, Psn::new(0));
        let sealed = Sealed::new(Opcode::TELEMETRY_SETUP, self.identity.qpn, &bth, self.requester.first());
        let seal = self.seals.seal(&sealed, &setup.pack());
        self.sampler.on_setup_sent(books.now);
        self.write(connection, &Header::TelemetrySetup { bth, setup, seal }, 0, frame, |_| Ok(())).ok()
    }

    /// When telemetry has something to send while data is in flight.
    pub(super) fn telemetry_due_at(&self) -> Option<Instant> {
        let paths = self.paths.as_ref().map(|paths| paths.due_at());
        let due = sooner(sooner(self.prober.due_at(), self.sampler.setup_due_at()), paths);
        due.filter(|_| self.requester.in_flight() > 0)
    }
}

/// A report as it stands on the wire.
fn bytes(report: Report) -> ([u8; MAX_FEEDBACK], usize) {
    let mut bytes = [0; MAX_FEEDBACK];
    let length = Feedback { report, seal: None }.write(&mut bytes);
    (bytes, length)
}

const _: () = assert!(SETUP_LENGTH.is_multiple_of(4) && MAX_FEEDBACK.is_multiple_of(4));

//! Congestion control of datagrams: each destination of a queue pair is paced separately, by probes that its host answers.
//!
//! A destination is an IP address. Its probes use the address handle of the last datagram to it, and are sent to that datagram's queue
//! pair.

use super::sampler::Sampler;
use super::{Congestion, CongestionAlgorithm, CongestionControl, Sequence, Transport};
use crate::address::AddressTable;
use crate::event::Events;
use crate::types::Datagram;
use crate::wheel::earliest_of;
use crate::wire::{Frame, Numbers, Path, Template};
use crate::{CongestionChange, Counters, Discard, PdId, Psn, Qpn};
use alloc::vec::Vec;
use cc::{ActiveFlows, Algorithm, Instant};
use core::net::IpAddr;

/// Limit of the destinations of a queue pair. A new one replaces the one that was idle for the longest time, which later restarts without
/// state.
const MAX_DESTINATIONS: usize = 128;

/// State of the sending queue pair for the destinations.
#[derive(Clone, Copy)]
pub(crate) struct Sender<'a> {
    pub(crate) now: Instant,
    pub(crate) pd: PdId,
    pub(crate) qpn: Qpn,
    pub(crate) partition_key: u16,
    pub(crate) identification: u16,
    pub(crate) numbers: Numbers,
    pub(crate) addresses: &'a AddressTable,
}

#[derive(Debug)]
struct Destination {
    control: CongestionControl,
    /// Address handle, queue pair and Q_Key of the last datagram.
    to: Datagram,
    used: Instant,
}

/// Destinations of a queue pair whose algorithm computes, or may change to one that does.
#[derive(Debug)]
pub(crate) struct Destinations {
    settings: Congestion,
    qpn: Qpn,
    /// Address of each destination, stored separately because every packet may search them all.
    addresses: Vec<IpAddr>,
    destinations: Vec<Destination>,
    last: Option<usize>,
    /// Earliest time of the next probe.
    due: Option<Instant>,
}

impl Destinations {
    pub(crate) const fn new(settings: Congestion, qpn: Qpn) -> Self {
        Self { settings, qpn, addresses: Vec::new(), destinations: Vec::new(), last: None, due: None }
    }

    pub(crate) fn algorithm(&self) -> Option<&Algorithm> {
        self.destinations.get(self.last?)?.control.algorithm()
    }

    /// Returns until when the pacer of its destination delays the next packet, which is sent `to` along `path`. Members of multicast groups
    /// answer no probes, so only the queue pair's own pacer delays packets to groups.
    pub(crate) fn hold_until(
        &mut self,
        now: Instant,
        path: &Path,
        to: Datagram,
        queue_key: u32,
    ) -> Option<Instant> {
        self.last = None;
        if path.destination.is_multicast() {
            return None;
        }
        let index = self.find(now, path, to)?;
        self.last = Some(index);
        let destination = self.destinations.get_mut(index)?;
        destination.record_datagram(now, to, queue_key);
        destination.control.begin_turn(now);
        if destination.control.may_send(now) { None } else { destination.control.paced_until() }
    }

    /// Returns the place of a destination, and creates it if it is new.
    fn find(&mut self, now: Instant, path: &Path, to: Datagram) -> Option<usize> {
        if let Some(index) = self.addresses.iter().position(|address| *address == path.destination) {
            return Some(index);
        }
        let control = CongestionControl::for_destination(&self.settings, self.qpn, path)?;
        let new = Destination { control, to, used: now };
        if self.destinations.len() < MAX_DESTINATIONS {
            self.addresses.push(path.destination);
            self.destinations.push(new);
            return Some(self.destinations.len() - 1);
        }
        let (index, (oldest, address)) = self
            .destinations
            .iter_mut()
            .zip(&mut self.addresses)
            .enumerate()
            .min_by_key(|(_, (one, _))| one.used)?;
        (*oldest, *address) = (new, path.destination);
        Some(index)
    }

    pub(crate) fn on_sent(&mut self, now: Instant, payload: u32, frame: usize) {
        let Some(destination) = self.last.and_then(|index| self.destinations.get_mut(index)) else { return };
        destination.control.on_unacknowledged_data_sent(now, payload, frame);
        self.due = earliest_of(self.due, destination.control.probe_due_at());
    }

    #[inline]
    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    pub(crate) fn transmit_probe(
        &mut self,
        sender: &Sender<'_>,
        counters: &mut Counters,
        events: &mut Events,
        frame: &mut [u8],
    ) -> Option<usize> {
        self.due.filter(|&due| due <= sender.now)?;
        let mut due = None;
        for (destination, address) in self.destinations.iter_mut().zip(&self.addresses) {
            let is_due = destination.control.probe_due_at().is_some_and(|at| at <= sender.now);
            if is_due && let Some(template) = sender.addresses.get(destination.to.address, sender.pd) {
                let transport = destination.transport(sender, template);
                let control = &mut destination.control;
                let written = control.transmit_control(&transport, counters, frame, &mut false);
                destination.report_changes(sender.qpn, *address, events);
                if written.is_some() {
                    return written;
                }
            }
            // A destination without an address handle sends no probe until it has another handle.
            due = earliest_of(due, destination.control.probe_due_at().filter(|&at| at > sender.now));
        }
        self.due = due;
        None
    }

    /// Handles the answer to a probe. An unsolicited answer changes nothing.
    ///
    /// # Errors
    /// Returns [`Discard::Telemetry`] if no probe awaits the answer, or why the answer is invalid.
    pub(crate) fn on_response(
        &mut self,
        sender: &Sender<'_>,
        frame: &Frame<'_>,
        counters: &mut Counters,
        flows: &mut ActiveFlows,
        events: &mut Events,
    ) -> Result<(), Discard> {
        let source = frame.network.source();
        let index = self.addresses.iter().position(|address| *address == source);
        let destination =
            index.and_then(|index| self.destinations.get_mut(index)).ok_or(Discard::Telemetry)?;
        let template = sender.addresses.get(destination.to.address, sender.pd).ok_or(Discard::Telemetry)?;
        if !destination.control.is_awaited(frame.header.bth().psn) {
            return Err(Discard::Telemetry);
        }
        let transport = destination.transport(sender, template);
        destination.control.on_control(frame, &transport, counters, flows)?;
        destination.report_changes(sender.qpn, source, events);
        Ok(())
    }
}

impl Destination {
    fn record_datagram(&mut self, now: Instant, to: Datagram, queue_key: u32) {
        let is_other = self.to.qpn != to.qpn;
        (self.to, self.used) = (to, now);
        if let Some(telemetry) = &mut self.control.telemetry {
            telemetry.queue_key = Some(queue_key);
            if is_other {
                telemetry.auth.restart();
            }
        }
    }

    /// Returns the state that congestion control may use now. Datagrams have no packet numbers.
    fn transport<'a>(&self, sender: &Sender<'_>, template: &'a Template) -> Transport<'a> {
        let first = Psn::new(0);
        Transport {
            now: sender.now,
            qpn: sender.qpn,
            destination: self.to.qpn,
            partition_key: sender.partition_key,
            identification: sender.identification,
            numbers: sender.numbers,
            template,
            is_sending: false,
            sequence: Sequence { una: 0, next: 0, sent: 0, first_sent: first, first_received: first },
            path: None,
        }
    }

    fn report_changes(&mut self, qpn: Qpn, destination: IpAddr, events: &mut Events) {
        while let Some(notice) = self.control.take_notice() {
            events.change(CongestionChange { qpn, destination: Some(destination), notice });
        }
    }
}

impl CongestionControl {
    /// Creates the congestion control of datagrams along `path`; `None` if the settings do not fit it.
    fn for_destination(settings: &Congestion, qpn: Qpn, path: &Path) -> Option<Self> {
        let mut control = Self::new();
        control.start(settings, qpn, Some(path)).ok()?;
        if let Some(telemetry) = &mut control.telemetry {
            telemetry.sampler = Sampler::default();
            // There are no CNPs, so without telemetry the line rate limits the destination.
            let rate = settings.line_rate();
            let bounded = CongestionAlgorithm::Fixed { window: u64::MAX, rate };
            telemetry.policy.set_substitute(bounded);
        }
        Some(control)
    }

    /// Returns when the next probe is due, if data was sent since the last one.
    fn probe_due_at(&self) -> Option<Instant> {
        self.telemetry.as_ref().filter(|telemetry| telemetry.prober.has_unacknowledged())?.due_at()
    }

    fn is_awaited(&self, psn: Psn) -> bool {
        self.telemetry.as_ref().is_some_and(|telemetry| telemetry.prober.is_awaited(psn))
    }
}

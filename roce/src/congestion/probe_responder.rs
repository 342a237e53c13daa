//! Answers to probes of datagrams: they return the telemetry to the sender, and the receiver keeps no state.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use super::peer_paths::complete;
use super::seal::{FeedbackAuth, FeedbackKey, SealedFields};
use crate::wire::format::Reading;
use crate::wire::{Bth, Feedback, Frame, MAX_FEEDBACK, Opcode, Records, Report, SEAL_LENGTH, Template};
use crate::{Discard, Psn, Qpn};
use alloc::collections::VecDeque;
use cc::{Hop, PathTelemetry};
use core::net::IpAddr;

/// Limit of the pending answers of a queue pair.
const MAX_PENDING: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeResponse {
    /// Headers of the path back.
    pub(crate) template: Template,
    pub(crate) to: Qpn,
    pub(crate) psn: Psn,
    report: Report,
}

/// Pending answers of a queue pair, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ProbeResponder {
    /// Allocated with the first answer, because most queue pairs are never probed.
    pending: VecDeque<ProbeResponse>,
    auth: FeedbackAuth,
    /// Senders receive only ratios, which cannot be computed from a single packet.
    is_disabled: bool,
}

impl ProbeResponder {
    /// Starts to seal answers with `key`, if there is one.
    pub(crate) fn authenticate(&mut self, key: Option<FeedbackKey>) {
        self.auth = core::mem::take(&mut self.auth).with_key(key);
    }

    /// Answers nothing from now on.
    pub(crate) const fn disable(&mut self) {
        self.is_disabled = true;
    }

    pub(crate) fn clear(&mut self) {
        self.pending.clear();
    }

    /// Queues the answer to a probe from queue pair `from`. The answer is never longer than the probe.
    ///
    /// # Errors
    /// Returns the reason if there is no answer.
    pub(crate) fn on_request(&mut self, frame: &Frame<'_>, from: Qpn) -> Result<(), Discard> {
        let path = frame.network.path();
        // An answer is sent to one host only.
        if !is_host(path.source) || !is_host(path.destination) {
            return Err(Discard::Address);
        }
        let report = report_of(frame).filter(|_| !self.is_disabled).ok_or(Discard::Telemetry)?;
        let sealed = if self.auth.is_used() { SEAL_LENGTH } else { 0 };
        let length = report.length().saturating_add(sealed);
        if frame.in_band.is_none_or(|in_band| in_band.int.room_bytes() < length) {
            return Err(Discard::Length);
        }
        let Some(room) = MAX_PENDING.checked_sub(self.pending.len()).filter(|&room| room > 0) else {
            return Err(Discard::AnswersFull);
        };
        let template = Template::new(&path.back()).map_err(|_| Discard::Address)?;
        self.pending.reserve_exact(room);
        self.pending.push_back(ProbeResponse { template, to: from, psn: frame.header.bth().psn, report });
        Ok(())
    }

    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(crate) fn pop(&mut self) -> Option<ProbeResponse> {
        self.pending.pop_front()
    }

    #[expect(clippy::indexing_slicing, reason = "`write` returns no more than its room")]
    pub(crate) fn feedback(&mut self, response: &ProbeResponse, qpn: Qpn, bth: &Bth) -> Feedback {
        let report = response.report;
        let sealed = SealedFields::new(Opcode::TELEMETRY_RESPONSE, qpn, bth, Psn::new(0));
        let mut bytes = [0; MAX_FEEDBACK];
        let length = Feedback { report, seal: None }.write(&mut bytes);
        Feedback { report, seal: self.auth.seal(&sealed, &bytes[..length]) }
    }
}

fn is_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !address.is_multicast() && !address.is_unspecified() && !is_broadcast
}

/// Returns the telemetry of a probe: all links, or that with the longest queue if they do not fit into one answer. Returns `None` if a
/// reading is incomplete.
fn report_of(frame: &Frame<'_>) -> Option<Report> {
    let (path, hops) = match (frame.network.telemetry(), &frame.in_band) {
        (Some(carried), _) => match carried.read()? {
            Reading::Hops(hops) => (complete(&hops)?, hops.count()),
            Reading::Inflight(_) | Reading::Signal(_) => return None,
        },
        (None, Some(in_band)) => {
            let mut path = PathTelemetry::new(in_band.int.path_id());
            for (index, record) in (0u8..).zip(in_band.records()) {
                path.set(index, record.into());
            }
            (path, in_band.int.hops())
        }
        (None, None) => return None,
    };
    let path_id = path.path_id();
    let wait = |hop: &Hop| hop.bandwidth.time_for(hop.queue);
    let Some((index, hop)) = path.hops().max_by_key(|(_, hop)| wait(hop)) else {
        return Some(Report::Busiest { path_id, hops: 0, busiest: None });
    };
    Some(match Records::of_hops(path.hops().map(|(_, hop)| hop)) {
        Some(records) => Report::All { path_id, records },
        None => Report::Hop { path_id, hops, index, hop: *hop },
    })
}

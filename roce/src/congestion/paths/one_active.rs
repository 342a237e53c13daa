//! The policy that sends all packets over one path, and moves to a less loaded one (rtgwg-00 9.4).
//!
//! Probes the paths in turn. If another path was less loaded for enough rounds, the queue pair moves to it as soon as nothing is in flight.

use super::choice::PathChoice;
use super::entry::PathEntry;
use crate::Psn;
use crate::congestion::prober::backoff;
use cc::{Instant, Rate};
use core::time::Duration;

/// Least difference of the loads, as a share of a link, including this side's load on the other path.
const MARGIN: f64 = 0.2;
/// Rounds in a row in which the same path must be better, plus up to as many more at random. Otherwise queue pairs with the same
/// measurements would all move at once.
const CANDIDATE_ROUNDS: u64 = 4;
/// Rounds between two moves, plus up to as many more at random.
const HOLD_DOWN_ROUNDS: u64 = 16;

/// State of the policy. A round is the time in which each path is probed once.
#[derive(Debug)]
pub(super) struct OneActive {
    active: usize,
    line_rate: Option<Rate>,
    /// Path that is probed next, and the time.
    next: usize,
    due_at: Instant,
    /// Number of the probe whose answer is outstanding, for each path.
    awaited: [Option<u64>; PathChoice::MAX as usize],
    /// Payload bytes acknowledged; `decided` contains those at the last decision, with its time.
    acknowledged: u64,
    decided: (u64, Instant),
    /// Path that was best in the last rounds, and their number.
    candidate: Option<(usize, u64)>,
    pending: Option<usize>,
    hold_down_until: Instant,
    random: u64,
}

impl OneActive {
    pub(super) const fn new(line_rate: Option<Rate>, seed: u64) -> Self {
        Self {
            active: 0,
            line_rate,
            next: 0,
            due_at: Instant::ZERO,
            awaited: [None; PathChoice::MAX as usize],
            acknowledged: 0,
            decided: (0, Instant::ZERO),
            candidate: None,
            pending: None,
            hold_down_until: Instant::ZERO,
            random: seed,
        }
    }

    pub(super) const fn active(&self) -> usize {
        self.active
    }

    pub(super) const fn due_at(&self) -> Instant {
        self.due_at
    }

    /// Records that a probe is sent as number `number`, after `unanswered_so_far` probes to a peer that has never answered one. Returns its
    /// path, of `count`.
    pub(super) fn on_probe(
        &mut self,
        now: Instant,
        (number, unanswered_so_far): (u64, u64),
        count: usize,
        interval: Duration,
    ) -> usize {
        let path = self.next;
        self.next = (path + 1) % count;
        self.due_at = now + backoff(interval, unanswered_so_far);
        self.awaited[path] = Some(number);
        path
    }

    /// Returns the path of the probe that an answer with this PSN matches, once.
    pub(super) fn on_response(&mut self, psn: Psn) -> Option<usize> {
        let answers = |awaited: u64| (awaited & (Psn::CIRCLE as u64 - 1)) as u32 == psn.get();
        let path = self.awaited.iter().position(|awaited| awaited.is_some_and(answers))?;
        self.awaited[path] = None;
        Some(path)
    }

    pub(super) const fn on_acknowledged(&mut self, bytes: u64) {
        self.acknowledged += bytes;
    }

    /// Decides, once a round, whether another path was better for enough rounds. Loads older than `oldest` are ignored.
    pub(super) fn decide(&mut self, now: Instant, paths: &[PathEntry], oldest: Duration) {
        let (bytes, then) = core::mem::replace(&mut self.decided, (self.acknowledged, now));
        let nanos = now.saturating_since(then).as_nanos() as f64;
        let ours = (self.acknowledged - bytes) as f64 * 8e9 / nanos.max(1.0);
        let Some(here) = paths[self.active].load(now, oldest) else { return };
        let before = self.candidate;
        let mut best: Option<(usize, f64)> = None;
        for (at, path) in paths.iter().enumerate().filter(|(at, _)| *at != self.active) {
            let Some(load) = path.load(now, oldest) else { continue };
            // If only ratios are reported, the links are assumed to have the rate of this host's.
            let capacity = load.capacity.or(here.capacity).or(self.line_rate);
            let capacity = capacity.map_or(f64::INFINITY, |rate| rate.as_bps() as f64);
            let there = load.share + if load.is_last { 0.0 } else { ours / capacity.max(1.0) };
            if here.share - there <= MARGIN {
                continue;
            }
            // The current candidate is preferred: several paths over one idle link are equally good, and would alternate.
            if before.is_some_and(|(led, _)| led == at) {
                best = Some((at, there));
                break;
            }
            if best.is_none_or(|(_, least)| there < least) {
                best = Some((at, there));
            }
        }
        self.candidate = best.map(|(at, _)| match before {
            Some((led, rounds)) if led == at => (at, rounds + 1),
            _ => (at, 1),
        });
        let is_hold_down_over = now >= self.hold_down_until;
        let needed = CANDIDATE_ROUNDS + self.random % CANDIDATE_ROUNDS;
        self.pending =
            self.candidate.filter(|&(_, rounds)| is_hold_down_over && rounds >= needed).map(|(at, _)| at);
    }

    pub(super) const fn has_pending_move(&self) -> bool {
        self.pending.is_some()
    }

    pub(super) fn migrate(&mut self, now: Instant, round: Duration) -> bool {
        let Some(to) = self.pending.take() else { return false };
        self.active = to;
        self.candidate = None;
        // Constants of Knuth's MMIX generator.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random ^= self.random >> 33;
        self.hold_down_until = now + round * (HOLD_DOWN_ROUNDS + self.random % HOLD_DOWN_ROUNDS) as u32;
        true
    }
}

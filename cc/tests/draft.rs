//! Compares this crate with a literal transcription of draft-miao-rtgwg-hpccplus-00, sections 4.2 and 6.3.2. It computes with windows in
//! bytes instead of rates in bits, and with real numbers instead of counters that wrap. Where the draft leaves a choice (README), the
//! transcription follows the crate: `U` starts at 1, the first telemetry is only recorded, and windows are bounded.

use ferroce_cc::{
    Ack, CongestionController, Counter, Hop, Hpcc, HpccConfig, Instant, PathTelemetry, Rate, RxHpcc,
};
use std::num::NonZeroU32;
use std::time::Duration;

/// In ns.
const T: f64 = 4160.0;
/// In bytes per ns.
const B: f64 = 12.5;
const ETA: f64 = 0.95;
const W_INIT: f64 = B * T;
const LINKS: usize = 3;

fn config(max_stage: u32) -> HpccConfig {
    HpccConfig {
        base_rtt: Duration::from_nanos(T as u64),
        line_rate: Rate::from_gbps(100),
        min_rate: Rate::from_mbps(100),
        target_utilisation: ETA,
        max_stage,
        additive_increase: Rate::from_mbps(50),
    }
}

/// `L[i]`: the last reading of a link.
#[derive(Clone, Copy, Default)]
struct Link {
    ts: f64,
    tx_bytes: f64,
    qlen: f64,
}

#[allow(non_snake_case, reason = "the names are the draft's")]
struct Draft {
    W: f64,
    Wc: f64,
    U: f64,
    inc_stage: u32,
    last_update_seq: u64,
    last_update_time: f64,
    answered_at: f64,
    queueing: f64,
    L: Option<[Link; LINKS]>,
    max_stage: u32,
}

#[allow(non_snake_case, reason = "the names are the draft's")]
impl Draft {
    fn new(max_stage: u32) -> Self {
        let (last_update_seq, last_update_time) = (0, 0.0);
        Self {
            W: W_INIT,
            Wc: W_INIT,
            U: 1.0,
            inc_stage: 0,
            last_update_seq,
            last_update_time,
            answered_at: 0.0,
            queueing: 0.0,
            L: None,
            max_stage,
        }
    }

    /// Lines 1 to 10.
    fn measure_inflight(&mut self, ack: &[Link; LINKS], L: &[Link; LINKS]) -> f64 {
        let (mut u, mut tau) = (0.0, 0.0_f64);
        for i in 0..LINKS {
            let tx_rate = (ack[i].tx_bytes - L[i].tx_bytes) / (ack[i].ts - L[i].ts);
            let of_link = ack[i].qlen.min(L[i].qlen) / (B * T) + tx_rate / B;
            if of_link > u {
                u = of_link;
                tau = ack[i].ts - L[i].ts;
            }
        }
        tau = tau.min(T);
        self.U = (1.0 - tau / T) * self.U + tau / T * u;
        self.U
    }

    /// Lines 11 to 20.
    fn compute_wind(&mut self, U: f64, update_wc: bool) -> f64 {
        let W_ai = 50e6 / 8e9 * T;
        let bounded = |W: f64| W.clamp(W_INIT / 1000.0, W_INIT);
        if U >= ETA || self.inc_stage >= self.max_stage {
            let W = bounded(self.Wc / (U / ETA) + W_ai);
            if update_wc {
                (self.inc_stage, self.Wc) = (0, W);
            }
            W
        } else {
            let W = bounded(self.Wc + W_ai);
            if update_wc {
                (self.inc_stage, self.Wc) = (self.inc_stage + 1, W);
            }
            W
        }
    }

    /// Lines 21 to 27.
    fn new_ack(&mut self, seq: u64, snd_nxt: u64, ack: &[Link; LINKS]) {
        let Some(L) = self.L.replace(*ack) else {
            self.last_update_seq = snd_nxt;
            return;
        };
        let U = self.measure_inflight(ack, &L);
        if seq > self.last_update_seq {
            self.W = self.compute_wind(U, true);
            self.last_update_seq = snd_nxt;
        } else {
            self.W = self.compute_wind(U, false);
        }
    }

    /// Lines 28 to 34; returns whether line 31 sends the window.
    fn new_int(&mut self, now: f64, int: &[Link; LINKS]) -> bool {
        let Some(L) = self.L.replace(*int) else {
            self.last_update_time = now;
            return false;
        };
        let U = self.measure_inflight(int, &L);
        // The draft uses T alone: see "A round trip" in cc/README.md. Each queue's drain time is rounded up to ns.
        let queueing: f64 = int.iter().map(|link| (link.qlen / B).ceil()).sum();
        let shorter = std::mem::replace(&mut self.queueing, queueing).min(queueing);
        let has_passed = now > self.last_update_time + T;
        if !has_passed && self.answered_at > 0.0 {
            self.answered_at = self.answered_at.max(now + shorter);
        }
        let is_due = has_passed && now > self.answered_at;
        self.W = self.compute_wind(U, is_due);
        if is_due {
            (self.last_update_time, self.answered_at) = (now, now + T + shorter);
        }
        is_due
    }
}

/// A path whose telemetry is generated packet by packet from a seed (splitmix64).
struct Network {
    seed: u64,
    links: [Link; LINKS],
    /// Leaves the last link idle, so that the receiver's own link is not the bottleneck (6.3.2).
    idle_last: bool,
}

impl Network {
    fn below(&mut self, limit: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.seed ^ self.seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27) % limit
    }

    /// Generates the next packet's telemetry, `after` ns later, in whole units of 128 and 80 bytes as in Figure 4.
    fn next(&mut self, after: u64, load: f64) -> [Link; LINKS] {
        for link in 0..LINKS {
            let most = (after as f64 * B * load / 128.0) as u64 + 1;
            let (sent, queue) = match self.idle_last && link == LINKS - 1 {
                true => (0, 0),
                false => (1 + self.below(most), self.below(400)),
            };
            let at = &mut self.links[link];
            at.ts += after as f64;
            at.tx_bytes += sent as f64 * 128.0;
            at.qlen = queue as f64 * 80.0 * (load - 0.5).max(0.0);
            at.qlen = (at.qlen / 80.0).floor() * 80.0;
        }
        self.links
    }
}

/// Returns the telemetry with the counters of the wire: 24 bits of ns, 20 bits of 128 bytes.
fn telemetry_of(links: &[Link; LINKS]) -> PathTelemetry {
    let mut path = PathTelemetry::new(7);
    for (index, link) in (0..).zip(links) {
        path.set(
            index,
            Hop {
                bandwidth: Rate::from_gbps(100),
                time: Counter::of::<24, 1>(link.ts as u64),
                tx_bytes: Counter::of::<20, 128>((link.tx_bytes / 128.0) as u64),
                queue: link.qlen as u64,
            },
        );
    }
    path
}

fn rate(window: f64) -> f64 {
    window / T * 8e9
}

/// Loads of the links, 500 packets each.
const LOADS: [f64; 6] = [0.4, 1.0, 1.3, 0.9, 0.2, 1.1];

/// rtgwg-00 4.2, line by line.
#[test]
fn a_sender_follows_section_4_2() {
    for (seed, max_stage) in [(1, 5), (2, 0), (3, 1), (4, 5)] {
        let mut draft = Draft::new(max_stage);
        let mut ours = Hpcc::new(config(max_stage)).unwrap();
        let mut network = Network { seed, links: Default::default(), idle_last: false };
        let (mut multiplied, mut added) = (0, 0);
        for seq in 1..=12_000_u64 {
            let after = 60 + network.below(600);
            let links = network.next(after, LOADS[(seq / 500) as usize % LOADS.len()]);
            let (now, next) = (Instant::from_nanos(links[0].ts as u64 + 900), seq + 20 + network.below(30));
            let stage = draft.inc_stage;
            draft.new_ack(seq, next, &links);
            ours.on_telemetry(
                &Ack { now, seq, next, acked_bytes: 1000, ce_bytes: 0, rtt: None },
                &telemetry_of(&links),
            );
            multiplied += u32::from(draft.inc_stage < stage);
            added += u32::from(draft.inc_stage > stage);
            let at = format!("seed {seed}, packet {seq}");
            assert!(
                (ours.utilisation() - draft.U).abs() < 1e-9,
                "{at}: U {} {}",
                ours.utilisation(),
                draft.U
            );
            let (is, says) = (ours.rate().as_bps() as f64, rate(draft.W));
            assert!((is - says).abs() <= 1e-6 * says, "{at}: W {is} {says}");
            let (is, says) = (ours.reference_rate().as_bps() as f64, rate(draft.Wc));
            assert!((is - says).abs() <= 1e-6 * says, "{at}: Wc {is} {says}");
            assert_eq!(
                (ours.inc_stage(), ours.last_update_seq()),
                (draft.inc_stage, draft.last_update_seq),
                "{at}"
            );
            assert!((ours.window() as f64 - draft.W).abs() <= 1.0, "{at}: {} {}", ours.window(), draft.W);
        }
        assert!(max_stage == 0 || (multiplied > 5 && added > 20), "{multiplied} {added}: both branches");
    }
}

/// rtgwg-00 6.3.2, line by line.
#[test]
fn a_receiver_follows_section_6_3_2() {
    let mut draft = Draft::new(5);
    let mut ours = RxHpcc::new(config(5)).unwrap();
    let mut network = Network { seed: 9, links: Default::default(), idle_last: true };
    let mut windows = 0;
    for packet in 1..=8_000_u64 {
        let after = 60 + network.below(600);
        let links = network.next(after, LOADS[(packet / 500) as usize % LOADS.len()]);
        let now = links[0].ts + 900.0;
        let sends = draft.new_int(now, &links);
        let window =
            ours.on_telemetry(Instant::from_nanos(now as u64), &telemetry_of(&links), NonZeroU32::MIN);
        assert_eq!(window.is_some(), sends, "packet {packet}: line 31");
        if let Some(window) = window {
            windows += 1;
            assert!((window as f64 - draft.W).abs() <= 1.0, "packet {packet}: {window} {}", draft.W);
        }
    }
    assert!(windows > 200, "{windows}");
}

//! One TCP flow: the times of its probes, and the use of the answers by HPCC++.

use cc::{Ack, Algorithm, CongestionController, Hpcc, HpccConfig, Instant, PathTelemetry, Rate};
use datapath::tcp::{Flow, Lease};
use roce::wire::TcpProbe;
use std::num::NonZeroU32;
use std::time::Duration;

/// The limit on probes to a peer that has never answered.
const IN_VAIN: u32 = 10;
/// The number of last probes whose answers are accepted.
const REMEMBERED: usize = 16;
/// Bounds of the interval between two probes of a flow. Within them, it is the base RTT (rtgwg-00 6.2.1: once per round trip).
const OFTEN: Duration = Duration::from_millis(1);
const SELDOM: Duration = Duration::from_millis(100);
/// Header bytes of a full segment's frame: Ethernet, IPv4, and TCP with timestamps. Telemetry counts them; the kernel's pacing does not.
const HEADERS: u64 = 14 + 20 + 32;
/// The number of flows for which the additive increase is configured.
const ALLOWED_FOR: NonZeroU32 = NonZeroU32::new(32).expect("above 0");

/// The target utilisation `eta`. The kernel's pacing timers release packets in bursts. Their queue is about 5 % of the capacity of a path
/// of 200 Mb/s and 6 ms. With the draft's 0.95, that queue would cost a single flow 5 % of the link.
const TARGET: f64 = 0.98;

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The rate of the link of this host, if known.
    pub line_rate: Option<Rate>,
    /// The base RTT; `None` if it is measured.
    pub base_rtt: Option<Duration>,
}

/// The sender's state of a flow. The flow is paced after its path has answered with telemetry.
#[derive(Debug)]
pub struct Paced {
    algorithm: Option<Algorithm>,
    base_rtt: Duration,
    /// The acknowledged sequence number at the first probe.
    first: Option<u32>,
    sent: u32,
    has_answered: bool,
    /// Number and send time (ns) of each of the last probes that has not been answered.
    on_their_way: [Option<(u32, u64)>; REMEMBERED],
    due: u64,
}

impl Paced {
    /// Creates the state of a flow that has sent no probe.
    pub fn new(settings: Settings) -> Self {
        Self {
            algorithm: None,
            base_rtt: settings.base_rtt.unwrap_or(Duration::MAX),
            first: None,
            sent: 0,
            has_answered: false,
            on_their_way: [None; REMEMBERED],
            due: 0,
        }
    }

    /// Returns true if the flow began, or data of it was acknowledged, within the last four probe intervals.
    pub fn is_active(&self, now: u64, flow: &Flow) -> bool {
        now.saturating_sub(flow.touched) < nanos(self.interval()).saturating_mul(4)
    }

    /// Returns the next probe if it is due. Probes are sent once per round trip, and only while the flow is active.
    pub fn probe(&mut self, now: u64, flow: &Flow) -> Option<TcpProbe> {
        let is_in_vain = !self.has_answered && self.sent >= IN_VAIN;
        if now < self.due || is_in_vain || !self.is_active(now, flow) {
            return None;
        }
        self.due = now + nanos(self.interval());
        self.first.get_or_insert(flow.acknowledged);
        let number = self.sent;
        self.sent = self.sent.wrapping_add(1);
        self.on_their_way[number as usize % REMEMBERED] = Some((number, now));
        Some(TcpProbe {
            source: flow.local,
            destination: flow.remote,
            // An old sequence number, so that a stack without support for probes discards it as an old segment.
            sequence: flow.acknowledged.wrapping_sub(1 << 16),
            number,
            sent: now,
        })
    }

    /// Handles an answer to a probe. Returns the new lease of the flow if the answer is authentic and contains telemetry. `flows` is the
    /// number of active flows of this host.
    pub fn answer(
        &mut self,
        now: u64,
        (answer, path): (&TcpProbe, &PathTelemetry),
        flow: &Flow,
        (settings, flows): (Settings, usize),
    ) -> Option<Lease> {
        // The send time authenticates the answer, because only the peer and the switches on the path have received it.
        let sent = self.on_their_way.get_mut(answer.number as usize % REMEMBERED)?;
        if *sent != Some((answer.number, answer.sent)) {
            return None;
        }
        *sent = None;
        self.has_answered = true;
        let rtt = Duration::from_nanos(now - answer.sent);
        if settings.base_rtt.is_none() {
            self.base_rtt = self.base_rtt.min(rtt).clamp(Duration::from_micros(1), HpccConfig::MAX_BASE_RTT);
        }
        let slowest = path.hops().map(|(_, hop)| hop.bandwidth).min()?;
        let line_rate = settings.line_rate.map_or(slowest, |rate| rate.min(slowest));
        // Before its first data is acknowledged, telemetry does not include a flow, so the link would appear idle to all flows that begin.
        if self.first == Some(flow.acknowledged) && self.algorithm.is_none() {
            return None;
        }
        let is_new = self.algorithm.as_ref().and_then(Algorithm::as_hpcc).map(|hpcc| hpcc.config().line_rate)
            != Some(line_rate);
        if is_new {
            let config = HpccConfig {
                target_utilisation: TARGET,
                additive_increase: HpccConfig::additive_increase(line_rate, TARGET, ALLOWED_FOR),
                ..HpccConfig::new(line_rate, self.base_rtt, ALLOWED_FOR)
            };
            // The peer may report any link rate, including rates that HPCC++ rejects.
            let hpcc = Hpcc::new(config).ok()?;
            self.algorithm = Some(Algorithm::Hpcc(hpcc.starting_at(share(line_rate, flows))));
        }
        let algorithm = self.algorithm.as_mut()?;
        algorithm.set_base_rtt(self.base_rtt);
        let ack = Ack {
            now: Instant::from_nanos(now),
            seq: u64::from(answer.number) + 1,
            next: self.sent.into(),
            acked_bytes: 0,
            ce_bytes: 0,
            rtt: Some(rtt),
        };
        algorithm.on_telemetry(&ack, path);
        Some(lease(now, algorithm.pacing_rate()?, self.base_rtt, flow.segment.max(1).into()))
    }

    /// Returns the pacing rate, if HPCC++ has computed one.
    pub fn rate(&self) -> Option<Rate> {
        self.algorithm.as_ref()?.pacing_rate()
    }

    fn interval(&self) -> Duration {
        if self.has_answered { self.base_rtt.clamp(OFTEN, SELDOM) } else { Duration::from_millis(10) }
    }
}

/// Creates a lease for 8 base RTTs, and at least 200 ms. Its window is 1.5 times the bytes that `rate` sends in a base RTT, and 4 segments
/// for delayed acknowledgements. The rate limits the flow. The window bounds the bytes in flight when answers are missing.
fn lease(now: u64, rate: Rate, base_rtt: Duration, segment: u64) -> Lease {
    let bytes = rate.bytes_in(base_rtt * 3 / 2);
    let payload = u128::from(rate.as_bps()) * u128::from(segment) / u128::from(segment + HEADERS);
    Lease {
        rate: Rate::from_bps(payload as u64),
        window: u32::try_from(bytes / segment + 4).unwrap_or(u32::MAX),
        until: now + nanos((base_rtt * 8).max(2 * SELDOM)),
    }
}

fn share(rate: Rate, flows: usize) -> Rate {
    Rate::from_bps(rate.as_bps() / flows.max(1) as u64)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc::{Counter, Hop};

    const MS: u64 = 1_000_000;
    const MEASURED: Settings = Settings { line_rate: None, base_rtt: None };

    fn flow(touched: u64, acknowledged: u32) -> Flow {
        Flow {
            local: "10.0.0.1:40000".parse().unwrap(),
            remote: "10.0.0.2:5201".parse().unwrap(),
            touched,
            acknowledged,
            next: acknowledged,
            segment: 1448,
        }
    }

    /// Returns the telemetry of a link of 200 Mb/s that has sent `sent` bytes at `time` ns.
    fn path(time: u64, sent: u64, queue: u64) -> PathTelemetry {
        let mut path = PathTelemetry::new(1);
        path.set(
            0,
            Hop {
                bandwidth: Rate::from_mbps(200),
                time: Counter::of::<24, 1>(time),
                tx_bytes: Counter::of::<20, 128>(sent / 128),
                queue,
            },
        );
        path
    }

    fn round(paced: &mut Paced, now: u64, flow: &Flow, path: &PathTelemetry) -> Option<Lease> {
        let probe = paced.probe(now, flow).unwrap();
        paced.answer(now + 8 * MS, (&probe, path), flow, (MEASURED, 2))
    }

    /// rtgwg-00 6.2.1: once per round trip, and only while data is in flight.
    #[test]
    fn probes_leave_once_in_a_round_trip_while_data_is_acknowledged() {
        let mut paced = Paced::new(MEASURED);
        assert!(round(&mut paced, 100 * MS, &flow(100 * MS, 7), &path(0, 0, 0)).is_none());
        let times = (108 * MS..200 * MS).step_by(MS as usize);
        let sent: Vec<_> = times.filter(|now| paced.probe(*now, &flow(100 * MS, 7)).is_some()).collect();
        assert_eq!(sent, [110, 118, 126].map(|ms| ms * MS), "8 ms apart, and none from 132 ms on");
    }

    #[test]
    fn a_peer_that_never_answers_gets_ten_probes() {
        let mut paced = Paced::new(MEASURED);
        let sent = (0..10_000).filter(|ms| paced.probe(ms * MS, &flow(ms * MS, 7)).is_some()).count();
        assert_eq!(sent, 10);
    }

    /// rtgwg-00 7.2: the sender computes window and rate from the telemetry that it receives.
    #[test]
    fn a_busy_link_makes_a_flow_slower_and_a_free_one_faster() {
        let mut paced = Paced::new(MEASURED);
        assert_eq!(round(&mut paced, 0, &flow(0, 7), &path(0, 0, 0)), None, "nothing was sent yet");
        let start = round(&mut paced, 10 * MS, &flow(10 * MS, 8), &path(0, 0, 0)).unwrap();
        assert_eq!(start.rate.as_bps(), 100_000_000 * 1448 / 1514, "its share of two flows");
        assert_eq!(start.until, 18 * MS + 200 * MS);
        assert_eq!(start.window, 150_000 / 1448 + 4);
        // 8 ms later the link has sent its capacity of 200 kB, and as many bytes are queued.
        let busy = round(&mut paced, 18 * MS, &flow(18 * MS, 9), &path(8 * MS, 200_000, 200_000)).unwrap();
        assert!(busy.rate.as_bps() < start.rate.as_bps(), "{busy:?}");
        let mut free = busy;
        for round_trip in 2..20 {
            let (now, next) = (10 * MS + round_trip * 8 * MS, path(round_trip * 8 * MS, 200_000, 0));
            free = round(&mut paced, now, &flow(now, 9), &next).unwrap();
        }
        assert!(free.rate > start.rate, "{free:?}");
    }

    #[test]
    fn forged_and_repeated_answers_are_ignored() {
        let mut paced = Paced::new(MEASURED);
        let (flow, path) = (flow(0, 7), path(0, 0, 0));
        let probe = paced.probe(0, &flow).unwrap();
        let answer = |paced: &mut Paced, answer: &TcpProbe| {
            paced.answer(9 * MS, (answer, &path), &Flow { acknowledged: 8, ..flow }, (MEASURED, 1)).is_some()
        };
        for wrong in [
            TcpProbe { sent: probe.sent + 1, ..probe },
            TcpProbe { number: 1, ..probe },
            TcpProbe { number: REMEMBERED as u32, ..probe },
        ] {
            assert!(!answer(&mut paced, &wrong), "{wrong:?}");
        }
        let probe = paced.probe(10 * MS, &flow).unwrap();
        let now = |paced: &mut Paced| {
            let path = (&probe, &path);
            paced.answer(18 * MS, path, &Flow { acknowledged: 8, ..flow }, (MEASURED, 1)).is_some()
        };
        assert_eq!([now(&mut paced), now(&mut paced)], [true, false]);
    }

    #[test]
    fn a_path_without_telemetry_gives_no_lease() {
        let mut paced = Paced::new(MEASURED);
        for (now, acknowledged) in [(0, 7), (10 * MS, 8), (20 * MS, 9)] {
            assert_eq!(round(&mut paced, now, &flow(now, acknowledged), &PathTelemetry::new(0)), None);
        }
    }
}

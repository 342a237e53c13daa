//! The plan of a run, drawn from a seed.

use crate::random::Random;
use cc::{DcqcnConfig, DctcpConfig, HpccConfig, Rate};
use roce::qp::{Congestion, CongestionAlgorithm, FeedbackKey, LossRecovery, PathChoice, Upgrade, When};
use roce::wire::{Mtu, Reverse, Service};
use std::num::NonZeroU32;
use std::time::Duration;

/// Probabilities per frame, in per mille.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) loss: u64,
    pub(super) duplicate: u64,
    pub(super) late: u64,
    pub(super) flip: u64,
}

/// Four paths between any two hosts, selected by UDP source port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Detours {
    /// Additional delay of each path compared with the previous path, ns.
    pub(super) step: u64,
    /// Start and length, in ns, of a period in which path 1 loses every frame.
    pub(super) dark: Option<(u64, u64)>,
}

/// The faults of a host's cores. Probabilities are per turn, in per mille.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Core {
    /// Capacity of the receive ring, in frames.
    pub(super) ring: usize,
    /// Probability of a pause of the core, and its maximum length in ns.
    pub(super) pauses: u64,
    pub(super) pause: u64,
    /// Probability of a turn without send buffers.
    pub(super) dry: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// All hosts at one switch.
    Star,
    /// Two switches with a link between them, and hosts at both.
    Dumbbell,
}

/// An event that disturbs one side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Destroyed,
    Failed,
    Reset,
    Deregistered,
    /// The host stops without notice.
    HostDies,
    /// The network loses all later frames of the connection.
    Cut,
    /// The send queue is drained and later resumed, which must cause no error.
    Drained,
}

#[derive(Clone, Debug)]
pub(super) struct Talk {
    pub(super) hosts: [usize; 2],
    pub(super) service: Service,
    pub(super) mtu: Mtu,
    pub(super) loss_recovery: LossRecovery,
    pub(super) first_psn: u32,
    pub(super) congestion: Congestion,
    pub(super) ack_timeout: u8,
    pub(super) rnr_retry: u8,
    pub(super) reads: u8,
    pub(super) completions: u32,
    pub(super) shared_receives: bool,
    /// Number of requests per side, and bytes of the longest.
    pub(super) requests: [usize; 2],
    pub(super) longest: u32,
    /// Earliest time at which receives are posted, ns.
    pub(super) receives_late: u64,
    /// Side, time in ns, and fate.
    pub(super) fate: Option<(usize, u64, Fate)>,
    pub(super) seed: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) cores: Vec<Core>,
    pub(super) cores_per_host: u8,
    pub(super) rate: Rate,
    /// Delay of one link, ns.
    pub(super) delay: u64,
    pub(super) queue: u64,
    pub(super) ecn: u64,
    pub(super) ipv6: bool,
    pub(super) faults: Faults,
    pub(super) detours: Detours,
    pub(super) talks: Vec<Talk>,
    pub(super) seed: u64,
}

/// ACK timeout of 2 ms, much longer than any round trip here.
pub(super) const PATIENT: u8 = 9;

fn pick<T: Clone>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize].clone()
}

impl Plan {
    pub(super) fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let hosts = 2 + random.below(4) as usize;
        let faults = match random.below(4) {
            0 => Faults::default(),
            1 => Faults { loss: random.below(200), duplicate: 20, late: 20, flip: random.below(100) },
            _ => Faults {
                loss: random.below(50),
                duplicate: random.below(50),
                late: random.below(50),
                flip: random.below(20),
            },
        };
        let rate = Rate::from_gbps(pick(random, &[10, 25, 100]));
        let delay = 200 + random.below(5000);
        let talks: Vec<Talk> =
            (0..1 + random.below(4)).map(|_| Talk::draw(random, hosts, rate, delay)).collect();
        let sprayed = talks.iter().find(|talk| talk.sprays());
        Self {
            shape: pick(random, &[Shape::Star, Shape::Dumbbell]),
            cores: (0..hosts).map(|_| Core::draw(random)).collect(),
            cores_per_host: 1,
            rate,
            delay,
            queue: pick(random, &[5_000, 40_000, 1 << 20, 1 << 20]),
            ecn: pick(random, &[2_000, 20_000, 1 << 20]),
            ipv6: random.below(2) == 0,
            faults,
            detours: sprayed.map_or_else(Detours::default, |talk| Detours::draw(talk.seed)),
            talks,
            seed: random.next(),
        }
    }
}

impl Detours {
    fn draw(seed: u64) -> Self {
        let mut random = Random::new(!seed);
        let dark = (20_000 + random.below(200_000), 20_000 + random.below(400_000));
        Self { step: random.below(8_000), dark: (random.below(2) == 0).then_some(dark) }
    }
}

impl Core {
    fn draw(random: &mut Random) -> Self {
        let tiny = 1 + random.below(4) as usize;
        Self {
            ring: pick(random, &[tiny, 512, 512, 512]),
            pauses: pick(random, &[0, 0, 5]),
            pause: 1_000 + random.below(400_000),
            dry: pick(random, &[0, 0, 50]),
        }
    }
}

const fn is_reliable(service: Service) -> bool {
    matches!(service, Service::Rc | Service::Xrc)
}

impl Talk {
    pub(super) const fn is_reliable(&self) -> bool {
        is_reliable(self.service)
    }

    pub(super) fn is_selective(&self) -> bool {
        self.loss_recovery == LossRecovery::SelectiveRepeat
    }

    pub(super) fn sprays(&self) -> bool {
        self.congestion.paths.is_some_and(|paths| paths.spray)
    }

    /// Returns whether a side sends requests; an XRC target does not.
    pub(super) const fn sends_requests(&self, side: usize) -> bool {
        !matches!((self.service, side), (Service::Xrc, 1))
    }

    /// Returns whether a side receives messages; an XRC initiator does not.
    pub(super) const fn takes(&self, side: usize) -> bool {
        !matches!((self.service, side), (Service::Xrc, 0))
    }

    fn draw(random: &mut Random, hosts: usize, rate: Rate, delay: u64) -> Self {
        let a = random.below(hosts as u64) as usize;
        let b = (a + 1 + random.below(hosts as u64 - 1) as usize) % hosts;
        let rc = Service::Rc;
        let service = pick(random, &[rc, rc, rc, rc, Service::Xrc, Service::Uc, Service::Ud]);
        let longest = pick(random, &[0, 700, 3000, 3000, 9000]);
        let mtu = pick(random, &[Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M1024, Mtu::M4096]);
        let mut requests = [0, 1].map(|_| random.below(30) as usize);
        if service == Service::Xrc {
            requests[1] = 0;
        }
        let side = random.below(2) as usize;
        let when = random.below(300_000);
        let fates = [
            Fate::Destroyed,
            Fate::Failed,
            Fate::Reset,
            Fate::Deregistered,
            Fate::HostDies,
            Fate::Cut,
            Fate::Drained,
            Fate::Drained,
        ];
        let fate = pick(random, &fates);
        let mut talk = Self {
            hosts: [a, b],
            service,
            mtu,
            loss_recovery: match random.below(3) == 0 && is_reliable(service) {
                true => LossRecovery::SelectiveRepeat,
                false => LossRecovery::GoBackN,
            },
            first_psn: pick(random, &[0, 0x12_3456, 0xff_fff0, 0xff_fffe]),
            congestion: congestion(random, rate, Duration::from_nanos(8 * delay), service),
            ack_timeout: pick(random, &[1, 4, 6, PATIENT, PATIENT, PATIENT]),
            rnr_retry: pick(random, &[7, 7, 7, 2]),
            reads: 1 + random.below(5) as u8,
            completions: if random.below(20) == 0 { 2 + random.below(4) as u32 } else { 64 },
            shared_receives: random.below(4) == 0,
            requests,
            longest: if service == Service::Ud { longest.min(mtu.bytes()) } else { longest },
            receives_late: pick(random, &[0, 0, 0, 200_000]),
            fate: (random.below(5) == 0).then_some((side, when, fate)),
            seed: random.next(),
        };
        // From `talk.seed` instead of `random`, so that recorded seeds still produce the same runs.
        let windows = matches!(talk.congestion.algorithm, CongestionAlgorithm::HpccReceiver(_));
        if !talk.is_selective() && is_reliable(service) && talk.seed & 1 == 1 {
            talk.loss_recovery = LossRecovery::Offered;
        }
        if talk.is_selective() && talk.seed & 1 == 1 && !windows {
            let (count, interval) = (2 + (talk.seed >> 1) as u8 % 7, Duration::from_nanos(8 * delay));
            talk.congestion.paths = Some(PathChoice { count, interval, spray: true });
            if talk.congestion.in_band.is_some() {
                // An acknowledgement would report telemetry of another path.
                talk.congestion.reverse = Reverse::Notification;
            }
        }
        talk
    }
}

fn congestion(random: &mut Random, rate: Rate, base_rtt: Duration, service: Service) -> Congestion {
    let hpcc = HpccConfig::new(rate, base_rtt, NonZeroU32::new(16).unwrap_or(NonZeroU32::MIN));
    let window = pick(random, &[1, 1000, 5000, 64 << 10, 1 << 30]);
    let fixed = CongestionAlgorithm::Fixed { window, rate: None };
    if !is_reliable(service) {
        let paced = CongestionAlgorithm::Fixed { window, rate: Some(Rate::from_gbps(1)) };
        return Congestion::new(pick(random, &[fixed, paced]));
    }
    let algorithm = match random.below(8) {
        0 => CongestionAlgorithm::Hpcc(hpcc),
        1 => CongestionAlgorithm::HpccFair(hpcc),
        2 => CongestionAlgorithm::HpccReceiver(hpcc),
        3 => CongestionAlgorithm::Dctcp(DctcpConfig::new(rate, base_rtt)),
        4 => CongestionAlgorithm::Dcqcn(DcqcnConfig::new(rate, Some(base_rtt))),
        _ => fixed,
    };
    let telemetry = algorithm.as_hpcc().is_some();
    let in_band = (telemetry && random.below(2) == 0).then_some(NonZeroU32::MIN.saturating_add(1));
    let upgrade = Upgrade { when: When::TelemetryAnswered, to: CongestionAlgorithm::Hpcc(hpcc) };
    let upgrade = (algorithm == fixed && random.below(4) == 0).then_some(upgrade);
    let probes = (telemetry && in_band.is_none()) || upgrade.is_some();
    let reverse = pick(random, &[Reverse::Ack, Reverse::Notification]);
    Congestion {
        probe_interval: probes.then_some(base_rtt),
        in_band,
        reverse,
        // Not random, so that recorded seeds still produce the same runs.
        all_hops: in_band.is_some() && reverse == Reverse::Ack,
        ratio_only: telemetry && random.below(8) == 0,
        upgrade,
        feedback_key: (random.below(4) == 0).then_some(FeedbackKey([7; 16])),
        ..Congestion::new(algorithm)
    }
}

use crate::connect::DEFAULT_CONGESTION;
use cc::{DcqcnConfig, DctcpConfig, HpccConfig, Rate};
use roce::qp::{Congestion, CongestionAlgorithm, FeedbackKey, PathChoice, Reverse, Upgrade, When};
use roce::wire::Format;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

/// Which congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CcName {
    /// A constant window.
    Fixed,
    /// HPCC++ at the sender.
    Hpcc,
    /// The variant of HPCC++ where each flow keeps its share of the receiver's link.
    HpccFair,
    /// HPCC++ at the receiver.
    HpccRx,
    /// DCTCP.
    Dctcp,
    /// DCQCN.
    Dcqcn,
    /// HPCC++ where probes come back with telemetry, DCQCN where none does.
    Auto,
}

impl CcName {
    /// Every name as it is written.
    pub const ALL: [(&'static str, Self); 7] = [
        ("fixed", Self::Fixed),
        ("hpcc", Self::Hpcc),
        ("hpcc-fair", Self::HpccFair),
        ("hpcc-rx", Self::HpccRx),
        ("dctcp", Self::Dctcp),
        ("dcqcn", Self::Dcqcn),
        ("auto", Self::Auto),
    ];
}

impl FromStr for CcName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == text);
        found
            .map(|(_, name)| name)
            .ok_or_else(|| format!("`{text}` is none of fixed, hpcc, hpcc-fair, hpcc-rx, dctcp, dcqcn, auto"))
    }
}

/// Which packets bring HPCC++ its telemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TelemetryMode {
    /// Every so many data packets.
    InBand(NonZeroU32),
    /// Packets of their own.
    Probe,
}

impl FromStr for TelemetryMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is none of inband, inband:N with N from 1, probe");
        match text.split_once(':') {
            None if text == "inband" => Ok(Self::InBand(NonZeroU32::MIN)),
            None if text == "probe" => Ok(Self::Probe),
            Some(("inband", every)) => every.parse().map(Self::InBand).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }
}

/// Congestion control by names and units; what is left out has a default. [`build`](Self::build) makes what a queue
/// pair takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CongestionChoice {
    /// Which; without one, a fixed window.
    pub cc: Option<CcName>,
    /// hpcc, hpcc-fair, hpcc-rx, auto: which packets bring telemetry. Probes by default.
    pub telemetry: Option<TelemetryMode>,
    /// hpcc: data packets ask switches to tell of congestion at once.
    pub subscribe: bool,
    /// hpcc, hpcc-fair, hpcc-rx, auto, and with `paths` any: how it is laid out. HPCC INT by default.
    pub format: Option<Format>,
    /// hpcc, hpcc-fair, auto: how the peer answers it.
    pub feedback: Option<Reverse>,
    /// hpcc, auto: the peer's answers tell all links of the path, not only the busiest.
    pub all_hops: bool,
    /// fixed: bytes in flight. 512 KiB by default.
    pub window: Option<u64>,
    /// What this host's link carries; fixed: the pacing rate.
    pub line_rate: Option<Rate>,
    /// The round trip of the idle path.
    pub base_rtt: Option<Duration>,
    /// A flow never falls below it. 1 Mb/s by default.
    pub min_rate: Option<Rate>,
    /// hpcc, hpcc-fair, hpcc-rx, auto: the share of a link to aim at. 0.95 by default; with hpcc-fair 0.93, which is also the part of its
    /// share of the receiver's link below which a flow does not go.
    pub eta: Option<f64>,
    /// hpcc, hpcc-fair, hpcc-rx, auto: additive increases before a multiplicative one. 5 by default, with hpcc-fair 0.
    pub max_stage: Option<u32>,
    /// hpcc, hpcc-fair, hpcc-rx, auto: flows to expect on a link. 1 by default.
    pub flows: Option<NonZeroU32>,
    /// How often probes leave. Once a base round trip by default.
    pub probe_interval: Option<Duration>,
    /// dctcp: only where the first round trip measured is shorter; elsewhere a fixed window.
    pub max_rtt: Option<Duration>,
    /// So many paths to choose from, 1 to 8, told apart by UDP source port and probed in turns, `probe_interval` (or
    /// `base_rtt`) apart. 1 by default.
    pub paths: Option<u8>,
    /// Tell peers no more of their paths than ratios.
    pub ratio_only: bool,
    /// Seal and check telemetry's answers.
    pub key: Option<FeedbackKey>,
}

/// A choice that can't be made: which key, why, and the remedy. Keys are called as in `ferroce.toml`;
/// [`as_flags`](Self::as_flags) calls them as on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceError {
    /// Keys stand in braces: `{line_rate}`, or with a value `{line_rate=1G}`.
    text: String,
}

impl ChoiceError {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    /// With command line flags for keys.
    #[must_use]
    pub fn as_flags(&self) -> String {
        self.render(|key, value| {
            let flag = match key {
                "cc" | "telemetry" | "subscribe" | "format" | "feedback" | "paths" => format!("--{key}"),
                "probe_interval" | "all_hops" => format!("--{}", key.replace('_', "-")),
                key => format!("--cc-{}", key.replace('_', "-")),
            };
            value.map_or(flag.clone(), |value| format!("{flag} {value}"))
        })
    }

    fn render(&self, name: impl Fn(&str, Option<&str>) -> String) -> String {
        let mut said = String::new();
        let mut rest = self.text.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            let (key, after) = after.split_once('}').unwrap_or((after, ""));
            said.push_str(before);
            said.push_str(&match key.split_once('=') {
                Some((key, value)) => name(key, Some(value)),
                None => name(key, None),
            });
            rest = after;
        }
        said + rest
    }
}

impl fmt::Display for ChoiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(|key, value| match value {
            Some(value) => format!("{key} = \"{value}\""),
            None => key.to_owned(),
        }))
    }
}

impl std::error::Error for ChoiceError {}

impl CongestionChoice {
    /// Whether nothing is chosen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What a queue pair takes.
    ///
    /// # Errors
    /// A key that the algorithm has no use for, that it lacks, or that is out of its limits.
    pub fn build(&self) -> Result<Congestion, ChoiceError> {
        self.check_keys()?;
        let mut congestion = match self.cc.unwrap_or(CcName::Fixed) {
            CcName::Fixed => self.fixed()?,
            CcName::Hpcc => Congestion::new(CongestionAlgorithm::Hpcc(self.hpcc()?)),
            CcName::HpccFair => Congestion::new(CongestionAlgorithm::HpccFair(self.hpcc()?)),
            CcName::HpccRx => Congestion::new(CongestionAlgorithm::HpccReceiver(self.hpcc()?)),
            CcName::Dctcp => self.dctcp()?,
            CcName::Dcqcn => Congestion::new(CongestionAlgorithm::Dcqcn(self.dcqcn()?)),
            CcName::Auto => {
                let to = CongestionAlgorithm::Hpcc(self.hpcc()?);
                let fallback = CongestionAlgorithm::Dcqcn(self.dcqcn()?);
                let upgrade = Some(Upgrade { when: When::TelemetryAnswered, to });
                Congestion { upgrade, ..Congestion::new(fallback) }
            }
        };
        if self.takes_telemetry() {
            match self.telemetry.unwrap_or(TelemetryMode::Probe) {
                TelemetryMode::InBand(every) => congestion.in_band = Some(every),
                TelemetryMode::Probe => {
                    congestion.probe_interval = self.probe_interval.or(self.base_rtt);
                }
            }
            if self.cc == Some(CcName::Auto) {
                congestion.probe_interval = self.probe_interval.or(self.base_rtt);
            }
            congestion.subscribe = self.subscribe;
            congestion.all_hops = self.all_hops;
            congestion.reverse = self.feedback.unwrap_or_default();
        }
        congestion.format = self.format.unwrap_or_default();
        congestion.paths = self.path_choice()?;
        congestion.ratio_only = self.ratio_only;
        congestion.feedback_key = self.key;
        let fits = congestion.algorithm.build().map(drop);
        let fits = fits.and_then(|()| congestion.upgrade.map_or(Ok(()), |up| up.to.build().map(drop)));
        fits.map_err(|error| ChoiceError::new(format!("congestion control: {error}")))?;
        Ok(congestion)
    }

    fn path_choice(&self) -> Result<Option<PathChoice>, ChoiceError> {
        let Some(count) = self.paths.filter(|&count| count != 1) else { return Ok(None) };
        if !(1..=PathChoice::MOST).contains(&count) {
            return Err(ChoiceError::new(format!("{{paths={count}}} is not 1 to {}", PathChoice::MOST)));
        }
        if self.cc == Some(CcName::HpccRx) {
            return Err(ChoiceError::new(
                "{paths} goes by what the switches say, and {cc=hpcc-rx} gets windows; add {cc=hpcc}",
            ));
        }
        let interval = self.probe_interval.or(self.base_rtt).filter(|interval| !interval.is_zero());
        let interval = interval.ok_or_else(|| {
            ChoiceError::new("{paths} needs to know how often to probe them; add {probe_interval=100us}")
        })?;
        Ok(Some(PathChoice { count, interval }))
    }

    fn takes_telemetry(&self) -> bool {
        matches!(self.cc, Some(CcName::Hpcc | CcName::HpccFair | CcName::HpccRx | CcName::Auto))
    }

    /// Each key belongs to some algorithms.
    fn check_keys(&self) -> Result<(), ChoiceError> {
        use CcName::{Auto, Dcqcn, Dctcp, Fixed, Hpcc, HpccFair, HpccRx};
        let none_but = |given: bool, key: &str, of: &[CcName], remedy: &str| {
            let fits = of.contains(&self.cc.unwrap_or(Fixed)) || !given;
            if fits { Ok(()) } else { Err(ChoiceError::new(format!("{{{key}}} {remedy}"))) }
        };
        let hpcc = "is for HPCC++; add {cc=hpcc}, or leave it out";
        let telemetry = &[Hpcc, HpccFair, HpccRx, Auto];
        let paced = &[Hpcc, HpccFair, HpccRx, Auto, Dctcp, Dcqcn];
        none_but(self.window.is_some(), "window", &[Fixed], "is for {cc=fixed}; the others compute theirs")?;
        let rated = self.line_rate.is_some() && self.cc.is_none() && self.window.is_none();
        if rated && self.probe_interval.is_none() {
            return Err(ChoiceError::new("{line_rate} belongs to an algorithm; add {cc=hpcc}"));
        }
        none_but(self.base_rtt.is_some(), "base_rtt", paced, "is for HPCC++ and its like; add {cc=hpcc}")?;
        none_but(self.min_rate.is_some(), "min_rate", paced, "is for HPCC++ and its like; add {cc=hpcc}")?;
        none_but(self.max_stage.is_some(), "max_stage", telemetry, hpcc)?;
        none_but(self.eta.is_some(), "eta", telemetry, hpcc)?;
        none_but(self.flows.is_some(), "flows", telemetry, hpcc)?;
        none_but(self.telemetry.is_some(), "telemetry", telemetry, hpcc)?;
        none_but(self.subscribe, "subscribe", &[Hpcc, HpccFair], hpcc)?;
        none_but(self.format.is_some() && self.paths.is_none(), "format", telemetry, hpcc)?;
        none_but(self.all_hops, "all_hops", &[Hpcc, Auto], "is for HPCC++ at the sender; add {cc=hpcc}")?;
        if self.all_hops && self.format == Some(Format::Aecn) {
            return Err(ChoiceError::new(
                "{format=aecn} tells the path's highest share and no hops; leave {all_hops} out",
            ));
        }
        none_but(self.feedback.is_some(), "feedback", telemetry, hpcc)?;
        none_but(self.max_rtt.is_some(), "max_rtt", &[Dctcp], "is for {cc=dctcp}; leave it out")?;
        if self.probe_interval.is_some_and(|interval| interval < Duration::from_micros(1)) {
            return Err(ChoiceError::new(
                "{probe_interval} is below 1us, and would leave no room but for probes",
            ));
        }
        if self.cc == Some(HpccRx) && self.feedback.is_some_and(|feedback| feedback != Reverse::Window) {
            return Err(ChoiceError::new("{cc=hpcc-rx} gets windows; leave {feedback} out"));
        }
        if self.cc != Some(HpccRx) && self.feedback == Some(Reverse::Window) {
            return Err(ChoiceError::new("{feedback=window} is for {cc=hpcc-rx}"));
        }
        let interval = self.probe_interval.is_some() && self.takes_telemetry() && self.cc != Some(Auto);
        if interval && matches!(self.telemetry, Some(TelemetryMode::InBand(_))) {
            return Err(ChoiceError::new("{probe_interval} is for {telemetry=probe}; leave one of them out"));
        }
        Ok(())
    }

    fn fixed(&self) -> Result<Congestion, ChoiceError> {
        let window = self.window.unwrap_or(512 << 10);
        if window == 0 {
            return Err(ChoiceError::new("{window=0} would send nothing; give at least one packet's bytes"));
        }
        let algorithm = CongestionAlgorithm::Fixed { window, rate: self.line_rate };
        Ok(Congestion::new(algorithm).probing(self.probe_interval))
    }

    fn line_rate(&self) -> Result<Rate, ChoiceError> {
        let name = self.name();
        self.line_rate.ok_or_else(|| {
            ChoiceError::new(format!("{{cc={name}}} needs the link's rate; add {{line_rate=1G}}"))
        })
    }

    fn base_rtt(&self) -> Result<Duration, ChoiceError> {
        let name = self.name();
        self.base_rtt.filter(|rtt| !rtt.is_zero()).ok_or_else(|| {
            ChoiceError::new(format!("{{cc={name}}} needs the idle round trip; add {{base_rtt=100us}}"))
        })
    }

    fn name(&self) -> &'static str {
        let ours = self.cc.unwrap_or(CcName::Fixed);
        CcName::ALL.into_iter().find(|(_, name)| *name == ours).map_or("fixed", |(text, _)| text)
    }

    fn min_rate(&self, line_rate: Rate) -> Rate {
        self.min_rate.unwrap_or(Rate::from_mbps(1).min(line_rate))
    }

    fn hpcc(&self) -> Result<HpccConfig, ChoiceError> {
        let line_rate = self.line_rate()?;
        let base_rtt = self.base_rtt()?;
        // The variant's defaults are what its figures were measured with (cc/README.md).
        let (eta, max_stage) = match self.cc {
            Some(CcName::HpccFair) => (0.93, 0),
            _ => (HpccConfig::DEFAULT_TARGET_UTILISATION, HpccConfig::DEFAULT_MAX_STAGE),
        };
        let eta = self.eta.unwrap_or(eta);
        let headroom = line_rate.as_bps() as f64 * (1.0 - eta);
        let increase = headroom / f64::from(self.flows.unwrap_or(NonZeroU32::MIN).get());
        Ok(HpccConfig {
            base_rtt,
            line_rate,
            min_rate: self.min_rate(line_rate),
            target_utilisation: eta,
            max_stage: self.max_stage.unwrap_or(max_stage),
            additive_increase: Rate::from_bps(increase.round() as u64),
        })
    }

    fn dctcp(&self) -> Result<Congestion, ChoiceError> {
        let line_rate = self.line_rate()?;
        let base_rtt = self.base_rtt()?;
        let min_rate = self.min_rate(line_rate);
        let to =
            CongestionAlgorithm::Dctcp(DctcpConfig { min_rate, ..DctcpConfig::new(line_rate, base_rtt) });
        Ok(match self.max_rtt {
            None => Congestion::new(to),
            Some(limit) => {
                let upgrade = Some(Upgrade { when: When::RttBelow(limit), to });
                Congestion { upgrade, ..DEFAULT_CONGESTION }
            }
        })
    }

    fn dcqcn(&self) -> Result<DcqcnConfig, ChoiceError> {
        let line_rate = self.line_rate()?;
        let min_rate = self.min_rate(line_rate);
        Ok(DcqcnConfig { min_rate, ..DcqcnConfig::new(line_rate, self.base_rtt) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(cc: CcName) -> CongestionChoice {
        CongestionChoice {
            cc: Some(cc),
            line_rate: Some(Rate::from_gbps(10)),
            base_rtt: Some(Duration::from_micros(20)),
            ..CongestionChoice::default()
        }
    }

    #[test]
    fn each_name_makes_its_algorithm() {
        for (cc, algorithm) in [
            (CcName::Hpcc, "hpcc"),
            (CcName::HpccFair, "hpcc-fair"),
            (CcName::HpccRx, "hpcc-rx"),
            (CcName::Dctcp, "dctcp"),
            (CcName::Dcqcn, "dcqcn"),
            (CcName::Auto, "dcqcn"),
        ] {
            let congestion = choice(cc).build().unwrap();
            assert_eq!(congestion.algorithm.name(), algorithm);
            let probes = matches!(cc, CcName::Hpcc | CcName::HpccFair | CcName::HpccRx | CcName::Auto);
            assert_eq!(congestion.probe_interval.is_some(), probes, "{cc:?}");
        }
        let auto = choice(CcName::Auto).build().unwrap();
        assert_eq!(auto.upgrade.unwrap().to.name(), "hpcc");
        let near = CongestionChoice { max_rtt: Some(Duration::from_millis(10)), ..choice(CcName::Dctcp) };
        let near = near.build().unwrap();
        assert_eq!((near.algorithm.name(), near.upgrade.unwrap().to.name()), ("fixed", "dctcp"));
        assert_eq!(CongestionChoice::default().build(), Ok(DEFAULT_CONGESTION));
    }

    #[test]
    fn telemetry_and_feedback_are_chosen_apart() {
        let fourth = TelemetryMode::InBand(NonZeroU32::new(4).unwrap());
        let chosen = CongestionChoice {
            telemetry: Some(fourth),
            feedback: Some(Reverse::Notification),
            format: Some(Format::Ioam),
            ..choice(CcName::Hpcc)
        };
        let congestion = chosen.build().unwrap();
        assert_eq!(congestion.format, Format::Ioam);
        let blind = CongestionChoice { format: Some(Format::Ifa), ..choice(CcName::Dctcp) };
        assert!(blind.build().unwrap_err().as_flags().starts_with("--format is for HPCC++"));
        assert_eq!((congestion.in_band, congestion.probe_interval), (NonZeroU32::new(4), None));
        assert_eq!(congestion.reverse, Reverse::Notification);
        assert_eq!("inband:4".parse(), Ok(fourth));
        for wrong in ["inband:0", "inband:", "outband", "probe:2"] {
            assert!(wrong.parse::<TelemetryMode>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn all_hops_are_told_where_there_are_any() {
        let all = |cc, format| CongestionChoice { all_hops: true, format, ..choice(cc) }.build();
        assert!(all(CcName::Hpcc, Some(Format::Ioam)).unwrap().all_hops);
        assert!(all(CcName::Auto, None).unwrap().all_hops);
        assert!(!choice(CcName::Hpcc).build().unwrap().all_hops);
        let shares = all(CcName::Hpcc, Some(Format::Aecn)).unwrap_err();
        assert!(shares.as_flags().ends_with("leave --all-hops out"), "{}", shares.as_flags());
        for cc in [CcName::HpccRx, CcName::HpccFair, CcName::Dctcp, CcName::Fixed] {
            let cc = if cc == CcName::Fixed {
                CongestionChoice { all_hops: true, ..CongestionChoice::default() }.build()
            } else {
                all(cc, None)
            };
            assert!(cc.unwrap_err().as_flags().starts_with("--all-hops is for HPCC++ at the sender"));
        }
    }

    #[test]
    fn paths_are_probed_in_any_format() {
        let probed = CongestionChoice { paths: Some(2), format: Some(Format::Ifa), ..choice(CcName::Dctcp) };
        assert_eq!(probed.build().unwrap().format, Format::Ifa);
    }

    #[test]
    fn probes_leave_room_for_data() {
        let every = |interval| CongestionChoice { probe_interval: Some(interval), ..choice(CcName::Hpcc) };
        assert!(every(Duration::from_micros(1)).build().is_ok());
        let always = every(Duration::ZERO).build().unwrap_err();
        assert!(always.as_flags().starts_with("--probe-interval is below 1us"), "{always}");
    }

    #[test]
    fn errors_name_key_and_remedy_in_both_tongues() {
        let lacks = CongestionChoice { line_rate: None, ..choice(CcName::Dctcp) }.build().unwrap_err();
        assert_eq!(lacks.to_string(), r#"cc = "dctcp" needs the link's rate; add line_rate = "1G""#);
        assert_eq!(lacks.as_flags(), "--cc dctcp needs the link's rate; add --cc-line-rate 1G");
        let window = CongestionChoice { window: Some(1), ..choice(CcName::Hpcc) }.build().unwrap_err();
        assert!(window.as_flags().starts_with("--cc-window is for --cc fixed"), "{}", window.as_flags());
        let eta = CongestionChoice { eta: Some(2.0), ..choice(CcName::Hpcc) }.build().unwrap_err();
        assert!(eta.to_string().contains("target utilisation is 2"), "{eta}");
        let feedback = CongestionChoice { feedback: Some(Reverse::Window), ..choice(CcName::Hpcc) };
        assert!(feedback.build().unwrap_err().as_flags().contains("--cc hpcc-rx"));
    }
}

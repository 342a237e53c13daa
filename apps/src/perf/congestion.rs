//! The flags that choose congestion control.

use crate::failure::Failure;
use crate::units;
use cc::Rate;
use clap::ValueEnum;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;
use verbs::{CcName, Congestion, CongestionAlgorithm, CongestionChoice, Format, Reverse, TelemetryMode};

/// How sending is paced.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Congestion control (each side its own)")]
pub struct CongestionArgs {
    /// What computes window and rate: fixed, hpcc, hpcc-fair, hpcc-rx, dctcp, dcqcn, or auto (hpcc where switches answer
    /// probes, else dcqcn) [default: as ferroce.toml says, or fixed, 512 KiB]
    #[arg(long, value_name = "ALGORITHM")]
    pub cc: Option<CcName>,
    /// hpcc, hpcc-fair, hpcc-rx: which packets bring telemetry: inband (all data), inband:N (one of N), or probe [default: probe]
    #[arg(long, value_name = "PACKETS")]
    pub telemetry: Option<TelemetryMode>,
    /// hpcc: how the other side answers telemetry [default: ack]
    #[arg(long, value_name = "WAY")]
    pub feedback: Option<FeedbackWay>,
    /// hpcc: the other side's answers tell all links of the path, not only the busiest
    #[arg(long)]
    pub all_hops: bool,
    /// hpcc: data packets ask switches to tell of congestion at once, beside what --telemetry brings
    #[arg(long)]
    pub subscribe: bool,
    /// hpcc, hpcc-fair, hpcc-rx, and --paths: layout of the telemetry: hpcc (HPCC INT), int-md (P4 INT-MD 2.1), ioam (RFC 9197,
    /// IPv6), ifa (IFA 2.0), aecn (Advanced ECN, IPv6) [default: hpcc]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// fixed: bytes in flight on a queue pair
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    pub cc_window: Option<u64>,
    /// What this host's link carries; fixed: pacing rate
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub cc_line_rate: Option<Rate>,
    /// Round trip of the idle path
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub cc_base_rtt: Option<Duration>,
    /// hpcc: additive increases before a multiplicative one (the drafts say 5; 0 reclaims bandwidth faster)
    #[arg(long, value_name = "COUNT")]
    pub cc_max_stage: Option<u32>,
    /// hpcc: share of a link to aim at, above 0 and at most 1 [default: 0.95]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub cc_eta: Option<f64>,
    /// hpcc: flows to expect on a link: W_AI = W_init (1 - eta) / N [default: 1]
    #[arg(long, value_name = "COUNT", value_parser = flows)]
    pub cc_flows: Option<NonZeroU32>,
    /// A flow never falls below this [default: 1M]
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub cc_min_rate: Option<Rate>,
    /// dctcp: only where the first round trip is shorter than this, elsewhere a fixed window
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub cc_max_rtt: Option<Duration>,
    /// Ask for telemetry this often while data is in flight [default: hpcc once a base RTT, fixed never]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub probe_interval: Option<Duration>,
    /// Choose among so many paths (1 to 8), told apart by UDP source port and probed in turns, --probe-interval or
    /// --cc-base-rtt apart; needs switches that stamp
    #[arg(long, value_name = "COUNT")]
    pub paths: Option<u8>,
    /// Tell the other side no more of its path than how busy it is
    #[arg(long)]
    pub ratio_only: bool,
    /// Seal telemetry's answers with the key in this file (32 hex digits, mode 0600), and take no others
    /// [default: the key in FERROCE_FEEDBACK_KEY, or none]
    #[arg(long, value_name = "FILE")]
    pub feedback_key: Option<PathBuf>,
}

/// How the other side answers telemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum FeedbackWay {
    Ack,
    Notification,
    Window,
}

impl From<FeedbackWay> for Reverse {
    fn from(way: FeedbackWay) -> Self {
        match way {
            FeedbackWay::Ack => Self::Ack,
            FeedbackWay::Notification => Self::Notification,
            FeedbackWay::Window => Self::Window,
        }
    }
}

impl CongestionArgs {
    /// What the flags ask for; `None` leaves the choice to the library and its rules.
    ///
    /// # Errors
    /// A flag that the algorithm has no use for, or that it lacks; a key file that is not one.
    pub fn congestion(&self) -> Result<Option<Congestion>, Failure> {
        let key = match &self.feedback_key {
            Some(path) => verbs::feedback_key_from_file(path).map(Some),
            None => verbs::feedback_key_from_env(),
        };
        let choice = CongestionChoice {
            cc: self.cc,
            telemetry: self.telemetry,
            subscribe: self.subscribe,
            format: self.format,
            feedback: self.feedback.map(Reverse::from),
            all_hops: self.all_hops,
            window: self.cc_window,
            line_rate: self.cc_line_rate,
            base_rtt: self.cc_base_rtt,
            min_rate: self.cc_min_rate,
            eta: self.cc_eta,
            max_stage: self.cc_max_stage,
            flows: self.cc_flows,
            probe_interval: self.probe_interval,
            max_rtt: self.cc_max_rtt,
            paths: self.paths,
            ratio_only: self.ratio_only,
            key: key.map_err(|error| Failure::usage(error.to_string()))?,
        };
        if choice.is_empty() {
            return Ok(None);
        }
        choice.build().map(Some).map_err(|error| Failure::usage(error.as_flags()))
    }
}

/// One line on how sending is paced.
pub fn describe(congestion: Option<&Congestion>) -> String {
    let Some(congestion) = congestion else {
        return "as ferroce.toml says, or a fixed window of 524288 B".into();
    };
    let mut said = algorithm(&congestion.algorithm);
    if let Some(every) = congestion.in_band {
        said += &format!(", telemetry in 1 of {every} data packets");
    }
    if let Some(every) = congestion.probe_interval {
        said += &format!(", a probe every {every:?}");
    }
    if congestion.format != Format::Hpcc {
        said += &format!(" as {}", congestion.format);
    }
    if congestion.subscribe {
        said += ", subscribed to direct responses";
    }
    match congestion.reverse {
        Reverse::Ack => {}
        Reverse::Notification => said += ", notifications",
        Reverse::Window => said += ", windows",
    }
    if congestion.all_hops {
        said += " of all hops";
    }
    if let Some(upgrade) = &congestion.upgrade {
        said += &format!("; then {}", algorithm(&upgrade.to));
    }
    if let Some(paths) = &congestion.paths {
        said += &format!(", {} paths, one probed every {:?}", paths.count, paths.interval);
    }
    if congestion.feedback_key.is_some() {
        said += ", sealed";
    }
    said
}

fn algorithm(algorithm: &CongestionAlgorithm) -> String {
    match algorithm {
        CongestionAlgorithm::Fixed { window, rate: None } => format!("fixed window {window} B"),
        CongestionAlgorithm::Fixed { window, rate: Some(rate) } => {
            format!("fixed window {window} B, paced at {rate}")
        }
        CongestionAlgorithm::Dctcp(dctcp) => {
            format!("DCTCP, T {:?}, line rate {}, g {}", dctcp.base_rtt, dctcp.line_rate, dctcp.gain)
        }
        CongestionAlgorithm::Dcqcn(dcqcn) => {
            format!("DCQCN, line rate {}, g {}", dcqcn.line_rate, dcqcn.gain)
        }
        CongestionAlgorithm::Hpcc(hpcc)
        | CongestionAlgorithm::HpccFair(hpcc)
        | CongestionAlgorithm::HpccReceiver(hpcc) => format!(
            "HPCC++{}, T {:?}, line rate {}, eta {}, maxStage {}, W_AI {}",
            match algorithm {
                CongestionAlgorithm::HpccReceiver(_) => " at the receiver",
                CongestionAlgorithm::HpccFair(_) => ", hpcc-fair",
                _ => "",
            },
            hpcc.base_rtt,
            hpcc.line_rate,
            hpcc.target_utilisation,
            hpcc.max_stage,
            hpcc.additive_increase
        ),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("it is above 0 and at most 1, such as 0.95".into()),
    }
}

fn flows(text: &str) -> Result<NonZeroU32, String> {
    match text.parse::<NonZeroU32>() {
        Ok(flows) if flows.get() <= 1_000_000 => Ok(flows),
        _ => Err("it is a number from 1 to 1000000".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hpcc_gets_its_additive_increase_from_eta_and_flows() {
        let args = CongestionArgs {
            cc: Some(CcName::Hpcc),
            cc_line_rate: Some(Rate::from_gbps(1)),
            cc_base_rtt: Some(Duration::from_millis(2)),
            cc_flows: NonZeroU32::new(10),
            ..Default::default()
        };
        let congestion = args.congestion().unwrap().unwrap();
        assert_eq!(congestion.probe_interval, Some(Duration::from_millis(2)));
        let CongestionAlgorithm::Hpcc(config) = congestion.algorithm else { panic!("{congestion:?}") };
        assert_eq!(config.additive_increase, Rate::from_mbps(5));
        assert_eq!(config.max_stage, 5);
    }

    #[test]
    fn flags_of_the_other_algorithm_are_refused() {
        let hpcc = CongestionArgs { cc: Some(CcName::Hpcc), cc_window: Some(1), ..Default::default() };
        assert!(hpcc.congestion().unwrap_err().to_string().contains("--cc fixed"));
        let fixed = CongestionArgs { cc: Some(CcName::Fixed), cc_eta: Some(0.9), ..Default::default() };
        assert!(fixed.congestion().unwrap_err().to_string().contains("--cc-eta"));
        let bare = CongestionArgs { cc_flows: NonZeroU32::new(2), ..Default::default() };
        assert!(bare.congestion().unwrap_err().to_string().contains("--cc hpcc"));
        let no_rate = CongestionArgs { cc: Some(CcName::Hpcc), ..Default::default() };
        assert!(no_rate.congestion().unwrap_err().to_string().contains("--cc-line-rate"));
        assert_eq!(CongestionArgs::default().congestion().unwrap(), None);
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_there_are() {
        use clap::Parser;
        #[derive(Debug, Parser)]
        struct Line {
            #[command(flatten)]
            args: CongestionArgs,
        }
        let parse = |line: &str| Line::try_parse_from(line.split_whitespace());
        let wrong = parse("tool --cc cubic").unwrap_err().to_string();
        assert!(wrong.contains("cubic") && wrong.contains("dcqcn"), "{wrong}");
        let wrong = parse("tool --cc hpcc --telemetry inband:0").unwrap_err().to_string();
        assert!(wrong.contains("inband:N"), "{wrong}");
        let wrong = parse("tool --cc hpcc --format ebpf").unwrap_err().to_string();
        assert!(wrong.contains("int-md") && wrong.contains("aecn"), "{wrong}");
        let line = "tool --cc hpcc --telemetry inband:4 --format ioam --subscribe --feedback notification --cc-line-rate 1G --cc-base-rtt 2ms";
        let congestion = parse(line).unwrap().args.congestion().unwrap();
        let said = describe(congestion.as_ref());
        assert!(
            said.contains("1 of 4 data packets as ioam, subscribed to direct responses, notifications"),
            "{said}"
        );
    }
}

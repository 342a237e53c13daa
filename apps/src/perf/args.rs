//! The flags of the perftest-style tools; letters and meanings are perftest's.

use crate::failure::Failure;
use crate::port::{self, PortArgs};
use crate::units;
use cc::{HpccConfig, Rate};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use verbs::{Congestion, CongestionAlgorithm, Mtu};

/// A measuring tool's command line.
#[derive(Clone, Debug, clap::Args)]
pub struct PerfArgs {
    /// The server's name or address; without one, this is the server
    pub host: Option<String>,
    /// TCP port of the server's control connection
    #[arg(short = 'p', long = "tcp-port", value_name = "PORT", default_value_t = 18515)]
    pub tcp_port: u16,
    /// Server: serve so many clients at once; their tests begin when the last is there
    #[arg(long, value_name = "COUNT", default_value_t = 1, conflicts_with_all = ["host", "json", "json_file"],
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub clients: u16,
    /// Client: what the server speaks. A server hears by itself what its client speaks
    #[arg(long, value_name = "LANGUAGE", default_value = "ferroce", requires = "host")]
    pub handshake: Language,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub port: PortArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub load: LoadArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub queue: QueueArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub congestion: CongestionArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
}

/// What the control connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// Another `ferroce`.
    #[default]
    Ferroce,
    /// Stock perftest: `ib_write_bw` and its siblings; give both sides the same flags.
    Perftest,
}

/// What is sent. The client's word counts; a server that was told otherwise refuses.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Load (the client decides; a server that was told otherwise refuses)")]
pub struct LoadArgs {
    /// Bytes of a message; 4K, 1M, 1G are fine [default: 65536, latency 2, atomics 8]
    #[arg(short, long, value_name = "BYTES", value_parser = units::bytes, conflicts_with = "all")]
    pub size: Option<u64>,
    /// All sizes from 2 to 2^23
    #[arg(short, long)]
    pub all: bool,
    /// Messages, or exchanges for latency [default: 1000, write-bw 5000]
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    pub iters: Option<u64>,
    /// Run this long, in seconds, instead of a number of messages
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = units::seconds)]
    pub duration: Option<Duration>,
    /// Do not count this long at either end of a -D run [default: a quarter of it]
    #[arg(short = 'f', long, value_name = "SECONDS", value_parser = units::seconds, requires = "duration")]
    pub margin: Option<Duration>,
    /// Queue pairs
    #[arg(short, long = "qp", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub qps: Option<u32>,
    /// Both sides send
    #[arg(short, long)]
    pub bidirectional: bool,
    /// Which atomic
    #[arg(short = 'A', long = "atomic_type", value_name = "TYPE")]
    pub atomic_type: Option<AtomicType>,
    /// Path MTU: 256, 512, 1024, 2048, 4096 [default: what both ports carry]
    #[arg(short, long, value_name = "BYTES", value_parser = port::mtu)]
    pub mtu: Option<Mtu>,
    /// Send a pattern and compare checksums of it at both ends
    #[arg(long)]
    pub verify: bool,
    /// Connection type; only RC so far
    #[arg(short, long, value_name = "TYPE", default_value = "RC", value_parser = connection)]
    pub connection: String,
    /// Connect by rdma_cm; not supported yet
    #[arg(short = 'R', long = "rdma_cm", hide = true)]
    pub rdma_cm: bool,
}

/// Which atomic operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum AtomicType {
    #[default]
    #[value(name = "FETCH_AND_ADD", alias = "fetch_and_add")]
    FetchAndAdd,
    #[value(name = "CMP_AND_SWAP", alias = "cmp_and_swap")]
    CmpAndSwap,
}

/// This side's queues.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Queues (each side its own)")]
pub struct QueueArgs {
    /// Send requests outstanding on a queue pair [default: 128]
    #[arg(short, long, value_name = "DEPTH", value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub tx_depth: Option<u32>,
    /// Receives posted ahead on a queue pair
    #[arg(short, long, value_name = "DEPTH", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub rx_depth: u32,
    /// Send requests handed over at a time
    #[arg(short = 'l', long = "post_list", value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub post_list: u32,
    /// Ask for a completion every so many requests [default: 100, and 1 above 8 KiB]
    #[arg(short = 'Q', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub cq_mod: Option<u32>,
    /// Send messages up to this size inline [default: 0, latency 64]
    #[arg(short = 'I', long = "inline_size", value_name = "BYTES")]
    pub inline_size: Option<u32>,
    /// READs and atomics outstanding on a queue pair
    #[arg(short, long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=128))]
    pub outs: u8,
    /// Which of the port's GIDs (`ferroce info` lists them)
    #[arg(short = 'x', long, value_name = "INDEX", default_value_t = 0)]
    pub gid_index: usize,
    /// Service level 0 to 7: DSCP class selector CS0 to CS7
    #[arg(short = 'S', long, value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(0..=7))]
    pub sl: Option<u8>,
    /// IPv4 TOS or IPv6 traffic class, whole (DSCP << 2 | ECN)
    #[arg(long, value_name = "BYTE", conflicts_with = "sl")]
    pub tclass: Option<u8>,
    /// Acknowledgement timeout: 4 us * 2^CODE
    #[arg(short = 'u', long, value_name = "CODE", default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..=31))]
    pub qp_timeout: u8,
    /// Retries before a queue pair fails
    #[arg(long = "retry_count", value_name = "COUNT", default_value_t = 7, value_parser = clap::value_parser!(u8).range(0..=7))]
    pub retry_count: u8,
}

impl QueueArgs {
    /// The byte for IPv4 TOS or IPv6 traffic class.
    pub fn traffic_class(&self) -> u8 {
        self.tclass.or(self.sl.map(|level| level << 5)).unwrap_or(0)
    }
}

/// How sending is paced.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Congestion control (each side its own)")]
pub struct CongestionArgs {
    /// What computes window and rate [default: fixed, 512 KiB]
    #[arg(long, value_name = "ALGORITHM")]
    pub cc: Option<CcChoice>,
    /// fixed: bytes in flight on a queue pair
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    pub cc_window: Option<u64>,
    /// hpcc: what this host's link carries; fixed: pacing rate
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub cc_line_rate: Option<Rate>,
    /// hpcc: round trip of the idle path
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub cc_base_rtt: Option<Duration>,
    /// hpcc: additive increases before a multiplicative one (the drafts say 5; 0 reclaims bandwidth faster)
    #[arg(long, value_name = "COUNT")]
    pub cc_max_stage: Option<u32>,
    /// hpcc: share of a link to aim at, above 0 and at most 1 [default: 0.95]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub cc_eta: Option<f64>,
    /// hpcc: flows to expect on a link: W_AI = W_init (1 - eta) / N [default: 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub cc_flows: Option<u32>,
    /// hpcc: a flow never falls below this [default: 1M]
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub cc_min_rate: Option<Rate>,
    /// Ask for telemetry this often while data is in flight [default: hpcc once a base RTT, fixed never]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub probe_interval: Option<Duration>,
}

/// Which congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum CcChoice {
    Fixed,
    Hpcc,
}

impl CongestionArgs {
    /// What the flags ask for; `None` leaves the choice to the library.
    ///
    /// # Errors
    /// A flag that the algorithm has no use for, or that it lacks.
    pub fn congestion(&self) -> Result<Option<Congestion>, Failure> {
        match self.cc {
            Some(CcChoice::Hpcc) => self.hpcc().map(Some),
            Some(CcChoice::Fixed) => self.fixed().map(Some),
            None if self.cc_window.is_some() || self.probe_interval.is_some() => self.fixed().map(Some),
            None => match self.first_hpcc_flag() {
                Some(flag) => Err(Failure::usage(format!("{flag} is for HPCC++; add --cc hpcc"))),
                None => Ok(None),
            },
        }
    }

    /// A flag that means nothing to a fixed window.
    fn first_hpcc_flag(&self) -> Option<&'static str> {
        [
            (self.cc_line_rate.is_some() && self.cc.is_none(), "--cc-line-rate"),
            (self.cc_base_rtt.is_some(), "--cc-base-rtt"),
            (self.cc_max_stage.is_some(), "--cc-max-stage"),
            (self.cc_eta.is_some(), "--cc-eta"),
            (self.cc_flows.is_some(), "--cc-flows"),
            (self.cc_min_rate.is_some(), "--cc-min-rate"),
        ]
        .into_iter()
        .find_map(|(given, flag)| given.then_some(flag))
    }

    fn fixed(&self) -> Result<Congestion, Failure> {
        if let Some(flag) = self.first_hpcc_flag() {
            return Err(Failure::usage(format!("{flag} is for HPCC++; add --cc hpcc, or leave it out")));
        }
        let window = self.cc_window.unwrap_or(512 << 10);
        if window == 0 {
            return Err(Failure::usage("--cc-window 0 would send nothing; give at least one packet's bytes"));
        }
        let algorithm = CongestionAlgorithm::Fixed { window, rate: self.cc_line_rate };
        Ok(Congestion::new(algorithm).probing(self.probe_interval))
    }

    fn hpcc(&self) -> Result<Congestion, Failure> {
        if self.cc_window.is_some() {
            return Err(Failure::usage("--cc-window is for --cc fixed; HPCC++ computes its window"));
        }
        let line_rate = self
            .cc_line_rate
            .ok_or_else(|| Failure::usage("--cc hpcc needs the link's rate; add --cc-line-rate 1G"))?;
        let base_rtt = self
            .cc_base_rtt
            .filter(|rtt| !rtt.is_zero())
            .ok_or_else(|| Failure::usage("--cc hpcc needs the idle round trip; add --cc-base-rtt 100us"))?;
        let eta = self.cc_eta.unwrap_or(0.95);
        let increase = line_rate.as_bps() as f64 * (1.0 - eta) / f64::from(self.cc_flows.unwrap_or(1));
        let config = HpccConfig {
            base_rtt,
            line_rate,
            min_rate: self.cc_min_rate.unwrap_or(Rate::from_mbps(1)).min(line_rate),
            target_utilisation: eta,
            max_stage: self.cc_max_stage.unwrap_or(5),
            additive_increase: Rate::from_bps(increase.round() as u64),
        };
        let probe_interval = Some(self.probe_interval.unwrap_or(base_rtt));
        Ok(Congestion::new(CongestionAlgorithm::Hpcc(config)).probing(probe_interval))
    }
}

/// How the result is shown.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Report")]
pub struct OutputArgs {
    /// Gb/s (10^9 bits) instead of MB/s (2^20 bytes)
    #[arg(long = "report_gbits")]
    pub gbits: bool,
    /// Save the report as JSON
    #[arg(long = "out_json")]
    pub json: bool,
    /// Where to save it; implies --out_json [default: perftest_out.json]
    #[arg(long = "out_json_file", value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    /// Do not look for the peak
    #[arg(short = 'N', long = "noPeak")]
    pub no_peak: bool,
}

impl OutputArgs {
    /// The file that was asked for, if any.
    pub fn json_path(&self) -> Option<PathBuf> {
        self.json_file.clone().or_else(|| self.json.then(|| PathBuf::from("perftest_out.json")))
    }
}

fn connection(text: &str) -> Result<String, String> {
    match text.to_ascii_uppercase().as_str() {
        "RC" => Ok("RC".into()),
        "UC" | "UD" | "XRC" | "DC" | "SRD" | "RAWETH" => {
            Err("only RC (reliable connection) is supported; leave -c out".into())
        }
        _ => Err("no such connection type; leave -c out for RC".into()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("it is above 0 and at most 1, such as 0.95".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hpcc_gets_its_additive_increase_from_eta_and_flows() {
        let args = CongestionArgs {
            cc: Some(CcChoice::Hpcc),
            cc_line_rate: Some(Rate::from_gbps(1)),
            cc_base_rtt: Some(Duration::from_millis(2)),
            cc_flows: Some(10),
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
        let hpcc = CongestionArgs { cc: Some(CcChoice::Hpcc), cc_window: Some(1), ..Default::default() };
        assert!(hpcc.congestion().unwrap_err().to_string().contains("--cc fixed"));
        let fixed = CongestionArgs { cc: Some(CcChoice::Fixed), cc_eta: Some(0.9), ..Default::default() };
        assert!(fixed.congestion().unwrap_err().to_string().contains("--cc-eta"));
        let bare = CongestionArgs { cc_flows: Some(2), ..Default::default() };
        assert!(bare.congestion().unwrap_err().to_string().contains("--cc hpcc"));
        let no_rate = CongestionArgs { cc: Some(CcChoice::Hpcc), ..Default::default() };
        assert!(no_rate.congestion().unwrap_err().to_string().contains("--cc-line-rate"));
        assert_eq!(CongestionArgs::default().congestion().unwrap(), None);
    }
}

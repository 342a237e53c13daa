//! The flags of the perftest-style tools. Their letters and meanings are perftest's.

use super::congestion::CongestionArgs;
use super::perftest_flags::PerftestFlags;
use super::phases::Phases;
use super::rate_limit::RateArgs;
use crate::port::{self, PortArgs};
use crate::units;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use verbs::{Mtu, Service};

/// A measuring tool's command line.
#[derive(Clone, Debug, clap::Args)]
pub struct PerfArgs {
    /// The server's name or address; without one, this is the server
    pub host: Option<String>,
    /// TCP port of the server's control connection
    #[arg(short = 'p', long = "tcp-port", value_name = "PORT", default_value_t = 18515)]
    pub tcp_port: u16,
    /// Server: the number of clients to serve at once; their tests begin when all are connected
    #[arg(long, value_name = "COUNT", default_value_t = 1, conflicts_with_all = ["host", "json", "json_file"],
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub clients: u16,
    /// Server: the most memory for the tests of all clients, in bytes or as 4K, 1M, 1G [default: half of the available memory]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, conflicts_with = "host")]
    pub max_memory: Option<u64>,
    /// Client: the server's handshake. A server detects its client's handshake
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
    pub rate: RateArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub congestion: CongestionArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub perftest: PerftestFlags,
}

impl PerfArgs {
    /// Returns the flags with a number after `--port` as the TCP port, as in perftest. No port of Ferroce has a number as its name.
    pub fn with_perftests_port(&self) -> Self {
        match self.port.port.as_deref().map(str::parse) {
            Some(Ok(tcp_port)) => {
                Self { tcp_port, port: PortArgs { port: None, ..self.port.clone() }, ..self.clone() }
            }
            Some(Err(_)) | None => self.clone(),
        }
    }
}

/// The protocol of the control connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// Another `ferroce`.
    #[default]
    Ferroce,
    /// Stock perftest: `ib_write_bw` and its siblings; give both sides the same flags.
    Perftest,
    /// `ibv_rc_pingpong` and its siblings, for send-lat; give both sides the same size and number.
    Pingpong,
}

/// The transport service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Connection {
    #[default]
    Rc,
    Uc,
    Ud,
}

impl Connection {
    /// Returns the name that perftest and IBA use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    /// Returns the service as the library's type.
    pub const fn service(self) -> Service {
        match self {
            Self::Rc => Service::Rc,
            Self::Uc => Service::Uc,
            Self::Ud => Service::Ud,
        }
    }
}

/// The load. The client decides; a server with other values refuses.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Load (the client decides; a server with other values refuses the test)")]
pub struct LoadArgs {
    /// Message size in bytes, or as 4K, 1M, 1G [default: 65536, latency 2, atomics 8]
    #[arg(short, long, value_name = "BYTES", value_parser = units::bytes, conflicts_with = "all")]
    pub size: Option<u64>,
    /// All sizes from 2 to 2^23
    #[arg(short, long)]
    pub all: bool,
    /// Number of messages, or of exchanges for latency [default: 1000, write-bw 5000]
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    pub iters: Option<u64>,
    /// Run for this many seconds instead of sending a number of messages
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = units::seconds)]
    pub duration: Option<Duration>,
    /// Leave this many seconds at either end of a -D run out of the result [default: a quarter of -D]
    #[arg(short = 'f', long, value_name = "SECONDS", value_parser = units::seconds, requires = "duration")]
    pub margin: Option<Duration>,
    /// Vary the number of sending queue pairs over time: 1x2s,8x3s; replaces -q and -D
    #[arg(long, value_name = "COUNTxTIME,...", conflicts_with_all = ["duration", "iters", "qps"], requires = "host")]
    pub active: Option<Phases>,
    /// Number of queue pairs
    #[arg(short, long = "qp", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub qps: Option<u32>,
    /// Both sides send
    #[arg(short, long)]
    pub bidirectional: bool,
    /// The server sends, and the client receives
    #[arg(long, conflicts_with_all = ["bidirectional", "active", "series", "rate_limit"])]
    pub reversed: bool,
    /// Run until a signal arrives, and print a row every -D seconds [default: 5]
    #[arg(long = "run_infinitely", conflicts_with_all = ["iters", "active", "margin", "all", "verify", "json", "json_file",
          "limit_bw", "limit_message_rate", "cpu_util", "report_both"])]
    pub run_infinitely: bool,
    /// Atomic operation
    #[arg(short = 'A', long = "atomic_type", value_name = "TYPE")]
    pub atomic_type: Option<AtomicType>,
    /// Path MTU: 256, 512, 1024, 2048, 4096 [default: the largest that both ports carry]
    #[arg(short, long, value_name = "BYTES", value_parser = port::mtu)]
    pub mtu: Option<Mtu>,
    /// Send a pattern and compare its checksums at both ends
    #[arg(long, alias = "data_validation")]
    pub verify: bool,
    /// Connect the queue pairs by rdma_cm, at the port of -p; RC only
    #[arg(short = 'R', long = "rdma_cm", conflicts_with_all = ["gid_index", "ipv6", "clients"])]
    pub rdma_cm: bool,
    /// Connection type: RC; UC for WRITE and SEND; UD for SEND of up to the path MTU [default: RC]
    #[arg(short, long, value_name = "TYPE", value_parser = connection)]
    pub connection: Option<Connection>,
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
    /// Receive requests posted in advance on a queue pair
    #[arg(short, long, value_name = "DEPTH", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub rx_depth: u32,
    /// Send requests in one post
    #[arg(short = 'l', long = "post_list", value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub post_list: u32,
    /// Request a completion for every COUNT-th send request [default: 100; 1 for messages above 8 KiB]
    #[arg(short = 'Q', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub cq_mod: Option<u32>,
    /// Send messages up to this size inline [default: 0, latency 64]
    #[arg(short = 'I', long = "inline_size", value_name = "BYTES")]
    pub inline_size: Option<u32>,
    /// READs and atomics outstanding on a queue pair
    #[arg(short, long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=128))]
    pub outs: u8,
    /// Index of the port's GID; `ferroce info` lists them [default: IPv4, else global IPv6]
    #[arg(short = 'x', long, value_name = "INDEX")]
    pub gid_index: Option<usize>,
    /// Service level 0 to 7: DSCP class selector CS0 to CS7
    #[arg(short = 'S', long, value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(0..=7))]
    pub sl: Option<u8>,
    /// Use an IPv6 GID: the first global one, else the first link-local one
    #[arg(long, conflicts_with = "gid_index")]
    pub ipv6: bool,
    /// Complete IPv4 TOS or IPv6 traffic class byte (DSCP << 2 | ECN)
    #[arg(short = 'T', long, visible_alias = "tos", value_name = "BYTE", conflicts_with = "sl")]
    pub tclass: Option<u8>,
    /// IPv4 TTL or IPv6 hop limit
    #[arg(short = 'L', long = "hop_limit", value_name = "LIMIT", default_value_t = 64, value_parser = clap::value_parser!(u8).range(1..))]
    pub hop_limit: u8,
    /// Acknowledgement timeout: 4 us * 2^CODE
    #[arg(short = 'u', long, value_name = "CODE", default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..=31))]
    pub qp_timeout: u8,
    /// Retries before a queue pair fails
    #[arg(long = "retry_count", value_name = "COUNT", default_value_t = 7, value_parser = clap::value_parser!(u8).range(0..=7))]
    pub retry_count: u8,
    /// Sleep for 1 ms when there is nothing to do instead of polling; for --progress dedicated
    #[arg(short, long)]
    pub events: bool,
    /// SEND: all queue pairs receive from one shared receive queue of -r requests
    #[arg(long = "use-srq")]
    pub shared_receives: bool,
    /// Latency: wait this long after each exchange
    #[arg(long = "latency_gap", value_name = "MICROSECONDS", default_value_t = 0)]
    pub latency_gap: u32,
    /// Wait this long before the queue pairs are destroyed
    #[arg(long = "wait_destroy", value_name = "SECONDS", value_parser = units::seconds)]
    pub wait_destroy: Option<Duration>,
    /// After a loss, resend everything from the lost packet on, as IBA specifies, and neither offer nor accept selective repeat
    #[arg(long)]
    pub go_back_n: bool,
    /// The default, accepted because it once was none.
    #[arg(long, hide = true, conflicts_with = "go_back_n")]
    pub selective_repeat: bool,
}

impl QueueArgs {
    /// Returns the IPv4 TOS or IPv6 traffic class byte; 0 by default.
    pub fn traffic_class(&self) -> u8 {
        self.tclass.or(self.sl.map(|level| level << 5)).unwrap_or(0)
    }
}

/// The form of the result.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Report")]
pub struct OutputArgs {
    /// Gb/s (10^9 bits) instead of MB/s (2^20 bytes)
    #[arg(long = "report_gbits")]
    pub gbits: bool,
    /// Save the report as JSON
    #[arg(long = "out_json")]
    pub json: bool,
    /// File for the JSON report; implies --out_json [default: perftest_out.json]
    #[arg(long = "out_json_file", value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    /// Write each queue pair's rate, window and bytes to FILE as CSV every 10 ms; for bandwidth tools, on a side that sends
    #[arg(long, value_name = "FILE")]
    pub series: Option<PathBuf>,
    /// Do not measure the peak bandwidth
    #[arg(short = 'N', long = "noPeak")]
    pub no_peak: bool,
    /// Fail if the average bandwidth is below this, in MB/s, or with --report_gbits in Gb/s
    #[arg(short = 'w', long = "limit_bw", alias = "limit-bw", value_name = "RATE", value_parser = limit)]
    pub limit_bw: Option<f64>,
    /// Fail if fewer than this many million messages per second were sent
    #[arg(short = 'y', long = "limit_msgrate", value_name = "RATE", value_parser = limit)]
    pub limit_message_rate: Option<f64>,
    /// After each row, print a row of each direction
    #[arg(long = "report-both", requires = "bidirectional")]
    pub report_both: bool,
    /// Print the use of the machine's CPUs in each run, %
    #[arg(long = "cpu_util", requires = "duration")]
    pub cpu_util: bool,
    /// Latency: print each result, sorted
    #[arg(short = 'H', long = "report-histogram", alias = "report-histogrm", conflicts_with = "duration")]
    pub histogram: bool,
    /// Latency: print each result in the order of the exchanges
    #[arg(short = 'U', long = "report-unsorted", conflicts_with = "duration")]
    pub unsorted: bool,
    /// Print one figure of each run and nothing else: MB/s or Gb/s, million messages per second, or the average latency in us
    #[arg(long = "output", value_name = "FIGURE")]
    pub only: Option<Figure>,
}

/// One figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Figure {
    Bandwidth,
    #[value(name = "message_rate")]
    MessageRate,
    Latency,
}

impl OutputArgs {
    /// Returns whether the latency of each exchange is printed.
    pub const fn prints_samples(&self) -> bool {
        self.histogram || self.unsorted
    }

    /// Returns whether the run has a minimum bandwidth or message rate.
    pub const fn limits_bandwidth(&self) -> bool {
        self.limit_bw.is_some() || self.limit_message_rate.is_some()
    }
}

fn limit(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("`{text}`: no limit; write a number from 0, such as 9.5"))
}

impl OutputArgs {
    /// Returns the file of the JSON report, if one was requested.
    pub fn json_path(&self) -> Option<PathBuf> {
        self.json_file.clone().or_else(|| self.json.then(|| PathBuf::from("perftest_out.json")))
    }
}

fn connection(text: &str) -> Result<Connection, String> {
    match text.to_ascii_uppercase().as_str() {
        "RC" => Ok(Connection::Rc),
        "UC" => Ok(Connection::Uc),
        "UD" => Ok(Connection::Ud),
        "XRC" | "DC" | "SRD" | "RAWETH" => Err("not supported; write RC, UC or UD".into()),
        _ => Err("no such connection type; write RC, UC or UD".into()),
    }
}

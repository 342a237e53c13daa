//! The command line of `ferroce`: every subcommand, and the examples in its help.

use crate::perf::PerfArgs;
use crate::{
    capture, cdi, config, doctor, fault, info, manual, metrics, pcap, replay, run, sim, soak, switch, tcp,
    top, why,
};
use clap::{Parser, Subcommand};
use clap_complete::Shell;

/// An RDMA NIC made of software: RoCEv2 over DPDK ports, paced by in-band telemetry.
#[derive(Debug, Parser)]
#[command(name = "ferroce", version = env!("FERROCE_VERSION"), propagate_version = true, after_help = TOUR)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The examples at the end of a measuring tool's `--help`.
macro_rules! examples {
    ($tool:literal) => {
        concat!(
            "Examples:\n",
            "  Server and client on two hosts, each on its own interface:\n",
            "    ferroce ", $tool, " --port eth0\n",
            "    ferroce ", $tool, " --port eth0 10.0.0.1\n",
            "  Two processes on one host, no privileges, no kernel interface:\n",
            "    ferroce ", $tool, " --port memif:/tmp/x.sock,server --ip 10.0.0.1\n",
            "    ferroce ", $tool, " --port memif:/tmp/x.sock,client --ip 10.0.0.2 127.0.0.1\n",
            "  For five seconds, in Gb/s, and as JSON:\n",
            "    ferroce ", $tool, " --port eth0 -D 5 --report_gbits --out_json_file=out.json 10.0.0.1\n",
            "  Paced by HPCC++ on a path of 1 Gb/s and 2 ms:\n",
            "    ferroce ", $tool, " --port eth0 --cc hpcc,line_rate=1G,base_rtt=2ms 10.0.0.1\n",
            "\nHOST is the address of the server's control connection (TCP, -p); data goes to the port's own address."
        )
    };
}

const TOUR: &str = "\
First steps:
  ferroce doctor                     find problems of this machine and their remedies
  ferroce info                       list interfaces that can be ports, and all forms of a port's name
  ferroce config                     show the settings in effect and their sources
  ferroce write-bw --help            measure bandwidth, with examples
  ferroce completions bash > /etc/bash_completion.d/ferroce

Files in /usr/share/ferroce: the book (book/introduction.md), scenarios/ for `ferroce sim`, scenarios/faults/ for `ferroce switch`, \
bpftrace/, and grafana.json. In a clone, they are in docs, fabric/scenarios and scripts/bpftrace.

FERROCE_PORT and FERROCE_IP stand for --port and --ip; FERROCE_LOG=debug logs to standard error.

Exit codes: 0 done, 1 the run failed, 2 the command line or a file is wrong, 128 + N ended by signal N (141: the output's reader has ended). \
A signal is the regular end of `ferroce switch`, `ferroce capture`, and `ferroce metrics --listen` and `--sysfs`: 0. `ferroce run` returns its program's; 127 if there is no such program, \
126 if it can't be run.";

const INFO: &str = "\
Examples:
  ferroce info                       Linux interfaces that can be ports
  ferroce info --port veth0          its GIDs, path MTU and limits
  ferroce info --port veth0 --json
  ferroce info --counters            counters of running processes";

const WHY: &str = "\
Examples:
  ferroce why                        every process of this user; as root, of all users
  ferroce why 1234 --for 5           one process, watched for 5 s
  ferroce why 1234 --qp 0x001234 --json  one queue pair, for scripts

Causes are sorted by the time they took. The process is neither modified nor stopped. Unmodified programs are observed, too.";

const METRICS: &str = "\
Examples:
  ferroce metrics                              print them once
  ferroce metrics --listen 127.0.0.1:9464      for Prometheus to scrape http://127.0.0.1:9464/metrics
  ferroce metrics --sysfs /run/ferroce-sysfs   for node_exporter --path.sysfs /run/ferroce-sysfs

/usr/share/ferroce/book/observing.md (in a clone, docs/observing.md) lists the metrics; /usr/share/ferroce/grafana.json is a Grafana dashboard for them.";

const CAPTURE: &str = "\
Examples:
  ferroce capture 1234 -w trace.pcapng              until Ctrl-C, or the end of the process
  ferroce capture 1234 | wireshark -k -i -          live
  ferroce capture 1234 --qp 0x001234 | tshark -r -      one queue pair
  ferroce capture 1234 --for 5 -s 320 -w x.pcapng   headers alone, for 5 s

A slow reader does not slow the process down: packets for which there is no room are counted as dropped. A process has one capture at a \
time. It captures the devices that are open when it begins. Unmodified programs are captured, too.";

const DOCTOR: &str = "\
Examples:
  ferroce doctor                                  check the machine
  ferroce doctor --port veth0 --peer 10.0.0.2     and a port, and the path to a host

Exit code 1: a check failed, and programs would not run.";

/// The tools.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bandwidth of RDMA WRITE
    #[command(after_help = examples!("write-bw"))]
    WriteBw(PerfArgs),
    /// Latency of RDMA WRITE
    #[command(after_help = examples!("write-lat"))]
    WriteLat(PerfArgs),
    /// Bandwidth of SEND
    #[command(after_help = examples!("send-bw"))]
    SendBw(PerfArgs),
    /// Latency of SEND
    #[command(after_help = examples!("send-lat"))]
    SendLat(PerfArgs),
    /// Bandwidth of RDMA READ
    #[command(after_help = examples!("read-bw"))]
    ReadBw(PerfArgs),
    /// Latency of RDMA READ
    #[command(after_help = examples!("read-lat"))]
    ReadLat(PerfArgs),
    /// Rate of atomics
    #[command(after_help = examples!("atomic-bw"))]
    AtomicBw(PerfArgs),
    /// Latency of atomics
    #[command(after_help = examples!("atomic-lat"))]
    AtomicLat(PerfArgs),
    /// Run an unmodified RDMA program on Ferroce, on this host or on virtual hosts
    Run(run::Args),
    /// Print the variables that make unmodified RDMA programs use Ferroce
    Env(run::environment::Args),
    /// Print a CDI specification, with which container engines add Ferroce's libraries and a port to an image
    Cdi(cdi::Args),
    /// Show devices, ports, GIDs, limits and counters
    #[command(after_help = INFO)]
    Info(info::Args),
    /// Show the settings in effect and their sources; check a file
    Config(config::Args),
    /// Check this machine and port, and suggest remedies
    #[command(after_help = DOCTOR)]
    Doctor(doctor::Args),
    /// Show what queue pairs of running processes wait for, and suggest remedies
    #[command(after_help = WHY)]
    Why(why::Args),
    /// Show counters of running processes as OpenMetrics, for Prometheus
    #[command(after_help = METRICS)]
    Metrics(metrics::Args),
    /// Show the queue pairs of running processes, live
    Top(top::Args),
    /// Capture the packets of a running process as pcapng
    #[command(after_help = CAPTURE)]
    Capture(capture::Args),
    /// Inject a fault into a running process: a port down, a GID removed, a call that fails
    #[command(after_help = fault::HELP)]
    Fault(fault::Args),
    /// Decode RoCEv2 and telemetry in a capture, and verify each ICRC
    Pcap(pcap::Args),
    /// Drive HPCC++ with recorded traces and compare each state
    Replay(replay::Args),
    /// Run hosts and a switch in virtual time
    Sim(sim::Args),
    /// Test the protocol under random faults, by seed
    Soak(soak::Args),
    /// Run a switch between DPDK ports that writes telemetry
    Switch(Box<switch::Args>),
    /// Pace the connections of Linux's own TCP by HPCC++
    Tcp(tcp::Args),
    /// Print a shell's completions
    Completions {
        /// For which shell.
        shell: Shell,
    },
    /// Inform the peers of the process that starts this one when that has ended
    #[command(hide = true)]
    Guard,
    /// Write the man pages and the reference of commands into a folder
    #[command(hide = true)]
    Manual(manual::Args),
}

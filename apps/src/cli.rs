//! What the command line says.

use crate::{pcap, replay, switch};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use tracing_subscriber::EnvFilter;

/// An RDMA NIC made of software: RoCEv2 over DPDK ports, paced by in-band telemetry.
#[derive(Debug, Parser)]
#[command(name = "ferroce", version, propagate_version = true, infer_subcommands = false)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The tools.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bandwidth of RDMA WRITE
    WriteBw,
    /// Latency of RDMA WRITE
    WriteLat,
    /// Bandwidth of SEND
    SendBw,
    /// Latency of SEND
    SendLat,
    /// Bandwidth of RDMA READ
    ReadBw,
    /// Latency of RDMA READ
    ReadLat,
    /// Rate of atomics
    AtomicBw,
    /// Latency of atomics
    AtomicLat,
    /// Show devices, ports, GIDs, limits and counters
    Info,
    /// Say what this machine lacks, and the remedy
    Doctor,
    /// Decode RoCEv2 and telemetry in a capture, and verify each ICRC
    Pcap(pcap::Args),
    /// Drive HPCC++ with a recorded trace and compare each state
    Replay(replay::Args),
    /// Run a switch that stamps telemetry between DPDK ports
    Switch(Box<switch::Args>),
    /// Print a shell's completions
    Completions {
        /// For which shell.
        shell: Shell,
    },
}

/// Writes the completions of `shell` to standard output.
pub fn completions(shell: Shell) {
    clap_complete::generate(shell, &mut Cli::command(), "ferroce", &mut std::io::stdout());
}

/// Log lines go to standard error; `FERROCE_LOG` says which (`info`, `ferroce_datapath=debug`, ...).
pub fn start_log() {
    let filter = EnvFilter::try_from_env("FERROCE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

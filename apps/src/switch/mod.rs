//! `ferroce switch`: a learning Ethernet switch between DPDK ports, with shaped egress and in-band telemetry.

mod control;
mod ctl;
mod faults;
mod links;
pub(crate) mod rules;
mod series;
mod settings;
mod show;

use crate::failure::Failure;
use crate::{completion, units};
use cc::{Instant, Rate};
use control::{Bound, Control};
use datapath::dpdk::{Eal, EalConfig, Port, PortConfig};
use datapath::port_spec::PortSpec;
use fabric::{Direct, Probability, Red, Rest, Runner, SecondClass, Switch, SwitchConfig};
use links::Links;
use series::Recorder;
use settings::EgressRate;
use show::{Message, Show, Showing};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// The command line of `ferroce switch`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Signals: SIGUSR1 ends a phase: its report goes to the --json file, and the statistics begin anew. SIGINT or \
SIGTERM ends the switch: the last phase is printed and written. In the file, `phase` counts from 0 and `final` \
says whether the switch has ended; the file is replaced in one step, never half written.

A port whose Linux interface is deleted, or moved to another namespace, is reported once, and the others go on. The switch ends \
with exit code 1 when fewer than two ports are left. It waits for an interface that is only down.

Linux interfaces: use veth ends without an address. Their peers must send frames as they are: \
`ethtool -K PEER tx off tso off gso off gro off`, or TCP through the switch carries incomplete \
checksums and segments beyond the MTU.

Example: two senders, and a receiver behind a 200 Mb/s port
  ferroce switch --port s0 --port s1 --port s2 --egress-rate s2=200M --queue 1M --json report.json

Scripts of faults for --faults are in /usr/share/ferroce/scenarios/faults (in a clone, fabric/scenarios/faults)."
)]
pub struct Args {
    /// A port: veth0, tap:rdma0, memif:/run/x.sock, pci:0000:01:00.0, ...; repeat it for each of at least two
    #[arg(short, long = "port", value_name = "PORT", required = true, num_args = 1, add = completion::port())]
    ports: Vec<PortSpec>,
    /// Rate limit of every port: 200M, 10G. A port without one writes no telemetry
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<Rate>,
    /// Rate limit of one port, overriding --rate: veth2=200M
    #[arg(long, value_name = "PORT=RATE", value_parser = settings::egress_rate)]
    egress_rate: Vec<EgressRate>,
    /// Limit on the bytes queued at each port; frames beyond it are dropped
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = units::bytes)]
    queue: u64,
    /// Mark ECN-capable packets that find more than SIZE bytes queued
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    ecn_threshold: Option<u64>,
    /// Mark at random (RED): none below FROM queued bytes, all above TO, with probability up to P between: 5K:200K:0.01
    #[arg(long, value_name = "FROM:TO:P", value_parser = settings::red, conflicts_with = "ecn_threshold")]
    ecn_red: Option<Red>,
    /// Put packets of a DSCP into a second class; weights share the link while both classes send: 26:1:3
    #[arg(long, value_name = "DSCP:WEIGHT:WEIGHT", value_parser = settings::second_class)]
    second_class: Option<SecondClass>,
    /// Report a packet's waiting time in telemetry, as bytes at the link's rate, instead of the queue length
    #[arg(long)]
    tell_sojourn: bool,
    /// Answer subscribed packets at once if more than SIZE bytes are queued, each sender once per TIME: 20K:100us
    #[arg(long, value_name = "SIZE:TIME", value_parser = settings::direct)]
    direct: Option<Direct>,
    /// Treat data packets of this DSCP as subscribed to --direct
    #[arg(long, value_name = "DSCP", requires = "direct", value_parser = clap::value_parser!(u8).range(0..64))]
    direct_dscp: Option<u8>,
    /// Seal direct responses with the key in this file (32 hex digits, mode 0600)
    #[arg(long, value_name = "FILE", requires = "direct")]
    feedback_key: Option<PathBuf>,
    /// UDP port of INT-MD packets
    #[arg(long, value_name = "PORT", env = "FERROCE_INT_PORT", default_value_t = 1021)]
    int_port: u16,
    /// Type of the AECN hop-by-hop option
    #[arg(long, value_name = "TYPE", env = "FERROCE_AECN_OPTION", default_value = "0x3e", value_parser = settings::option_type)]
    aecn_option: u8,
    /// EtherType of the compact CSIG tag; the wide tag has the next one
    #[arg(long, value_name = "TYPE", env = "FERROCE_CSIG_TPID", default_value = "0x9900", value_parser = settings::ethertype)]
    csig_tpid: u16,
    /// DSCP of the probes of `ferroce tcp`
    #[arg(long, value_name = "DSCP", env = "FERROCE_TCP_DSCP", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..64))]
    tcp_dscp: u8,
    /// Period over which load is measured for AECN, CSIG and direct responses: the flows' base round trip
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = units::duration)]
    load_period: Duration,
    /// Sleep for up to TIME when idle, to share the CPU; frames that arrive meanwhile wait
    /// [default: stay awake while frames arrive]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    sleep: Option<Duration>,
    /// Longest pause of this process that a link makes up for in one burst
    #[arg(long, value_name = "TIME", default_value = "4ms", value_parser = units::duration)]
    catch_up: Duration,
    /// Switch id in the telemetry's path id, 1 to 4095; switches on a path need different ones
    /// [default: derived from the first port's Ethernet address; the first line of the output shows it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4095))]
    switch_id: Option<u16>,
    /// Forget a station after this time without a frame
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = units::duration)]
    age: Duration,
    /// Time between two tables on the terminal; 0s for none [default: 1s on a terminal, else never]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    stats_interval: Option<Duration>,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Write each phase's report to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write what each port did, interval by interval, to FILE as CSV: bytes, busy time, marks, and for how long the queue
    /// had which length
    #[arg(long, value_name = "FILE")]
    series: Option<PathBuf>,
    /// Length of such an interval
    #[arg(long, value_name = "TIME", default_value = "10ms", requires = "series", value_parser = settings::interval)]
    series_interval: Duration,
    /// Accept changes of the faults on this Unix socket: `ferroce switch ctl`
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    #[command(flatten)]
    faults: Faults,
    #[command(subcommand)]
    tool: Option<Tool>,
}

/// The subcommands for a switch that runs.
#[derive(Debug, clap::Subcommand)]
enum Tool {
    /// Show and change the faults of a running switch
    Ctl(ctl::Args),
}

/// The faults of the links behind the ports, for frames that leave.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Faults of every link")]
struct Faults {
    /// A script of faults by time, queue pair, opcode, PSN and flow (docs/reference/faults.md)
    #[arg(long = "faults", value_name = "FILE")]
    script: Option<PathBuf>,
    /// Probability that a frame is lost, 0 to 1
    #[arg(long, value_name = "P", default_value = "0", value_parser = settings::probability)]
    loss: Probability,
    /// Probability that a frame is duplicated
    #[arg(long, value_name = "P", default_value = "0", value_parser = settings::probability)]
    duplicate: Probability,
    /// Probability that a frame is delayed behind up to three others
    #[arg(long, value_name = "P", default_value = "0", value_parser = settings::probability)]
    reorder: Probability,
    /// Probability that one bit of a frame is flipped
    #[arg(long, value_name = "P", default_value = "0", value_parser = settings::probability)]
    flip: Probability,
    /// Probability that a frame that reports a path to its sender is falsified, as by a lying receiver
    #[arg(long, value_name = "P", default_value = "0", value_parser = settings::probability)]
    lie: Probability,
    /// Drop packets that only Ferroce understands (probes, setups, notifications), as a peer without Ferroce does
    #[arg(long)]
    deaf: bool,
    /// Delay every frame by this time
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    delay: Duration,
    /// Seed of all randomness: the same seed causes the same faults
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Runs the switch until a signal ends it, or runs `ferroce switch ctl`.
///
/// # Errors
/// Returns a failure if flags contradict each other, a port or a file cannot be opened, output cannot be written, or fewer than two ports
/// are left.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(Tool::Ctl(args)) = &args.tool {
        return ctl::run(args);
    }
    let config = settings::switch_config(args)?;
    let rules = settings::rules(args)?;
    let mut config = SwitchConfig { rules: rules.for_switch(), ..config };
    let switch =
        |config: &SwitchConfig| Switch::new(config).map_err(|wrong| Failure::usage(wrong.to_string()));
    // Wrong settings are refused before a port is opened.
    drop(switch(&config)?);
    settings::warn_of_rates_without_code(&config);
    let signals = Signals::listen()?;
    if let Some(PortSpec::Udp(name)) = args.ports.iter().find(|port| matches!(port, PortSpec::Udp(_))) {
        return Err(Failure::usage(format!(
            "port udp:{name}: a UDP socket receives no frames for other hosts; use packet:{name}"
        )));
    }
    let names: Vec<_> = args.ports.iter().map(PortSpec::to_string).collect();
    let Showing { reports, thread } = Show::start(names.clone(), args.json.clone())?;
    let bound = args.control.as_deref().map(Bound::at).transpose()?;
    let ports = open(args)?;
    if let (None, Some(port)) = (args.switch_id, ports.first()) {
        config.id = settings::default_id(port.info().mac);
    }
    let switch = switch(&config)?;
    let begin = std::time::Instant::now();
    let control = bound.map(|bound| bound.serve(rules, begin));
    outln!("{}", show::opening(args, config.id))?;
    let mut turns = Turns {
        reports,
        interval: interval(args),
        next: Instant::ZERO,
        end: args.duration.map(|time| Instant::ZERO + time),
        signals,
        waiting: None,
        links: Links::of(&args.ports),
        control,
        ended: None,
    };
    let stop = Arc::clone(&turns.signals.stop);
    let mut runner = Runner::new(switch, ports).resting(args.sleep.map_or(Rest::Awake, Rest::Asleep));
    let clock = || Instant::ZERO + begin.elapsed();
    turns.next = Instant::ZERO + turns.interval.unwrap_or_default();
    let recording = args
        .series
        .as_ref()
        .map(|file| Recorder::start(file, args.series_interval, names, (runner.switch(), clock())));
    let (mut recorder, writer) = recording.transpose()?.unzip();
    runner.run(&stop, clock, |switch, now| {
        if let Some(recorder) = &mut recorder {
            recorder.after(switch, now);
        }
        turns.after(switch, now);
    });
    let end = clock();
    if let Some(recorder) = &mut recorder {
        recorder.note(runner.switch(), end);
    }
    let last = runner.switch().report(end);
    // The switch has ended, so waiting for the printer delays no frame.
    let _ = turns.reports.send(Message::End(last));
    let ended = turns.ended.take();
    drop((turns, recorder));
    thread.join().map_err(|_| Failure::run("cannot show the reports: their thread has failed"))??;
    if let Some(writer) = writer {
        writer.join().map_err(|_| Failure::run("cannot write the series: its thread has failed"))??;
    }
    ended.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn open(args: &Args) -> Result<Vec<Port>, Failure> {
    let pci = args.ports.iter().filter_map(|spec| match spec {
        PortSpec::Pci(address) => Some(address.clone()),
        _ => None,
    });
    let pools = settings::Pools::new(args);
    let config = EalConfig { pci: pci.collect(), memory_mb: pools.memory_mb, ..EalConfig::default() };
    let eal = Eal::start(&config).map_err(|error| Failure::run(error.to_string()))?;
    eal.register_thread();
    let config = PortConfig { promiscuous: true, buffers: pools.buffers, ..PortConfig::default() };
    let open = |spec: &PortSpec| {
        // A UDP socket receives no frames for other hosts, so an interface needs a packet socket.
        let spec = match spec.clone() {
            PortSpec::Interface(name) => PortSpec::Packet(name),
            other => other,
        };
        Port::open(eal, &spec, &config).map_err(|error| Failure::run(error.to_string()))
    };
    args.ports.iter().map(open).collect()
}

fn interval(args: &Args) -> Option<Duration> {
    let default = std::io::stdout().is_terminal().then_some(Duration::from_secs(1));
    args.stats_interval.or(default).filter(|interval| !interval.is_zero())
}

struct Signals {
    stop: Arc<AtomicBool>,
    phase: Arc<AtomicBool>,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let phase = Arc::default();
        signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&phase))
            .map_err(|error| Failure::run(format!("cannot handle SIGUSR1: {error}")))?;
        Ok(Self { stop: crate::signals::listen()?, phase })
    }
}

/// The work between the turns of the switch: reports and signals. Nothing here blocks.
struct Turns {
    reports: SyncSender<Message>,
    interval: Option<Duration>,
    next: Instant,
    end: Option<Instant>,
    signals: Signals,
    /// The report of a phase that did not fit in the channel.
    waiting: Option<Message>,
    links: Links,
    control: Option<Control>,
    ended: Option<Failure>,
}

impl Turns {
    fn after<B: datapath::io::PacketBuf>(&mut self, switch: &mut Switch<B>, now: Instant) {
        if self.end.is_some_and(|end| now >= end) {
            self.signals.stop.store(true, Ordering::Relaxed);
        }
        if let Err(why) = self.links.check(now) {
            self.ended.get_or_insert(why);
            self.signals.stop.store(true, Ordering::Relaxed);
        }
        if let Some(control) = &self.control {
            control.after(switch);
        }
        if let Some(message) = self.waiting.take() {
            self.hand_over(message);
        } else if self.signals.phase.load(Ordering::Relaxed) {
            self.signals.phase.store(false, Ordering::Relaxed);
            let report = switch.report(now);
            switch.reset_statistics(now);
            self.hand_over(Message::Phase(report));
        } else if let Some(interval) = self.interval
            && now >= self.next
        {
            self.next = now + interval;
            // A slow printer skips this report. The counters are cumulative.
            let _ = self.reports.try_send(Message::Interval(switch.report(now)));
        }
    }

    fn hand_over(&mut self, message: Message) {
        use std::sync::mpsc::TrySendError;
        if let Err(TrySendError::Full(message)) = self.reports.try_send(message) {
            self.waiting = Some(message);
        }
    }
}

//! `ferroce tcp`: paces the kernel's TCP by HPCC++ (rtgwg-00 7.2).

mod flow;
mod flows;
mod new_connections;

use crate::failure::Failure;
use crate::{completion, signals, units};
use cc::Rate;
use datapath::clock::monotonic;
use datapath::linux;
use datapath::neighbour::addresses_of;
use datapath::tcp::{Algorithm, Probes, TcpError};

use flow::Settings;
use flows::{Flows, Tracked};
use new_connections::NewConnections;
use roce::wire::{Numbers, TcpArrival, TcpTelemetry};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use verbs::congestion::{CcName, CongestionChoice};

/// The intervals between reads of the flows, with and without active flows.
const BUSY: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(5);
/// The interval between reads of the interface's addresses.
const ADDRESSES: Duration = Duration::from_secs(1);
/// The limit on packets handled per turn, so that a flood does not delay the probes.
const BURST: usize = 64;

/// The keys of `hpcc` that apply to TCP.
const KEYS: [&str; 2] = ["line_rate", "base_rtt"];

/// The command line of `ferroce tcp`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Runs on senders and receivers, as root, until Ctrl-C. Connections that begin while it runs, of unmodified programs, over IPv4 and the \
port's addresses, are paced if the peer runs it, too, and a switch on the path writes telemetry (ferroce switch does). All others \
use CUBIC.

Examples:
  ferroce tcp --port eth0
  ferroce tcp --port eth0 --cc hpcc,line_rate=1G,base_rtt=2ms")]
pub struct Args {
    /// Linux interface whose connections are paced, and whose peers are answered
    #[arg(short = 'd', long, value_name = "INTERFACE", env = "FERROCE_PORT", add = completion::interface())]
    port: String,
    /// DSCP of probes and answers, 0 to 63; the same on all hosts and switches, and unused otherwise
    #[arg(long, value_name = "DSCP", env = "FERROCE_TCP_DSCP", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..64))]
    dscp: u8,
    /// Congestion control in the syntax of the other tools: hpcc, and of its keys line_rate and base_rtt
    #[arg(long, value_name = "NAME[,KEY=VALUE...]", value_parser = congestion, conflicts_with_all = ["base_rtt", "line_rate"],
        add = completion::congestion_of(CcName::Hpcc, &KEYS))]
    cc: Option<Settings>,
    /// Base round trip of the paths [default: measured, per flow]
    #[arg(long, value_name = "TIME", value_parser = base_rtt)]
    base_rtt: Option<Duration>,
    /// Rate of the port's link [default: the port's speed; at most that of the slowest link in the telemetry]
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    line_rate: Option<Rate>,
}

/// Parses `hpcc,line_rate=1G,base_rtt=2ms`.
fn congestion(text: &str) -> Result<Settings, String> {
    let choice: CongestionChoice = text.parse()?;
    if let Some(name) = choice.cc.filter(|&name| name != CcName::Hpcc) {
        return Err(format!("{name}: only HPCC++ paces TCP; write hpcc"));
    }
    let mut others = CongestionChoice::SETTINGS
        .iter()
        .filter(|setting| setting.key != "cc" && !KEYS.contains(&setting.key));
    match others.find(|setting| setting.get(&choice).is_some()) {
        Some(other) => {
            Err(format!("{}: TCP has no use for it, only line_rate and base_rtt; leave it out", other.key))
        }
        None => Ok(Settings { line_rate: choice.line_rate, base_rtt: choice.base_rtt }),
    }
}

/// Parses a base RTT: above 0, at most 1 s.
fn base_rtt(text: &str) -> Result<Duration, String> {
    match units::duration(text)? {
        time if time.is_zero() || time > cc::HpccConfig::MAX_BASE_RTT => {
            Err(format!("`{text}`: a base round trip is above 0 and at most 1s"))
        }
        time => Ok(time),
    }
}

/// Runs the tool until a signal arrives.
///
/// # Errors
/// Returns a failure if the interface does not exist, has no IPv4 address or is removed, or if the kernel lacks a feature or denies it.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let stop = signals::listen()?;
    let port = linux::interface(&args.port).map_err(|error| {
        Failure::run(format!("interface {}: {error}; `ip link` lists the interfaces", args.port))
    })?;
    let numbers =
        Numbers::DEFAULT.with_tcp_dscp(args.dscp).map_err(|wrong| Failure::usage(wrong.to_string()))?;
    let given = args.cc.unwrap_or(Settings { line_rate: args.line_rate, base_rtt: args.base_rtt });
    let speed = port.speed_mbps.map(|speed| Rate::from_mbps(speed.into()));
    let settings = Settings { line_rate: given.line_rate.or(speed), ..given };
    let mut pacer = Pacer::open(port.index, numbers, settings)?;
    if pacer.addresses.is_empty() {
        return Err(Failure::run(format!(
            "interface {port}: it has no IPv4 address; `ip address add 192.0.2.1/24 dev {port}`",
            port = args.port
        )));
    }
    signals::watch(&args.port);
    let _new_connections = NewConnections::set(pacer.algorithm.name())?;
    outln!(
        "pacing TCP on {} by HPCC++: congestion control {}, probes with DSCP {}",
        args.port,
        pacer.algorithm.name(),
        args.dscp
    )?;
    let failed = |error: io::Error| {
        Failure::run(format!(
            "interface {}: sending or receiving failed: {error}; check that it is up",
            args.port
        ))
    };
    while !stop.load(Ordering::Relaxed) {
        pacer.turn().map_err(failed)?;
    }
    outln!("{}", pacer.summary())?;
    signals::check().map(|()| ExitCode::SUCCESS)
}

struct Pacer {
    index: u32,
    numbers: Numbers,
    settings: Settings,
    probes: Probes,
    algorithm: Algorithm,
    /// The IPv4 addresses of the interface, with their prefix lengths.
    addresses: Vec<(Ipv4Addr, u8)>,
    addresses_due: u64,
    flows: Flows,
    flows_due: u64,
    active: usize,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    probes: u64,
    answers: u64,
    leases: u64,
    answered: u64,
    /// Packets that were damaged, or that do not belong to a flow of this host, and probes above a flow's limit.
    refused: u64,
    unsent: u64,
}

impl Pacer {
    fn open(index: u32, numbers: Numbers, settings: Settings) -> Result<Self, Failure> {
        let failed = |error: TcpError| Failure::run(error.to_string());
        let name = Algorithm::name_here()
            .map_err(|error| Failure::run(format!("/proc/thread-self/ns/net: {error}; mount /proc")))?;
        let mut pacer = Self {
            index,
            numbers,
            settings,
            probes: Probes::open(index, numbers).map_err(failed)?,
            algorithm: Algorithm::register(&name).map_err(failed)?,
            addresses: Vec::new(),
            addresses_due: 0,
            flows: Flows::default(),
            flows_due: 0,
            active: 0,
            counts: Counts::default(),
        };
        pacer.look_at_addresses(monotonic());
        Ok(pacer)
    }

    /// Sends the probes that are due, and handles packets until the next read of the flows.
    fn turn(&mut self) -> io::Result<()> {
        let now = monotonic();
        self.look_at_addresses(now);
        if now >= self.flows_due {
            self.look_at_flows(now)?;
            let pause = if self.active > 0 { BUSY } else { IDLE };
            self.flows_due = now + pause.as_nanos() as u64;
        }
        self.probes.wait(Duration::from_nanos(self.flows_due.saturating_sub(monotonic())))?;
        for _ in 0..BURST {
            // An interface that is down returns an error once.
            let Ok(arrival) = self.probes.receive() else { break };
            if !arrival.map_or(Ok(false), |arrival| self.on_arrival(&arrival))? {
                self.counts.refused += 1;
            }
        }
        Ok(())
    }

    /// Answers a probe, or handles an answer. Returns false if the packet was refused.
    fn on_arrival(&mut self, arrival: &TcpArrival) -> io::Result<bool> {
        let Self { algorithm, addresses, flows, settings, active, counts, .. } = self;
        let now = monotonic();
        let admitted = arrival.admit(addresses, |local, remote| {
            flows.find((local, remote), *settings, || algorithm.flow(local, remote).ok().flatten())
        });
        match admitted {
            None => Ok(false),
            Some(TcpTelemetry::Probe(probe, tracked)) => {
                let Some(answer) = probe.answer(&mut tracked.answers, now) else { return Ok(false) };
                counts.answered += 1;
                self.send(&answer);
                Ok(true)
            }
            Some(TcpTelemetry::Answer(answer, path, Tracked { flow, paced, .. })) => {
                counts.answers += 1;
                let Some(lease) = paced.answer(now, (&answer, &path), flow, (*settings, *active)) else {
                    return Ok(true);
                };
                counts.leases += 1;
                tracing::debug!("{} to {}: {:?}, {lease:?}", flow.local, flow.remote, paced.rate());
                algorithm.lease(flow, lease).map(|()| true)
            }
        }
    }

    fn look_at_addresses(&mut self, now: u64) {
        if now < self.addresses_due {
            return;
        }
        self.addresses_due = now + ADDRESSES.as_nanos() as u64;
        // If the addresses cannot be read, the old ones remain.
        if let Ok(found) = addresses_of(self.index) {
            self.addresses = found
                .iter()
                .filter_map(|address| match address.ip {
                    IpAddr::V4(ip) => Some((ip, address.prefix)),
                    IpAddr::V6(_) => None,
                })
                .collect();
        }
    }

    fn look_at_flows(&mut self, now: u64) -> io::Result<()> {
        let Self { algorithm, flows, addresses, settings, .. } = self;
        let found =
            algorithm.flows()?.filter(|flow| addresses.iter().any(|(ours, _)| ours == flow.local.ip()));
        flows.refresh(found, *settings);
        self.active = flows.iter_mut().filter(|it| it.paced.is_active(now, &it.flow)).count();
        let due: Vec<_> = flows.iter_mut().filter_map(|it| it.paced.probe(now, &it.flow)).collect();
        for probe in due {
            self.counts.probes += 1;
            self.send(&probe.packet(self.numbers));
        }
        Ok(())
    }

    /// Sends a packet. A failure counts as a loss on the path.
    fn send(&mut self, packet: &[u8; roce::wire::TCP_PROBE_LENGTH]) {
        if let Err(error) = self.probes.send(packet) {
            self.counts.unsent += 1;
            tracing::debug!("a probe was not sent: {error}");
        }
    }

    fn summary(&self) -> String {
        let Counts { probes, answers, leases, answered, refused, unsent } = self.counts;
        format!(
            "{} flows: {probes} probes sent, {answers} answered, {leases} with telemetry; {answered} probes of others answered, \
             {refused} packets refused; {unsent} packets not sent",
            self.flows.began()
        )
    }
}

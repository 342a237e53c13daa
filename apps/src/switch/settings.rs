//! Converts flags to the configuration of the switch.

use super::Args;
use super::rules::{Rules, Script};
use crate::failure::Failure;
use crate::units;
use cc::Rate;
use datapath::port_spec::PortSpec;
use fabric::{Direct, FaultConfig, PortConfig, Probability, Red, SecondClass, SwitchConfig};
use roce::wire::Mac;
use roce::wire::format::Numbers;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The rate of one port.
#[derive(Clone, Debug, PartialEq)]
pub struct EgressRate {
    port: PortSpec,
    rate: Rate,
}

/// Parses `veth2=200M`.
///
/// # Errors
/// Returns an error if the text is not a port's name, `=`, and a rate.
pub fn egress_rate(text: &str) -> Result<EgressRate, String> {
    let (port, rate) = text
        .rsplit_once('=')
        .ok_or_else(|| format!("`{text}` has no `=`; write PORT=RATE, such as veth2=200M"))?;
    let port = port.parse().map_err(|wrong: datapath::port_spec::PortSpecError| wrong.to_string())?;
    Ok(EgressRate { port, rate: units::rate(rate)? })
}

/// Parses a probability: `0.01`.
///
/// # Errors
/// Returns an error if the text is not a number from 0 to 1.
pub fn probability(text: &str) -> Result<Probability, String> {
    let number = text.parse().ok().and_then(Probability::new);
    number.ok_or_else(|| format!("`{text}` is not a probability; write a number from 0 to 1"))
}

/// Parses an interval of at least 1 ms: `10ms`.
///
/// # Errors
/// Returns an error if the text is not a time, or the time is below 1 ms.
pub fn interval(text: &str) -> Result<Duration, String> {
    match units::duration(text)? {
        short if short < Duration::from_millis(1) => Err(format!("`{text}`: too short; use 1ms or more")),
        time => Ok(time),
    }
}

/// Parses a RED range: `5K:200K:0.01`.
///
/// # Errors
/// Returns an error if the text is not two sizes, the first at most the second, and a probability.
pub fn red(text: &str) -> Result<Red, String> {
    let wrong = || format!("`{text}` is not a RED range; write FROM:TO:P, such as 5K:200K:0.01");
    let [from, to, most] = <[&str; 3]>::try_from(text.split(':').collect::<Vec<_>>()).map_err(|_| wrong())?;
    let red = Red { from: units::bytes(from)?, to: units::bytes(to)?, most: probability(most)? };
    if red.from <= red.to { Ok(red) } else { Err(wrong()) }
}

/// Parses a threshold and an interval of direct responses: `20K:100us`.
///
/// # Errors
/// Returns an error if the text is not a size and a time.
pub fn direct(text: &str) -> Result<Direct, String> {
    let (threshold, interval) = text
        .split_once(':')
        .ok_or_else(|| format!("`{text}` has no `:`; write SIZE:TIME, such as 20K:100us"))?;
    Ok(Direct::new(units::bytes(threshold)?, units::duration(interval)?))
}

/// Parses a second class: `26:1:3`.
///
/// # Errors
/// Returns an error if the text is not a DSCP from 0 to 63 and two weights from 1 to 255.
pub fn second_class(text: &str) -> Result<SecondClass, String> {
    let wrong = || format!("`{text}` is not a class; write DSCP:WEIGHT:WEIGHT, such as 26:1:3");
    let [dscp, ordinary, second] =
        <[&str; 3]>::try_from(text.split(':').collect::<Vec<_>>()).map_err(|_| wrong())?;
    let dscp = dscp.parse().ok().filter(|dscp| *dscp < 64).ok_or_else(wrong)?;
    let weight = |text: &str| text.parse().map_err(|_| wrong());
    Ok(SecondClass { dscp, weights: [weight(ordinary)?, weight(second)?] })
}

/// Parses an option type: `0x3e` or `62`.
///
/// # Errors
/// Returns an error if the text is not a number of 8 bits.
pub fn option_type(text: &str) -> Result<u8, String> {
    verbs::congestion::parse_option_type(text)
}

/// Parses an EtherType: `0x9900` or `39168`.
///
/// # Errors
/// Returns an error if the text is not a number of 16 bits.
pub fn ethertype(text: &str) -> Result<u16, String> {
    verbs::congestion::parse_ethertype(text)
}

/// Returns this network's numbers of protocols without a registered number.
fn numbers(args: &Args) -> Result<Numbers, Failure> {
    Numbers::new(args.int_port, args.aecn_option)
        .and_then(|numbers| numbers.with_csig_tpid(args.csig_tpid))
        .and_then(|numbers| numbers.with_tcp_dscp(args.tcp_dscp))
        .map_err(|wrong| Failure::usage(wrong.to_string()))
}

/// Returns the settings of direct responses, with the key that authenticates them.
fn direct_responses(args: &Args) -> Result<Option<Direct>, Failure> {
    let Some(direct) = args.direct else { return Ok(None) };
    let key = args.feedback_key.as_deref().map(verbs::congestion::feedback_key_from_file).transpose();
    let key = key.map_err(|error| Failure::usage(error.to_string()))?;
    let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = u64::try_from(today.as_nanos()).unwrap_or(u64::MAX);
    Ok(Some(Direct { dscp: args.direct_dscp, key, epoch, ..direct }))
}

/// Returns the rules of the fault script; no rules without a script.
///
/// # Errors
/// Returns a failure with the file and the line if the script is wrong.
pub fn rules(args: &Args) -> Result<Rules, Failure> {
    let none = Rules::none(&args.ports);
    let Some(file) = &args.faults.script else { return Ok(none) };
    none.with(&Script::open(file)?, Duration::ZERO).map_err(Failure::usage)
}

/// Creates the configuration of the switch from all flags.
///
/// # Errors
/// Returns a failure if flags are wrong or contradict each other.
pub fn switch_config(args: &Args) -> Result<SwitchConfig, Failure> {
    if args.ports.len() < 2 {
        return Err(Failure::usage("a switch needs at least two ports; give --port once for each"));
    }
    for (index, port) in args.ports.iter().enumerate() {
        if args.ports[..index].contains(port) {
            return Err(Failure::usage(format!("port `{port}` is given twice; give each port once")));
        }
    }
    if let Some(unknown) = args.egress_rate.iter().find(|one| !args.ports.contains(&one.port)) {
        let port = &unknown.port;
        return Err(Failure::usage(format!(
            "--egress-rate names `{port}`, which is not a --port of this switch; add it, or correct the name"
        )));
    }
    let direct = direct_responses(args)?;
    let ports = args.ports.iter().map(|port| PortConfig { direct, ..port_config(args, port) }).collect();
    Ok(SwitchConfig {
        id: args.switch_id.unwrap_or_default(),
        ports,
        station_age: args.age,
        numbers: numbers(args)?,
        ..SwitchConfig::default()
    })
}

/// Returns the id of a switch without `--switch-id`, from 1 to 4095. Switches with the same id on a path hide each other from the path id,
/// which is the XOR of the ids, and a switch with id 0 does not appear in it.
pub fn default_id(mac: Mac) -> u16 {
    // Fibonacci hashing: similar addresses, such as those of one machine, get different ids.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let [a, b, c, d, e, f] = mac.0;
    let hash = u64::from_be_bytes([0, 0, a, b, c, d, e, f]).wrapping_mul(GOLDEN) >> 32;
    1 + ((hash * 4095) >> 32) as u16
}

/// Warns of rates that telemetry cannot express, because HPCC++ receives no telemetry from these ports.
pub fn warn_of_rates_without_code(config: &SwitchConfig) {
    for rate in units::without_code(config.ports.iter().filter_map(|port| port.rate)) {
        tracing::warn!(
            "HPCC INT and IFA cannot express {}, so a port of that rate writes neither; they can express {}",
            units::rate_text(rate),
            units::codes()
        );
    }
}

fn port_config(args: &Args, port: &PortSpec) -> PortConfig {
    let own = args.egress_rate.iter().rev().find(|one| one.port == *port).map(|one| one.rate);
    let faults = &args.faults;
    PortConfig {
        rate: own.or(args.rate),
        catch_up: args.catch_up,
        queue_bytes: args.queue,
        queue_frames: queue_frames(args.queue),
        ecn_threshold: args.ecn_threshold,
        red: args.ecn_red,
        second_class: args.second_class,
        tell_sojourn: args.tell_sojourn,
        load_period: args.load_period,
        direct: None,
        faults: FaultConfig {
            loss: faults.loss,
            duplicate: faults.duplicate,
            reorder: faults.reorder,
            flip: faults.flip,
            forgery: faults.lie,
            drop_vendor_opcodes: faults.deaf,
            delay: faults.delay,
            seed: faults.seed,
            ..FaultConfig::default()
        },
    }
}

/// Returns the limit on the frames of a queue of `bytes`. Each frame occupies a whole buffer, so this limits queues of short frames.
fn queue_frames(bytes: u64) -> usize {
    usize::try_from(bytes / 512).unwrap_or(usize::MAX).clamp(512, 16_384)
}

pub struct Pools {
    /// Buffers of each port's pool.
    pub buffers: u32,
    /// Memory of DPDK, MiB.
    pub memory_mb: u32,
}

impl Pools {
    /// Computes the sizes: the frames of a port may fill the queues of all other ports and both of its rings, and a buffer for jumbo frames
    /// occupies 10 KiB.
    pub fn new(args: &Args) -> Self {
        let others = args.ports.len() as u32 - 1;
        let buffers = (queue_frames(args.queue) as u32 * others + 4096).min(65_535);
        Self { buffers, memory_mb: (buffers * args.ports.len() as u32).div_ceil(100) + 64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn config(line: &str) -> Result<SwitchConfig, String> {
        let words = std::iter::once("switch").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        switch_config(&line.args).map_err(|failure| failure.to_string())
    }

    /// Ports of one machine, ports of one kind of NIC, and the addresses that tests use.
    #[test]
    fn switches_with_similar_addresses_have_different_default_ids() {
        for first in [Mac([2, 0, 0, 0, 0, 1]), Mac([0x52, 0x54, 0, 0x12, 0x34, 0])] {
            let mut ids: Vec<_> = (0..64)
                .map(|number| Mac([first.0[0], first.0[1], first.0[2], first.0[3], first.0[4], number]))
                .map(default_id)
                .collect();
            assert!(ids.iter().all(|id| (1..=4095).contains(id)), "{ids:?}");
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), 64);
        }
        assert_eq!(config("--port a --port b --switch-id 7").unwrap().id, 7);
        let smallest = (0..=u16::MAX).map(|low| {
            let [high, low] = low.to_be_bytes();
            default_id(Mac([2, 0, 0, 0, high, low]))
        });
        assert_eq!(smallest.min(), Some(1), "0 would not appear in the path id");
    }

    #[test]
    fn a_ports_own_rate_overrides_the_common_rate() {
        let config =
            config("--port a --port b --rate 10G --egress-rate b=200M --queue 64K --loss 0.5").unwrap();
        let rates: Vec<_> = config.ports.iter().map(|port| port.rate).collect();
        assert_eq!(rates, [Some(Rate::from_gbps(10)), Some(Rate::from_mbps(200))]);
        assert_eq!(config.ports[1].queue_bytes, 65536);
        assert_eq!(config.ports[0].faults.loss, Probability::new(0.5).unwrap());
        assert!(!config.ports[0].faults.delay.is_zero() || config.ports[0].faults.any());
    }

    #[test]
    fn classes_and_marks_are_every_ports() {
        let shared =
            config("--port a --port b --second-class 26:1:3 --ecn-red 5K:200K:0.01 --tell-sojourn").unwrap();
        assert!(shared.ports.iter().all(|port| port.tell_sojourn && port.red.is_some()));
        assert_eq!(shared.ports[0].second_class.map(|class| class.weights[1].get()), Some(3));
    }

    #[test]
    fn contradictory_settings_are_refused_with_the_remedy() {
        for (line, says) in [
            ("--port a", "two ports"),
            ("--port a --port a", "given twice"),
            ("--port a --port b --egress-rate c=1G", "not a --port"),
            ("--port a --port b --egress-rate c", "PORT=RATE"),
            ("--port a --port b --loss 2", "from 0 to 1"),
            ("--port a --port b --switch-id 0", "1..=4095"),
            ("--port a --port b --switch-id 4096", "4095"),
            ("--port a --port b --rate 0", "no rate"),
            ("--port a:b --port b", "no kind"),
            ("--port a --port b --ecn-red 5K:2K:0.1", "FROM:TO:P"),
            ("--port a --port b --ecn-red 1K:2K:0.1 --ecn-threshold 3K", "cannot be used"),
            ("--port a --port b --direct 20K", "SIZE:TIME"),
            ("--port a --port b --second-class 64:1:1", "DSCP"),
            ("--port a --port b --second-class 26:0:1", "DSCP"),
        ] {
            let refused = config(line).unwrap_err();
            assert!(refused.contains(says), "{line}: {refused}");
        }
    }
}

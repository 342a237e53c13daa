//! The plan of a run, on which both sides agree before anything is sent.

use super::args::{AtomicType, Connection, Figure, PerfArgs};
use super::memory;
use super::phases::Phases;
use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Verb {
    Write,
    Send,
    Read,
    Atomic,
}

/// The quantity that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Kind {
    Bandwidth,
    Latency,
}

/// One of the eight tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Tool {
    pub verb: Verb,
    pub kind: Kind,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.verb, self.kind) {
            (Verb::Write, Kind::Bandwidth) => "write-bw",
            (Verb::Write, Kind::Latency) => "write-lat",
            (Verb::Send, Kind::Bandwidth) => "send-bw",
            (Verb::Send, Kind::Latency) => "send-lat",
            (Verb::Read, Kind::Bandwidth) => "read-bw",
            (Verb::Read, Kind::Latency) => "read-lat",
            (Verb::Atomic, Kind::Bandwidth) => "atomic-bw",
            (Verb::Atomic, Kind::Latency) => "atomic-lat",
        })
    }
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// After this number of messages on each queue pair, or of exchanges.
    Messages(u64),
    /// After a time. Only messages that complete between the margins count.
    Time {
        /// The whole time.
        whole: Duration,
        /// The time at either end that does not count.
        margin: Duration,
    },
}

/// The settings on which both sides must agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub tool: Tool,
    /// Message sizes in bytes, in the order of the runs.
    pub sizes: Vec<u64>,
    /// The end of each run.
    pub amount: Amount,
    /// The number of queue pairs, 1 to 1024.
    pub qps: u32,
    /// True if both sides send.
    pub bidirectional: bool,
    /// The atomic operation.
    pub atomic: AtomicType,
    /// The transport service.
    #[serde(default)]
    pub connection: Connection,
    /// The path MTU in bytes, if a flag gives one.
    pub mtu: Option<u32>,
    /// True to send a pattern and compare checksums.
    pub verify: bool,
    /// The seed of the pattern.
    pub seed: u64,
}

/// The longest message, bytes (IBA 9.4: 2^31 bytes).
const LONGEST: u64 = 1 << 31;

impl Plan {
    /// Creates the plan that the flags describe.
    ///
    /// # Errors
    /// Returns a failure if flags do not fit the tool or each other.
    pub fn new(tool: Tool, args: &PerfArgs) -> Result<Self, Failure> {
        refuse_what_is_not_supported(tool, args)?;
        let load = &args.load;
        let sizes = match (load.all, load.size) {
            (true, _) => (1..=23).map(|power| 1 << power).collect(),
            (false, Some(size)) => vec![size],
            (false, None) => vec![default_size(tool)],
        };
        check_size(tool, sizes[0])?;
        let plan = Self {
            tool,
            sizes,
            amount: amount(tool, args)?,
            qps: load.active.as_ref().map(Phases::most).or(load.qps).unwrap_or(1),
            bidirectional: load.bidirectional,
            atomic: load.atomic_type.unwrap_or_default(),
            connection: load.connection.unwrap_or_default(),
            mtu: load.mtu.map(verbs::Mtu::bytes),
            verify: load.verify,
            seed: 0x5eed_f00d,
        };
        match plan.memory() {
            Some(_) => Ok(plan),
            None => Err(Failure::usage(
                "the queue pairs' buffers exceed this machine's address space; lower -q or -s",
            )),
        }
    }

    /// Returns the largest message size, bytes.
    pub fn largest(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Returns true if each side needs one buffer to send from and another one to receive into.
    pub fn both_ways(&self) -> bool {
        self.bidirectional || self.tool.kind == Kind::Latency
    }

    /// Returns the size of one side's memory region, bytes; `None` if it exceeds the address space. A queue pair has at least 4 KiB,
    /// because short messages of stock perftest cycle over a buffer of this size.
    pub fn memory(&self) -> Option<usize> {
        let slot = usize::try_from(self.largest().max(4096)).ok()?.checked_next_multiple_of(64)?;
        slot.checked_mul(self.qps as usize)?.checked_mul(if self.both_ways() { 2 } else { 1 })
    }

    /// Checks a plan that a peer sent.
    ///
    /// # Errors
    /// Returns a failure if a value is out of range.
    pub fn check(&self) -> Result<(), Failure> {
        let mtu_exists = |bytes| verbs::Mtu::ALL.iter().any(|mtu| mtu.bytes() == bytes);
        let sane = !self.sizes.is_empty()
            && self.sizes.len() <= 64
            && (1..=1024).contains(&self.qps)
            && self.memory().is_some()
            && self.mtu.is_none_or(mtu_exists)
            && serves(self.connection, self.tool.verb)
            && match self.amount {
                Amount::Messages(count) => count > 0,
                Amount::Time { whole, margin } => leaves_time(whole, margin),
            };
        if !sane {
            return Err(Failure::run(
                "the client's parameters are out of range; run the same version on both sides",
            ));
        }
        self.sizes.iter().try_for_each(|&size| check_size(self.tool, size))
    }

    /// Checks a client's plan against the limits and the flags of this server.
    ///
    /// # Errors
    /// Returns a failure if the plan is out of range, needs too much memory, or differs from a flag.
    pub fn accept(&self, tool: Tool, args: &PerfArgs) -> Result<(), Failure> {
        if self.tool != tool {
            return Err(Failure::run(format!(
                "the client runs {}, the server {tool}; run the same tool on both sides",
                self.tool
            )));
        }
        self.check()?;
        memory::check(self, memory::limit(args))?;
        let own = Self::new(tool, args)?;
        let load = &args.load;
        let differences = [
            ((load.size.is_some() || load.all) && own.sizes != self.sizes, "-s or -a"),
            (load.iters.is_some() && own.amount != self.amount, "-n"),
            (load.duration.is_some() && own.amount != self.amount, "-D"),
            (load.qps.is_some() && own.qps != self.qps, "-q"),
            (load.bidirectional && !self.bidirectional, "-b"),
            (load.atomic_type.is_some() && own.atomic != self.atomic, "-A"),
            (load.connection.is_some() && own.connection != self.connection, "-c"),
            (load.mtu.is_some() && own.mtu != self.mtu, "-m"),
            (load.verify && !self.verify, "--verify"),
        ];
        match differences.into_iter().find(|(differs, _)| *differs) {
            None => Ok(()),
            Some((_, flag)) => Err(Failure::run(format!(
                "client and server have different {flag} values; give both the same, or leave it out on the server"
            ))),
        }
    }
}

fn refuse_what_is_not_supported(tool: Tool, args: &PerfArgs) -> Result<(), Failure> {
    let load = &args.load;
    let refusal = if load.rdma_cm {
        "-R (connect by rdma_cm) is not supported yet; leave it out"
    } else if load.bidirectional && tool.kind == Kind::Latency {
        "-b measures bandwidth; leave it out for latency"
    } else if (load.active.is_some() || args.output.series.is_some()) && tool.kind == Kind::Latency {
        "--active and --series work only with the bandwidth tools; leave them out"
    } else if tool.kind == Kind::Latency && args.output.limits_bandwidth() {
        "-w and -y are limits of bandwidth tools; leave them out for latency"
    } else if args.output.only.is_some_and(|only| (only == Figure::Latency) != (tool.kind == Kind::Latency)) {
        "--output latency is for the latency tools, bandwidth and message_rate for the others; give one that fits"
    } else if load.qps.is_some_and(|qps| qps > 1) && tool.kind == Kind::Latency {
        "latency is measured on one queue pair; leave -q out"
    } else if load.atomic_type.is_some() && tool.verb != Verb::Atomic {
        "-A is for atomic-bw and atomic-lat; leave it out"
    } else if !serves(load.connection.unwrap_or_default(), tool.verb) {
        "UC supports only WRITE and SEND, and UD only SEND; leave -c out for RC"
    } else if load.verify && tool.kind == Kind::Latency {
        "--verify works only with the bandwidth tools; leave it out"
    } else if load.verify && tool.verb == Verb::Atomic && load.duration.is_some() {
        "--verify counts atomics: give -n in place of -D"
    } else if load.all && tool.verb == Verb::Atomic {
        "an atomic is always 8 bytes; leave -a out"
    } else {
        return Ok(());
    };
    Err(Failure::usage(refusal))
}

/// Returns true if the service has the operation (IBA table 35).
fn serves(connection: Connection, verb: Verb) -> bool {
    match connection {
        Connection::Rc => true,
        Connection::Uc => matches!(verb, Verb::Write | Verb::Send),
        Connection::Ud => verb == Verb::Send,
    }
}

fn default_size(tool: Tool) -> u64 {
    match (tool.verb, tool.kind) {
        (Verb::Atomic, _) => 8,
        (_, Kind::Bandwidth) => 65536,
        (_, Kind::Latency) => 2,
    }
}

fn check_size(tool: Tool, size: u64) -> Result<(), Failure> {
    match tool.verb {
        Verb::Atomic if size != 8 => {
            Err(Failure::usage(format!("-s {size}: an atomic is always 8 bytes; leave -s out")))
        }
        Verb::Write if size == 0 && tool.kind == Kind::Latency => {
            Err(Failure::usage("-s 0: write-lat waits for a byte to change; give at least 1"))
        }
        _ if size > LONGEST => Err(Failure::usage(format!(
            "-s {size}: a message has at most 2147483648 bytes (2 GiB); lower -s"
        ))),
        _ => Ok(()),
    }
}

fn leaves_time(whole: Duration, margin: Duration) -> bool {
    margin.saturating_mul(2) < whole
}

fn amount(tool: Tool, args: &PerfArgs) -> Result<Amount, Failure> {
    let phases = args.load.active.as_ref().map(Phases::whole);
    let Some(whole) = args.load.duration.or(phases) else {
        let default = if tool == (Tool { verb: Verb::Write, kind: Kind::Bandwidth }) { 5000 } else { 1000 };
        return Ok(Amount::Messages(args.load.iters.unwrap_or(default)));
    };
    let margin = args.load.margin.unwrap_or(whole / 4);
    if !leaves_time(whole, margin) {
        let (whole, margin) = (whole.as_secs_f64(), margin.as_secs_f64());
        return Err(Failure::usage(format!(
            "-D {whole} with -f {margin} leaves no time to measure; give a -D of more than twice -f"
        )));
    }
    Ok(Amount::Time { whole, margin })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PerfArgs,
    }

    const WRITE_BW: Tool = Tool { verb: Verb::Write, kind: Kind::Bandwidth };
    const WRITE_LAT: Tool = Tool { verb: Verb::Write, kind: Kind::Latency };
    const ATOMIC_BW: Tool = Tool { verb: Verb::Atomic, kind: Kind::Bandwidth };

    fn args(line: &str) -> PerfArgs {
        Line::try_parse_from(format!("tool {line}").split_whitespace()).unwrap().args
    }

    #[test]
    fn defaults_are_those_of_perftest() {
        let plan = Plan::new(WRITE_BW, &args("")).unwrap();
        assert_eq!((plan.sizes, plan.amount, plan.qps), (vec![65536], Amount::Messages(5000), 1));
        let plan = Plan::new(WRITE_LAT, &args("")).unwrap();
        assert_eq!((plan.sizes, plan.amount), (vec![2], Amount::Messages(1000)));
        assert_eq!(Plan::new(ATOMIC_BW, &args("")).unwrap().sizes, [8]);
        let all = Plan::new(WRITE_BW, &args("-a")).unwrap().sizes;
        assert_eq!((all.len(), all[0], all[22]), (23, 2, 1 << 23));
    }

    #[test]
    fn a_command_line_of_perftest_is_understood() {
        let line = "-F -i 1 --force-link=Ethernet --pkey_index=0 --odp --use_hugepages --perform_warm_up --use_old_post_send \
                    --disable_pcie_relaxed -d veth0 -s 4096 -n 100 host";
        let plan = Plan::new(WRITE_BW, &args(line)).unwrap();
        assert_eq!((plan.sizes, plan.amount), (vec![4096], Amount::Messages(100)));
        let ports = |line: &str| {
            let args = args(line).with_perftests_port();
            (args.tcp_port, args.port.port)
        };
        assert_eq!(ports("--port 18516"), (18516, None));
        assert_eq!(ports("--port veth0"), (18515, Some("veth0".into())));
        assert_eq!(ports("-d veth0 -p 18516"), (18516, Some("veth0".into())));
        for wrong in ["-i 2", "--force-link=IB", "--pkey_index=1", "-w nan", "-y -1"] {
            assert!(Line::try_parse_from(format!("tool {wrong}").split_whitespace()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_timed_run_keeps_a_quarter_at_either_end() {
        let plan = Plan::new(WRITE_BW, &args("-D 8")).unwrap();
        let (whole, margin) = (Duration::from_secs(8), Duration::from_secs(2));
        assert_eq!(plan.amount, Amount::Time { whole, margin });
        let plan = Plan::new(WRITE_BW, &args("host --active 1x2s,8x6s")).unwrap();
        assert_eq!((plan.qps, plan.amount), (8, Amount::Time { whole, margin }));
        let wrong = Plan::new(WRITE_BW, &args("-D 2 -f 1")).unwrap_err();
        assert!(wrong.to_string().contains("more than twice"), "{wrong}");
    }

    /// IBA table 35, 9.4: which service has which operation, and how long a message may be.
    #[test]
    fn what_does_not_fit_the_tool_is_refused() {
        for (tool, line, part) in [
            (WRITE_BW, "-R", "not supported yet"),
            (WRITE_BW, "-A CMP_AND_SWAP", "-A is for"),
            (WRITE_BW, "-c UD", "UD only SEND"),
            (ATOMIC_BW, "-c UC", "UC supports only WRITE and SEND"),
            (WRITE_BW, "-s 3G", "2147483648"),
            (WRITE_LAT, "-b", "leave it out for latency"),
            (WRITE_LAT, "-w 1", "limits of bandwidth tools"),
            (WRITE_LAT, "--output bandwidth", "give one that fits"),
            (WRITE_BW, "--output latency", "give one that fits"),
            (WRITE_LAT, "-q 2", "one queue pair"),
            (WRITE_LAT, "-s 0", "at least 1"),
            (WRITE_LAT, "host --active 2x1s", "bandwidth tools"),
            (ATOMIC_BW, "-s 16", "always 8 bytes"),
            (ATOMIC_BW, "-a", "always 8 bytes"),
        ] {
            let wrong = Plan::new(tool, &args(line)).unwrap_err().to_string();
            assert!(wrong.contains(part), "{line}: {wrong}");
        }
    }

    #[test]
    fn a_server_follows_unless_it_was_told_otherwise() {
        let plan = Plan::new(WRITE_BW, &args("-s 4K -n 10 -q 2 --verify")).unwrap();
        plan.accept(WRITE_BW, &args("")).unwrap();
        plan.accept(WRITE_BW, &args("-s 4096 -q 2")).unwrap();
        for (line, part) in
            [("-s 8K", "-s"), ("-n 11", "-n"), ("-D 1", "-D"), ("-q 1", "-q"), ("-b", "-b"), ("-c UC", "-c")]
        {
            let wrong = plan.accept(WRITE_BW, &args(line)).unwrap_err().to_string();
            assert!(wrong.contains(&format!("different {part}")), "{line}: {wrong}");
        }
        let wrong = plan.accept(WRITE_LAT, &args("")).unwrap_err().to_string();
        assert!(wrong.contains("write-bw") && wrong.contains("write-lat"), "{wrong}");
    }

    #[test]
    fn a_client_gets_no_more_memory_than_the_server_gives() {
        let large = Plan::new(WRITE_BW, &args("-s 64M -q 16 -b")).unwrap();
        large.accept(WRITE_BW, &args("--max-memory 2G")).unwrap();
        let wrong = large.accept(WRITE_BW, &args("--max-memory 1G")).unwrap_err().to_string();
        for part in ["2048 MiB", "1024 MiB", "--max-memory", "-s or -q"] {
            assert!(wrong.contains(part), "{wrong}");
        }
        large.accept(WRITE_BW, &args("--max-memory 2G --clients 2")).unwrap_err();
        // 2 TiB, more than any machine has available.
        let huge = Plan::new(WRITE_BW, &args("-s 2G -q 1024")).unwrap();
        let wrong = huge.accept(WRITE_BW, &args("")).unwrap_err().to_string();
        assert!(wrong.contains("2097152 MiB"), "{wrong}");
    }

    #[test]
    fn a_peers_plan_is_checked() {
        let time = |whole, margin| Amount::Time {
            whole: Duration::from_secs(whole),
            margin: Duration::from_secs(margin),
        };
        let good = Plan::new(WRITE_BW, &args("")).unwrap();
        for bad in [
            Plan { qps: 0, ..good.clone() },
            Plan { sizes: vec![], ..good.clone() },
            Plan { sizes: vec![1 << 40], ..good.clone() },
            Plan { amount: Amount::Messages(0), ..good.clone() },
            Plan { amount: time(2, 1), ..good.clone() },
            Plan { amount: time(1, 2), ..good.clone() },
            Plan { amount: time(u64::MAX, u64::MAX), ..good.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        good.check().unwrap();
    }
}

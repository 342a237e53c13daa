//! The plan of a run, on which both sides agree before the test.

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

impl Tool {
    /// Returns the name of perftest's program for the same test: `ib_write_bw`.
    pub fn in_perftest(self) -> String {
        format!("ib_{self}").replace('-', "_")
    }
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
    /// Never. A row is printed after each interval.
    Endless {
        /// The interval.
        every: Duration,
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
    /// True if the server sends instead of the client.
    #[serde(default)]
    pub reversed: bool,
    /// The atomic operation.
    pub atomic: AtomicType,
    /// The transport service.
    #[serde(default)]
    pub connection: Connection,
    /// True to connect the queue pairs by the connection manager.
    #[serde(default)]
    pub rdma_cm: bool,
    /// The path MTU in bytes, if a flag gives one.
    pub mtu: Option<u32>,
    /// True to send a pattern and compare checksums.
    pub verify: bool,
    /// The seed of the pattern.
    pub seed: u64,
}

/// The limit on the exchanges of a run whose latencies are printed one by one.
pub const MOST_SAMPLES: u64 = 10_000_000;
/// The default interval between two rows of an endless run.
const INTERVAL: Duration = Duration::from_secs(5);
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
            reversed: load.reversed,
            atomic: load.atomic_type.unwrap_or_default(),
            connection: load.connection.unwrap_or_default(),
            rdma_cm: load.rdma_cm,
            mtu: load.mtu.map(verbs::Mtu::bytes),
            verify: load.verify,
            seed: 0x5eed_f00d,
        };
        plan.check_shared_receives(args)?;
        match plan.memory() {
            Some(_) => Ok(plan),
            None => Err(Failure::usage(
                "the queue pairs' buffers exceed this machine's address space; lower -q or -s",
            )),
        }
    }

    /// Checks that this side can verify the data that it receives. With a shared queue, a message may use the buffer of any queue pair.
    fn check_shared_receives(&self, args: &PerfArgs) -> Result<(), Failure> {
        if args.queue.shared_receives && self.verify && self.qps > 1 {
            return Err(Failure::usage(
                "--use-srq receives into the buffer of any queue pair, and --verify expects each one's own; leave one of them out, or give -q 1",
            ));
        }
        Ok(())
    }

    /// Returns the largest message size, bytes.
    pub fn largest(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Returns true if each side needs separate buffers for sending and receiving.
    pub fn both_ways(&self) -> bool {
        self.bidirectional || self.tool.kind == Kind::Latency
    }

    /// Returns true if a side sends: the client if `is_client`, otherwise the server.
    pub fn sends(&self, is_client: bool) -> bool {
        self.both_ways() || is_client != self.reversed
    }

    /// Returns the size of one side's memory region, bytes; `None` if it exceeds the address space. A queue pair has at least 4 KiB,
    /// because short messages of stock perftest cycle through a buffer of this size.
    pub fn memory(&self) -> Option<usize> {
        let slot = usize::try_from(self.largest().max(4096)).ok()?.checked_next_multiple_of(64)?;
        slot.checked_mul(self.qps as usize)?.checked_mul(if self.both_ways() { 2 } else { 1 })
    }

    /// Checks a plan that a peer has sent.
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
            && (!self.rdma_cm || self.connection == Connection::Rc)
            && match self.amount {
                Amount::Messages(count) => count > 0,
                Amount::Time { whole, margin } => leaves_time(whole, margin),
                Amount::Endless { every } => !every.is_zero(),
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
        self.check_shared_receives(args)?;
        if self.rdma_cm && args.clients > 1 {
            return Err(Failure::run("-R connects one client; leave out -R, or --clients on the server"));
        }
        let own = Self::new(tool, args)?;
        let load = &args.load;
        let differences = [
            ((load.size.is_some() || load.all) && own.sizes != self.sizes, "-s or -a"),
            (load.iters.is_some() && own.amount != self.amount, "-n"),
            (load.duration.is_some() && own.amount != self.amount, "-D"),
            (load.qps.is_some() && own.qps != self.qps, "-q"),
            (load.bidirectional && !self.bidirectional, "-b"),
            (load.reversed && !self.reversed, "--reversed"),
            (load.run_infinitely && own.amount != self.amount, "--run_infinitely"),
            (load.atomic_type.is_some() && own.atomic != self.atomic, "-A"),
            (load.connection.is_some() && own.connection != self.connection, "-c"),
            (load.rdma_cm && !self.rdma_cm, "-R"),
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
    let by_kind = match tool.kind {
        Kind::Bandwidth => unfit_for_bandwidth(args),
        Kind::Latency => unfit_for_latency(args),
    };
    match by_kind.or_else(|| unfit_for_verb(tool.verb, args)) {
        None => Ok(()),
        Some(refusal) => Err(Failure::usage(refusal)),
    }
}

/// Returns the first of the texts whose condition is true.
fn first(refusals: &[(bool, &'static str)]) -> Option<&'static str> {
    refusals.iter().find(|(is_refused, _)| *is_refused).map(|(_, text)| *text)
}

fn unfit_for_bandwidth(args: &PerfArgs) -> Option<&'static str> {
    first(&[
        (
            args.output.only == Some(Figure::Latency),
            "--output latency is for the latency tools, bandwidth and message_rate for the others; give one that fits",
        ),
        (args.output.prints_samples(), "-H and -U print latencies; leave them out, or run a latency tool"),
        (
            args.queue.latency_gap > 0,
            "--latency_gap is for the latency tools; --rate_limit slows a bandwidth tool down",
        ),
    ])
}

fn unfit_for_latency(args: &PerfArgs) -> Option<&'static str> {
    let load = &args.load;
    first(&[
        (load.bidirectional, "-b measures bandwidth; leave it out for latency"),
        (
            load.reversed || load.run_infinitely,
            "--reversed and --run_infinitely work only with the bandwidth tools; leave them out",
        ),
        (args.rate.rate_limit.is_some(), "--rate_limit is for the bandwidth tools; use --latency_gap"),
        (
            load.active.is_some() || args.output.series.is_some(),
            "--active and --series work only with the bandwidth tools; leave them out",
        ),
        (
            args.output.limits_bandwidth(),
            "-w and -y are limits of bandwidth tools; leave them out for latency",
        ),
        (
            args.output.only.is_some_and(|only| only != Figure::Latency),
            "--output latency is for the latency tools, bandwidth and message_rate for the others; give one that fits",
        ),
        (load.qps.is_some_and(|qps| qps > 1), "latency is measured on one queue pair; leave -q out"),
        (load.verify, "--verify works only with the bandwidth tools; leave it out"),
        (
            args.output.prints_samples() && load.iters.is_some_and(|iters| iters > MOST_SAMPLES),
            "-H and -U print a line for each exchange; give a -n of at most 10000000",
        ),
    ])
}

fn unfit_for_verb(verb: Verb, args: &PerfArgs) -> Option<&'static str> {
    let load = &args.load;
    let is_atomic = verb == Verb::Atomic;
    first(&[
        (load.atomic_type.is_some() && !is_atomic, "-A is for atomic-bw and atomic-lat; leave it out"),
        (
            !serves(load.connection.unwrap_or_default(), verb),
            "UC supports only WRITE and SEND, and UD only SEND; leave -c out for RC",
        ),
        (
            load.rdma_cm && load.connection.is_some_and(|connection| connection != Connection::Rc),
            "-R connects RC; leave -R or -c out",
        ),
        (
            args.queue.shared_receives && verb != Verb::Send,
            "--use-srq: only SEND uses receive requests; run send-bw or send-lat",
        ),
        (
            load.verify && is_atomic && load.duration.is_some(),
            "--verify counts atomics: give -n in place of -D",
        ),
        (load.all && is_atomic, "an atomic is always 8 bytes; leave -a out"),
    ])
}

/// Returns true if the service supports the operation (IBA table 35).
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
    if args.load.run_infinitely {
        return Ok(Amount::Endless { every: args.load.duration.unwrap_or(INTERVAL) });
    }
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
        assert_eq!(
            Plan::new(WRITE_BW, &args("--run_infinitely -D 3")).unwrap().amount,
            Amount::Endless { every: Duration::from_secs(3) }
        );
        let classes = ["-T 8", "--tos 8", "--tclass 8"].map(|line| args(line).queue.traffic_class());
        assert_eq!(classes, [8, 8, 8]);
        assert_eq!(ports("--port 18516"), (18516, None));
        assert_eq!(ports("--port veth0"), (18515, Some("veth0".into())));
        assert_eq!(ports("-d veth0 -p 18516"), (18516, Some("veth0".into())));
        for wrong in [
            "-w nan",
            "-y -1",
            "--rate_limit 0",
            "--burst_size 5",
            "--report-both",
            "--cpu_util",
            "-H -D 5",
            "--reversed -b",
            "--run_infinitely -n 5",
            "-L 0",
        ] {
            assert!(Line::try_parse_from(format!("tool {wrong}").split_whitespace()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_timed_run_excludes_a_quarter_at_either_end() {
        let plan = Plan::new(WRITE_BW, &args("-D 8")).unwrap();
        let (whole, margin) = (Duration::from_secs(8), Duration::from_secs(2));
        assert_eq!(plan.amount, Amount::Time { whole, margin });
        let plan = Plan::new(WRITE_BW, &args("host --active 1x2s,8x6s")).unwrap();
        assert_eq!((plan.qps, plan.amount), (8, Amount::Time { whole, margin }));
        let wrong = Plan::new(WRITE_BW, &args("-D 2 -f 1")).unwrap_err();
        assert!(wrong.to_string().contains("more than twice"), "{wrong}");
    }

    /// IBA table 35, 9.4: the operations of each service, and the longest message.
    #[test]
    fn flags_that_do_not_fit_the_tool_are_refused() {
        for (tool, line, part) in [
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
            (Tool { verb: Verb::Send, kind: Kind::Latency }, "-R -c UD", "-R connects RC"),
            (WRITE_LAT, "--reversed", "bandwidth tools"),
            (WRITE_LAT, "--run_infinitely", "bandwidth tools"),
            (WRITE_LAT, "--rate_limit 1", "use --latency_gap"),
            (WRITE_LAT, "-H -n 10000001", "at most 10000000"),
            (WRITE_BW, "-U", "run a latency tool"),
            (WRITE_BW, "--latency_gap 5", "--rate_limit"),
            (WRITE_BW, "--use-srq", "send-bw or send-lat"),
            (Tool { verb: Verb::Send, kind: Kind::Bandwidth }, "--use-srq --verify -q 2", "-q 1"),
            (WRITE_LAT, "host --active 2x1s", "bandwidth tools"),
            (ATOMIC_BW, "-s 16", "always 8 bytes"),
            (ATOMIC_BW, "-a", "always 8 bytes"),
        ] {
            let wrong = Plan::new(tool, &args(line)).unwrap_err().to_string();
            assert!(wrong.contains(part), "{line}: {wrong}");
        }
    }

    #[test]
    fn a_server_accepts_a_plan_unless_its_own_flags_contradict_it() {
        let plan = Plan::new(WRITE_BW, &args("-s 4K -n 10 -q 2 --verify")).unwrap();
        plan.accept(WRITE_BW, &args("")).unwrap();
        plan.accept(WRITE_BW, &args("-s 4096 -q 2")).unwrap();
        for (line, part) in [
            ("-s 8K", "-s"),
            ("--reversed", "--reversed"),
            ("-n 11", "-n"),
            ("-D 1", "-D"),
            ("-q 1", "-q"),
            ("-b", "-b"),
            ("-c UC", "-c"),
        ] {
            let wrong = plan.accept(WRITE_BW, &args(line)).unwrap_err().to_string();
            assert!(wrong.contains(&format!("different {part}")), "{line}: {wrong}");
        }
        let send_bw = Tool { verb: Verb::Send, ..WRITE_BW };
        let verified = Plan::new(send_bw, &args("-q 2 --verify")).unwrap();
        let wrong = verified.accept(send_bw, &args("--use-srq")).unwrap_err().to_string();
        assert!(wrong.contains("--use-srq"), "{wrong}");
        let wrong = plan.accept(WRITE_LAT, &args("")).unwrap_err().to_string();
        assert!(wrong.contains("write-bw") && wrong.contains("write-lat"), "{wrong}");
    }

    #[test]
    fn a_plan_that_exceeds_the_servers_memory_limit_is_refused() {
        let large = Plan::new(WRITE_BW, &args("-s 64M -q 16 -b")).unwrap();
        large.accept(WRITE_BW, &args("--max-memory 2G")).unwrap();
        let wrong = large.accept(WRITE_BW, &args("--max-memory 1G")).unwrap_err().to_string();
        for part in ["2048 MiB", "1024 MiB", "--max-memory", "-s or -q"] {
            assert!(wrong.contains(part), "{wrong}");
        }
        large.accept(WRITE_BW, &args("--max-memory 2G --clients 2")).unwrap_err();
        // 2 TiB, more than the available memory of any machine.
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

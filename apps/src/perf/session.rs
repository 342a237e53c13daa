//! One test, from the exchange of addresses to the report.

use super::args::{Connection, OutputArgs, PerfArgs};
use super::bandwidth::{self, Run};
use super::congestion;
use super::cpu::CpuTime;
use super::handshake::{Handshake, Outcome, Pause};
use super::latency::{self, Exchange};
use super::link::{Link, Queues};
use super::pattern;
use super::plan::{Amount, Kind, MOST_SAMPLES, Plan, Verb};
use super::record::{Record, Row};
use super::report::{self, Head, LINE};
use super::series::Series;
use super::stats::{Bandwidth, Latencies};
use super::verify;
use crate::counters::Shown;
use crate::failure::Failure;
use crate::output::OutFile;
use std::time::{Duration, Instant};
use verbs::congestion::Congestion;
use verbs::observe::QpReport;
use verbs::{Device, DeviceInfo, Mtu};

/// The longest time for which messages of UC and UD may be in transit.
const IN_TRANSIT: Duration = Duration::from_secs(2);

/// One side of a test.
pub struct Session<'a> {
    args: &'a PerfArgs,
    plan: Plan,
    queues: Queues,
    info: DeviceInfo,
    congestion: Option<Congestion>,
    link: Link,
    sends: bool,
    json: Option<OutFile>,
    /// The use of the CPUs in the last run, %, if it is reported.
    cpu: Option<f64>,
    /// The bandwidth of this side's messages and of the peer's in the last run, if both sent.
    directions: Option<(Bandwidth, Bandwidth)>,
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::run(error.to_string())
}

impl<'a> Session<'a> {
    /// Creates this side's queue pairs and memory.
    ///
    /// # Errors
    /// Returns a failure if the port does not carry the MTU, a limit is exceeded, or a file cannot be written.
    pub fn new(device: Device, args: &'a PerfArgs, plan: Plan) -> Result<Self, Failure> {
        let json = args.output.json_path().as_deref().map(OutFile::open).transpose()?;
        let is_client = args.host.is_some();
        let info = device.query().map_err(failed)?;
        let queues = Queues::new(&plan, args, &info)?;
        if let Some(mtu) = plan.mtu.filter(|&mtu| mtu > info.mtu.bytes()) {
            return Err(Failure::run(format!(
                "MTU {mtu} does not fit port {}, which carries {}; give a smaller -m, or raise the interface's MTU",
                info.port,
                info.mtu.bytes()
            )));
        }
        let congestion =
            args.congestion.congestion(plan.connection)?.map(|asked| device.congestion_in_use(asked));
        let sends = plan.sends(is_client);
        let link = Link::new(device, &plan, queues, &args.queue, is_client)?;
        let (cpu, directions) = (None, None);
        Ok(Self { args, plan, queues, info, congestion, link, sends, json, cpu, directions })
    }

    /// Connects, measures every size and prints the report.
    ///
    /// # Errors
    /// Returns the failure that ended the test.
    pub fn run(mut self, handshake: &mut dyn Handshake) -> Result<(), Failure> {
        let result = self.test(handshake);
        if result.is_err() {
            // The counters help to explain the failure. A device that has ended has none; its error then explains the flushed requests.
            let counters = self.link.device.counters().map_err(failed)?;
            let _ =
                self.print(&format!("{LINE}\n Counters of {}\n{}{LINE}", self.info.port, Shown(&counters)));
        }
        result?.map_or(Ok(()), |slow| Err(Failure::run(slow)))
    }

    /// Runs the test. Returns a description of a value below its limit after printing the report.
    fn test(&mut self, handshake: &mut dyn Handshake) -> Result<Option<String>, Failure> {
        let own = self.link.side();
        let peer = handshake.swap_sides(&own, &mut || self.link.idle())?;
        let theirs = peer.qps.iter().map(|qp| qp.mtu).min().unwrap_or(self.info.mtu);
        let asked = self.plan.mtu.and_then(|bytes| Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == bytes));
        let mtu = asked.unwrap_or(self.info.mtu.min(theirs));
        let sealed = if self.link.device.authenticates_feedback() { ", answers sealed" } else { "" };
        let described = congestion::describe(self.congestion.as_ref()) + sealed;
        let progress = self.args.port.who_runs()?;
        self.link.connect(&peer, Some(mtu), self.congestion, &self.args.queue)?;

        let head = self.head(mtu.bytes(), &described, &progress);
        self.print(&report::head(&head))?;
        let (tool, outs) = (self.plan.tool, self.args.queue.outs);
        self.print(&report::addresses("local", tool, outs, &own.qps, &own.buffer))?;
        self.print(&report::addresses("remote", tool, outs, &peer.qps, &peer.buffer))?;
        self.print(LINE)?;
        self.print(&self.columns())?;

        let mut rows = Vec::new();
        let mut slow = None;
        for (step, size) in self.plan.sizes.clone().into_iter().enumerate() {
            let sent = if self.plan.verify { self.fill(size)? } else { None };
            match self.measure(handshake, step as u32, size, mtu.bytes())? {
                Some(row) => {
                    outln!("{}", self.show(&row))?;
                    self.show_directions()?;
                    slow = slow.or_else(|| report::too_slow(&row, &self.args.output));
                    rows.push(row);
                }
                None => outln!(" (the other side has the figures)")?,
            }
            if self.plan.verify {
                self.verify(handshake, size, sent)?;
            }
        }
        self.print(LINE)?;
        handshake.finish(&mut || self.link.idle())?;
        let qp = self.link.qps[0].query().ok();
        self.report(&rows, mtu.bytes(), &described, &progress, qp)?;
        self.wait_before_destroying()?;
        Ok(slow)
    }

    fn columns(&self) -> String {
        let OutputArgs { gbits, cpu_util, .. } = self.args.output;
        report::columns(&self.plan, gbits).to_owned() + report::cpu_column(cpu_util)
    }

    fn show_directions(&self) -> Result<(), Failure> {
        let asked = self.directions.filter(|_| self.args.output.report_both);
        asked.map_or(Ok(()), |(own, peer)| {
            self.print(&report::directions(&own, &peer, self.args.output.gbits))
        })
    }

    /// Prints each latency if the flags request it, and then the headings again.
    fn show_samples(&self, latencies: &Latencies) -> Result<(), Failure> {
        let OutputArgs { unsorted, histogram, .. } = self.args.output;
        if !self.args.output.prints_samples() {
            return Ok(());
        }
        let mut samples = latencies.samples();
        if unsorted {
            self.print(&report::samples(&samples))?;
        }
        if histogram {
            samples.sort_by(f64::total_cmp);
            self.print(&report::samples(&samples))?;
        }
        self.print(LINE)?;
        self.print(&self.columns())
    }

    fn wait_before_destroying(&mut self) -> Result<(), Failure> {
        let Some(time) = self.args.queue.wait_destroy else { return Ok(()) };
        let (since, mut pause) = (Instant::now(), Pause::default());
        while since.elapsed() < time {
            pause.after(self.link.device.progress())?;
        }
        Ok(())
    }

    /// Prints a part of the report, unless the flags select a single figure.
    fn print(&self, text: &str) -> Result<(), Failure> {
        if self.args.output.only.is_none() { outln!("{text}") } else { Ok(()) }
    }

    fn report(
        &mut self,
        rows: &[Row],
        mtu: u32,
        congestion: &str,
        progress: &str,
        qp: Option<QpReport>,
    ) -> Result<(), Failure> {
        let counters = self.link.device.counters().map_err(failed)?;
        self.print(&format!(" Counters of {}\n{}{LINE}", self.info.port, Shown(&counters)))?;
        let Some(file) = self.json.take() else { return Ok(()) };
        let head = self.head(mtu, congestion, progress);
        let role = if self.link.is_client() { "client" } else { "server" };
        let (gbits, cpu) = (self.args.output.gbits, self.cpu);
        let record = Record { head, role, gbits, rows, counters: &counters, cpu, qp };
        file.write(&format!("{:#}\n", record.json()))
    }

    fn head<'b>(&'b self, mtu: u32, congestion: &'b str, progress: &'b str) -> Head<'b> {
        let queue = &self.args.queue;
        Head {
            plan: &self.plan,
            device: &self.info.port,
            sends: self.sends,
            tx_depth: self.queues.tx_depth,
            rx_depth: self.queues.rx_depth,
            post_list: self.queues.post_list,
            cq_mod: self.queues.cq_mod(self.plan.largest(), queue),
            inline_size: self.queues.inline_size,
            outs: queue.outs,
            mtu,
            gid_index: self.queues.gid_index.unwrap_or_else(|| self.info.preferred_gid()),
            shares_receives: queue.shared_receives,
            congestion,
            progress,
        }
    }

    fn show(&self, row: &Row) -> String {
        if let Some(only) = self.args.output.only {
            return report::figure(row, only, self.args.output.gbits);
        }
        let row = match row {
            Row::Bandwidth(run) => report::bandwidth_row(run, self.args.output.gbits),
            Row::Latency(run) => report::latency_row(run, self.plan.amount),
        };
        report::with_cpu(&row, self.cpu)
    }

    /// Runs one size on both sides. The server's row has the client's measurement, or the sum of both directions. Returns `None` if a stock
    /// peer does not report its results and this side has none.
    fn measure(
        &mut self,
        handshake: &mut dyn Handshake,
        step: u32,
        size: u64,
        mtu: u32,
    ) -> Result<Option<Row>, Failure> {
        if self.plan.tool.kind == Kind::Latency {
            latency::prepare(&self.link, self.plan.tool.verb, size)?;
        }
        handshake.barrier(step, &mut || self.link.idle())?;
        let before = if self.args.output.cpu_util { CpuTime::now() } else { None };
        let row = match self.plan.tool.kind {
            Kind::Bandwidth => self.bandwidth(handshake, size, mtu).map(|run| Some(Row::Bandwidth(run))),
            Kind::Latency => self.latency(handshake, size),
        }?;
        self.cpu = before.zip(CpuTime::now()).map(|(before, after)| before.used_until(after));
        Ok(row)
    }

    fn bandwidth(
        &mut self,
        handshake: &mut dyn Handshake,
        size: u64,
        mtu: u32,
    ) -> Result<Bandwidth, Failure> {
        let own = match self.sends {
            false => None,
            true => {
                let run = Run {
                    size,
                    amount: self.plan.amount,
                    tx_depth: self.queues.tx_depth,
                    post_list: self.queues.post_list,
                    cq_mod: self.queues.cq_mod(size, &self.args.queue),
                    peak: !self.args.output.no_peak,
                    limit: self.args.rate.limit(size, mtu, self.queues.post_list),
                    phases: self.args.load.active.clone(),
                    series: self.args.output.series.as_deref().map(Series::create).transpose()?,
                };
                let OutputArgs { gbits, only, .. } = self.args.output;
                // Datagrams do not fail when the other side is gone.
                let mut show = |run: &Bandwidth| {
                    handshake.check()?;
                    match only {
                        Some(only) => outln!("{}", report::figure(&Row::Bandwidth(*run), only, gbits)),
                        None => outln!("{}", report::bandwidth_row(run, gbits)),
                    }
                };
                Some(bandwidth::send(&mut self.link, run, &mut show)?)
            }
        };
        handshake.send_outcome(&Outcome { bandwidth: own, ..Outcome::default() })?;
        let peer = handshake.wait_outcome(&mut || self.link.idle())?.bandwidth;
        self.directions = own.zip(peer);
        match (own, peer) {
            (Some(own), Some(peer)) => Ok(own.plus(peer)),
            (Some(one), None) | (None, Some(one)) => Ok(one),
            (None, None) if !handshake.tells() => Ok(self.link.received(size)),
            (None, None) => Err(Failure::run("neither side sent; run the same ferroce on both sides")),
        }
    }

    fn latency(&mut self, handshake: &mut dyn Handshake, size: u64) -> Result<Option<Row>, Failure> {
        let verb = self.plan.tool.verb;
        let gap = Duration::from_micros(self.args.queue.latency_gap.into());
        let exchange = Exchange { verb, size, amount: self.plan.amount, gap };
        let mut latencies = exchange.latencies();
        if self.args.output.prints_samples() {
            let count = match self.plan.amount {
                Amount::Messages(count) => count.min(MOST_SAMPLES) as usize,
                Amount::Time { .. } | Amount::Endless { .. } => 0,
            };
            latencies = latencies.keeping_samples(count);
        }
        let echoes = matches!(verb, Verb::Write | Verb::Send);
        // With stock peers, the server begins a ping-pong of WRITEs.
        let begins = self.link.is_client() != (verb == Verb::Write && !handshake.tells());
        let outcome = match (begins, echoes) {
            (true, _) => {
                let latency = latency::measure(&mut self.link, exchange, &mut latencies)?;
                self.show_samples(&latencies)?;
                handshake.send_outcome(&Outcome { latency: Some(latency), ..Outcome::default() })?;
                handshake.wait_outcome(&mut || self.link.idle())?;
                return Ok(Some(Row::Latency(latency)));
            }
            (false, true) if !handshake.tells() => {
                let latency = latency::answer_counted(&mut self.link, handshake, exchange, &mut latencies)?;
                self.show_samples(&latencies)?;
                handshake.wait_outcome(&mut || self.link.idle())?;
                return Ok(Some(Row::Latency(latency)));
            }
            (false, true) => latency::answer(&mut self.link, handshake, verb, size)?,
            (false, false) => handshake.wait_outcome(&mut || self.link.idle())?,
        };
        handshake.send_outcome(&Outcome::default())?;
        match outcome.latency {
            Some(latency) => Ok(Some(Row::Latency(latency))),
            None if !handshake.tells() => Ok(None),
            None => Err(Failure::run("the client sent no figures; its own output says why")),
        }
    }

    /// Returns true if data leaves the outbound buffers of this side, by its own messages or the peer's READs.
    fn is_source(&self) -> bool {
        self.plan.bidirectional || (self.plan.tool.verb == Verb::Read) != self.link.sends
    }

    fn is_sink(&self) -> bool {
        self.plan.bidirectional || !self.is_source()
    }

    /// Writes the pattern into the outbound buffers and returns its checksum; `None` if no data leaves this side.
    fn fill(&mut self, size: u64) -> Result<Option<u64>, Failure> {
        if !self.is_source() || self.plan.tool.verb == Verb::Atomic {
            return Ok(None);
        }
        let mut sum = 0_u64;
        for qp in 0..self.link.qps.len() {
            let seed = pattern::seed(self.plan.seed, size, qp, self.link.is_client());
            let at = self.link.outbound(qp);
            let one = pattern::fill(&self.link.memory, at, size as usize, seed).map_err(failed)?;
            sum = sum.rotate_left(1) ^ one;
        }
        Ok(Some(sum))
    }

    fn verify(&mut self, handshake: &mut dyn Handshake, size: u64, sent: Option<u64>) -> Result<(), Failure> {
        if self.plan.tool.verb == Verb::Atomic {
            return verify::atomics(&self.link, &self.plan);
        }
        self.await_data(size)?;
        if !handshake.tells() {
            // A Ferroce peer compares its own received data. Stock perftest does not use the pattern.
            let wrong = if self.is_sink() { self.difference(size)? } else { None };
            return match wrong {
                None => {
                    let what =
                        if self.is_sink() { "received" } else { "sent, for the other side to compare" };
                    outln!(" verified: {size} bytes {what}")
                }
                Some(wrong) => {
                    Err(Failure::run(format!("verify: {wrong} (stock perftest sends no pattern)")))
                }
            };
        }
        let received = if self.is_sink() { Some(self.checksum(size)?) } else { None };
        handshake.send_outcome(&Outcome { sent, received, ..Outcome::default() })?;
        let peer = handshake.wait_outcome(&mut || self.link.idle())?;
        if sent == peer.received && received == peer.sent {
            let sum = sent.or(received).unwrap_or_default();
            let count = self.link.qps.len();
            return outln!(" verified: {size} bytes on each of {count} QPs, checksum {sum:016x}");
        }
        let other = "the other side received other bytes; its output says where";
        Err(Failure::run(format!("verify: {}", self.difference(size)?.unwrap_or_else(|| other.into()))))
    }

    /// Waits for the pattern for at most `IN_TRANSIT`. A reliable service has delivered everything before its sender reports the end of
    /// the run; messages of UC and UD may arrive after that report.
    fn await_data(&mut self, size: u64) -> Result<(), Failure> {
        let end = Instant::now() + IN_TRANSIT;
        let mut pause = Pause::default();
        while self.plan.connection != Connection::Rc
            && self.difference(size)?.is_some()
            && Instant::now() < end
        {
            pause.after(self.link.idle()?)?;
        }
        Ok(())
    }

    fn checksum(&self, size: u64) -> Result<u64, Failure> {
        let mut sum = 0_u64;
        for qp in 0..self.link.qps.len() {
            let one =
                pattern::checksum(&self.link.memory, self.link.inbound(qp), size as usize).map_err(failed)?;
            sum = sum.rotate_left(1) ^ one;
        }
        Ok(sum)
    }

    fn difference(&self, size: u64) -> Result<Option<String>, Failure> {
        for qp in (0..self.link.qps.len()).filter(|_| self.is_sink()) {
            let seed = pattern::seed(self.plan.seed, size, qp, !self.link.is_client());
            let at = self.link.inbound(qp);
            let found =
                pattern::first_difference(&self.link.memory, at, size as usize, seed).map_err(failed)?;
            if let Some(byte) = found {
                return Ok(Some(format!(
                    "byte {byte} of {size} on queue pair {qp} differs from what was sent"
                )));
            }
        }
        Ok(None)
    }
}

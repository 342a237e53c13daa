//! `ferroce why`: describes in sentences why the queue pairs of running processes wait.

mod cause;
mod difference;
mod starvation;

use crate::failure::Failure;
use crate::{signals, units};
use cause::{Cause, Causes};
use difference::Difference;
use serde_json::{Value, json};
use starvation::Starvation;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use verbs::Qpn;
use verbs::observe::{self, AttachError, Diagnosis, HopStatus, ProcessStatus};

/// The interval between checks for a signal.
const LOOK: Duration = Duration::from_millis(50);

/// The limits on queue pairs, and on causes per queue pair, in the text.
const SHOWN: usize = 8;
const CAUSES: usize = 3;

/// The command line of `ferroce why`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Process to observe [default: all that can be observed]
    pub pid: Option<u32>,
    /// Show only this queue pair: 0x000012 or 18
    #[arg(long, value_name = "NUMBER")]
    pub qp: Option<Qpn>,
    /// Time to watch, in seconds or with a unit: 500ms
    #[arg(long = "for", value_name = "TIME", default_value = "1", value_parser = units::seconds)]
    pub time: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The causes of a queue pair's waits.
pub struct Answer {
    process: u32,
    command: String,
    port: String,
    qpn: Qpn,
    peer: String,
    state: String,
    failure: Option<String>,
    suspected: Option<Diagnosis>,
    hops: Vec<HopStatus>,
    busiest: Option<usize>,
    causes: Causes,
}

/// Observes the processes and prints why their queue pairs waited.
///
/// # Errors
/// Returns a failure if no process can be observed, none has the queue pair, or a signal arrives.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (all, silent) = processes(args.pid)?;
    silent.iter().for_each(|error| note!("{error}"));
    let before: Vec<(ProcessStatus, Starvation)> = all.into_iter().map(watch).collect();
    wait(args.time)?;
    let mut answers = Vec::new();
    for (before, starvation) in &before {
        let after = match observe::read(before.pid) {
            Ok(after) => after,
            // If one process was requested, its end is the answer. Of several processes, each may end.
            Err(error) if args.pid.is_some() => return Err(Failure::run(error.to_string())),
            Err(_) => continue,
        };
        answers.extend(explain(before, &after, starvation.since()));
    }
    if let Some(wanted) = args.qp {
        answers.retain(|answer| answer.qpn == wanted);
        if answers.is_empty() {
            return Err(Failure::run(format!(
                "queue pair {wanted}: no observed process has it; `ferroce why` without --qp shows all queue pairs"
            )));
        }
    }
    answers.sort_by_key(Answer::order);
    match args.json {
        true => outln!("{:#}", as_json(&answers, args.time))?,
        false => out!("{}", as_text(&answers, before.len(), args.time))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn watch(status: ProcessStatus) -> (ProcessStatus, Starvation) {
    let starvation = Starvation::of(status.pid);
    (status, starvation)
}

/// Returns the reports of process `pid`, or of all processes, and the errors of processes without a report.
///
/// # Errors
/// Returns a failure if there is no report.
pub fn processes(pid: Option<u32>) -> Result<(Vec<ProcessStatus>, Vec<AttachError>), Failure> {
    let reports = pid.map_or_else(observe::read_all, |pid| vec![observe::read(pid)]);
    let (mut found, mut silent) = (Vec::new(), Vec::new());
    for report in reports {
        match report {
            Ok(status) => found.push(status),
            Err(error) => silent.push(error),
        }
    }
    match (found.is_empty(), silent.first()) {
        (false, _) => Ok((found, silent)),
        (true, Some(error)) => Err(Failure::run(error.to_string())),
        (true, None) => Err(Failure::run(
            "no process of this user has an open Ferroce device; start one, or run this as the process's user or as root",
        )),
    }
}

fn wait(time: Duration) -> Result<(), Failure> {
    signals::listen()?;
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        signals::check()?;
        std::thread::sleep(left.min(LOOK));
    }
    Ok(())
}

impl Answer {
    /// Returns the sort key: failed queue pairs first, then ascending idle time.
    fn order(&self) -> (bool, u64) {
        (self.failure.is_none(), self.idle_nanos())
    }

    fn idle_nanos(&self) -> u64 {
        self.causes.all.iter().find(|cause| cause.name == "idle").map_or(0, |cause| cause.nanos)
    }
}

/// Returns the causes of each queue pair's waits between two reports of a process. `starved` is the time that its most delayed thread
/// waited for a CPU.
fn explain(before: &ProcessStatus, after: &ProcessStatus, starved: Duration) -> Vec<Answer> {
    let mut answers = Vec::new();
    for device in &after.devices {
        let earlier = before.device(&device.port);
        for pair in &device.queue_pairs {
            let difference = Difference::new(earlier, device, pair, starved);
            let peer = pair.peer.as_ref();
            answers.push(Answer {
                process: after.pid,
                command: after.command.clone(),
                port: device.port.clone(),
                qpn: Qpn::new(pair.qpn),
                peer: peer
                    .map_or("none".into(), |peer| format!("{} QP {}", peer.address, Qpn::new(peer.qpn))),
                state: pair.state.clone(),
                failure: pair.failure.clone(),
                suspected: pair.suspected.clone(),
                hops: pair.hops.clone(),
                busiest: pair.busiest,
                causes: cause::ranked(&difference),
            });
        }
    }
    answers
}

fn as_json(answers: &[Answer], time: Duration) -> Value {
    let queue_pairs: Vec<Value> = answers
        .iter()
        .map(|answer| {
            let causes: Vec<Value> = answer.causes.all.iter().map(Cause::json).collect();
            json!({
                "process": answer.process, "command": answer.command, "port": answer.port, "qpn": answer.qpn.get(),
                "peer": answer.peer, "state": answer.state, "failure": answer.failure,
                "suspected": answer.suspected, "hops": answer.hops, "busiest": answer.busiest, "causes": causes,
                "rest": answer.causes.rest,
            })
        })
        .collect();
    json!({ "seconds": time.as_secs_f64(), "queue_pairs": queue_pairs })
}

fn as_text(answers: &[Answer], processes: usize, time: Duration) -> String {
    let mut text = String::new();
    for answer in answers.iter().take(SHOWN) {
        let Answer { process, command, port, qpn, peer, state, failure, causes, .. } = answer;
        let command: String = command.chars().take(60).collect();
        let _ = writeln!(text, "process {process} ({command}), port {port}, QP {qpn}, peer {peer}, {state}");
        failure.iter().for_each(|failure| _ = writeln!(text, "  {failure}"));
        // A failed queue pair no longer waits.
        if failure.is_none() {
            text += &ranking(causes);
        }
        text.push('\n');
    }
    let (left, seconds) = (answers.len().saturating_sub(SHOWN), time.as_secs_f64());
    if left > 0 {
        let _ = writeln!(text, "and {left} queue pairs that waited less; --qp NUMBER shows one, --json all");
    }
    if answers.is_empty() {
        let _ = writeln!(
            text,
            "{}, and none has a queue pair",
            units::counted(processes, "process", "processes")
        );
    }
    let _ = writeln!(text, "watched for {seconds:.1} s");
    text
}

/// Returns the first causes, and the share of all others, as lines. The percentages of causes that do not overlap, and of the others, add
/// up to 100.
fn ranking(causes: &Causes) -> String {
    let mut text = String::new();
    let (mut sum, mut percents) = (0.0, 0);
    for (rank, cause) in causes.all.iter().take(CAUSES).enumerate() {
        let mut percent = (cause.share * 100.0).round() as u32;
        if !cause.overlaps() {
            // Rounds the running sum, so that the printed percentages add up to it.
            sum += cause.share;
            percent = (sum * 100.0).round() as u32 - percents;
            percents += percent;
        }
        let _ = writeln!(text, "  {}. {percent:>3} %  {}", rank + 1, cause.says);
        cause.evidence.iter().for_each(|evidence| _ = writeln!(text, "            seen: {evidence}"));
        let _ = writeln!(text, "            do:   {}", cause.remedy);
    }
    let others = causes.all.iter().skip(CAUSES).map(|cause| cause.name.as_str()).collect::<Vec<_>>();
    match (100_u32.saturating_sub(percents), others.as_slice()) {
        (0, _) => {}
        (_, []) if causes.all.is_empty() => {}
        (percent, []) => _ = writeln!(text, "     {percent:>3} %  in states of less than 1 % each"),
        (percent, others) => {
            _ = writeln!(text, "     {percent:>3} %  in other states: {}", others.join(", "))
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_hexadecimal_numbers_of_queue_pairs_and_json_plain_ones() {
        let answer = Answer {
            process: 7,
            command: "x".into(),
            port: "veth0".into(),
            qpn: Qpn::new(18),
            peer: "none".into(),
            state: "Reset".into(),
            failure: None,
            suspected: None,
            hops: Vec::new(),
            busiest: None,
            causes: Causes { all: Vec::new(), rest: 0.0 },
        };
        let answers = [answer];
        let text = as_text(&answers, 1, Duration::from_secs(1));
        assert!(text.contains("port veth0, QP 0x000012, peer none"), "{text}");
        assert_eq!(as_json(&answers, Duration::from_secs(1))["queue_pairs"][0]["qpn"], 18);
    }

    #[test]
    fn percentages_add_up_to_100() {
        let cause = |name: &str, share| Cause {
            name: name.into(),
            nanos: 1,
            share,
            says: "x".into(),
            evidence: Vec::new(),
            remedy: "y".into(),
        };
        let percentages = |all: Vec<Cause>, rest| -> Vec<String> {
            let text = ranking(&Causes { all, rest });
            text.lines().filter(|line| line.contains(" %  ")).map(|line| line.trim().to_owned()).collect()
        };
        let all = vec![cause("answer", 0.494), cause("turn", 0.494)];
        assert_eq!(
            percentages(all, 0.012),
            ["1.  49 %  x", "2.  50 %  x", "1 %  in states of less than 1 % each"]
        );
        let all = vec![
            cause("cpu-starved", 0.9),
            cause("answer", 0.334),
            cause("turn", 0.333),
            cause("idle", 0.333),
        ];
        let lines = ["1.  90 %  x", "2.  33 %  x", "3.  34 %  x", "33 %  in other states: idle"];
        assert_eq!(percentages(all, 0.0), lines);
    }
}

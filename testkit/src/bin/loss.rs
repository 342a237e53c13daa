//! The cost of loss and of spraying: goodput relative to a lossless wire, for each verb and two packet sizes, in the simulator.
//!
//! `ci/loss` runs this program. `--check` fails if a figure is below its floor. `--document FILE` writes the tables between the marks of
//! the page.

use cc::{AlgorithmConfig, HpccConfig, Rate};
use fabric::Probability;
use fabric::sim::{Conventions, Flow, Outcome, Requests, Setup, Topology, Verb, run};
use roce::qp::{Congestion, PathChoice};
use std::fmt::Write;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);
/// The delay of a link. Each direction has two links, so the round trip of an idle path is 10 µs.
const HOP: Duration = Duration::from_nanos(2500);
const MESSAGE: u32 = 64 * 1024;
const LOSSES: [f64; 4] = [0.0, 0.001, 0.01, 0.05];
const VERBS: [(Verb, &str); 3] = [(Verb::Write, "WRITE"), (Verb::Read, "READ"), (Verb::Send, "SEND")];
const MTUS: [u32; 2] = [1024, 4096];
const SEEDS: u64 = 3;
/// Bytes per run, and requests in flight, which is the default of the tools.
const BYTES: u64 = 24 << 20;
const DEPTH: u32 = 128;
const SINGLES: u64 = 600;

/// The least relative goodput at each loss: with go-back-N, and with selective repeat.
const FLOORS: [[f64; 4]; 2] = [[1.0, 0.85, 0.40, 0.0], [0.98, 0.99, 0.90, 0.60]];
/// The floor for READ responses that HPCC++ paces, which with small packets are below the last floor.
const FLOOR_OF_PACED_READS: f64 = 0.30;
/// The additional delay of each of the four paths over the first, µs, and the least goodput of sprayed packets relative to one path.
const DETOURS: [u64; 4] = [0, 2, 3, 5];
const FLOOR_OF_SPRAYED: f64 = 0.95;
/// The limit on the p99 of a message at 1 % loss, relative to the median without loss.
const CEILING: f64 = 3.0;

#[derive(Clone, Copy)]
struct Cell {
    verb: Verb,
    mtu: u32,
    selective_repeat: bool,
    is_hpcc: bool,
}

fn congestion(is_hpcc: bool, mtu: u32) -> Congestion {
    if !is_hpcc {
        return Congestion::new(AlgorithmConfig::Fixed { window: 512 << 10, rate: None });
    }
    let frames = LINE.time_for(u64::from(mtu) + 102) * 2;
    let rtt = HOP * 4 + frames;
    let config = HpccConfig::new(LINE, rtt, NonZeroU32::new(100).unwrap_or(NonZeroU32::MIN));
    Congestion {
        in_band: Some(NonZeroU32::MIN),
        probe_interval: Some(rtt),
        ..Congestion::new(AlgorithmConfig::Hpcc(config))
    }
}

fn setup(cell: Cell, loss: f64, bytes: u64, depth: u32, seed: u64) -> Setup {
    let Cell { verb, mtu, selective_repeat, is_hpcc } = cell;
    let flow = Flow { source: 0, destination: 1, bytes, start: Duration::ZERO, is_incast: false, dscp: 0 };
    let topology = Topology::star(2, LINE, HOP);
    Setup {
        conventions: Conventions { payload: mtu, ..Conventions::FERROCE },
        requests: Requests { verb, bytes: MESSAGE, depth, selective_repeat },
        loss: Probability::new(loss).unwrap_or_default(),
        seed,
        limit: Duration::from_secs(20),
        ..Setup::new(topology, vec![flow], congestion(is_hpcc, mtu))
    }
}

fn simulate(cell: Cell, loss: f64, bytes: u64, depth: u32, seed: u64) -> Result<Outcome, String> {
    outcome(&setup(cell, loss, bytes, depth, seed))
}

fn outcome(setup: &Setup) -> Result<Outcome, String> {
    let outcome = run(setup, &mut ()).map_err(|error| format!("seed {}: {error}", setup.seed))?;
    if outcome.finished.is_empty() { Err("it does not end".into()) } else { Ok(outcome) }
}

/// Returns the goodput, Gb/s, as the mean of several seeds, and the share of duplicates among the retransmitted packets.
fn goodput(cell: Cell, loss: f64) -> Result<(f64, f64), String> {
    let (mut time, mut again, mut doubled) = (Duration::ZERO, 0, 0);
    let seeds = if loss == 0.0 { 1 } else { SEEDS };
    for seed in 1..=seeds {
        let outcome = simulate(cell, loss, BYTES, DEPTH, seed)?;
        time += outcome.time;
        again += outcome.retransmitted;
        doubled += outcome.doubled;
    }
    let gbps = (seeds * BYTES * 8) as f64 / time.as_nanos() as f64;
    Ok((gbps, if again == 0 { 0.0 } else { doubled as f64 / again as f64 }))
}

/// Returns the quantile of the time of messages sent one at a time, µs.
fn quantile(cell: Cell, loss: f64, share: f64) -> Result<f64, String> {
    let outcome = simulate(cell, loss, SINGLES * u64::from(MESSAGE), 1, 1)?;
    let mut times = outcome.latencies;
    times.sort_unstable();
    Ok(times[((times.len() - 1) as f64 * share) as usize].as_nanos() as f64 / 1e3)
}

fn tables() -> Result<(String, Vec<String>), String> {
    let (mut page, mut misses) = (String::new(), Vec::new());
    let _ = writeln!(
        page,
        "| | clean, Gb/s | clean, over go-back-N | 0.1 % | 1 % | 5 % | p99 at 1 % over clean p50 |\n|---|---|---|---|---|---|---|"
    );
    for is_hpcc in [false, true] {
        for (verb, name) in VERBS {
            for mtu in MTUS {
                let mut go_back = None;
                for selective_repeat in [false, true] {
                    let cell = Cell { verb, mtu, selective_repeat, is_hpcc };
                    let way = if selective_repeat { "selective repeat" } else { "go-back-N" };
                    let pace = if is_hpcc { "HPCC++" } else { "512 KiB" };
                    let what = format!("{name}, MTU {mtu}, {way}, {pace}");
                    let clean = row(&what, cell, go_back, &mut page, &mut misses);
                    go_back = Some(clean.map_err(|why| format!("{what}: {why}"))?);
                }
            }
        }
    }
    sprayed(&mut page, &mut misses)?;
    Ok((page, misses))
}

/// Returns the time of a run over four paths of unequal delay, s, and the number of retransmitted packets.
fn over_paths(verb: Verb, mtu: u32, is_sprayed: bool, loss: f64) -> Result<(f64, u64), String> {
    let detours = DETOURS.map(Duration::from_micros);
    let topology = Topology::unequal_paths(LINE, LINE, HOP / 2, &detours);
    let paths = PathChoice { count: 4, interval: HOP * 4, spray: true };
    let congestion = Congestion { paths: is_sprayed.then_some(paths), ..congestion(false, mtu) };
    let cell = Cell { verb, mtu, selective_repeat: true, is_hpcc: false };
    let setup = Setup { topology, congestion, ..setup(cell, loss, BYTES, DEPTH, 1) };
    let outcome = outcome(&setup)?;
    Ok((outcome.time.as_secs_f64(), outcome.retransmitted))
}

fn sprayed(page: &mut String, misses: &mut Vec<String>) -> Result<(), String> {
    let _ = writeln!(
        page,
        "\n| sprayed over 4 paths | one path, Gb/s | no loss | sent again | 1 % |\n|---|---|---|---|---|"
    );
    for (verb, name) in VERBS {
        for mtu in MTUS {
            let what = format!("{name}, MTU {mtu}, 512 KiB");
            let (alone, _) = over_paths(verb, mtu, false, 0.0)?;
            let (clean, again) = over_paths(verb, mtu, true, 0.0)?;
            let (lossy, _) = over_paths(verb, mtu, true, 0.01)?;
            let (gbps, share, kept) = (BYTES as f64 * 8e-9 / alone, alone / clean, alone / lossy);
            let line = format!("| {what} | {gbps:.1} | {share:.3} | {again} | {kept:.3} |");
            println!("{line}");
            let _ = writeln!(page, "{line}");
            if share < FLOOR_OF_SPRAYED || again > 0 {
                misses.push(format!(
                    "{what}, sprayed: {share:.3} of one path's goodput, below {FLOOR_OF_SPRAYED}, or {again} packets sent again"
                ));
            }
        }
    }
    Ok(())
}

/// Writes a row of the table. Returns the goodput without loss, Gb/s. `go_back` is the goodput of go-back-N.
fn row(
    what: &str,
    cell: Cell,
    go_back: Option<f64>,
    page: &mut String,
    misses: &mut Vec<String>,
) -> Result<f64, String> {
    let (clean, _) = goodput(cell, 0.0)?;
    let mut line = format!("| {what} | {clean:.1}");
    let mut needless = 0.0_f64;
    let floors = FLOORS[usize::from(cell.selective_repeat)];
    let over = clean / go_back.unwrap_or(clean);
    let _ = if go_back.is_some() { write!(line, " | {over:.3}") } else { write!(line, " | ") };
    if over < floors[0] {
        misses.push(format!("{what}: {over:.3} of go-back-N's goodput on a clean wire, below {}", floors[0]));
    }
    for (loss, floor) in LOSSES.into_iter().zip(floors).skip(1) {
        let (gbps, doubled) = goodput(cell, loss).unwrap_or_else(|why| {
            misses.push(format!("{what}: {why}"));
            (0.0, 0.0)
        });
        let share = gbps / clean;
        let _ = write!(line, " | {share:.3}");
        needless = needless.max(doubled);
        let paced_read = cell.is_hpcc && cell.verb == Verb::Read && cell.mtu == 1024 && loss > 0.01;
        let floor = if paced_read { FLOOR_OF_PACED_READS.min(floor) } else { floor };
        if share < floor {
            misses.push(format!(
                "{what}, {} % lost: {share:.3} of the clean goodput, below {floor}",
                loss * 100.0
            ));
        }
    }
    let ratio = quantile(cell, 0.01, 0.99).unwrap_or(f64::INFINITY) / quantile(cell, 0.0, 0.5)?;
    if cell.selective_repeat && ratio > CEILING {
        misses.push(format!("{what}: p99 at 1 % loss is {ratio:.2} times the clean p50, above {CEILING}"));
    }
    let _ = writeln!(line, " | {ratio:.2} |");
    println!("{} needless {needless:.2}", line.trim_end());
    page.push_str(&line);
    Ok(clean)
}

fn document(file: &str, page: &str) -> Result<(), String> {
    const MARKS: [&str; 2] = ["<!-- loss -->\n", "<!-- /loss -->"];
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let (before, rest) =
        text.split_once(MARKS[0]).ok_or(format!("{file}: no mark {}", MARKS[0].trim_end()))?;
    let (_, after) = rest.split_once(MARKS[1]).ok_or(format!("{file}: no mark {}", MARKS[1]))?;
    let text = [before, MARKS[0], page, MARKS[1], after].concat();
    std::fs::write(file, text).map_err(|error| format!("{file}: {error}"))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (checks, file) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (false, None),
        ["--check"] => (true, None),
        ["--document", file] => (false, Some(file)),
        _ => {
            eprintln!("loss: {}: unknown arguments; use --check or --document FILE", arguments.join(" "));
            return ExitCode::from(2);
        }
    };
    let outcome = tables().and_then(|(page, misses)| match file {
        Some(file) => document(file, &page).map(|()| misses),
        None => Ok(misses),
    });
    match outcome {
        Ok(misses) if checks && !misses.is_empty() => {
            eprintln!("{}", misses.join("\n"));
            ExitCode::FAILURE
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("loss: {why}");
            ExitCode::FAILURE
        }
    }
}

//! `ferroce soak`: seeds against the protocol.

mod capture;

use crate::failure::Failure;
use anstream::{eprint, println};
use fabric::soak::{self, Broken, Reached};
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// Seeds that once broke a rule.
const KNOWN: &str = include_str!("../../../fabric/soak/seeds.txt");
/// With fewer seeds, a rare path that was not reached is bad luck.
const ENOUGH: u64 = 5_000;
/// Broken seeds after which a soak gives up.
const GIVE_UP: usize = 20;

/// The command line of `ferroce soak`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each seed is a run of the product's endpoints and switches in virtual time: hosts, topology, connections of every \
service, what they ask for, and what goes wrong (loss, reordering, duplicates, bit flips, dry pools, pausing cores, \
tiny rings, dying peers). No wrong byte, no completion twice or out of order, no more in flight than the window; once \
the faults stop all that is alive comes to its end.

Seeds that once failed are run first. A seed that fails is made smaller, and its frames are written for `ferroce \
pcap`. From 5000 seeds on, a rare path that none of them reached is a failure too.

Examples:
  ferroce soak --seeds 0..10000
  ferroce soak --seeds 13400..13401 --out broken")]
pub struct Args {
    /// From..to; to is not run
    #[arg(long, value_name = "A..B", default_value = "0..1000", value_parser = range)]
    seeds: Range<u64>,
    /// Where captures of failing seeds go; made where it is not there
    #[arg(long, value_name = "FOLDER", default_value = "soak-failures")]
    out: PathBuf,
    /// Threads; all cores by default
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Print how often each rare path was reached
    #[arg(long)]
    paths: bool,
}

/// Reads `3..10`.
pub fn range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("'{text}': write two numbers with '..' between them, as 0..10000");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
    let range = number(from)?..number(to)?;
    if range.is_empty() { Err(format!("'{text}': no seed is in it")) } else { Ok(range) }
}

/// What all threads share.
struct Soak {
    seeds: Vec<u64>,
    next: AtomicUsize,
    done: AtomicU64,
    reached: Mutex<Reached>,
    broken: Mutex<Vec<Broken>>,
}

/// Runs the tool.
///
/// # Errors
/// Rules that were broken, rare paths that were not reached, captures that can't be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let known = known();
    let seeds: Vec<u64> = known.iter().copied().chain(args.seeds.clone()).collect();
    let soak = Soak {
        next: AtomicUsize::new(0),
        done: AtomicU64::new(0),
        reached: Mutex::default(),
        broken: Mutex::default(),
        seeds,
    };
    let threads = args.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let begin = Instant::now();
    // A panic of the product is a broken rule, told in its place.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    thread::scope(|scope| {
        for thread in 0..threads {
            let soak = &soak;
            scope.spawn(move || soak.work(thread == 0, begin));
        }
    });
    std::panic::set_hook(hook);
    let reached = soak.reached.into_inner().unwrap_or_default();
    let mut broken = soak.broken.into_inner().unwrap_or_default();
    broken.sort_by_key(|broken| broken.seed);
    let count = soak.done.into_inner();
    println!("{count} seeds ({} that once failed) in {:.1} s", known.len(), begin.elapsed().as_secs_f64());
    if args.paths {
        reached.iter().for_each(|(path, count)| println!("  {path:<28}{count:>12}"));
    }
    for broken in &broken {
        let file = capture::write(&args.out, broken)?;
        println!("seed {}: {}", broken.seed, broken.why);
        println!("  {} frames of the smallest run: {}", broken.frames.len(), file.display());
    }
    if !broken.is_empty() {
        return Err(Failure::run(format!(
            "{} seeds broke a rule; add them to fabric/soak/seeds.txt once they are understood",
            broken.len()
        )));
    }
    let missing = reached.missing();
    if args.seeds.end - args.seeds.start >= ENOUGH && !missing.is_empty() {
        return Err(Failure::run(format!("no seed reached: {}", missing.join(", "))));
    }
    Ok(ExitCode::SUCCESS)
}

fn known() -> Vec<u64> {
    let first = |line: &str| line.split_whitespace().next().and_then(|word| word.parse().ok());
    KNOWN.lines().filter_map(first).collect()
}

impl Soak {
    fn work(&self, shows: bool, begin: Instant) {
        let shows = shows && std::io::stderr().is_terminal();
        let mut reached = Reached::default();
        while let Some(&seed) = self.seeds.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            match soak::run(seed) {
                Ok(paths) => reached.add(&paths),
                Err(broken) => {
                    let mut all = self.broken.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    all.push(*broken);
                    if all.len() >= GIVE_UP {
                        self.next.store(self.seeds.len(), Ordering::Relaxed);
                    }
                }
            }
            let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
            if shows && done.is_multiple_of(64) {
                let rate = done as f64 / begin.elapsed().as_secs_f64();
                eprint!("\r{done} of {} seeds, {rate:.0} a second\x1b[K", self.seeds.len());
            }
        }
        if shows {
            eprint!("\r\x1b[K");
        }
        self.reached.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(&reached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_two_numbers() {
        assert_eq!(range("3..10"), Ok(3..10));
        for wrong in ["3", "3..", "a..4", "4..4", "5..4"] {
            assert!(range(wrong).is_err_and(|why| why.contains(wrong)), "{wrong}");
        }
    }

    #[test]
    fn seeds_that_once_failed_are_known() {
        assert!(known().contains(&13400), "{:?}", known());
    }
}

//! `ferroce soak`: tests the protocol under random faults, one run per seed.

mod capture;

use crate::failure::Failure;
use crate::output::note as progress;
use fabric::soak::{self, Broken, Reached, SEEDS};
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// The least number of seeds for which an unreached rare path is a failure. Fewer seeds may miss one by chance.
const ENOUGH: u64 = 5_000;
/// The number of failed seeds after which a soak stops.
const GIVE_UP: usize = 20;

/// The command line of `ferroce soak`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each seed is a run of the product's endpoints and switches in virtual time. The seed chooses the hosts, the topology, the connections of \
every service, their requests, and the faults (loss, reordering, duplicates, bit flips, dry pools, pausing cores, tiny rings, dying \
peers). With --cores, queue pairs of a host live on different cores, which hand frames over by the product's rings. A run fails if a byte \
is wrong, if a completion comes twice or out of order, or if more is in flight than the window. Once the faults stop, all requests between \
living hosts must end.

Seeds that once failed are run first. A seed that fails is made smaller, and its frames are written for `ferroce \
pcap`. From 5000 seeds on, a rare path that none of them reached is a failure too.

Examples:
  ferroce soak --seeds 0..10000
  ferroce soak --seeds 0..5000 --cores 4
  ferroce soak --seeds 13400..13401 --out broken")]
pub struct Args {
    /// Run seeds A to B-1
    #[arg(long, value_name = "A..B", default_value = "0..1000", value_parser = range)]
    seeds: Range<u64>,
    /// Cores of each host, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    cores: u8,
    /// Folder for captures of failing seeds, created if needed
    #[arg(long, value_name = "FOLDER", default_value = "soak-failures")]
    out: PathBuf,
    /// Threads, 1 to 1024 [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print how often each rare path was reached
    #[arg(long)]
    paths: bool,
}

/// Parses a range of seeds: `3..10`.
pub fn range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("'{text}': no range; write two numbers, such as 0..10000");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
    let range = number(from)?..number(to)?;
    if range.is_empty() {
        Err(format!("'{text}': an empty range; write the lower number first"))
    } else {
        Ok(range)
    }
}

struct Soak {
    known: Vec<u64>,
    seeds: Range<u64>,
    cores: u8,
    next: AtomicU64,
    done: AtomicU64,
    reached: Mutex<Reached>,
    broken: Mutex<Vec<Broken>>,
}

/// Runs the seeds.
///
/// # Errors
/// Returns a failure if a rule was broken, a rare path was not reached, a thread cannot be started, or a capture cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let soak = Soak::new(known(), args.seeds.clone(), args.cores);
    let known = soak.known.len();
    let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = args.threads.map_or_else(cores, usize::from);
    let begin = Instant::now();
    // A panic of the product is reported as a broken rule.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let started = thread::scope(|scope| {
        let soak = &soak;
        let start = |thread| {
            let work = move || soak.work(thread == 0, begin);
            thread::Builder::new().spawn_scoped(scope, work).map(drop).inspect_err(|_| soak.give_up())
        };
        (0..threads).try_for_each(start)
    });
    std::panic::set_hook(hook);
    started.map_err(|error| {
        Failure::run(format!("--threads: cannot start {threads} threads: {error}; choose fewer"))
    })?;
    let reached = soak.reached.into_inner().unwrap_or_default();
    let mut broken = soak.broken.into_inner().unwrap_or_default();
    broken.sort_by_key(|broken| broken.seed);
    let count = soak.done.into_inner();
    outln!("{count} seeds ({known} that once failed) in {:.1} s", begin.elapsed().as_secs_f64())?;
    if args.paths {
        reached.iter().try_for_each(|(path, count)| outln!("  {path:<28}{count:>12}"))?;
    }
    for broken in &broken {
        let file = capture::write(&args.out, broken)?;
        outln!("seed {}: {}", broken.seed, broken.why)?;
        outln!("  {} frames of the smallest run: {}", broken.frames.len(), file.display())?;
    }
    if !broken.is_empty() {
        return Err(Failure::run(format!(
            "{} seeds broke a rule; once you understand them, add them to fabric/soak/seeds.txt",
            broken.len()
        )));
    }
    let missing = reached.missing();
    if args.seeds.end - args.seeds.start >= ENOUGH && !missing.is_empty() {
        return Err(Failure::run(format!("no seed covered {}; run more seeds", missing.join(", "))));
    }
    Ok(ExitCode::SUCCESS)
}

fn known() -> Vec<u64> {
    let first = |line: &str| line.split_whitespace().next().and_then(|word| word.parse().ok());
    SEEDS.lines().filter_map(first).collect()
}

impl Soak {
    fn new(known: Vec<u64>, seeds: Range<u64>, cores: u8) -> Self {
        let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { known, seeds, cores, next, done, reached: Mutex::default(), broken: Mutex::default() }
    }

    /// Returns the next seed: first the seeds that failed in the past, then those of the range.
    fn take(&self) -> Option<u64> {
        let count = self.count();
        let place = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (next < count).then(|| next + 1));
        let place = place.ok()?;
        match self.known.get(place as usize) {
            Some(&seed) => Some(seed),
            None => Some(self.seeds.start + (place - self.known.len() as u64)),
        }
    }

    fn count(&self) -> u64 {
        (self.seeds.end - self.seeds.start).saturating_add(self.known.len() as u64)
    }

    fn give_up(&self) {
        self.next.store(u64::MAX, Ordering::Relaxed);
    }

    fn work(&self, shows: bool, begin: Instant) {
        let shows = shows && std::io::stderr().is_terminal();
        let mut reached = Reached::default();
        while let Some(seed) = self.take() {
            match soak::run(seed, self.cores) {
                Ok(paths) => reached.add(&paths),
                Err(broken) => {
                    let mut all = self.broken.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    all.push(*broken);
                    if all.len() >= GIVE_UP {
                        self.give_up();
                    }
                }
            }
            let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
            if shows && done.is_multiple_of(64) {
                let rate = done as f64 / begin.elapsed().as_secs_f64();
                progress(format_args!("\r{done} of {} seeds, {rate:.0} a second\x1b[K", self.count()));
            }
        }
        if shows {
            progress(format_args!("\r\x1b[K"));
        }
        self.reached.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(&reached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_seeds_is_two_numbers() {
        assert_eq!(range("3..10"), Ok(3..10));
        for wrong in ["3", "3..", "a..4", "4..4", "5..4"] {
            assert!(range(wrong).is_err_and(|why| why.contains(wrong)), "{wrong}");
        }
    }

    #[test]
    fn seeds_of_any_range_are_taken_one_by_one() {
        let soak = Soak::new(vec![7, 9], 0..u64::MAX, 1);
        assert_eq!([soak.take(), soak.take(), soak.take(), soak.take()], [7, 9, 0, 1].map(Some));
        let soak = Soak::new(vec![7], u64::MAX - 1..u64::MAX, 2);
        assert_eq!([soak.take(), soak.take(), soak.take()], [Some(7), Some(u64::MAX - 1), None]);
        soak.give_up();
        assert_eq!(soak.take(), None);
    }

    #[test]
    fn seeds_that_failed_before_are_in_the_list() {
        assert!(known().contains(&13400), "{:?}", known());
    }
}

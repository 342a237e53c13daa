//! Divides many runs into shards for several machines: a shard runs every Nth job and writes a file.
//!
//! The merged files equal the output of one machine that runs all jobs, byte for byte. Results are text and integers, which JSON does not
//! change.

use crate::failure::Failure;
use crate::input;
use crate::output::{OutFile, unwritten};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A shard and the number of shards: `3/16`. The first shard is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    const MOST: usize = 100_000;

    const fn takes(self, job: usize) -> bool {
        job % self.count == self.index - 1
    }

    fn file(self, kind: Kind) -> String {
        format!("{}.{}-of-{}.json", kind.name(), self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a shard; write I/N, from 1/1 to {0}/{0}", Self::MOST);
        let (index, count) = text.split_once('/').ok_or_else(wrong)?;
        let shard =
            Self { index: index.parse().map_err(|_| wrong())?, count: count.parse().map_err(|_| wrong())? };
        let fits = (1..=Self::MOST).contains(&shard.count) && (1..=shard.count).contains(&shard.index);
        if fits { Ok(shard) } else { Err(wrong()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Sweep,
    Arena,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Sweep => "sweep",
            Self::Arena => "arena",
        }
    }
}

/// Finished jobs, and the run to which they belong.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    pub kind: Kind,
    /// Text that determines the jobs. Parts with different texts cannot be merged.
    pub of: String,
    /// The number of jobs of all parts.
    pub jobs: usize,
    /// The result of each finished job.
    pub done: BTreeMap<usize, Value>,
}

impl Part {
    /// Writes the part into `folder`, which is created if needed. Returns the path of the file.
    ///
    /// # Errors
    /// Returns a failure if the folder or the file cannot be written.
    pub fn write(&self, folder: &Path, shard: Shard) -> Result<PathBuf, Failure> {
        fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
        let path = folder.join(shard.file(self.kind));
        let text = serde_json::to_string(self).map_err(|error| Failure::run(error.to_string()))?;
        OutFile::open(&path)?.write(&(text + "\n"))?;
        Ok(path)
    }

    /// Writes the part and prints its path.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn written(&self, folder: &Path, shard: Shard) -> Result<ExitCode, Failure> {
        let path = self.write(folder, shard)?;
        let (done, jobs) = (self.done.len(), self.jobs);
        outln!(
            "{done} of {jobs} jobs in {}; merge all parts: ferroce sim --merge FILES --out FOLDER",
            path.display()
        )?;
        Ok(ExitCode::SUCCESS)
    }

    /// Reads and merges parts.
    ///
    /// # Errors
    /// Returns a failure if a file is not a part or belongs to another run, two files differ in a job, or a job is missing.
    pub fn merge(files: &[PathBuf]) -> Result<Self, Failure> {
        let mut whole: Option<Self> = None;
        for path in files {
            let wrong = |why: String| Failure::usage(format!("{}: {why}", path.display()));
            let text = input::text(path).map_err(|error| wrong(error.to_string()))?;
            let part: Self = serde_json::from_str(&text)
                .map_err(|error| wrong(format!("{error}; give the files that --shard wrote")))?;
            let Some(all) = &mut whole else {
                whole = Some(part);
                continue;
            };
            if (all.kind, &all.of, all.jobs) != (part.kind, &part.of, part.jobs) {
                return Err(wrong(format!(
                    "is a part of another run than {}; merge the parts of one run",
                    files[0].display()
                )));
            }
            for (job, result) in part.done {
                if all.done.get(&job).is_some_and(|before| *before != result) {
                    return Err(wrong(format!(
                        "job {job} has another result in another file; run all shards with the same ferroce"
                    )));
                }
                all.done.insert(job, result);
            }
        }
        let whole =
            whole.ok_or_else(|| Failure::usage("--merge: no files; name those that --shard wrote"))?;
        match (0..whole.jobs).find(|job| !whole.done.contains_key(job)) {
            None => Ok(whole),
            Some(job) => Err(Failure::usage(format!(
                "--merge: only {} of {} jobs are present, job {job} is missing; give all files",
                whole.done.len(),
                whole.jobs
            ))),
        }
    }
}

/// Returns the FNV-1a hash of `bytes`.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Runs the jobs of a shard, or all jobs, on all cores. Returns the results in the order of the jobs.
///
/// # Errors
/// Returns the error of a job. Further jobs are not started.
pub fn run<T: Send>(
    jobs: usize,
    shard: Option<Shard>,
    work: impl Fn(usize) -> Result<T, Failure> + Sync,
) -> Result<Vec<(usize, T)>, Failure> {
    let mine: Vec<usize> = (0..jobs).filter(|&job| shard.is_none_or(|shard| shard.takes(job))).collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&job) = mine.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(job).map(|result| (job, result));
                    if result.is_err() {
                        // Stops all threads.
                        next.store(mine.len(), Ordering::Relaxed);
                    }
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(result);
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default().into_iter().collect::<Result<Vec<_>, _>>()?;
    done.sort_by_key(|(job, _)| *job);
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_one_shards() {
        let shards: Vec<Shard> = (1..=5).map(|index| format!("{index}/5").parse().unwrap()).collect();
        for job in 0..23 {
            assert_eq!(shards.iter().filter(|shard| shard.takes(job)).count(), 1, "{job}");
        }
        for wrong in ["", "3", "0/4", "5/4", "1/0", "a/b", "1/100001", "-1/2"] {
            assert!(wrong.parse::<Shard>().unwrap_err().contains("from 1/1"), "{wrong}");
        }
        let done = run(10, Some(shards[1]), |job| Ok(job * 2)).unwrap();
        assert_eq!(done, [(1, 2), (6, 12)]);
        assert!(run(10, None, |job| if job == 3 { Err(Failure::usage("three")) } else { Ok(()) }).is_err());
    }

    #[test]
    fn parts_that_do_not_fit_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let part = |of: &str, jobs: &[usize]| Part {
            kind: Kind::Sweep,
            of: of.into(),
            jobs: 3,
            done: jobs.iter().map(|&job| (job, Value::from(job))).collect(),
        };
        let write = |part: Part, shard: &str| part.write(folder.path(), shard.parse().unwrap()).unwrap();
        let (first, second) = (write(part("a", &[0, 2]), "1/2"), write(part("a", &[1]), "2/2"));
        assert_eq!(Part::merge(&[second.clone(), first.clone()]).unwrap().done.len(), 3);
        let said = |files: &[PathBuf]| Part::merge(files).unwrap_err().to_string();
        assert!(
            said(std::slice::from_ref(&first)).contains("only 2 of 3 jobs are present, job 1 is missing")
        );
        assert!(said(&[first.clone(), write(part("b", &[1]), "1/3")]).contains("of another run"));
        let other = Part { done: BTreeMap::from([(0, Value::from(9))]), ..part("a", &[]) };
        assert!(said(&[first, write(other, "2/3")]).contains("job 0 has another result"));
        assert!(said(&[folder.path().join("none")]).contains("none"));
        assert!(said(&[]).contains("no files; name those"));
    }
}

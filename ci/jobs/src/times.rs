//! The durations of the last passed runs of jobs on this machine, in `target/test-times`, one `JOB SECONDS` per line. Used by `report` and
//! `main`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::table::Job;

/// The durations on this machine.
#[derive(Debug)]
pub struct Times {
    path: PathBuf,
    seconds: BTreeMap<String, u64>,
}

impl Times {
    /// Reads the durations in `target`. Ignores a missing file and malformed lines, because durations are only estimates.
    pub fn read(target: &Path) -> Times {
        let path = target.join("test-times");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let seconds = text
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(job, seconds)| Some((job.to_owned(), seconds.parse().ok()?)))
            .collect();
        Times { path, seconds }
    }

    /// Returns the expected duration of `job`, s.
    pub fn of(&self, job: &Job) -> u64 {
        self.seconds.get(job.name).copied().unwrap_or(job.seconds)
    }

    /// Records the duration of `job`, s. Ignores errors of the file.
    pub fn remember(&mut self, job: &Job, seconds: u64) {
        self.seconds.insert(job.name.to_owned(), seconds);
        let text: String = self.seconds.iter().map(|(job, seconds)| format!("{job} {seconds}\n")).collect();
        _ = fs::write(&self.path, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::JOBS;

    #[test]
    fn a_time_is_that_of_the_last_pass_or_else_of_the_table() {
        let target = std::env::temp_dir().join(format!("ferroce-jobs-{}", std::process::id()));
        fs::create_dir_all(&target).expect("the folder for temporary files is writable");
        let job = &JOBS[0];
        assert_eq!(Times::read(&target).of(job), job.seconds);
        Times::read(&target).remember(job, 4321);
        assert_eq!(Times::read(&target).of(job), 4321);
        fs::write(target.join("test-times"), "damaged\nformat x\n").expect("written before");
        assert_eq!(Times::read(&target).of(job), job.seconds);
        fs::remove_dir_all(&target).expect("made above");
    }
}

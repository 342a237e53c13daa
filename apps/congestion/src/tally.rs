//! Counts the phases of all runs that kept their promises, broke one, or could not be judged.

use crate::verdict::Verdict;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fmt;
use std::fs::OpenOptions;
use std::path::Path;

/// The least share of judged phases that must keep every promise, percent. On a machine that compiled at the same time, 5 of 192 broke one.
/// In virtual time, which has no pauses, all must keep them: `roce/tests/flow_churn.rs`, `fabric/tests/formats.rs`.
const KEPT: usize = 90;
/// The least share of phases that must be judged, percent.
const JUDGED: usize = 75;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Tally {
    kept: usize,
    broken: usize,
    unjudged: usize,
}

impl Tally {
    /// Counts the phases of one run.
    pub fn of(verdicts: &[Verdict]) -> Self {
        let mut tally = Self::default();
        for verdict in verdicts {
            match verdict {
                Verdict::Kept => tally.kept += 1,
                Verdict::Broken(_) => tally.broken += 1,
                Verdict::Unjudged(_) => tally.unjudged += 1,
            }
        }
        tally
    }

    /// Appends the counts to the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn add_to(self, file: &Path) -> Result<(), Box<dyn Error>> {
        let to = OpenOptions::new().append(true).create(true).open(file)?;
        let mut to = csv::WriterBuilder::new().has_headers(false).from_writer(to);
        to.serialize(self)?;
        Ok(to.flush()?)
    }

    /// Returns the sum over the lines of the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or parsed.
    pub fn read(file: &Path) -> Result<Self, Box<dyn Error>> {
        let mut from = csv::ReaderBuilder::new()
            .has_headers(false)
            .from_path(file)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        let mut sum = Self::default();
        for tally in from.deserialize::<Self>() {
            let tally = tally.map_err(|error| format!("{}: {error}", file.display()))?;
            sum.kept += tally.kept;
            sum.broken += tally.broken;
            sum.unjudged += tally.unjudged;
        }
        Ok(sum)
    }

    /// Returns true if enough phases were judged, and enough of those kept their promises.
    pub fn holds(self) -> bool {
        let judged = self.kept + self.broken;
        judged > 0 && self.kept * 100 >= judged * KEPT && judged * 100 >= (judged + self.unjudged) * JUDGED
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kept, broken, unjudged } = self;
        let judged = kept + broken;
        write!(
            to,
            "{judged} of {} phases could be judged (at least {JUDGED} %); {kept} of them kept every promise (at least {KEPT} %), {broken} did not",
            judged + unjudged
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn tally(kept: usize, broken: usize, unjudged: usize) -> Tally {
        Tally { kept, broken, unjudged }
    }

    #[test]
    fn nine_of_ten_judged_phases_must_keep_the_bounds() {
        assert!(tally(47, 5, 0).holds());
        assert!(!tally(46, 6, 0).holds());
    }

    #[test]
    fn three_of_four_phases_must_be_judged() {
        assert!(tally(39, 0, 13).holds());
        assert!(!tally(38, 0, 14).holds());
        assert!(!tally(0, 0, 0).holds());
    }

    #[test]
    fn tallies_added_to_a_file_are_summed() {
        let file = std::env::temp_dir().join(format!("ferroce-tally-{}.csv", std::process::id()));
        let verdicts =
            [Verdict::Kept, Verdict::Broken(vec![]), Verdict::Kept, Verdict::Unjudged(String::new())];
        Tally::of(&verdicts).add_to(&file).unwrap();
        tally(4, 0, 0).add_to(&file).unwrap();
        assert_eq!(Tally::read(&file).unwrap(), tally(6, 1, 1));
        std::fs::remove_file(&file).unwrap();
    }
}

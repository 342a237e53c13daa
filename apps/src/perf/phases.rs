//! The number of sending queue pairs over time: `1x2s,2x2s,8x3s`. `0x1s` is a pause.

use crate::units;
use std::str::FromStr;
use std::time::Duration;

/// Consecutive phases: the number of queue pairs that send, starting with the first, and the duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phases(Vec<(u32, Duration)>);

impl FromStr for Phases {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let phase = |text: &str| {
            let (count, time) = text.split_once('x')?;
            let count = count.parse().ok().filter(|count| *count <= 1024)?;
            Some((count, units::seconds(time).ok()?))
        };
        let phases = text.split(',').map(phase).collect::<Option<Vec<_>>>();
        let sends = |phases: &Vec<(u32, Duration)>| phases.iter().any(|(count, _)| *count > 0);
        phases.filter(sends).map(Self).ok_or_else(|| {
            format!("`{text}`: not a list of phases; write queue pairs and times, such as 1x2s,8x500ms")
        })
    }
}

impl Phases {
    /// Returns the largest number of queue pairs that send.
    pub fn most(&self) -> u32 {
        self.0.iter().map(|(count, _)| *count).max().unwrap_or(1)
    }

    /// Returns the total duration.
    pub fn whole(&self) -> Duration {
        self.0.iter().map(|(_, time)| *time).sum()
    }

    /// Returns the number of queue pairs that send at `time`; 0 after the last phase.
    pub fn sending(&self, time: Duration) -> u32 {
        let mut end = Duration::ZERO;
        let phase = self.0.iter().find(|(_, length)| {
            end += *length;
            time < end
        });
        phase.map_or(0, |(count, _)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other() {
        let late: Phases = "0x1s,2x1s".parse().unwrap();
        assert_eq!((late.sending(Duration::ZERO), late.sending(Duration::from_secs(1))), (0, 2));
        let phases: Phases = "1x2s,8x500ms,2x1".parse().unwrap();
        assert_eq!((phases.most(), phases.whole()), (8, Duration::from_millis(3500)));
        let at = |millis| phases.sending(Duration::from_millis(millis));
        assert_eq!(
            [at(0), at(1999), at(2000), at(2499), at(2500), at(3499), at(3500)],
            [1, 1, 8, 8, 2, 2, 0]
        );
        for wrong in ["", "1", "0x2s,0x1s", "1x0s", "2000x1s", "1x2s,", "ax1s"] {
            assert!(wrong.parse::<Phases>().unwrap_err().contains("1x2s"), "{wrong}");
        }
    }
}

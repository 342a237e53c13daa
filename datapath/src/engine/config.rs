use std::time::Duration;

/// Who runs the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// The thread that polls a completion queue runs a turn each time; control calls run turns until answered.
    /// No second thread: best on few cores, but nothing is answered while nobody polls.
    #[default]
    Inline,
    /// A thread of its own, named `ferroce-core`.
    Dedicated {
        /// The CPU to pin it to; `None` leaves it to the scheduler.
        core: Option<usize>,
    },
}

/// What a dedicated core does when there is nothing to do. Any work ends it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Spin: lowest latency, a CPU of its own.
    Busy,
    /// Give the CPU up, then sleep for at most this long: for cores that share a CPU.
    Yield {
        /// Bounds what an arriving packet waits. At most 10 ms.
        longest_sleep: Duration,
    },
}

impl Default for Idle {
    fn default() -> Self {
        Self::Yield { longest_sleep: Duration::from_micros(50) }
    }
}

use crate::{Completion, PollError};

/// A completion queue. One thread at a time polls it.
#[derive(Debug)]
pub struct CompletionQueue {}

impl CompletionQueue {
    /// Moves up to `into.len()` completions out, oldest first, and gives how many. Never waits. With an inline core
    /// it runs one turn first.
    ///
    /// # Errors
    /// Where the queue overflowed (once what it holds has been polled), or the core has stopped.
    pub fn poll(&mut self, into: &mut [Completion]) -> Result<usize, PollError> {
        let _ = into;
        Err(PollError::CoreStopped("not built yet".into()))
    }

    /// The next completion, if there is one.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn poll_one(&mut self) -> Result<Option<Completion>, PollError> {
        Err(PollError::CoreStopped("not built yet".into()))
    }

    /// Spins until there is a completion, giving the CPU up between polls.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn wait(&mut self) -> Result<Completion, PollError> {
        Err(PollError::CoreStopped("not built yet".into()))
    }

    /// Completions it holds.
    #[must_use]
    pub fn depth(&self) -> u32 {
        0
    }
}

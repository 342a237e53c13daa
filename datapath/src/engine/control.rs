//! The channel for control calls to a core.

use super::core_state::CoreState;
use crossbeam::channel::{Receiver, Sender, unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A closure that the core runs between two turns.
pub(super) type Command = Box<dyn FnOnce(&mut CoreState, cc::Instant) + Send>;

#[derive(Clone)]
pub(super) struct Commands {
    sender: Sender<Command>,
    /// Number of commands sent; wraps at 2³². Incremented after the command is in the channel.
    sent: Arc<AtomicU32>,
}

pub(super) struct Inbox {
    receiver: Receiver<Command>,
    sent: Arc<AtomicU32>,
    taken: u32,
}

pub(super) fn channel() -> (Commands, Inbox) {
    // Each thread waits for its call, so the channel contains at most one command for each thread.
    let (sender, receiver) = unbounded();
    let sent = Arc::new(AtomicU32::new(0));
    (Commands { sender, sent: sent.clone() }, Inbox { receiver, sent, taken: 0 })
}

impl Commands {
    /// Sends a command to the core. Returns false if the core has ended.
    pub(super) fn send(&self, command: Command) -> bool {
        let is_sent = self.sender.send(command).is_ok();
        self.sent.fetch_add(1, Ordering::Release);
        is_sent
    }
}

impl Inbox {
    /// Returns true if a command is in the channel. Costs an idle turn one load.
    #[inline]
    pub(super) fn is_filled(&self) -> bool {
        self.sent.load(Ordering::Relaxed) != self.taken
    }

    pub(super) fn take(&mut self) -> Option<Command> {
        if self.sent.load(Ordering::Acquire) == self.taken {
            return None;
        }
        let command = self.receiver.try_recv().ok()?;
        self.taken = self.taken.wrapping_add(1);
        Some(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_taken_once() {
        let (commands, mut inbox) = channel();
        for _ in 0..3 {
            assert!(!inbox.is_filled() && inbox.take().is_none());
            assert!(commands.send(Box::new(|_, _| {})) && commands.send(Box::new(|_, _| {})));
            assert!(inbox.is_filled() && inbox.take().is_some() && inbox.take().is_some());
        }
        drop(inbox);
        assert!(!commands.send(Box::new(|_, _| {})));
    }
}

//! A caller's access to the cores of a port: commands, turns, and the errors after a core has stopped.

use super::adaptive::Adaptive;
use super::control::{Command, Commands};
use super::core_state::CoreState;
use super::runner::{CoreStatus, Runner};
use super::{Engine, Stopped};
use crate::fork::Process;
use crossbeam::channel::{Receiver, TryRecvError, bounded};
use roce::Qpn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};

pub(super) struct Handle {
    pub(super) commands: Commands,
    pub(super) runner: Runner,
    pub(super) status: Arc<CoreStatus>,
}

impl Handle {
    /// Runs one turn for a polling caller, if callers run this core.
    #[inline(always)]
    fn poll(&self) -> bool {
        self.runner.poll(&self.status)
    }

    /// Runs one turn for a caller that waits for an answer without polling, if callers run this core.
    pub(super) fn turn(&self) -> bool {
        self.runner.turn(&self.status)
    }

    #[inline]
    fn adaptive(&self) -> Option<&Adaptive> {
        if let Runner::Adaptive(adaptive) = &self.runner { Some(adaptive) } else { None }
    }

    #[inline]
    fn posted(&self, process: &Process) {
        if let Some(adaptive) = self.adaptive()
            && !process.is_parent()
        {
            adaptive.posted(&self.status);
        }
    }

    pub(super) fn stop(&mut self) {
        self.runner.stop(&self.status);
    }
}

/// The cores that put completions into a completion queue, for [`Engine::progress_of`].
#[derive(Debug, Default)]
pub struct CoreSet(AtomicU32);

impl CoreSet {
    /// Adds a core, below 32.
    pub fn add(&self, core: usize) {
        self.0.fetch_or(1 << core, Ordering::Relaxed);
    }
}

impl Engine {
    /// Makes core 0 run `control` between two turns, and returns its result.
    ///
    /// # Errors
    /// Returns [`Stopped`] if the core has stopped, or belongs to a process from which this one was forked.
    pub fn call<R: Send + 'static>(
        &self,
        control: impl FnOnce(&mut CoreState, cc::Instant) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        self.call_on(0, control)
    }

    /// Makes core `core` run `control` between two turns, and returns its result.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_on<R: Send + 'static>(
        &self,
        core: usize,
        control: impl FnOnce(&mut CoreState, cc::Instant) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        self.check_process()?;
        let core = self.handle(core);
        let (command, answer) = with_reply(control);
        if !core.commands.send(command) {
            return Err(self.stopped());
        }
        self.wait(core, &answer)
    }

    /// Makes all cores run `control`, and returns the results in the order of the cores. All cores run concurrent calls of this function in
    /// the same order.
    ///
    /// # Errors
    /// As [`call`](Self::call), if any core has stopped.
    pub fn call_all<R: Send + 'static>(
        &self,
        control: impl FnOnce(&mut CoreState, cc::Instant) -> R + Clone + Send + 'static,
    ) -> Result<Vec<R>, Stopped> {
        self.check_process()?;
        let ordered = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let sent: Vec<_> = (0..self.cores())
            .map(|core| {
                let (command, answer) = with_reply(control.clone());
                let core = self.handle(core);
                (core.commands.send(command).then_some(answer), core)
            })
            .collect();
        drop(ordered);
        let answers: Vec<_> = sent
            .into_iter()
            .map(|(answer, core)| {
                answer.map_or_else(|| Err(self.stopped()), |answer| self.wait(core, &answer))
            })
            .collect();
        answers.into_iter().collect()
    }

    /// Polls for the answer, and runs turns meanwhile if callers run the core. A blocking receive would use thread-local storage, which is
    /// destroyed when the thread or process ends.
    fn wait<R>(&self, core: &Handle, answer: &Receiver<R>) -> Result<R, Stopped> {
        loop {
            match answer.try_recv() {
                Ok(answer) => return Ok(answer),
                Err(TryRecvError::Disconnected) => return Err(self.stopped()),
                Err(TryRecvError::Empty) if core.turn() => {}
                Err(TryRecvError::Empty) => std::thread::yield_now(),
            }
        }
    }

    /// Returns the number of cores.
    #[must_use]
    pub fn cores(&self) -> usize {
        1 + self.workers.len()
    }

    /// Returns the number of the port's receive queues: one for each core, or one in total.
    #[must_use]
    pub fn queues(&self) -> u8 {
        self.queues
    }

    /// Returns the core that owns a queue pair number.
    #[must_use]
    pub fn core_of(&self, qpn: Qpn) -> usize {
        usize::from(self.index.named_by(qpn)).min(self.workers.len())
    }

    fn handle(&self, core: usize) -> &Handle {
        core.checked_sub(1).and_then(|worker| self.workers.get(worker)).unwrap_or(&self.main)
    }

    /// Runs one turn of each inline or adaptive core for a polling caller. Returns true if there was work. Does nothing for dedicated
    /// cores, and for cores that another thread runs now.
    #[inline(always)]
    pub fn progress(&self) -> bool {
        !self.process.is_parent() && {
            let work = !self.workers.is_empty() && self.turn_cores(u32::MAX);
            self.main.poll() || work
        }
    }

    /// Runs one turn of core 0, as [`progress`](Self::progress) does.
    #[inline(always)]
    pub fn progress_main(&self) -> bool {
        !self.process.is_parent() && self.main.poll()
    }

    /// Runs turns as [`progress`](Self::progress) does: of core 0, of the cores in `cores`, and of those whose queues may receive their
    /// frames.
    pub fn progress_of(&self, cores: &CoreSet) -> bool {
        !self.process.is_parent() && {
            let work = self.turn_cores(cores.0.load(Ordering::Relaxed) | self.misdirecting_cores);
            self.main.poll() || work
        }
    }

    #[inline(never)]
    fn turn_cores(&self, cores: u32) -> bool {
        let producing = (1..).zip(&**self.workers).filter(|(core, _)| cores >> core & 1 == 1);
        producing.fold(false, |work, (_, worker)| worker.poll() || work)
    }

    /// Runs a turn of an adaptive core whose thread sleeps. Called after a doorbell. Other cores see the posts in their next turn.
    #[inline]
    pub fn posted(&self, core: usize) {
        if core > 0 {
            self.handle(core).posted(&self.process);
        }
        // Core 0 sends the frames of other cores.
        self.main.posted(&self.process);
    }

    /// Runs a turn of an inline core after a single post, because the caller may never poll again.
    #[inline]
    pub fn progress_after_post(&self, core: usize) {
        if self.is_inline() && !self.process.is_parent() {
            if core > 0 {
                self.handle(core).poll();
            }
            self.main.poll();
        }
    }

    /// Returns true if only callers run the cores. Such cores do nothing while no thread polls.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        matches!(self.main.runner, Runner::Inline(_))
    }

    /// Returns adaptive cores to their threads at once, because the caller is about to wait without polling.
    pub fn hand_over(&self) {
        if self.process.is_parent() {
            return;
        }
        for core in std::iter::once(&*self.main).chain(&**self.workers) {
            if let Some(adaptive) = core.adaptive() {
                adaptive.hand_over();
            }
        }
    }

    /// Checks that the cores run.
    ///
    /// # Errors
    /// Returns [`Stopped`] with the reason if core 0 has stopped. All cores of a port end together.
    #[inline]
    pub fn check(&self) -> Result<(), Stopped> {
        if self.process.is_parent() || self.main.status.stopped() {
            self.check_process()?;
            return Err(self.stopped());
        }
        Ok(())
    }

    /// Returns an error in a forked child, where no thread runs the cores and their locks may never be released.
    #[cold]
    fn check_process(&self) -> Result<(), Stopped> {
        if self.process.is_parent() {
            let reason = "it runs in the process that this one was forked from; open devices after the fork";
            return Err(Stopped { port: self.name.clone(), reason: reason.into() });
        }
        Ok(())
    }

    /// Waits until all cores have stopped, and returns the error. The caller may then free registered memory.
    #[cold]
    fn stopped(&self) -> Stopped {
        for core in std::iter::once(&*self.main).chain(&**self.workers) {
            while !core.status.stopped() {
                // A core that callers run ends in its next turn.
                if !core.turn() {
                    std::thread::yield_now();
                }
            }
        }
        Stopped { port: self.name.clone(), reason: self.main.status.reason() }
    }
}

fn with_reply<R: Send + 'static>(
    control: impl FnOnce(&mut CoreState, cc::Instant) -> R + Send + 'static,
) -> (Command, Receiver<R>) {
    let (reply, answer) = bounded(1);
    let command: Command = Box::new(move |state, now| {
        // Fails if the caller no longer waits.
        let _ = reply.send(control(state, now));
    });
    (command, answer)
}

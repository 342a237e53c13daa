//! The exchange by which two sides find each other, agree and keep step.
//!
//! [`Handshake`] is the seam: here it is JSON lines over TCP; [`perftest`] has stock perftest's own exchange.

mod control;
pub mod perftest;
pub mod pingpong;

use super::plan::Plan;
use super::stats::{Bandwidth, Latency};
use crate::failure::Failure;
pub use control::{Control, PATIENCE};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verbs::{QpEndpoint, RemoteBuffer};

/// One side's message to the other, by which queue pairs connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// Its queue pairs.
    pub qps: Vec<QpEndpoint>,
    /// Its memory.
    pub buffer: RemoteBuffer,
}

/// One side's message to the other at the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The bandwidth that it sent at.
    pub bandwidth: Option<Bandwidth>,
    /// The latency that it measured.
    pub latency: Option<Latency>,
    /// Checksum of the bytes that left it.
    pub sent: Option<u64>,
    /// Checksum of the bytes that reached it.
    pub received: Option<u64>,
}

/// Runs the core while this side waits. Returns whether there was work.
pub type Idle<'a> = dyn FnMut() -> Result<bool, Failure> + 'a;

/// The exchanges of a test, in order. All but `wait_outcome` fail after a time without answer.
pub trait Handshake {
    /// The client's part of the greeting: proposes what to run, and returns the agreement.
    fn propose(&mut self, plan: Plan, idle: &mut Idle) -> Result<Plan, Failure>;
    /// The server's part: `judge` returns the reason if it refuses a plan.
    fn agree(
        &mut self,
        judge: &mut dyn FnMut(&Plan) -> Result<(), Failure>,
        idle: &mut Idle,
    ) -> Result<Plan, Failure>;
    /// Both sides exchange how to connect to them.
    fn swap_sides(&mut self, own: &Side, idle: &mut Idle) -> Result<Side, Failure>;
    /// Waits until the other side is as far.
    fn barrier(&mut self, step: u32, idle: &mut Idle) -> Result<(), Failure>;
    /// Announces that this side's part of a run is over.
    fn send_outcome(&mut self, outcome: &Outcome) -> Result<(), Failure>;
    /// Returns the other side's outcome, if it has already arrived.
    fn try_outcome(&mut self) -> Result<Option<Outcome>, Failure>;
    /// Waits for it, as long as it takes.
    fn wait_outcome(&mut self, idle: &mut Idle) -> Result<Outcome, Failure>;
    /// Takes leave after the last run, so that neither side goes before the other is through.
    fn finish(&mut self, idle: &mut Idle) -> Result<(), Failure>;
    /// Sends the other side the reason of this side's failure, if it still listens.
    fn give_up(&mut self, why: &Failure);
    /// Looks whether the other side is still there, if the connection lasts as long as the test.
    fn check(&mut self) -> Result<(), Failure> {
        Ok(())
    }
    /// Sets the time that the other side may take for a step from now on.
    fn be_patient(&mut self, patience: Duration);
    /// Returns true if the other side reports when it is done and what it measured. If not, each side counts for itself.
    fn tells(&self) -> bool;
}

/// Grows with every incompatible change.
const VERSION: u32 = 1;
/// Longest line: 1024 queue pairs take 100 KiB.
const LONGEST_LINE: usize = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    /// Contains the program's version, so that a mismatch can name it.
    Hello {
        ferroce_perf: u32,
        release: String,
        plan: serde_json::Value,
    },
    Welcome {
        ferroce_perf: u32,
    },
    Side(Side),
    Reached(u32),
    Outcome(Outcome),
    Failed(String),
}

impl Message {
    fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Welcome { .. } => "welcome",
            Self::Side(_) => "side",
            Self::Reached(_) => "reached",
            Self::Outcome(_) => "outcome",
            Self::Failed(_) => "failed",
        }
    }
}

/// A control connection that speaks JSON, a message a line.
#[derive(Debug)]
pub struct JsonLines {
    control: Control,
}

impl JsonLines {
    /// Speaks on `control`.
    pub fn new(control: Control) -> Self {
        Self { control }
    }

    fn send(&mut self, message: &Message) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(message).map_err(|error| Failure::run(error.to_string()))?;
        line.push(b'\n');
        self.control.send(&line)
    }

    /// Waits for a message, `patience` at most if there is one.
    fn receive(&mut self, patience: Option<Duration>, idle: &mut Idle) -> Result<Message, Failure> {
        self.control.wait(patience, idle, try_receive)
    }
}

/// The next message, if a whole one is there.
fn try_receive(control: &mut Control) -> Result<Option<Message>, Failure> {
    loop {
        if let Some(end) = control.pending.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = control.pending.drain(..=end).collect();
            return match serde_json::from_slice(&line) {
                Ok(Message::Failed(why)) => Err(Failure::run(format!("the other side stopped: {why}"))),
                Ok(message) => Ok(Some(message)),
                Err(_) => Err(foreign()),
            };
        }
        if control.pending.len() > LONGEST_LINE {
            return Err(foreign());
        }
        if !control.take_in()? {
            return Ok(None);
        }
    }
}

impl Handshake for JsonLines {
    fn propose(&mut self, plan: Plan, idle: &mut Idle) -> Result<Plan, Failure> {
        let told = serde_json::to_value(&plan).map_err(|error| Failure::run(error.to_string()))?;
        let release = env!("CARGO_PKG_VERSION").to_owned();
        self.send(&Message::Hello { ferroce_perf: VERSION, release, plan: told })?;
        match self.receive(Some(self.control.patience), idle)? {
            Message::Welcome { ferroce_perf: VERSION } => Ok(plan),
            other => Err(out_of_step(&other, "welcome")),
        }
    }

    fn agree(
        &mut self,
        judge: &mut dyn FnMut(&Plan) -> Result<(), Failure>,
        idle: &mut Idle,
    ) -> Result<Plan, Failure> {
        let plan = match self.receive(Some(self.control.patience), idle)? {
            Message::Hello { ferroce_perf: VERSION, plan, .. } => serde_json::from_value::<Plan>(plan)
                .map_err(|_| foreign())
                .and_then(|plan| judge(&plan).map(|()| plan)),
            Message::Hello { ferroce_perf, release, .. } => Err(Failure::run(format!(
                "the client (ferroce {release}) uses version {ferroce_perf} of the control protocol, the server \
                 (ferroce {}) version {VERSION}; run the same ferroce on both sides",
                env!("CARGO_PKG_VERSION")
            ))),
            other => Err(out_of_step(&other, "hello")),
        };
        match plan {
            Ok(plan) => self.send(&Message::Welcome { ferroce_perf: VERSION }).map(|()| plan),
            Err(why) => {
                self.give_up(&why);
                Err(why)
            }
        }
    }

    fn swap_sides(&mut self, own: &Side, idle: &mut Idle) -> Result<Side, Failure> {
        self.send(&Message::Side(own.clone()))?;
        match self.receive(Some(self.control.patience), idle)? {
            Message::Side(side) if side.qps.len() == own.qps.len() => Ok(side),
            Message::Side(side) => Err(Failure::run(format!(
                "the other side has {} queue pairs, this one {}; run the same ferroce on both sides",
                side.qps.len(),
                own.qps.len()
            ))),
            other => Err(out_of_step(&other, "side")),
        }
    }

    fn barrier(&mut self, step: u32, idle: &mut Idle) -> Result<(), Failure> {
        self.send(&Message::Reached(step))?;
        match self.receive(Some(self.control.patience), idle)? {
            Message::Reached(theirs) if theirs == step => Ok(()),
            other => Err(out_of_step(&other, "reached")),
        }
    }

    fn send_outcome(&mut self, outcome: &Outcome) -> Result<(), Failure> {
        self.send(&Message::Outcome(*outcome))
    }

    fn try_outcome(&mut self) -> Result<Option<Outcome>, Failure> {
        match try_receive(&mut self.control)? {
            None => Ok(None),
            Some(Message::Outcome(outcome)) => Ok(Some(outcome)),
            Some(other) => Err(out_of_step(&other, "outcome")),
        }
    }

    fn wait_outcome(&mut self, idle: &mut Idle) -> Result<Outcome, Failure> {
        match self.receive(None, idle)? {
            Message::Outcome(outcome) => Ok(outcome),
            other => Err(out_of_step(&other, "outcome")),
        }
    }

    fn finish(&mut self, _idle: &mut Idle) -> Result<(), Failure> {
        // The outcomes were the leave.
        Ok(())
    }

    fn be_patient(&mut self, patience: Duration) {
        self.control.patience = patience;
    }

    fn tells(&self) -> bool {
        true
    }

    fn give_up(&mut self, why: &Failure) {
        // The reason matters more than whether the other side still receives it.
        let _ = self.send(&Message::Failed(why.to_string()));
    }
}

/// See [`Pause::sleep_at_once`].
static AT_ONCE: AtomicBool = AtomicBool::new(false);

/// Yields the CPU after turns without work: first to waiting threads, later by a short sleep.
#[derive(Debug, Default)]
pub struct Pause {
    idle_turns: u32,
}

/// The effect of a [`Pause`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Rest {
    None,
    Yielded,
    Slept,
}

impl Pause {
    /// Turns without work before the CPU is offered to others.
    const SPIN: u32 = 64;
    /// Turns without work before this thread sleeps.
    const SLEEP: u32 = 20_000;
    /// The time that it sleeps if it has to do so at once.
    const NAP: Duration = Duration::from_millis(1);

    /// From now on this process's turns without work sleep at once: others drive its ports.
    pub fn sleep_at_once(yes: bool) {
        AT_ONCE.store(yes, Ordering::Relaxed);
    }

    /// Returns whether the last turn had work.
    ///
    /// # Errors
    /// Returns an error if a signal has asked the tool to end.
    pub fn after(&mut self, worked: bool) -> Result<Rest, Failure> {
        crate::signals::check()?;

        if worked {
            self.idle_turns = 0;
            return Ok(Rest::None);
        }
        if AT_ONCE.load(Ordering::Relaxed) {
            std::thread::sleep(Self::NAP);
            return Ok(Rest::Slept);
        }
        self.idle_turns = self.idle_turns.saturating_add(1);
        if self.idle_turns > Self::SLEEP {
            std::thread::sleep(Duration::from_micros(50));
            return Ok(Rest::Slept);
        }
        if self.idle_turns > Self::SPIN {
            std::thread::yield_now();
            return Ok(Rest::Yielded);
        }
        Ok(Rest::None)
    }
}

fn foreign() -> Failure {
    Failure::run(
        "the server is not a ferroce of this version; check -p, and run the same ferroce on both sides",
    )
}

fn out_of_step(message: &Message, expected: &str) -> Failure {
    Failure::run(format!(
        "the other side sent `{}` instead of `{expected}`; run the same ferroce on both sides",
        message.name()
    ))
}

#[cfg(test)]
mod tests;

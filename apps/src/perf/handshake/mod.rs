//! The handshake of a test: both sides agree on a plan, exchange their addresses and synchronise the steps.
//!
//! [`Handshake`] is the common interface. [`JsonLines`] implements Ferroce's own protocol, [`perftest`] the protocol of stock perftest, and
//! [`pingpong`] the protocol of libibverbs' examples.

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

/// The queue pairs and the memory of one side, which the other side needs to connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    pub qps: Vec<QpEndpoint>,
    pub buffer: RemoteBuffer,
}

/// The results of one side for one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The bandwidth at which this side sent.
    pub bandwidth: Option<Bandwidth>,
    /// The latency that this side measured.
    pub latency: Option<Latency>,
    /// The checksum of the bytes that this side sent.
    pub sent: Option<u64>,
    /// The checksum of the bytes that this side received.
    pub received: Option<u64>,
}

/// A function that polls the core while this side waits, and returns true if there was work.
pub type Idle<'a> = dyn FnMut() -> Result<bool, Failure> + 'a;

/// The steps of a test, in order. Every step except `wait_outcome` has a time limit.
pub trait Handshake {
    /// Client: proposes a plan. Returns the agreed plan.
    fn propose(&mut self, plan: Plan, idle: &mut Idle) -> Result<Plan, Failure>;
    /// Server: receives the plan and checks it with `judge`. Returns the agreed plan.
    fn agree(
        &mut self,
        judge: &mut dyn FnMut(&Plan) -> Result<(), Failure>,
        idle: &mut Idle,
    ) -> Result<Plan, Failure>;
    /// Exchanges addresses. Returns the addresses of the other side.
    fn swap_sides(&mut self, own: &Side, idle: &mut Idle) -> Result<Side, Failure>;
    /// Waits until the other side has reached `step`.
    fn barrier(&mut self, step: u32, idle: &mut Idle) -> Result<(), Failure>;
    /// Sends the results of this side.
    fn send_outcome(&mut self, outcome: &Outcome) -> Result<(), Failure>;
    /// Returns the results of the other side if they have arrived. Does not block.
    fn try_outcome(&mut self) -> Result<Option<Outcome>, Failure>;
    /// Waits for the results of the other side without a time limit.
    fn wait_outcome(&mut self, idle: &mut Idle) -> Result<Outcome, Failure>;
    /// Ends the test such that neither side exits while the other one still needs it.
    fn finish(&mut self, idle: &mut Idle) -> Result<(), Failure>;
    /// Sends the reason of a failure to the other side, if the protocol has a message for it.
    fn give_up(&mut self, why: &Failure);
    /// Checks that the connection is not broken, if the protocol keeps it open during the test.
    fn check(&mut self) -> Result<(), Failure> {
        Ok(())
    }
    /// Sets the time limit for each of the following steps.
    fn be_patient(&mut self, patience: Duration);
    /// Returns true if the other side reports the end of a run and its results. If false, each side measures for itself.
    fn tells(&self) -> bool;
}

/// The version of the protocol, increased by every incompatible change.
const VERSION: u32 = 1;
/// The limit on a line, bytes. The endpoints of 1024 queue pairs take 100 KiB.
const LONGEST_LINE: usize = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    /// `release` is the version of the program, for the error message of a version mismatch.
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

/// Ferroce's own handshake: JSON, one message per line.
#[derive(Debug)]
pub struct JsonLines {
    control: Control,
}

impl JsonLines {
    pub fn new(control: Control) -> Self {
        Self { control }
    }

    fn send(&mut self, message: &Message) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(message).map_err(|error| Failure::run(error.to_string()))?;
        line.push(b'\n');
        self.control.send(&line)
    }

    /// Waits for a message, until `patience` has passed if there is a limit.
    fn receive(&mut self, patience: Option<Duration>, idle: &mut Idle) -> Result<Message, Failure> {
        self.control.wait(patience, idle, try_receive)
    }
}

fn try_receive(control: &mut Control) -> Result<Option<Message>, Failure> {
    loop {
        if let Some(end) = control.pending.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = control.pending.drain(..=end).collect();
            return match serde_json::from_slice(&line) {
                Ok(Message::Failed(why)) => Err(stopped(&why)),
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
        // The exchange of results has ended the test.
        Ok(())
    }

    fn be_patient(&mut self, patience: Duration) {
        self.control.patience = patience;
    }

    fn tells(&self) -> bool {
        true
    }

    fn check(&mut self) -> Result<(), Failure> {
        let broken = loop {
            match self.control.take_in() {
                Ok(true) => {}
                Ok(false) => break None,
                Err(why) => break Some(why),
            }
        };
        // The reason that the other side sent before it closed explains more. Any other message stays for the call that expects it.
        let line = self.control.pending.split(|&byte| byte == b'\n').next();
        match line.map(serde_json::from_slice) {
            Some(Ok(Message::Failed(why))) => Err(stopped(&why)),
            _ => broken.map_or(Ok(()), Err),
        }
    }

    fn give_up(&mut self, why: &Failure) {
        // This side has already failed, so another error of the connection is ignored.
        let _ = self.send(&Message::Failed(why.to_string()));
    }
}

static AT_ONCE: AtomicBool = AtomicBool::new(false);

/// Rests after turns without work: spins, then yields the CPU, then sleeps.
#[derive(Debug, Default)]
pub struct Pause {
    idle_turns: u32,
}

/// The action of a [`Pause`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Rest {
    None,
    Yielded,
    Slept,
}

impl Pause {
    /// Turns without work before the thread yields.
    const SPIN: u32 = 64;
    /// Turns without work before the thread sleeps for 50 µs.
    const SLEEP: u32 = 20_000;
    /// The sleep after a turn without work under [`sleep_at_once`](Self::sleep_at_once).
    const NAP: Duration = Duration::from_millis(1);

    /// Sets whether this process sleeps after every turn without work, because other threads poll its ports.
    pub fn sleep_at_once(yes: bool) {
        AT_ONCE.store(yes, Ordering::Relaxed);
    }

    /// Rests after a turn. `worked` is true if the turn had work.
    ///
    /// # Errors
    /// Returns a failure if a signal has requested the end of the tool.
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

fn stopped(why: &str) -> Failure {
    Failure::run(format!("the other side stopped: {why}"))
}

fn foreign() -> Failure {
    Failure::run(
        "the other side is not a ferroce of this version; check -p, and run the same ferroce on both sides",
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

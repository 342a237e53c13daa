//! Both ends of a connection on one core: one thread posts, polls and runs both devices, through the public interface alone.
//! `scripts/bench` times these loops, and `steps` counts their instructions.

use crate::cpu;
use crate::ring::{End, LIST, connected, hpcc};
use crate::tool;
use clap::ValueEnum;
use std::time::{Duration, Instant};
use verbs::congestion::Congestion;
use verbs::{Mtu, SendRequest};

const WARM_UP: Duration = Duration::from_millis(100);
const MEASURED: Duration = Duration::from_millis(500);

/// The traffic that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Traffic {
    /// WRITEs of 64 B in lists of 32.
    Write64,
    /// WRITEs of 4 KiB in lists of 32.
    Write4k,
    /// WRITEs of 64 KiB in lists of 4, with an MTU of 4096.
    Write64k,
    /// WRITEs of 64 B, each posted when the one before has completed.
    Single64,
}

impl Traffic {
    const fn size(self) -> u32 {
        match self {
            Self::Write64 | Self::Single64 => 64,
            Self::Write4k => 4096,
            Self::Write64k => 65_536,
        }
    }

    /// Returns the number of messages per post.
    pub const fn list(self) -> usize {
        match self {
            Self::Write64 | Self::Write4k => LIST,
            Self::Write64k => 4,
            Self::Single64 => 1,
        }
    }
}

/// A connection whose two ends run in the caller's thread.
pub struct OneCore {
    a: End,
    b: End,
    request: SendRequest,
    list: usize,
}

impl OneCore {
    /// Connects the two ends, with the default congestion control if `congestion` is `None`.
    ///
    /// # Errors
    /// Returns the error of the library if a device, a queue pair or the connection fails.
    pub fn open(traffic: Traffic, congestion: Option<Congestion>) -> Result<Self, String> {
        let (a, b) = connected(Mtu::M4096, congestion)?;
        let from = a.region.sge(0, traffic.size()).map_err(|error| error.to_string())?;
        let request = SendRequest::write(0, from, b.region.remote().at(0));
        Ok(Self { a, b, request, list: traffic.list() })
    }

    /// Posts one list and waits until it has completed. Polling runs the sender's device.
    ///
    /// # Errors
    /// Returns the error of the library if a request is refused or fails.
    pub fn exchange(&mut self) -> Result<(), String> {
        let request = &self.request;
        let last = self.list;
        let list = (1..=last).map(|n| SendRequest { signalled: n == last, ..request.clone() });
        self.a.qp.post_send_list(list).map_err(|refused| refused.error.to_string())?;
        while self.a.poll()?.1 == 0 {
            self.b.device.progress();
        }
        Ok(())
    }
}

/// Returns the CPU time of a message, ns, measured in this process.
///
/// # Errors
/// As [`OneCore::open`] and [`OneCore::exchange`].
pub fn run(traffic: Traffic) -> Result<f64, String> {
    let mut ends = OneCore::open(traffic, Some(hpcc()))?;
    let mut messages_in = |time: Duration| {
        let (begin, mut lists) = (Instant::now(), 0);
        while begin.elapsed() < time {
            for _ in 0..64 {
                ends.exchange()?;
            }
            lists += 64;
        }
        Ok::<_, String>((lists * traffic.list()) as f64)
    };
    messages_in(WARM_UP)?;
    let begin = cpu::time();
    let messages = messages_in(MEASURED)?;
    Ok((cpu::time() - begin).as_nanos() as f64 / messages)
}

/// Does the same as [`run`] in a new process.
///
/// # Errors
/// Returns the output of the process if it failed.
pub fn run_afresh(traffic: Traffic) -> Result<f64, String> {
    let name = traffic.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    tool::afresh(&["one-core", &name])
}

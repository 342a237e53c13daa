//! Measures latency: sequential exchanges, each timed.

use super::handshake::{Handshake, Outcome, Pause};
use super::link::{Link, post};
use super::plan::{Amount, Verb};
use super::stats::{Latencies, Latency};
use crate::failure::Failure;
use std::time::{Duration, Instant};
use verbs::{Data, SendRequest};

/// How long a side polls after its last exchange: the last ACK may wait for 10 µs, and printing takes long.
const LAST_ACK: Duration = Duration::from_micros(20);

struct Player<'a> {
    link: &'a mut Link,
    verb: Verb,
    size: u64,
    template: SendRequest,
    sent: u64,
    seen: u64,
    pause: Pause,
}

/// Clears the last byte of both buffers. A change of it shows that a WRITE has arrived. Must be called before either side starts.
///
/// # Errors
/// Returns a failure if the size exceeds the region.
pub fn prepare(link: &Link, verb: Verb, size: u64) -> Result<(), Failure> {
    if verb == Verb::Write {
        let last = last_byte(size);
        for at in [link.inbound(0) + last, link.outbound(0) + last] {
            link.memory.write(at, &[0]).map_err(failed)?;
        }
    }
    Ok(())
}

/// The parameters of a latency measurement.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    pub verb: Verb,
    /// Message size, bytes.
    pub size: u64,
    /// The end of the run.
    pub amount: Amount,
    /// The time to wait after each exchange.
    pub gap: Duration,
}

impl Exchange {
    /// Creates the record of the latencies. A sample is the time of an exchange: two latencies for SEND and WRITE, one for the others.
    pub fn latencies(&self) -> Latencies {
        Latencies::new(if matches!(self.verb, Verb::Write | Verb::Send) { 2 } else { 1 })
    }
}

/// Client: sends messages, and records the time of each exchange in `latencies`.
///
/// # Errors
/// Returns a failure if a request is refused or fails.
pub fn measure(link: &mut Link, exchange: Exchange, latencies: &mut Latencies) -> Result<Latency, Failure> {
    let Exchange { verb, size, amount, gap } = exchange;
    let mut player = Player::new(link, verb, size)?;
    let origin = Instant::now();
    let (mut before, mut counted_from) = (0, 0);
    loop {
        player.send()?;
        match verb {
            Verb::Write | Verb::Send => while !player.look()? {},
            Verb::Read | Verb::Atomic => player.wait_completion()?,
        }
        let now = nanos(origin.elapsed());
        latencies.record(now - before);
        before = now;
        match amount {
            Amount::Messages(all) if latencies.len() >= all => break,
            Amount::Messages(_) | Amount::Endless { .. } => {}
            Amount::Time { whole, margin } => {
                if now < nanos(margin) {
                    latencies.clear();
                    counted_from = now;
                } else if now >= nanos(whole - margin) {
                    break;
                }
            }
        }
        if !gap.is_zero() {
            player.wait(gap)?;
            before = nanos(origin.elapsed());
        }
    }
    player.wait(LAST_ACK)?;
    Ok(latencies.figures(size, before - counted_from))
}

/// Server: answers each message until the client reports its results, and returns these.
///
/// # Errors
/// Returns a failure if a request is refused or fails, or the control connection breaks.
pub fn answer(
    link: &mut Link,
    handshake: &mut dyn Handshake,
    verb: Verb,
    size: u64,
) -> Result<Outcome, Failure> {
    let mut player = Player::new(link, verb, size)?;
    let mut quiet = 0_u32;
    loop {
        if player.look()? {
            player.send()?;
            quiet = 0;
            continue;
        }
        quiet += 1;
        if quiet.is_multiple_of(1024)
            && let Some(outcome) = handshake.try_outcome()?
        {
            return Ok(outcome);
        }
    }
}

/// Server of a client that does not report its results: answers the number of messages in `exchange`, and records the times in `latencies`.
///
/// # Errors
/// Returns a failure if a request is refused or fails, or the amount is a time.
pub fn answer_counted(
    link: &mut Link,
    handshake: &mut dyn Handshake,
    exchange: Exchange,
    latencies: &mut Latencies,
) -> Result<Latency, Failure> {
    let Exchange { verb, size, amount, .. } = exchange;
    let Amount::Messages(count) = amount else {
        return Err(Failure::usage("the server of a stock latency test needs -n; give the client's -n"));
    };
    let mut player = Player::new(link, verb, size)?;
    player.wait_for(handshake)?;
    let origin = Instant::now();
    let mut before = 0;
    for left in (0..count).rev() {
        player.send()?;
        if left > 0 {
            player.wait_for(handshake)?;
        }
        // The last message has no answer.
        if left > 0 || count == 1 {
            let now = nanos(origin.elapsed());
            latencies.record(now - before);
            before = now;
        }
    }
    player.wait(LAST_ACK)?;
    Ok(latencies.figures(size, before))
}

impl<'a> Player<'a> {
    fn new(link: &'a mut Link, verb: Verb, size: u64) -> Result<Self, Failure> {
        let template = link.request(0, size)?;
        Ok(Self { link, verb, size, template, sent: 0, seen: 0, pause: Pause::default() })
    }

    /// Sends the next message. The last byte of a WRITE is the message's number.
    fn send(&mut self) -> Result<(), Failure> {
        self.sent += 1;
        self.template.id = self.sent;
        if self.verb == Verb::Write {
            match &mut self.template.data {
                Data::Inline(bytes) => {
                    if let Some(last) = bytes.last_mut() {
                        *last = self.sent as u8;
                    }
                }
                Data::Buffers(_) => {
                    let at = self.link.outbound(0) + last_byte(self.size);
                    self.link.memory.write(at, &[self.sent as u8]).map_err(failed)?;
                }
            }
        }
        post(self.link, 0, &self.template)
    }

    /// Waits for the peer's next message, and checks the connection every 1024 turns.
    fn wait_for(&mut self, handshake: &mut dyn Handshake) -> Result<(), Failure> {
        let mut quiet = 0_u32;
        while !self.look()? {
            quiet = quiet.wrapping_add(1);
            if quiet.is_multiple_of(1024)
                && let Err(gone) = handshake.check()
            {
                // The last message may have arrived before the connection closed.
                return if self.look()? { Ok(()) } else { Err(gone) };
            }
        }
        Ok(())
    }

    /// Runs one turn. Returns true if the peer's next message has arrived.
    fn look(&mut self) -> Result<bool, Failure> {
        let mut worked = self.link.drain()? > 0;
        let there = match self.verb {
            Verb::Write => {
                let at = self.link.inbound(0) + last_byte(self.size);
                self.link.memory.byte(at).map_err(failed)? == (self.seen + 1) as u8
            }
            Verb::Send => {
                worked |= self.link.receive()? > 0;
                self.link.take_arrival()
            }
            Verb::Read | Verb::Atomic => false,
        };
        self.seen += u64::from(there);
        self.pause.after(worked || there)?;
        Ok(there)
    }

    /// Polls for `gap`, in which the peer sends nothing.
    fn wait(&mut self, gap: Duration) -> Result<(), Failure> {
        let since = Instant::now();
        while since.elapsed() < gap {
            let worked = self.link.idle()?;
            self.pause.after(worked)?;
        }
        Ok(())
    }

    fn wait_completion(&mut self) -> Result<(), Failure> {
        while self.link.drain()? == 0 {
            self.pause.after(false)?;
        }
        self.pause.after(true)?;
        Ok(())
    }
}

fn last_byte(size: u64) -> usize {
    size.saturating_sub(1) as usize
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::run(error.to_string())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

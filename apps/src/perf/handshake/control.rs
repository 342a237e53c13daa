//! The TCP connection below every handshake: whole messages out, bytes in, and never a turn of the core missed.

use super::{Idle, LONGEST_LINE, Pause, Rest, foreign};
use crate::failure::Failure;
use datapath::linux::keep_alive;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The default time that the other side may take for a step.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A control connection.
#[derive(Debug)]
pub struct Control {
    stream: TcpStream,
    /// Received bytes that were not taken yet.
    pub pending: Vec<u8>,
    /// The time that the other side may take for a step.
    pub patience: Duration,
}

impl Control {
    /// Takes over a fresh connection. It breaks when the other side's machine has been silent for about 25 s.
    ///
    /// # Errors
    /// Returns a failure if the system refuses its options.
    pub fn new(stream: TcpStream) -> Result<Self, Failure> {
        let options = stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true));
        options.and_then(|()| keep_alive(&stream)).map_err(broken)?;
        Ok(Self { stream, pending: Vec::new(), patience: PATIENCE })
    }

    /// Returns true if a whole greeting has arrived: a line of JSON, or the five bytes by which the other languages differ.
    ///
    /// # Errors
    /// Returns a failure if the other side closed, or sends no end of a line.
    pub fn is_greeted(&mut self) -> Result<bool, Failure> {
        while self.take_in()? {
            if self.pending.len() > LONGEST_LINE {
                return Err(foreign());
            }
        }
        Ok(match self.pending.first() {
            Some(b'{') => self.pending.contains(&b'\n'),
            _ => self.pending.len() >= 5,
        })
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// Returns a failure if the connection broke, or the other side takes nothing for too long.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let mut rest = bytes;
        let since = Instant::now();
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(closed()),
                Ok(taken) => rest = &rest[taken..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && since.elapsed() < self.patience => {
                    std::thread::yield_now();
                }
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(())
    }

    /// Handles what has arrived; returns `false` if there was nothing.
    ///
    /// # Errors
    /// Returns a failure if the other side closed, or the connection broke.
    pub fn take_in(&mut self) -> Result<bool, Failure> {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(closed()),
                Ok(count) => {
                    self.pending.extend_from_slice(&chunk[..count]);
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(broken(error)),
            }
        }
    }

    /// Runs `idle` until `look` returns something, for at most `patience` if there is one.
    ///
    /// # Errors
    /// Returns an error if `look` or `idle` does, or patience ends.
    pub fn wait<T>(
        &mut self,
        patience: Option<Duration>,
        idle: &mut Idle,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let since = Instant::now();
        let mut pause = Pause::default();
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if patience.is_some_and(|patience| since.elapsed() > patience) {
                return Err(Failure::run(format!(
                    "the other side did not answer within {} s; check its output and start both again",
                    patience.unwrap_or_default().as_secs()
                )));
            }
            // A look at the socket is a system call: not worth one each turn, unless the turn slept.
            for _ in 0..32 {
                if pause.after(idle()?)? == Rest::Slept {
                    break;
                }
            }
        }
    }

    /// Waits until `count` bytes are here, and leaves them in `pending`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_bytes(
        &mut self,
        count: usize,
        patience: Option<Duration>,
        idle: &mut Idle,
    ) -> Result<(), Failure> {
        self.wait(patience, idle, |control| {
            while control.pending.len() < count {
                if !control.take_in()? {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
    }

    /// Waits until the other side closes; ignores its last messages and errors.
    ///
    /// # Errors
    /// Returns an error if `idle` does, or patience ends.
    pub fn wait_close(&mut self, idle: &mut Idle) -> Result<(), Failure> {
        self.wait(Some(self.patience), idle, |control| {
            control.pending.clear();
            Ok(control.take_in().is_err().then_some(()))
        })
    }
}

fn broken(error: std::io::Error) -> Failure {
    Failure::run(format!("the control connection broke: {error}; check the other side's output"))
}

fn closed() -> Failure {
    Failure::run("the other side closed the control connection; check its output")
}

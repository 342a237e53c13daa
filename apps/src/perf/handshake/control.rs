//! The TCP connection of every handshake. It sends and receives without blocking, so that the core continues to run turns.

use super::{Idle, LONGEST_LINE, Pause, Rest, foreign};
use crate::failure::Failure;
use datapath::linux::keep_alive;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The default time limit for the other side's answer to a step.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A control connection.
#[derive(Debug)]
pub struct Control {
    stream: TcpStream,
    /// Bytes received but not processed.
    pub pending: Vec<u8>,
    /// The time limit for the other side's answer to a step.
    pub patience: Duration,
}

impl Control {
    /// Configures a new connection. It fails after the other side's machine has been silent for about 25 s.
    ///
    /// # Errors
    /// Returns a failure if the system refuses the options.
    pub fn new(stream: TcpStream) -> Result<Self, Failure> {
        let options = stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true));
        options.and_then(|()| keep_alive(&stream)).map_err(broken)?;
        Ok(Self { stream, pending: Vec::new(), patience: PATIENCE })
    }

    /// Returns true if a complete greeting has arrived: a line of JSON, or the first five bytes of another protocol.
    ///
    /// # Errors
    /// Returns a failure if the other side has closed the connection, or the line is too long.
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
    /// Returns a failure if the connection breaks, or the other side does not read in time.
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

    /// Appends received bytes to `pending`. Returns false if there were none.
    ///
    /// # Errors
    /// Returns a failure if the connection was closed or is broken.
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

    /// Runs `idle` until `look` returns a value, or until `patience` has passed.
    ///
    /// # Errors
    /// Returns the error of `look` or `idle`, or a failure after `patience`.
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
            // Reading the socket is a system call, so it happens only after 32 turns, or after a sleep.
            for _ in 0..32 {
                if pause.after(idle()?)? == Rest::Slept {
                    break;
                }
            }
        }
    }

    /// Waits until `pending` contains `count` bytes.
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

    /// Waits until the other side closes the connection. Discards the bytes that it still sends.
    ///
    /// # Errors
    /// Returns the error of `idle`, or a failure after `patience`.
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

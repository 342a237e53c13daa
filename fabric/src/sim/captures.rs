//! Collects the frames at captured ports for the observer.

use super::observer::{Observer, PortFrame};
use std::ops::ControlFlow;
use std::time::Duration;

struct BufferedFrame {
    port: u16,
    is_sent: bool,
    /// Virtual time, ps.
    time: u64,
    length: usize,
}

/// Frames that the observer has not received yet. The engine passes them on after each window.
#[derive(Default)]
pub(super) struct Captures {
    frames: Vec<BufferedFrame>,
    /// The bytes of all frames.
    bytes: Vec<u8>,
}

impl Captures {
    /// Adds a frame that the captured port `port` sends or receives at `time`, ps.
    pub(super) fn add(&mut self, (port, is_sent): (u16, bool), time: u64, frame: &[u8]) {
        self.frames.push(BufferedFrame { port, is_sent, time, length: frame.len() });
        self.bytes.extend(frame);
    }

    /// Passes all frames to `observer`, until it returns `Break`.
    pub(super) fn report(&mut self, observer: &mut dyn Observer) -> ControlFlow<()> {
        let mut rest = &self.bytes[..];
        for BufferedFrame { port, is_sent, time, length } in self.frames.drain(..) {
            let bytes = rest.split_off(..length).unwrap_or_default();
            let time = Duration::from_nanos(time / 1000);
            observer.frame(&PortFrame { port: port.into(), is_sent, time, bytes })?;
        }
        self.bytes.clear();
        ControlFlow::Continue(())
    }
}

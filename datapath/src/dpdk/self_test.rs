//! Tests whether a port delivers frames of the largest size.

use super::mbuf::Mbuf;
use super::port::Port;
use super::prepare::PortError;
use crate::io::{Burst, PacketBuf, PacketIo};

impl Port {
    /// Sends a frame of the largest size to `peer`, the other end of this port's link, and polls for it up to 100,000 times.
    ///
    /// # Errors
    /// Returns [`PortError::SelfTest`] if the frame does not arrive, or arrives changed.
    pub fn test_to(&mut self, peer: &mut Self) -> Result<(), PortError> {
        let frame = self.test_frame()?;
        let mut out = Burst::new();
        out.push(frame);
        self.transmit(&mut out);
        let mut received = Burst::new();
        for _ in 0..100_000 {
            self.transmit(&mut out);
            peer.receive(&mut received);
            if !received.is_empty() {
                return self.check_test_frame(&received);
            }
            std::hint::spin_loop();
        }
        Err(self.test_failed("it doesn't arrive"))
    }

    /// Sends a frame of the largest size on a port that receives what it sends (`ring:NAME`), and checks that it arrives.
    ///
    /// # Errors
    /// Returns [`PortError::SelfTest`] if the frame does not arrive, or arrives changed.
    pub fn self_test(&mut self) -> Result<(), PortError> {
        let frame = self.test_frame()?;
        let mut burst = Burst::new();
        burst.push(frame);
        self.transmit(&mut burst);
        burst.clear();
        self.receive(&mut burst);
        self.check_test_frame(&burst)
    }

    fn test_frame(&mut self) -> Result<Mbuf, PortError> {
        let mut frame = self.alloc().ok_or_else(|| self.test_failed("no buffer is free"))?;
        frame.set_len(self.info().max_frame);
        for (at, byte) in frame.iter_mut().enumerate() {
            *byte = at as u8;
        }
        frame[..6].copy_from_slice(&[0xff; 6]);
        frame[6..12].copy_from_slice(&self.info().mac.0);
        // IEEE 802 reserves this EtherType for local experiments.
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        Ok(frame)
    }

    fn check_test_frame(&self, received: &Burst<Mbuf>) -> Result<(), PortError> {
        let whole = |frame: &Mbuf| {
            frame.len() == self.info().max_frame
                && frame.iter().enumerate().skip(14).all(|(at, b)| *b == at as u8)
        };
        if received.iter().any(whole) { Ok(()) } else { Err(self.test_failed("it doesn't come back whole")) }
    }

    fn test_failed(&self, why: &str) -> PortError {
        PortError::SelfTest { port: self.info().name.clone(), bytes: self.info().max_frame, why: why.into() }
    }
}

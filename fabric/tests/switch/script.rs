//! Test frames, buffers, and a switch in virtual time.

use cc::{Instant, Rate};
use datapath::io::PacketBuf;
use ferroce_fabric::{PortConfig, PortId, Switch, SwitchConfig};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub struct Buf {
    bytes: Box<[u8]>,
    len: usize,
}

impl Buf {
    pub fn empty() -> Self {
        Self { bytes: vec![0; 2048].into_boxed_slice(), len: 0 }
    }

    pub fn of(frame: &[u8]) -> Self {
        let mut buf = Self::empty();
        buf.set_len(frame.len());
        buf.copy_from_slice(frame);
        buf
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl PacketBuf for Buf {
    fn capacity(&self) -> usize {
        self.bytes.len()
    }
    fn set_len(&mut self, len: usize) {
        assert!(len <= self.bytes.len());
        self.len = len;
    }
}

pub const BROADCAST: [u8; 6] = [0xff; 6];

pub fn station(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// Returns a frame of `len` bytes whose payload starts with `tag`.
pub fn frame(to: [u8; 6], from: [u8; 6], len: usize, tag: u32) -> Vec<u8> {
    let mut frame = [&to[..], &from[..], &[0x88, 0xb5], &tag.to_be_bytes()].concat();
    frame.resize(len.max(18), 0);
    frame
}

pub fn tag(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().unwrap())
}

pub fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

/// 8 Mb/s.
pub fn byte_a_microsecond() -> PortConfig {
    PortConfig { rate: Some(Rate::from_mbps(8)), ..PortConfig::default() }
}

pub struct Script {
    pub switch: Switch<Buf>,
}

impl Script {
    /// Creates a switch with `ports`, whose table has station n at port n.
    pub fn new(ports: &[PortConfig]) -> Self {
        let config = SwitchConfig { ports: ports.to_vec(), ..SwitchConfig::default() };
        let mut script = Self { switch: Switch::new(&config).unwrap() };
        for n in 0..ports.len() as u8 {
            script.send(at(0), u16::from(n), &frame([1, 0x80, 0xc2, 0, 0, 0], station(n), 64, 0));
        }
        script.switch.reset_statistics(at(0));
        script
    }

    pub fn send(&mut self, now: Instant, port: u16, frame: &[u8]) {
        self.switch.on_frame(now, PortId(port), Buf::of(frame), |_| Some(Buf::empty()));
    }

    /// Sends a frame from station 0 to station 1.
    pub fn send_tagged(&mut self, now: Instant, len: usize, tag: u32) {
        self.send(now, 0, &frame(station(1), station(0), len, tag));
    }

    pub fn next(&mut self, now: Instant, port: u16) -> Option<Vec<u8>> {
        self.switch.poll_transmit(now, PortId(port), |_| Some(Buf::empty())).map(|buf| buf.to_vec())
    }

    pub fn leaving(&mut self, now: Instant, port: u16) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.next(now, port)).collect()
    }

    pub fn tags(&mut self, now: Instant, port: u16) -> Vec<u32> {
        self.leaving(now, port).iter().map(|frame| tag(frame)).collect()
    }
}

pub const SECOND: Duration = Duration::from_secs(1);

//! Measures the switch: ns per frame through a turn, without I/O.
//!
//! `cargo bench -p ferroce-fabric`

use cc::{Instant, Rate};
use datapath::io::PacketBuf;
use ferroce_fabric::{PortConfig, PortId, Switch, SwitchConfig};
use std::hint::black_box;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

const BURST: usize = 32;
const TURNS: u32 = 200_000;

struct Buf(Box<[u8; 1024]>);

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0[..]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0[..]
    }
}

impl PacketBuf for Buf {
    fn capacity(&self) -> usize {
        1024
    }
    fn set_len(&mut self, len: usize) {
        assert_eq!(len, 1024, "all frames of this bench are of one length");
    }
}

/// Returns a frame from station 0 to station 1; a telemetry request if `probe`.
fn frame(probe: bool) -> Buf {
    let mut bytes = Box::new([0; 1024]);
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 8, 0]);
    bytes[14] = 0x45;
    bytes[23] = 17;
    bytes[36..38].copy_from_slice(&4791_u16.to_be_bytes());
    bytes[42] = if probe { 0xC0 } else { 0x0A };
    bytes[57] = 8;
    Buf(bytes)
}

fn measure(name: &str, port: PortConfig, probe: bool) {
    let config = SwitchConfig { ports: vec![port; 2], ..SwitchConfig::default() };
    let mut switch = Switch::new(&config).expect("two ports are enough");
    let mut pool: Vec<Buf> = (0..BURST).map(|_| frame(probe)).collect();
    let mut hello = frame(false);
    hello[..12].copy_from_slice(&[2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1]);
    switch.on_frame(Instant::ZERO, PortId(1), hello, |_| None);
    let begin = std::time::Instant::now();
    let mut sent = 0_u64;
    for turn in 1..=u64::from(TURNS) {
        // 32 frames of 1 KiB in 3 µs are just below 100 Gb/s.
        let now = Instant::from_nanos(turn * 3000);
        for buf in pool.drain(..) {
            switch.on_frame(now, PortId(0), buf, |_| None);
        }
        while let Some(mut buf) = switch.poll_transmit(now + Duration::from_nanos(2999), PortId(1), |_| None)
        {
            buf[54] = 0;
            pool.push(black_box(buf));
            sent += 1;
        }
    }
    let nanos = begin.elapsed().as_nanos() as f64 / sent as f64;
    println!("{name:<28} {nanos:>7.1} ns/frame ({sent} frames)");
}

fn main() {
    let shaped = PortConfig { rate: Some(Rate::from_gbps(100)), ..PortConfig::default() };
    measure("unshaped", PortConfig::default(), false);
    measure("shaped", shaped, false);
    measure("shaped, every frame stamped", shaped, true);
}

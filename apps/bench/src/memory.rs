//! The baseline of bandwidth: the rate at which one core copies bytes and computes their CRC.

use crate::cpu;
use std::hint::black_box;

/// As in the tools: the length of a send buffer, bytes, and a number of packet buffers that exceeds the nearest caches.
const REGION: usize = 64 * 1024;
const PACKETS: usize = 1024;
const ROUNDS: usize = 200;

/// Returns the rate of one copy and one CRC-32 over pieces of `piece` bytes, Gb/s. A sender of such packets must do at least this work.
pub fn copy_and_crc(piece: usize) -> f64 {
    let region = vec![0x5a_u8; REGION];
    let mut packets = vec![0_u8; PACKETS * piece];
    let mut sum = 0_u32;
    let pass = |packets: &mut [u8], sum: &mut u32| {
        for (n, packet) in packets.chunks_exact_mut(piece).enumerate() {
            let from = n * piece % REGION;
            packet.copy_from_slice(&region[from..from + piece]);
            *sum ^= crc32fast::hash(packet);
        }
    };
    pass(&mut packets, &mut sum);
    let start = cpu::time();
    for _ in 0..ROUNDS {
        pass(black_box(&mut packets), &mut sum);
    }
    black_box(sum);
    (ROUNDS * PACKETS * piece * 8) as f64 / (cpu::time() - start).as_secs_f64() / 1e9
}

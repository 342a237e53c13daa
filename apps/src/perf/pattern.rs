//! A pseudo-random pattern in registered memory, and its checksum.

use verbs::MemoryRegion;
use verbs::errors::BoundsError;

const CHUNK: usize = 64 << 10;

/// Returns the seed of the pattern. Each size, queue pair and direction has its own, so that bytes of an earlier run are detected.
pub fn seed(plan: u64, size: u64, qp: usize, from_client: bool) -> u64 {
    mix(plan ^ mix(size) ^ mix((qp as u64) << 1 | u64::from(from_client)))
}

/// Writes the pattern into `length` bytes at `offset`, and returns its checksum.
///
/// # Errors
/// Returns an error if the range exceeds the region.
pub fn fill(memory: &MemoryRegion, offset: usize, length: usize, seed: u64) -> Result<u64, BoundsError> {
    let mut sum = Checksum::default();
    let mut chunk = vec![0; CHUNK.min(length)];
    for at in (0..length).step_by(CHUNK) {
        let chunk = &mut chunk[..CHUNK.min(length - at)];
        generate(seed, at, chunk);
        sum.add(chunk);
        memory.write(offset + at, chunk)?;
    }
    Ok(sum.0)
}

/// Returns the checksum of `length` bytes at `offset`.
///
/// # Errors
/// Returns an error if the range exceeds the region.
pub fn checksum(memory: &MemoryRegion, offset: usize, length: usize) -> Result<u64, BoundsError> {
    let mut sum = Checksum::default();
    let mut chunk = vec![0; CHUNK.min(length)];
    for at in (0..length).step_by(CHUNK) {
        let chunk = &mut chunk[..CHUNK.min(length - at)];
        memory.read(offset + at, chunk)?;
        sum.add(chunk);
    }
    Ok(sum.0)
}

/// Returns the offset of the first byte that differs from the pattern.
///
/// # Errors
/// Returns an error if the range exceeds the region.
pub fn first_difference(
    memory: &MemoryRegion,
    offset: usize,
    length: usize,
    seed: u64,
) -> Result<Option<usize>, BoundsError> {
    let (mut found, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
    for at in (0..length).step_by(CHUNK) {
        let count = CHUNK.min(length - at);
        memory.read(offset + at, &mut found[..count])?;
        generate(seed, at, &mut expected[..count]);
        if let Some(index) = (0..count).find(|&index| found[index] != expected[index]) {
            return Ok(Some(at + index));
        }
    }
    Ok(None)
}

/// Writes the pattern from byte `at` on, a multiple of 8.
fn generate(seed: u64, at: usize, into: &mut [u8]) {
    let first = (at / 8) as u64;
    for (word, bytes) in (first..).zip(into.chunks_mut(8)) {
        bytes.copy_from_slice(&mix(seed.wrapping_add(word)).to_le_bytes()[..bytes.len()]);
    }
}

/// The finaliser of splitmix64: every bit of the input affects every bit of the output.
fn mix(value: u64) -> u64 {
    let a = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ (a >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ (b >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ (c >> 31)
}

/// A variant of FNV-1a over words of 8 bytes, which rotates after each. Pads the last word with zeros.
struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u64 {
        let mut sum = Checksum::default();
        sum.add(bytes);
        sum.0
    }

    #[test]
    fn a_pattern_generated_in_parts_equals_the_whole() {
        let (mut whole, mut parts) = ([0; 44], [0; 44]);
        generate(7, 0, &mut whole);
        generate(7, 0, &mut parts[..16]);
        generate(7, 16, &mut parts[16..]);
        assert_eq!(whole, parts);
    }

    #[test]
    fn one_bit_or_two_words_swapped_change_the_checksum() {
        let mut bytes = [0; 64];
        generate(1, 0, &mut bytes);
        let before = sum(&bytes);
        bytes[63] ^= 1;
        assert_ne!(sum(&bytes), before);
        bytes[63] ^= 1;
        let (a, b) = bytes.split_at_mut(8);
        a.swap_with_slice(&mut b[..8]);
        assert_ne!(sum(&bytes), before);
    }

    #[test]
    fn the_seeds_of_different_runs_differ() {
        let seeds = [seed(1, 2, 0, true), seed(1, 2, 0, false), seed(1, 2, 1, true), seed(1, 4, 0, true)];
        for (index, one) in seeds.iter().enumerate() {
            assert!(!seeds[index + 1..].contains(one));
        }
    }
}

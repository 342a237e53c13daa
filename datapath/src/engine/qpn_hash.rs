//! A hash of queue pair numbers for tables of the core.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by queue pair number. The core chooses the numbers, so no peer can cause collisions, and one multiplication is enough. The
/// standard library's hash costs about a hundred instructions for each completion.
pub(super) type ByQpn<T> = HashMap<u32, T, BuildHasherDefault<QpnHasher>>;

#[derive(Default)]
pub(super) struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Mixes the upper half into the lower. The table uses bits of both ends, and the lowest bits of a product depend only on the lowest
    /// bits of the number.
    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    #[test]
    fn numbers_that_differ_in_one_place_are_spread() {
        let build = BuildHasherDefault::<QpnHasher>::default();
        for shift in [0, 4, 8, 12] {
            let hashes: Vec<_> = (0..4096_u32).map(|n| build.hash_one(n << shift)).collect();
            let low: HashSet<_> = hashes.iter().map(|hash| hash & 0xfff).collect();
            let high: HashSet<_> = hashes.iter().map(|hash| hash >> 57).collect();
            assert!(low.len() > 1500 && high.len() > 120, "{shift}: {} and {}", low.len(), high.len());
        }
    }
}

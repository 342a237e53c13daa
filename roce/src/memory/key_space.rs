//! Keys that are hard to guess, and are not repeated until all have been used.

use core::cell::Cell;

/// Rounds of Speck32/64.
const ROUNDS: usize = 22;
/// Entries of the cache of opened keys.
const RECENT: usize = 16;

/// Secret permutation of the 32-bit numbers. Without the secret, a key reveals nothing about its region or about other keys.
///
/// The permutation is the block cipher Speck32/64. The other half of the secret is XORed before and after it, because a key of 64 bits
/// alone is short.
#[derive(Clone)]
pub(crate) struct KeySpace {
    round_keys: [u16; ROUNDS],
    before: u32,
    after: u32,
    /// Cache of opened keys with their numbers, because a queue pair uses few keys in many packets.
    recent: [Cell<(u32, u32)>; RECENT],
}

impl KeySpace {
    pub(crate) fn new(secret: &[u8; 16]) -> Self {
        let word = |at: usize| u16::from_le_bytes([secret[at], secret[at + 1]]);
        let mut space = Self {
            round_keys: expand([word(0), word(2), word(4), word(6)]),
            before: u32::from_le_bytes([secret[8], secret[9], secret[10], secret[11]]),
            after: u32::from_le_bytes([secret[12], secret[13], secret[14], secret[15]]),
            recent: Default::default(),
        };
        // Makes every cached pair valid from the start.
        let zero = space.decipher(0);
        space.recent = core::array::from_fn(|_| Cell::new((0, zero)));
        space
    }

    pub(crate) fn seal(&self, number: u32) -> u32 {
        let (mut x, mut y) = split(number ^ self.before);
        for key in self.round_keys {
            (x, y) = round(x, y, key);
        }
        join(x, y) ^ self.after
    }

    #[inline]
    pub(crate) fn open(&self, key: u32) -> u32 {
        let recent = &self.recent[key as usize % RECENT];
        let (known, number) = recent.get();
        if known == key {
            return number;
        }
        let number = self.decipher(key);
        recent.set((key, number));
        number
    }

    fn decipher(&self, key: u32) -> u32 {
        let (mut x, mut y) = split(key ^ self.after);
        for key in self.round_keys.iter().rev() {
            y = (y ^ x).rotate_right(2);
            x = (x ^ key).wrapping_sub(y).rotate_left(7);
        }
        join(x, y) ^ self.before
    }
}

fn round(x: u16, y: u16, key: u16) -> (u16, u16) {
    let x = x.rotate_right(7).wrapping_add(y) ^ key;
    (x, y.rotate_left(2) ^ x)
}

fn expand(key: [u16; 4]) -> [u16; ROUNDS] {
    let mut words = [key[1], key[2], key[3]];
    let mut current = key[0];
    let mut keys = [0; ROUNDS];
    for (i, key) in (0u16..).zip(&mut keys) {
        *key = current;
        let word = &mut words[usize::from(i) % 3];
        (*word, current) = round(*word, current, i);
    }
    keys
}

fn split(block: u32) -> (u16, u16) {
    ((block >> 16) as u16, block as u16)
}

fn join(x: u16, y: u16) -> u32 {
    u32::from(x) << 16 | u32::from(y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_cipher_matches_the_published_vector() {
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&[0x00, 0x01, 0x08, 0x09, 0x10, 0x11, 0x18, 0x19]);
        assert_eq!(KeySpace::new(&secret).seal(0x6574_694c), 0xa868_42f2);
    }

    proptest! {
        #[test]
        fn inversion_undoes_the_permutation(secret: [u8; 16], number: u32) {
            let space = KeySpace::new(&secret);
            for _ in 0..2 {
                prop_assert_eq!(space.open(space.seal(number)), number);
            }
        }
    }
}

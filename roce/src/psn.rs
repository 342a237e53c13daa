//! Packet sequence numbers: 24 bits that wrap (IBA 9.7.1).

use core::fmt;

/// Packet sequence number: 24 bits that wrap (IBA 9.7.2).
///
/// PSNs have no order, because they wrap; [`distance`](Self::distance) determines which of two is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Number of PSNs.
    pub const CIRCLE: u32 = 1 << 24;

    /// Creates a PSN from the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & (Self::CIRCLE - 1))
    }

    /// Returns the number on the wire.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the PSN `packets` ahead.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// Returns the next PSN.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// Returns how far this PSN is ahead of `origin`, from −2²³ to 2²³ − 1 (IBA 9.7.2: half the PSN space is valid ahead, half is
    /// duplicate).
    #[must_use]
    pub const fn distance(self, origin: Self) -> i32 {
        let ahead = self.0.wrapping_sub(origin.0) << 8;
        (ahead as i32) >> 8
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBA 9.7.1, 9.7.2: the distance is correct where the 24 bits wrap.
    #[test]
    fn distances_are_signed_and_wrap_at_24_bits() {
        let last = Psn::new(Psn::CIRCLE - 1);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(0).distance(last), 1);
        assert_eq!(last.distance(Psn::new(0)), -1);
        assert_eq!(Psn::new(1 << 23).distance(Psn::new(0)), -(1 << 23));
    }
    /// Every distance, from origins on both sides of each point where a bit or the sign wraps.
    /// IBA 9.7.2: half the PSN space is ahead, half is behind.
    #[test]
    fn every_distance_equals_the_steps() {
        const HALF: i32 = 1 << 23;
        for origin in [0, 1, (1 << 23) - 1, 1 << 23, Psn::CIRCLE - 1].map(Psn::new) {
            let mut at = origin.plus(1 << 23);
            for steps in -HALF..HALF {
                assert!(
                    at.distance(origin) == steps && at == origin.plus(steps as u32),
                    "{steps} from {origin}"
                );
                at = at.next();
            }
            assert_eq!(at.distance(origin), -HALF, "the circle is closed");
        }
    }
}

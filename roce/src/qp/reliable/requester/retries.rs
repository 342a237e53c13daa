//! The retry counters of a queue pair: `retry_cnt` and `rnr_retry` (IBA 9.7.5.2.8).

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retries {
    limit: u8,
    left: u8,
    rnr_limit: u8,
    rnr_left: u8,
}

/// Value of `rnr_retry` without a limit.
const UNLIMITED: u8 = 7;

impl Retries {
    pub(super) const fn set_limit(&mut self, limit: u8) {
        (self.limit, self.left) = (limit, limit);
    }

    pub(super) const fn set_rnr_limit(&mut self, limit: u8) {
        (self.rnr_limit, self.rnr_left) = (limit, limit);
    }

    /// Uses a retry. Returns false if none is left.
    pub(super) const fn spend(&mut self) -> bool {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    /// Uses a retry after an RNR NAK. Returns false if none is left.
    pub(super) const fn spend_rnr(&mut self) -> bool {
        match self.rnr_left.checked_sub(1) {
            Some(left) => {
                self.rnr_left = if self.rnr_left == UNLIMITED { UNLIMITED } else { left };
                true
            }
            None => false,
        }
    }

    pub(super) const fn restore(&mut self) {
        (self.left, self.rnr_left) = (self.limit, self.rnr_limit);
    }

    /// Returns the retries of both kinds since the last progress.
    pub(super) const fn spent(&self) -> u8 {
        self.limit.saturating_sub(self.left).saturating_add(self.rnr_limit.saturating_sub(self.rnr_left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retries(limit: u8, rnr_limit: u8) -> Retries {
        let mut retries = Retries::default();
        retries.set_limit(limit);
        retries.set_rnr_limit(rnr_limit);
        retries
    }

    #[test]
    fn retries_are_spent_until_progress_restores_them() {
        let mut retries = retries(2, 1);
        assert!(retries.spend() && retries.spend() && !retries.spend());
        assert!(retries.spend_rnr() && !retries.spend_rnr());
        assert_eq!(retries.spent(), 3);
        retries.restore();
        assert_eq!(retries.spent(), 0);
        assert!(retries.spend() && retries.spend_rnr());
    }

    #[test]
    fn an_rnr_retry_of_seven_never_ends() {
        let mut retries = retries(0, 7);
        assert!((0..1000).all(|_| retries.spend_rnr()));
        assert_eq!(retries.spent(), 0);
    }
}

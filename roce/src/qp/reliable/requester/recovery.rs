//! Loss recovery of a requester: go-back-N, which every responder supports, or selective repeat, once the peer has agreed.

use super::go_back_n::GoBackN;
use super::selective::Selective;
use alloc::boxed::Box;

/// Loss recovery in use, with its state.
#[derive(Debug)]
pub(super) enum Recovery {
    GoBackN(GoBackN),
    /// Boxed, because it is large and rare.
    Selective(Box<Selective>),
}

impl Recovery {
    pub(super) const fn new() -> Self {
        Self::GoBackN(GoBackN::new())
    }

    #[inline]
    pub(super) const fn is_selective(&self) -> bool {
        matches!(self, Self::Selective(_))
    }

    #[inline]
    pub(super) fn selective(&self) -> Option<&Selective> {
        match self {
            Self::GoBackN(_) => None,
            Self::Selective(selective) => Some(selective),
        }
    }

    #[inline]
    pub(super) fn selective_mut(&mut self) -> Option<&mut Selective> {
        match self {
            Self::GoBackN(_) => None,
            Self::Selective(selective) => Some(selective),
        }
    }

    #[inline]
    pub(super) fn limit(&self, window: u64) -> u64 {
        match self {
            Self::GoBackN(go_back_n) => go_back_n.limit(window),
            Self::Selective(_) => window,
        }
    }

    #[inline]
    pub(super) fn has_lost(&self) -> bool {
        self.selective().is_some_and(|selective| selective.rack.has_lost())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_go_back_n_limits_the_window() {
        let mut recovery = Recovery::new();
        if let Recovery::GoBackN(go_back_n) = &mut recovery {
            go_back_n.restrict(1024);
        }
        assert_eq!((recovery.limit(5000), recovery.is_selective()), (1024, false));
        let recovery = Recovery::Selective(Box::new(Selective::new(None)));
        assert_eq!((recovery.limit(5000), recovery.has_lost()), (5000, false));
    }
}

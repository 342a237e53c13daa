//! A fixed window and, if configured, a fixed rate: no congestion control.

use crate::{ConfigError, CongestionController, Rate};

/// A constant window, and a constant rate if one is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    window: u64,
    rate: Option<Rate>,
}

impl Fixed {
    /// Creates a controller that allows `window` payload bytes in flight, paced at `rate` if given.
    ///
    /// # Errors
    /// Returns [`ConfigError::NoWindow`] if the window is 0, [`ConfigError::NoRate`] if the rate is 0.
    pub const fn new(window: u64, rate: Option<Rate>) -> Result<Self, ConfigError> {
        match (window, rate) {
            (0, _) => Err(ConfigError::NoWindow),
            (_, Some(rate)) if rate.as_bps() == 0 => Err(ConfigError::NoRate),
            _ => Ok(Self { window, rate }),
        }
    }
}

impl CongestionController for Fixed {
    fn window(&self) -> u64 {
        self.window
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Instant;

    #[test]
    fn a_fixed_window_and_rate_never_change() {
        let mut fixed = Fixed::new(65_536, Some(Rate::from_gbps(1))).unwrap();
        fixed.on_loss(Instant::ZERO);
        assert_eq!((fixed.window(), fixed.pacing_rate()), (65_536, Some(Rate::from_gbps(1))));
        assert_eq!(Fixed::new(0, None), Err(ConfigError::NoWindow));
        assert_eq!(Fixed::new(1, Some(Rate::default())), Err(ConfigError::NoRate));
    }
}

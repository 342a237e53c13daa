//! The registered algorithms of this crate: a file for each, and their table.

mod powertcp;
mod swift;

pub use powertcp::POWERTCP;
pub use swift::SWIFT;

use crate::Registration;

/// The registered algorithms of this crate.
pub static BUILT_IN: [&Registration; 2] = [&POWERTCP, &SWIFT];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlgorithmConfig, CongestionController, HpccConfig, Rate};
    use core::num::NonZeroU32;
    use core::time::Duration;

    #[test]
    fn built_in_registrations_have_names_of_their_own_and_keep_parameters() {
        let config = HpccConfig::new(Rate::from_gbps(10), Duration::from_micros(5), NonZeroU32::MIN);
        for (place, registration) in BUILT_IN.iter().enumerate() {
            assert!(!BUILT_IN[..place].contains(registration), "{}", registration.name);
            let algorithm = AlgorithmConfig::Registered(registration, config.into()).build().unwrap();
            assert_eq!((algorithm.name(), algorithm.window()), (registration.name, config.initial_window()));
        }
    }
}

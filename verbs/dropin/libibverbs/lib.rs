//! The static library of `ferroce-dropin`, which `scripts/build` links with the symbol versions.
pub use ferroce_dropin::*;

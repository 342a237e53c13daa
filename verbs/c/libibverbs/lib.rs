//! The static library of `ferroce-c`, which `scripts/build` links with the symbol versions.
pub use ferroce_c::*;

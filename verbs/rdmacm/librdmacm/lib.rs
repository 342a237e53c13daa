//! The static library of `ferroce-rdmacm`, which `scripts/build` links with the symbol versions.
pub use ferroce_rdmacm::*;

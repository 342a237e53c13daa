//! HPCC telemetry between endpoints and switches: the INT header of rtgwg-00 Figure 4 in separate packets.

mod int;
mod stamp;

pub use int::{HOPS, HopRecord, IntHeader, MAX_HOPS, RECORD_LENGTH, Speed};
pub use stamp::stamp;

pub(super) use int::WORD_LENGTH;
pub(super) use stamp::{find, write};

//! The end of a core that did not panic.

use std::panic::resume_unwind;

/// The reason why the core ends.
pub(super) struct End(pub(super) String);

/// Ends the calling core and then the others of its port, as a panic does, but without a panic message.
pub(super) fn end_core(reason: String) -> ! {
    resume_unwind(Box::new(End(reason)))
}

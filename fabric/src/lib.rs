//! Network elements: switch, link, fault.
#![forbid(unsafe_code)]

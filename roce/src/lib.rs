//! RoCEv2 without I/O: packets, queue pairs, scheduling.
//!
//! Frames and time are passed to `on_*`; frames and completions are returned by `poll_*`. The crate owns no socket, clock or thread: the
//! same [`Endpoint`] runs over DPDK ports, over a capture file and in a simulator.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

/// Implements `Debug` of errors with their `Display`, because a `main` that returns an error prints it with `Debug`.
#[macro_export]
macro_rules! debug_as_display {
    ($($error:ty),+) => {
        $(impl ::core::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(self, f)
            }
        })+
    };
}

mod address;
mod congestion;
mod counters;
mod cq;
mod endpoint;
mod event;
mod memory;
mod outbox;
mod psn;
pub mod qp;
mod source_port;
mod srq;
pub mod steering;
mod types;
mod wheel;
pub mod wire;
mod xrc;

pub use counters::{Counters, Discard};
pub use endpoint::{
    CoreIndex, Endpoint, EndpointConfig, GROUP_QPN, MAX_GROUPS, MAX_MEMBERS, Observation, QPN_QUARANTINE,
    process_of,
};
pub use event::{CongestionChange, CongestionNotice, Event};
pub use memory::{Lkey, Memory, ParseQpnError, Qpn, Region, RegionTable, Rkey, Slice, SrqNumber};
pub use outbox::{Outbox, TurnTrace};
pub use psn::Psn;
pub use srq::{SrqInit, SrqReport, XrcReceives};
pub use types::{
    Access, AccessError, AddressId, BindError, Binding, ControlError, CqId, FailureCause, FailureReason,
    PdId, QpFailure, SrqId, Unreachable, WindowKind, XrcdId,
};
pub use wheel::TimingWheel;

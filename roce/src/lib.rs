//! RoCEv2 without I/O: packets, queue pairs, scheduling.
//!
//! Frames and time go in by `on_*`, frames and completions come out by `poll_*`. Nothing here owns a socket, a
//! clock or a thread; the same [`Endpoint`] runs over DPDK ports, over a capture file and in a simulator.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

/// Prints errors by `Debug` as by `Display`: a `main` that returns one prints it by `Debug`.
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
mod failure;
mod memory;
mod psn;
pub mod qp;
mod srq;
pub mod steering;
mod wheel;
pub mod wire;
mod xrc;

pub use address::AddressId;
pub use counters::{Counters, Discard};
pub use endpoint::{
    ControlError, CoreIndex, CqId, Endpoint, EndpointConfig, GROUP_QPN, MOST_GROUPS, MOST_MEMBERS,
    Observation, Outbox, PdId, QPN_REST, TurnTrace, process_of,
};
pub use event::{CongestionChange, CongestionNews, Event};
pub use failure::{FailureCause, FailureReason, QpFailure, Unreachable};
pub use memory::{
    Access, AccessError, BindError, Binding, Lkey, Memory, ParseQpnError, Qpn, Region, RegionTable, Rkey,
    Slice, SrqNumber, WindowKind,
};
pub use psn::Psn;
pub use srq::{SrqId, SrqInit, SrqReport, XrcReceives};
pub use wheel::TimingWheel;
pub use xrc::XrcdId;

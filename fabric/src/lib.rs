//! A learning switch that writes in-band telemetry, links with faults from a seed, and a simulator of networks of both.
//!
//! [`Switch`] and [`FaultLine`] do no I/O: the caller passes frames and the time to `on_*` and `push`, and fetches frames with `poll_*`.
//! [`Runner`] runs a switch on real ports.
//!
//! # Time at an egress port
//!
//! A shaped port is a link of a fixed rate behind a queue. Departures are computed on the link's own clock: a frame starts to leave when
//! the previous frame has ended, whenever the switch runs. All frames whose start has passed are released together, each stamped with its
//! own start and the queue at that time. A poller that pauses for milliseconds therefore looks like a link with jitter, not like a slower
//! link.
//!
//! Frames that waited in the port's driver during a pause count as having arrived when the pause began, at most [`PortConfig::catch_up`]
//! ago. The link makes up for that time in one burst of at most `rate × catch_up`.
#![warn(clippy::disallowed_methods)]
#![forbid(unsafe_code)]

mod classes;
mod counters;
mod direct;
mod egress;
mod events;
mod fault;
mod faulty;
mod forgery;
mod load;
mod marking;
mod random;
mod report;
mod runner;
mod script;
mod series;
mod shares;
pub mod sim;
pub mod soak;
mod stations;
mod statistics;
mod switch;

pub use classes::SecondClass;
pub use counters::{Drops, FaultCounters, PortCounters};
pub use direct::Direct;
pub use fault::{FaultConfig, FaultLine, Probability};
pub use faulty::Faulty;
pub use marking::Red;
pub use report::{PortReport, QueueReport, Report, RuleReport};
pub use runner::{Rest, Runner};
pub use script::{FaultAction, FaultRule, Opcodes};
pub use series::{Interval, Series};
pub use switch::{ConfigError, PortConfig, PortId, Switch, SwitchConfig};

//! Network elements: a learning switch that stamps in-band telemetry, and links that misbehave by seed.
//!
//! [`Switch`] and [`FaultLine`] are pure: frames and the time go in by `on_*` and `push`, frames come out by
//! `poll_*`. [`Runner`] turns a switch over real ports; a simulator turns the same switch over virtual time.
//!
//! # What an egress port does with time
//!
//! A shaped port is a link of so many bits per second with a queue before it. Departures are computed on the link's own clock: a frame
//! starts to leave when the one before it has ended, whenever the switch runs. All frames whose start has passed are released together,
//! each stamped with its own start and with the queue at that time. So a poller that pauses for milliseconds looks like a link with jitter,
//! not like a slower link.
//!
//! Frames that wait in the port's driver during such a pause would still find the link idle in the past. They are
//! taken to have arrived when the pause began, at most [`PortConfig::catch_up`] ago: the link makes up for that
//! much, in one burst of at most `rate × catch_up`, and no more.
#![warn(clippy::disallowed_methods)]
#![forbid(unsafe_code)]

mod classes;
mod counters;
mod direct;
mod egress;
mod events;
mod fault;
mod faulty;
mod lie;
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

//! Tests of the switch with packet scripts in virtual time.

mod classes;
mod conservation;
mod direct;
mod faults;
mod forwarding;
mod rules;
mod running;
mod script;
mod series;
mod shaping;
mod stamping;

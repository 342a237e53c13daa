//! All tests from outside as one program: thirty of their own take longer to link than to run.

extern crate ferroce_roce as roce;

mod all_hops;
mod allocation;
mod atomic_write_flush;
mod bounds;
mod captures;
mod changes;
mod congestion;
mod connection;
mod control;
mod direct;
mod dying_peers;
mod events;
mod faults;
mod formats;
mod harness;
mod hostile;
mod hostile_answers;
mod hostile_replay;
mod hostile_requests;
mod marks;
mod model;
mod numbers;
mod other_addresses;
mod paths;
mod requester;
mod responder;
mod selective_repeat;
mod shared_receives;
mod state_machine;
mod telemetry;
mod unreliable;
mod upgrade;
mod windows;
mod xrc;
mod xrc_packets;

//! The hostile frames of roce's tests, whose cost `steps/hostile.rs` counts.
#![allow(dead_code, reason = "roce's tests use the rest")]

#[path = "../../../roce/tests/hostile_requests/datagrams.rs"]
pub mod datagrams;
#[path = "../../../roce/tests/hostile_requests/many_queue_pairs.rs"]
pub mod many_queue_pairs;
#[path = "../../../roce/tests/hostile_requests/table.rs"]
mod table;
#[path = "../../../roce/tests/hostile_requests/windows.rs"]
mod windows;

//! Integration tests that do not change the state of their process, in one program: each program compiles a core of its own, which takes
//! longer than its tests. The other files here change environment variables, signals or the log of their process, or run under
//! ThreadSanitizer.

mod addresses;
mod allocations;
mod asynchronous;
mod common;
mod cores;
mod failures;
mod guide;
mod management;
mod many;
mod moved;
mod multicast;
mod operations;
mod probes;
mod raw;
mod settings;
mod windows;
mod xrc;

//! `ferroce`: the tools.
#![forbid(unsafe_code)]

fn main() {}

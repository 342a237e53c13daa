//! Trace points (USDT) for bpftrace, perf and SystemTap: a `nop` in the code, and an ELF note with its address and its arguments.
//! `docs/reference/probes.md` lists them.
//!
//! Each has a semaphore, which a tracer increments while it is attached. Without a tracer, a probe costs a load and a branch.

use roce::qp::Completion;
use roce::{QpFailure, TurnTrace};
use std::fmt::Write;

/// The prefix of a register's name in a note.
#[cfg(target_arch = "x86_64")]
macro_rules! register {
    () => {
        "%"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! register {
    () => {
        ""
    };
}

/// Places a probe. The format of the notes is that of SystemTap's `sys/sdt.h`. Label `990` is the probe's address; `_.stapsdt.base` lets
/// tools detect prelinked files.
macro_rules! fire {
    ($name:ident, $semaphore:path, $($argument:ident)+) => {
        // Notes contain register names, which are defined here for these processors only. Others have no probes.
        #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
        let _ = ($($argument),+);
        // SAFETY: a `nop` has no effect, and the other sections are not code.
        #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
        unsafe {
            std::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt,\"\",\"note\"",
                ".balign 4",
                ".4byte 992f-991f, 994f-993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte _.stapsdt.base",
                ".8byte {ferroce_semaphore}",
                ".asciz \"ferroce\"",
                concat!(".asciz \"", stringify!($name), "\""),
                concat!(".asciz \"", $("8@", register!(), "{", stringify!($argument), "} "),+, "\""),
                "994: .balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aGR\",\"progbits\",.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                $($argument = in(reg) $argument,)+
                ferroce_semaphore = sym $semaphore,
                options(nostack, preserves_flags)
            );
        }
    };
}

macro_rules! probes {
    ($($(#[doc = $doc:literal])+ $name:ident($($argument:ident),+);)+) => {
        $(
            $(#[doc = $doc])+
            mod $name {
                use std::sync::atomic::{AtomicU16, Ordering};

                #[unsafe(link_section = ".probes")]
                static SEMAPHORE: AtomicU16 = AtomicU16::new(0);

                #[inline(always)]
                pub(super) fn is_traced() -> bool {
                    SEMAPHORE.load(Ordering::Relaxed) != 0
                }

                #[cold]
                #[inline(never)]
                #[allow(clippy::many_single_char_names, reason = "the arguments are those of a probe")]
                pub(super) fn fire($($argument: u64),+) {
                    fire!($name, SEMAPHORE, $($argument)+);
                }
            }
        )+
    };
}

probes! {
    /// A program posted a send request.
    post(qpn, id, bytes);
    /// A frame was written to the burst to send.
    transmit(frame, length);
    /// A frame was received.
    receive(frame, length);
    /// The peer acknowledged packets.
    acknowledge(qpn, psn, round_trip);
    /// Packets were retransmitted. `peer` is a string.
    retransmit(qpn, packets, peer);
    /// Congestion control changed the rate or the window.
    rate(qpn, bps, window);
    /// A request completed.
    completion(qpn, id, status, bytes);
    /// A queue pair failed. `line` is the line in the log.
    error(qpn, line);
}

/// Returns true if [`posted`] must be called for each post.
#[inline(always)]
pub(crate) fn are_posts_traced() -> bool {
    post::is_traced()
}

pub(crate) fn posted(qpn: roce::Qpn, request: &roce::qp::SendRequest) {
    post::fire(qpn.get().into(), request.id, request.data.length());
}

#[inline(always)]
pub(crate) fn transmitted(frame: &[u8]) {
    if transmit::is_traced() {
        transmit::fire(frame.as_ptr().addr() as u64, frame.len() as u64);
    }
}

#[inline(always)]
pub(crate) fn received(frame: &[u8]) {
    if receive::is_traced() {
        receive::fire(frame.as_ptr().addr() as u64, frame.len() as u64);
    }
}

/// Returns true if [`turned`] must be called for each queue pair's turn.
#[inline(always)]
pub(crate) fn are_turns_traced() -> bool {
    acknowledge::is_traced() || retransmit::is_traced() || rate::is_traced()
}

/// Fires the probes for the changes of a queue pair's turn.
#[cold]
pub(crate) fn turned(turn: &TurnTrace) {
    let qpn = turn.qpn.get().into();
    if let Some(psn) = turn.acknowledged.filter(|_| acknowledge::is_traced()) {
        let round_trip = turn.round_trip.map_or(0, |time| time.as_nanos() as u64);
        acknowledge::fire(qpn, psn.get().into(), round_trip);
    }
    if turn.retransmitted > 0 && retransmit::is_traced() {
        let peer = turn.peer.map_or(Text::new(&"none"), |peer| Text::new(&peer));
        retransmit::fire(qpn, turn.retransmitted, peer.address());
    }
    if let Some((pace, window)) = turn.pace.filter(|_| rate::is_traced()) {
        rate::fire(qpn, pace.map_or(0, cc::Rate::as_bps), window);
    }
}

#[inline(always)]
pub(crate) fn completed(completions: &[Completion]) {
    if completion::is_traced() {
        for Completion { qpn, id, status, length, .. } in completions {
            completion::fire(qpn.get().into(), *id, *status as u64, (*length).into());
        }
    }
}

pub(crate) fn failed(failure: &QpFailure) {
    if error::is_traced() {
        error::fire(failure.qpn.get().into(), Text::new(failure).address());
    }
}

/// A NUL-terminated string for a tracer to read.
struct Text {
    bytes: [u8; 512],
    length: usize,
}

impl Text {
    fn new(text: &dyn std::fmt::Display) -> Self {
        let mut whole = Self { bytes: [0; 512], length: 0 };
        // Longer text is truncated.
        let _ = write!(whole, "{text}");
        whole
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr().addr() as u64
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        // The last byte stays 0.
        let room = self.bytes.len() - 1 - self.length;
        let taken = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.length..][..taken.len()].copy_from_slice(taken);
        self.length += taken.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_and_ends_with_a_nul() {
        let text = Text::new(&"x".repeat(600));
        assert_eq!((text.length, text.bytes[510], text.bytes[511]), (511, b'x', 0));
    }

    #[test]
    fn an_enabled_probe_changes_no_argument() {
        transmit::fire(1, 2);
        error::fire(5, Text::new(&"a line").address());
        turned(&TurnTrace {
            qpn: roce::Qpn::new(5),
            peer: None,
            acknowledged: None,
            round_trip: None,
            pace: None,
            retransmitted: 1,
        });
        assert!(!are_turns_traced());
    }
}

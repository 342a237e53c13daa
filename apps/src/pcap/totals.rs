//! Counts of the packets in captures.

use super::{Verdict, describe};
use roce::Discard;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The counts of all files.
#[derive(Default)]
pub struct Totals {
    frames: u64,
    other: u64,
    good_icrc: u64,
    bad_icrc: u64,
    cut: u64,
    payload_bytes: u64,
    opcodes: BTreeMap<u8, (String, u64)>,
    discards: BTreeMap<String, u64>,
}

impl Totals {
    /// Counts one frame. Counts its opcode only if the packet is valid.
    pub fn add(&mut self, verdict: &Verdict<'_>) {
        self.frames += 1;
        match verdict {
            Verdict::Good(frame) => {
                self.good_icrc += 1;
                self.payload_bytes += frame.payload.len() as u64;
                let entry = self.opcodes.entry(frame.header.opcode().0);
                entry.or_insert_with(|| (describe::name(&frame.header), 0)).1 += 1;
            }
            Verdict::BadIcrc(_) => {
                self.bad_icrc += 1;
                self.discard(Discard::Icrc);
            }
            Verdict::Refused { reason, intact, .. } => {
                self.good_icrc += u64::from(*intact);
                self.discard(*reason);
            }
            Verdict::Cut(_) => self.cut += 1,
            Verdict::Other => self.other += 1,
        }
    }

    fn discard(&mut self, reason: Discard) {
        *self.discards.entry(reason.to_string()).or_default() += 1;
    }

    /// Returns true if no frame was read.
    pub const fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Returns the number of packets with a wrong ICRC.
    pub const fn bad_icrc(&self) -> u64 {
        self.bad_icrc
    }

    /// Writes the summary as text.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let roce = self.frames - self.other;
        writeln!(out, "{} frames, {roce} RoCEv2, {} other", self.frames, self.other)?;
        for (opcode, (name, count)) in &self.opcodes {
            writeln!(out, "{count:>9}  {opcode:#04x} {name}")?;
        }
        for (reason, count) in &self.discards {
            writeln!(out, "{count:>9}  discarded: {reason}")?;
        }
        if self.cut > 0 {
            writeln!(out, "{:>9}  cut off by the snapshot length, so their ICRC is unknown", self.cut)?;
        }
        writeln!(
            out,
            "ICRC: {} ok, {} BAD; {} payload bytes",
            self.good_icrc, self.bad_icrc, self.payload_bytes
        )
    }

    /// Writes the summary as a JSON object on one line.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let opcodes: serde_json::Map<String, Value> =
            self.opcodes.values().map(|(name, count)| (name.clone(), json!(count))).collect();
        let summary = json!({
            "frames": self.frames,
            "roce": self.frames - self.other,
            "other": self.other,
            "icrc_ok": self.good_icrc,
            "icrc_bad": self.bad_icrc,
            "cut_off": self.cut,
            "payload_bytes": self.payload_bytes,
            "opcodes": opcodes,
            "discards": self.discards,
        });
        writeln!(out, "{}", json!({ "summary": summary }))
    }
}

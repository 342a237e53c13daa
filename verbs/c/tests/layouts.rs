//! Compares the sizes and field offsets of the structures of `ferroce.h` with those that the C compiler computes. bindgen generates the
//! other structures, with assertions of their layouts.

use ferroce_c::*;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

/// The Rust structures of `ferroce.h`, by their C names.
mod ferroce {
    #![allow(non_camel_case_types)]
    pub type ferroce_congestion = super::FerroceCongestion;
    pub type ferroce_cause = super::FerroceCause;
}
use ferroce::{ferroce_cause, ferroce_congestion};

/// Our numbers, and the C expressions that must have the same values.
struct Checks {
    program: String,
    ours: Vec<(String, usize)>,
}

macro_rules! check {
    ($checks:ident, $($structure:ident { $($field:ident),* })*) => { $(
        $checks.add(format!("sizeof(struct {})", stringify!($structure)), size_of::<$structure>());
        $( $checks.add(
            format!("offsetof(struct {}, {})", stringify!($structure), stringify!($field)),
            offset_of!($structure, $field),
        ); )*
    )* };
}

impl Checks {
    fn add(&mut self, expression: String, ours: usize) {
        writeln!(self.program, "  printf(\"%zu\\n\", {expression});").unwrap();
        self.ours.push((expression, ours));
    }

    fn run(self, folder: &Path) {
        let source = folder.join("layouts.c");
        let binary = folder.join("layouts");
        let program = format!(
            "#include <stddef.h>\n#include <stdio.h>\n#include <ferroce.h>\nint main(void) {{\n{}}}\n",
            self.program
        );
        std::fs::write(&source, program).unwrap();
        let built = Command::new("cc")
            .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include"))
            .args([&source, Path::new("-o"), &binary])
            .output();
        let built = built.expect("a C compiler: apt-get install gcc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let said = Command::new(&binary).output().unwrap();
        let theirs: Vec<usize> =
            String::from_utf8(said.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(theirs.len(), self.ours.len());
        for ((expression, ours), theirs) in self.ours.into_iter().zip(theirs) {
            assert_eq!(ours, theirs, "{expression}");
        }
    }
}

fn own(checks: &mut Checks) {
    check!(checks,
        ferroce_congestion { size, flags, window, in_flight, rate, utilisation, reserved }
        ferroce_cause {
            size, reason, peer_qpn, peer, acknowledged_psn, send_psn, expected_psn, retries, reserved, text
        }
    );
    checks.add("(size_t)FERROCE_VERSION".into(), FERROCE_VERSION as usize);
    for (name, number) in FERROCE_REASONS {
        checks.add(format!("(size_t){name}"), number as usize);
    }
}

#[test]
fn structures_lie_as_the_header_has_them() {
    let mut checks = Checks { program: String::new(), ours: Vec::new() };
    own(&mut checks);
    let folder = tempfile::tempdir().unwrap();
    checks.run(folder.path());
}

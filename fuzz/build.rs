//! Compiles the C part of the target `verbs`.

use std::path::Path;
use std::process::Command;

fn main() {
    const SOURCE: &str = "../verbs/dropin/tests/stress.c";
    println!("cargo:rerun-if-changed={SOURCE}");
    let object = Path::new(&std::env::var_os("OUT_DIR").expect("cargo sets it")).join("stress.o");
    let status = Command::new("cc").args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-DFUZZ", "-c", SOURCE, "-o"]).arg(&object).status();
    assert!(status.is_ok_and(|status| status.success()), "cc does not compile {SOURCE}: gcc and libibverbs-dev are needed");
    println!("cargo:rustc-link-arg-bin=verbs={}", object.display());
}

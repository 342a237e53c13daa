//! Compiles the C parts of the targets `verbs`, `arguments` and `cm`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=../verbs/c/tests/stress.h");
    println!("cargo:rerun-if-changed=../verbs/c/tests/verbs_stress.h");
    compile("verbs", "../verbs/c/tests/stress.c");
    compile("arguments", "../verbs/c/tests/argument_stress.c");
    compile("cm", "../verbs/c/tests/cm_stress.c");
}

fn compile(target: &str, source: &str) {
    println!("cargo:rerun-if-changed={source}");
    let out = std::env::var_os("OUT_DIR").expect("cargo sets it");
    let object = Path::new(&out).join(target).with_extension("o");
    let status = Command::new("cc").args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-DFUZZ", "-c", source, "-o"]).arg(&object).status();
    assert!(status.is_ok_and(|status| status.success()), "cc does not compile {source}: gcc, libibverbs-dev and librdmacm-dev are needed");
    println!("cargo:rustc-link-arg-bin={target}={}", object.display());
}

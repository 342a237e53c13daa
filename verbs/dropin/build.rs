//! Takes the structures of the C interface from the installed libibverbs headers, so that they are laid out as every program
//! was compiled with.

use std::path::PathBuf;
use std::process::exit;

fn fail(why: &str) -> ! {
    eprintln!("error: {why}");
    exit(1);
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::panic::catch_unwind(bindgen::clang_version).is_err() {
        fail(
            "bindgen finds no libclang.\nremedy: apt-get install libclang-dev, or set LIBCLANG_PATH to its directory",
        );
    }
    let bindings = bindgen::Builder::default()
        .header_contents("verbs.h", "#include <infiniband/verbs.h>\n")
        .allowlist_type("i?bv_.*|verbs_context|_compat_ibv_port_attr")
        .allowlist_var("IBV_.*")
        .blocklist_function(".*")
        .layout_tests(false)
        .derive_default(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .generate();
    let bindings = bindings.unwrap_or_else(|e| {
        fail(&format!("bindgen can't read infiniband/verbs.h: {e}\nremedy: apt-get install libibverbs-dev"))
    });
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("verbs.rs");
    if let Err(e) = bindings.write_to_file(&out) {
        fail(&format!("can't write {}: {e}", out.display()));
    }
}

//! Generates the structures of the C interface from the installed headers, so that their layout is that with which programs are compiled.

use bindgen::Builder;
use std::path::PathBuf;
use std::process::exit;

/// The headers that declare all structures. The second includes the first.
const HEADERS: &str = "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n";

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
    let builder = Builder::default()
        .header_contents("abi.h", HEADERS)
        .derive_default(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .allowlist_type("i?bv_.*|rdma_.*|verbs_context|_compat_ibv_port_attr")
        .allowlist_var("IBV_.*|RDMA_.*|RAI_.*")
        .blocklist_function(".*");
    let bindings = builder.generate().unwrap_or_else(|error| {
        fail(&format!(
            "bindgen can't read infiniband/verbs.h and rdma/rdma_cma.h: {error}\nremedy: apt-get install libibverbs-dev librdmacm-dev"
        ))
    });
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = PathBuf::from(out).join("abi.rs");
    if let Err(error) = bindings.write_to_file(&out) {
        fail(&format!("can't write {}: {error}", out.display()));
    }
}

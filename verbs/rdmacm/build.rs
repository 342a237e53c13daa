//! Takes the structures of the C interface from the installed librdmacm and libibverbs headers, so that they are laid out as every program
//! was compiled with.

use std::path::PathBuf;
use std::process::exit;

/// What this library calls of libibverbs.
const FUNCTIONS: &str = "ibv_(get_device_list|free_device_list|open_device|query_gid|query_port|alloc_pd|create_cq|destroy_cq\
                         |create_comp_channel|destroy_comp_channel|create_qp|destroy_qp|modify_qp|query_qp|create_srq|destroy_srq|reg_mr|dereg_mr|get_cq_event|ack_cq_events|get_device_guid)";

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
        .header_contents("rdma.h", "#include <rdma/rdma_cma.h>\n")
        .allowlist_type("rdma_.*|ibv_.*")
        .allowlist_var("IBV_.*|RDMA_.*|RAI_.*")
        .allowlist_function(FUNCTIONS)
        .layout_tests(false)
        .derive_default(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .generate();
    let bindings = bindings.unwrap_or_else(|e| {
        fail(&format!("bindgen can't read rdma/rdma_cma.h: {e}\nremedy: apt-get install librdmacm-dev"))
    });
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("rdma.rs");
    if let Err(e) = bindings.write_to_file(&out) {
        fail(&format!("can't write {}: {e}", out.display()));
    }
}

//! The structures of libibverbs' headers.

mod bindings;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=bindings.rs");
    bindings::generate("verbs", "infiniband/verbs.h", "libibverbs-dev", |builder| {
        builder
            .allowlist_type("i?bv_.*|verbs_context|_compat_ibv_port_attr")
            .allowlist_var("IBV_.*")
            .blocklist_function(".*")
    });
}

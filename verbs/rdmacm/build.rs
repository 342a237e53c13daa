//! The structures of librdmacm's headers, and what this library calls of libibverbs.

#[path = "../c/bindings.rs"]
mod bindings;

const FUNCTIONS: &str = "ibv_(get_device_list|free_device_list|open_device|query_gid|query_port|alloc_pd|create_cq|destroy_cq\
                         |create_comp_channel|destroy_comp_channel|create_qp|destroy_qp|modify_qp|create_ah|destroy_ah|attach_mcast|detach_mcast|query_qp|create_srq|destroy_srq|reg_mr|dereg_mr|get_cq_event|ack_cq_events|get_device_guid)";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../c/bindings.rs");
    bindings::generate("rdma", "rdma/rdma_cma.h", "librdmacm-dev", |builder| {
        builder
            .allowlist_type("rdma_.*|ibv_.*|verbs_context")
            .allowlist_var("IBV_.*|RDMA_.*|RAI_.*")
            .allowlist_function(FUNCTIONS)
    });
}

//! `ferroce info --verbs`: the verbs that the drop-in libraries do not implement.

use crate::failure::Failure;
use serde_json::json;

/// The error of every function listed here.
const ANSWER: &str = "EOPNOTSUPP";

/// Functions that refuse every call, and their purpose.
const MISSING: [(&str, &str); 23] = [
    ("ibv_alloc_null_mr", "regions that discard what is written"),
    ("ibv_copy_ah_attr_from_kern", "structures of the kernel's interface"),
    ("ibv_copy_path_rec_from_kern", "structures of the kernel's interface"),
    ("ibv_copy_path_rec_to_kern", "structures of the kernel's interface"),
    ("ibv_copy_qp_attr_from_kern", "structures of the kernel's interface"),
    ("ibv_create_counters", "counters of flows"),
    ("ibv_create_flow_action_esp", "IPsec"),
    ("ibv_import_device", "objects of other processes"),
    ("ibv_import_dm", "objects of other processes"),
    ("ibv_import_mr", "objects of other processes"),
    ("ibv_import_pd", "objects of other processes"),
    ("ibv_modify_cq", "interrupt moderation"),
    ("ibv_modify_qp_rate_limit", "rate limits of raw packet queue pairs"),
    ("ibv_post_srq_ops", "tag matching"),
    ("ibv_query_ece", "options of one vendor's devices"),
    ("ibv_query_rt_values_ex", "the device's clock"),
    ("ibv_reg_dmabuf_mr", "memory of other devices"),
    ("ibv_resolve_eth_l2_from_gid", "the kernel's neighbours"),
    ("ibv_set_ece", "options of one vendor's devices"),
    ("rdma_get_remote_ece", "options of one vendor's devices"),
    ("rdma_notify", "events that a program reports itself"),
    ("rdma_reject_ece", "options of one vendor's devices"),
    ("rdma_set_local_ece", "options of one vendor's devices"),
];

/// Functions that are implemented except for some parts.
const PARTS: [(&str, &str); 3] = [
    ("ibv_create_flow", "tunnels, IPsec, tags, counters, sniffers; rules for frames that are sent"),
    ("ibv_create_cq_ex", "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: the core reads no clock for a packet"),
    ("rsendmsg, rrecvmsg", "ancillary data"),
];

/// Prints both lists.
///
/// # Errors
/// Returns a failure if standard output cannot be written.
pub fn show(as_json: bool) -> Result<(), Failure> {
    let all = MISSING.iter().chain(&PARTS);
    if as_json {
        let missing = all.map(|(name, what)| json!({ "verb": name, "for": what, "answer": ANSWER }));
        return outln!("{:#}", json!({ "missing": missing.collect::<Vec<_>>() }));
    }
    outln!("verb                         answer      for")?;
    all.into_iter().try_for_each(|(name, what)| outln!("{name:<28} {ANSWER:<11} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str) -> String {
        let path = format!("{}/../verbs/{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Returns the names in the blocks of the macros `refuse!` and `none!`.
    fn refused(path: &str) -> Vec<String> {
        let source = source(path);
        let blocks = source.split("\n").skip_while(|line| !line.starts_with("refuse! {"));
        let names = blocks.map(str::trim).filter(|line| {
            line.starts_with("ibv_") && !line.contains([' ', '(']) || line.starts_with("rdma_")
        });
        names.map(str::to_owned).collect()
    }

    #[test]
    fn every_function_that_refuses_is_listed() {
        let mut found = refused("c/src/ibverbs/unsupported.rs");
        found.extend(refused("c/src/rdmacm/unsupported.rs"));
        assert_eq!(found.len(), 16, "{found:?}");
        for name in &found {
            assert!(MISSING.iter().any(|(listed, _)| listed == name), "{name} is not listed");
        }
        // All others are slots that the context leaves empty.
        let context = source("c/src/ibverbs/context.rs");
        for (name, _) in MISSING.iter().filter(|(name, _)| !found.iter().any(|found| found == name)) {
            let slot = name.trim_start_matches("ibv_").trim_end_matches("_ex");
            assert!(!context.contains(&format!(" {slot}: ")), "{name} is there, and listed");
        }
    }

    #[test]
    fn the_list_is_in_order() {
        assert!(MISSING.is_sorted());
    }
}

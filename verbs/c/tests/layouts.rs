//! Compares the sizes and field offsets of the structures with those that the C compiler computes from the installed headers.

use ferroce_c::abi::*;
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
    ($checks:ident, $($structure:ident { $($field:ident $(. $inner:ident)*),* })*) => { $(
        $checks.add(format!("sizeof(struct {})", stringify!($structure)), size_of::<$structure>());
        $( $checks.add(
            format!("offsetof(struct {}, {})", stringify!($structure), stringify!($field $(. $inner)*).replace("type_", "type")),
            offset_of!($structure, $field $(. $inner)*),
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

fn objects(checks: &mut Checks) {
    check!(checks,
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context {
            device, ops.alloc_mw, ops.bind_mw, ops.dealloc_mw, ops.poll_cq, ops.req_notify_cq, ops.post_srq_recv,
            ops.post_send, ops.post_recv, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat
        }
        verbs_context {
            query_port, advise_mr, alloc_null_mr, read_counters, alloc_dm, free_dm, modify_qp_rate_limit,
            alloc_parent_domain, alloc_td, modify_cq, create_wq, modify_wq, destroy_wq,
            create_rwq_ind_table, destroy_rwq_ind_table, query_rt_values, create_cq_ex, query_device_ex,
            ibv_create_flow, ibv_destroy_flow, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, sz, context
        }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed }
        ibv_cq_ex {
            context, channel, cq_context, cqe, comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode,
            read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl,
            read_completion_ts, read_completion_wallclock_ns
        }
        ibv_comp_channel { context, fd, refcnt }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed
        }
        ibv_qp_ex {
            qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_rdma_read, wr_rdma_write,
            wr_rdma_write_imm, wr_send, wr_send_imm, wr_set_ud_addr, wr_set_inline_data, wr_set_sge, wr_set_sge_list,
            wr_start, wr_complete, wr_abort
        }
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_ah { context, pd, handle }
        ibv_mw { context, pd, rkey, handle }
        ibv_flow { comp_mask, context, handle }
        ibv_wq {
            context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, mutex, cond, events_completed,
            comp_mask
        }
        ibv_rwq_ind_table { context, ind_tbl_handle, ind_tbl_num, comp_mask }
        ibv_flow_attr { comp_mask, type_, size, priority, num_of_specs, port, flags }
    );
}

fn requests(checks: &mut Checks) {
    check!(checks,
        ibv_sge { addr, length, lkey }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits
        }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_init_attr_ex { qp_context, send_cq, cap, qp_type, comp_mask, pd, xrcd, create_flags, send_ops_flags }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr,
            alt_ah_attr, pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
            rnr_retry, rate_limit
        }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
    );
}

fn attributes(checks: &mut Checks) {
    check!(checks,
        ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, max_qp, max_qp_wr,
            device_cap_flags, max_sge, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, atomic_cap, max_srq, max_pkeys,
            phys_port_cnt
        }
        ibv_device_attr_ex { orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock, phys_port_cnt_ex }
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, pkey_tbl_len, lid, active_width,
            active_speed, phys_state, link_layer, flags, port_cap_flags2
        }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_async_event { element, event_type }
        ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags }
    );
}

/// Checks `ferroce.h`, which is not generated.
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
fn structures_lie_as_the_headers_have_them() {
    let mut checks = Checks { program: String::new(), ours: Vec::new() };
    objects(&mut checks);
    requests(&mut checks);
    attributes(&mut checks);
    own(&mut checks);
    assert!(checks.ours.len() > 200, "{} expressions", checks.ours.len());
    let folder = tempfile::tempdir().unwrap();
    checks.run(folder.path());
}

//! The symbols that rdma-core's libraries and their drivers share, version IBVERBS_PRIVATE_34. `scripts/build` also exports them with
//! version IBVERBS_PRIVATE_33.
//!
//! Programs that also link `libmlx5` or `libefa` load these, and their constructors register drivers. The loader requires every symbol that
//! they reference. There is no device for these drivers, so they never call the other functions, and each returns an error.

use std::ffi::{c_int, c_void};

/// Registers a driver. Does nothing, because there is no device for it.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_register_driver_34(_driver: *const c_void) {}

/// Registers a driver of rdma-core 33. Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_register_driver_33(_driver: *const c_void) {}

/// Registers an older driver. Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_register_driver(_name: *const c_void, _init: *const c_void) {}

/// Logs a line of a driver. Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn __verbs_log(_context: *const c_void, _level: u32, _format: *const c_void) {}

/// Defines functions for drivers, with any arguments: the C calling convention lets a callee ignore them.
macro_rules! refused {
    ($($name:ident)*) => { $(
        #[doc = "For drivers; refuses."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            libc::EOPNOTSUPP
        }
    )* };
}

/// Defines such functions that return a pointer.
macro_rules! none {
    ($($name:ident)*) => { $(
        #[doc = "For drivers; there is none."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> *mut c_void {
            crate::errno::set(crate::errno::UNSUPPORTED);
            std::ptr::null_mut()
        }
    )* };
}

refused! {
    __ioctl_final_num_attrs
    execute_ioctl
    ibv_cmd_advise_mr
    ibv_cmd_alloc_dm
    ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd
    ibv_cmd_create_ah
    ibv_cmd_create_counters
    ibv_cmd_create_cq
    ibv_cmd_create_cq_ex
    ibv_cmd_create_cq_ex2
    ibv_cmd_create_flow
    ibv_cmd_create_flow_action_esp
    ibv_cmd_create_qp
    ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table
    ibv_cmd_create_srq
    ibv_cmd_create_srq_ex
    ibv_cmd_create_wq
    ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd
    ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters
    ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp
    ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast
    ibv_cmd_free_dm
    ibv_cmd_get_context
    ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp
    ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq
    ibv_cmd_modify_wq
    ibv_cmd_open_qp
    ibv_cmd_open_xrcd
    ibv_cmd_poll_cq
    ibv_cmd_post_recv
    ibv_cmd_post_send
    ibv_cmd_post_srq_recv
    ibv_cmd_query_context
    ibv_cmd_query_device_any
    ibv_cmd_query_mr
    ibv_cmd_query_port
    ibv_cmd_query_qp
    ibv_cmd_query_srq
    ibv_cmd_read_counters
    ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr
    ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr
    ibv_cmd_resize_cq
    verbs_allow_disassociate_destroy
    verbs_init_cq
    verbs_set_ops
    verbs_uninit_context
    ibv_read_ibdev_sysfs_file
}

none! {
    _verbs_init_and_alloc_context
    ibv_wr_opcode_str
    verbs_open_device
}

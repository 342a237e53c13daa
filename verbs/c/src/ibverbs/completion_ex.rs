//! Completions that a program polls one by one and reads field by field (`ibv_start_poll(3)`).

use crate::abi::*;
use crate::errno::{Errno, at, injected, status};
use crate::ibverbs::completion::Cq;
use std::ffi::{c_int, c_uint};
use verbs::fault::Verb;

/// The fields that a program may request. Timestamps are not supported.
pub(crate) const FIELDS: u64 = (IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS) as u64;

/// Returns the table of functions. Every slot is set, because programs call them without checking for null.
pub(crate) fn table() -> ibv_cq_ex {
    ibv_cq_ex {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(none),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(none),
        read_sl: Some(no_byte),
        read_dlid_path_bits: Some(no_byte),
        read_completion_ts: Some(no_time),
        read_cvlan: Some(no_vlan),
        read_flow_tag: Some(none),
        read_tm_info: Some(no_tag),
        read_completion_wallclock_ns: Some(no_time),
        ..Default::default()
    }
}

/// Removes the next completion, and makes it the current one. Returns `ENOENT` if there is none.
///
/// # Safety
/// The caller must pass a live queue that no other thread polls by these functions at the same time.
unsafe fn take(cq: *mut ibv_cq_ex) -> c_int {
    let mut found = false;
    status(|| {
        injected(Verb::PollCq)?;
        // SAFETY: guaranteed by the caller.
        let whole = unsafe { at(cq.cast::<Cq>()) }?;
        whole.poll(1, |completion| {
            found = true;
            // SAFETY: only the polling thread uses these fields and `current`.
            unsafe {
                (*cq).wr_id = completion.wr_id;
                (*cq).status = completion.status;
                whole.current.get().write(completion);
            }
        })?;
        if found { Ok(()) } else { Err(Errno(libc::ENOENT)) }
    })
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _wanted: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the contract of the manual page.
    unsafe { take(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the contract of the manual page.
    unsafe { take(cq) }
}

unsafe extern "C" fn end_poll(_cq: *mut ibv_cq_ex) {}

/// # Safety
/// The caller must pass a live queue from which it has polled a completion.
unsafe fn current(cq: *mut ibv_cq_ex) -> ibv_wc {
    // SAFETY: guaranteed by the caller.
    unsafe { *(*cq.cast::<Cq>()).current.get() }
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: the contract of the manual page.
    unsafe { current(cq) }.opcode
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the contract of the manual page.
    unsafe { current(cq) }.byte_len
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> __be32 {
    // SAFETY: the contract of the manual page; any bytes are immediate data.
    unsafe { current(cq).__bindgen_anon_1.imm_data }
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the contract of the manual page.
    unsafe { current(cq) }.qp_num
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the contract of the manual page.
    unsafe { current(cq) }.src_qp
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: the contract of the manual page.
    unsafe { current(cq) }.wc_flags
}

unsafe extern "C" fn none(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn no_byte(_cq: *mut ibv_cq_ex) -> u8 {
    0
}

unsafe extern "C" fn no_vlan(_cq: *mut ibv_cq_ex) -> u16 {
    0
}

unsafe extern "C" fn no_time(_cq: *mut ibv_cq_ex) -> u64 {
    0
}

unsafe extern "C" fn no_tag(_cq: *mut ibv_cq_ex, _into: *mut ibv_wc_tm_info) {}

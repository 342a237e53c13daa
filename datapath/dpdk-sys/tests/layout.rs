//! Checks that the bindings have the fields of `rte_mbuf` at the C compiler's offsets.

use dpdk_sys::{ferroce_mbuf_offsets, rte_mbuf};
use std::ffi::CStr;
use std::mem::{offset_of, size_of};

fn c_table() -> (Vec<(String, usize, usize)>, usize) {
    let mut rows = Vec::new();
    let mut at = &raw const ferroce_mbuf_offsets as *const dpdk_sys::ferroce_offset;
    loop {
        // SAFETY: the shim's table ends with a row without a name, at which this stops.
        let row = unsafe { &*at };
        if row.field.is_null() {
            return (rows, row.offset);
        }
        // SAFETY: the name of every other row is a string literal of the shim.
        let name = unsafe { CStr::from_ptr(row.field) }.to_str().unwrap().to_owned();
        rows.push((name, row.offset, row.size));
        // SAFETY: this row has a name, so there is a next one.
        at = unsafe { at.add(1) };
    }
}

#[test]
fn fields_of_rte_mbuf_lie_where_the_c_compiler_puts_them() {
    macro_rules! rows {
        ($($field:ident: $type:ty),* $(,)?) => {
            vec![$((stringify!($field).to_owned(), offset_of!(rte_mbuf, $field), size_of::<$type>())),*]
        };
    }
    let rust = rows! {
        buf_addr: *mut u8, data_off: u16, nb_segs: u16, port: u16, ol_flags: u64, pkt_len: u32,
        data_len: u16, buf_len: u16, pool: *mut u8,
    };
    let (c, size) = c_table();
    assert_eq!(size, size_of::<rte_mbuf>());
    assert_eq!(rust, c);
}

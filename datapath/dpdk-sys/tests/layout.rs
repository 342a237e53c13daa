//! Checks that the accessors of `rte_mbuf` use the C compiler's offsets.

use dpdk_sys::{ferroce_mbuf_offsets, rte_mbuf};
use std::ffi::CStr;

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

fn mbuf_of(bytes: [u8; size_of::<rte_mbuf>()]) -> rte_mbuf {
    // SAFETY: `rte_mbuf` is an opaque array of as many bytes, which may have any values.
    unsafe { std::mem::transmute::<[u8; size_of::<rte_mbuf>()], rte_mbuf>(bytes) }
}

#[test]
fn accessors_of_rte_mbuf_read_where_the_c_compiler_puts_the_fields() {
    // The value of each byte is its offset.
    let mbuf = mbuf_of(std::array::from_fn(|at| at as u8));
    macro_rules! rows {
        ($($field:ident),* $(,)?) => {
            vec![$((
                stringify!($field).to_owned(),
                (mbuf.$field() as usize).to_le_bytes()[0].into(),
                size_of_val(&mbuf.$field()),
            )),*]
        };
    }
    let (c, size) = c_table();
    assert_eq!(size, size_of::<rte_mbuf>());
    assert_eq!(rows![buf_addr, data_off, refcnt, nb_segs, pkt_len, data_len, buf_len], c);
}

#[test]
fn setting_the_length_of_an_mbuf_changes_two_fields() {
    let mut mbuf = mbuf_of([0; size_of::<rte_mbuf>()]);
    mbuf.set_len(0x102);
    assert_eq!((mbuf.data_len(), mbuf.pkt_len()), (0x102, 0x102));
    assert_eq!((mbuf.data_off(), mbuf.refcnt(), mbuf.nb_segs(), mbuf.buf_len()), (0, 0, 0, 0));
}

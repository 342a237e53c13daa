//! Bindings to DPDK's C interface, generated at build time from the installed headers. A build without libclang uses the bindings that the
//! crate contains. All code that depends on the release of DPDK is in this crate; `releases.rs` lists the supported releases.
//!
//! Only what Ferroce calls is bound; `build.rs` has the lists. A small C shim exports, as `ferroce_*`, the functions that are inline in
//! DPDK's headers, and functions whose structures differ between releases. By default, drivers are not linked: DPDK loads them at start
//! from [`DRIVER_DIR`]. The exception is `net_ring`, whose ports are created by a function. A build with `FERROCE_DPDK=static` links all of
//! DPDK, drivers included; see [`LINKED_DRIVERS`].
//!
//! `ferroce-datapath` provides a safe interface.

mod bindings {
    #![allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code)]
    #![allow(unsafe_op_in_unsafe_fn, clippy::all, clippy::undocumented_unsafe_blocks, clippy::too_many_lines)]
    use super::{rte_device, rte_eth_rxconf, rte_eth_txconf, rte_mbuf, rte_mempool, rte_ring};
    include!(concat!(env!("OUT_DIR"), "/dpdk.rs"));
}

pub use bindings::*;

/// Defines structures of DPDK to which Rust has only pointers.
macro_rules! incomplete {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`, to which Rust has only pointers.")]
            #[allow(non_camel_case_types)]
            #[derive(Debug)]
            #[repr(C)]
            pub struct $name([u8; 0]);
        )*
    };
}

incomplete! { rte_device rte_eth_rxconf rte_eth_txconf rte_mempool rte_ring }

/// `rte_mbuf`, whose fields are nested differently in different releases. Accessors exist for the fields that Ferroce uses.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct rte_mbuf([u8; FERROCE_MBUF_SIZE as usize]);

/// The directory from which the installed DPDK loads its drivers.
pub const DRIVER_DIR: &str = env!("DPDK_DRIVER_DIR");

/// The Ethernet drivers that this build contains, separated by commas, such as `memif,tap`; `None` if DPDK loads them from [`DRIVER_DIR`].
pub const LINKED_DRIVERS: Option<&str> = option_env!("DPDK_LINKED_DRIVERS");

/// The release of DPDK for which this crate was built, such as `22.11`.
pub const RELEASE: &str = env!("DPDK_RELEASE");

/// The names under which the kernel lists DPDK's own threads: the interrupt thread, and vhost's event thread.
pub const THREADS: [&str; 2] = [env!("DPDK_INTERRUPT_THREAD"), env!("DPDK_VHOST_THREAD")];

/// Returns true if `version`, as [`rte_version`] returns it (`DPDK 22.11.11`), is [`RELEASE`] or an update of it.
#[must_use]
pub fn is_supported(version: &str) -> bool {
    let rest = version.strip_prefix("DPDK ").and_then(|version| version.strip_prefix(RELEASE));
    rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
}

/// Returns the file name of DPDK's library or driver `name`, such as `net_memif`.
#[must_use]
pub fn library_file(name: &str) -> String {
    format!("librte_{name}.so.{}", env!("DPDK_ABI"))
}

/// Returns the name of Debian's package with DPDK's library or driver `name`, such as `net_memif`.
#[must_use]
pub fn package(name: &str) -> String {
    format!("librte-{}{}", name.replace('_', "-"), env!("DPDK_ABI"))
}

/// Defines accessors of an mbuf's fields, at the offsets that `shim.h` computes.
macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident: $type:ty, $offset:ident;)*) => {
        impl rte_mbuf {
            $($(#[$doc])*
            #[must_use]
            #[inline]
            pub fn $field(&self) -> $type {
                const {
                    assert!($offset as usize + size_of::<$type>() <= size_of::<Self>());
                    assert!(($offset as usize).is_multiple_of(align_of::<$type>()));
                };
                // SAFETY: the field lies in `self` and is aligned, and any bytes are a value of its type.
                unsafe { (&raw const *self).byte_add($offset as usize).cast::<$type>().read() }
            })*
        }
    };
}

fields! {
    /// Returns the address of the buffer.
    buf_addr: *mut u8, FERROCE_MBUF_BUF_ADDR;
    /// Returns the number of bytes in the buffer before the data.
    data_off: u16, FERROCE_MBUF_DATA_OFF;
    /// Returns the number of references.
    refcnt: u16, FERROCE_MBUF_REFCNT;
    /// Returns the number of segments.
    nb_segs: u16, FERROCE_MBUF_NB_SEGS;
    /// Returns the number of bytes of data in all segments.
    pkt_len: u32, FERROCE_MBUF_PKT_LEN;
    /// Returns the number of bytes of data in this segment.
    data_len: u16, FERROCE_MBUF_DATA_LEN;
    /// Returns the size of the buffer in bytes.
    buf_len: u16, FERROCE_MBUF_BUF_LEN;
}

impl rte_mbuf {
    /// Sets the number of bytes of data in an mbuf of one segment: `data_len` and `pkt_len`.
    #[inline]
    pub fn set_len(&mut self, len: u16) {
        let mbuf = &raw mut *self;
        // SAFETY: both fields lie in `self` and are aligned, as `data_len` and `pkt_len` assert, and may have any value.
        unsafe {
            mbuf.byte_add(FERROCE_MBUF_DATA_LEN as usize).cast::<u16>().write(len);
            mbuf.byte_add(FERROCE_MBUF_PKT_LEN as usize).cast::<u32>().write(len.into());
        }
    }
}

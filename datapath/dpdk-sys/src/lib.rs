//! DPDK, bound from the installed headers.

//! Options of identifiers.

use crate::abi::*;
use crate::rdmacm::errno::{Errno, INVALID, status};
use crate::rdmacm::id::{Id, State};
use std::ffi::{c_int, c_void};

/// `rdma_set_option(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let id = unsafe { Id::from(id) }?;
        if level as u32 != RDMA_OPTION_ID {
            return Err(Errno(libc::ENOSYS));
        }
        let size = match option as u32 {
            RDMA_OPTION_ID_ACK_TIMEOUT | RDMA_OPTION_ID_TOS => size_of::<u8>(),
            RDMA_OPTION_ID_REUSEADDR | RDMA_OPTION_ID_AFONLY => size_of::<c_int>(),
            _ => return Err(Errno(libc::ENOSYS)),
        };
        if value.is_null() || length != size {
            return Err(INVALID);
        }
        match option as u32 {
            // SAFETY: the length is one byte.
            RDMA_OPTION_ID_ACK_TIMEOUT => id.lock().ack_timeout = unsafe { *value.cast::<u8>() } & 31,
            RDMA_OPTION_ID_REUSEADDR => {
                // SAFETY: the length is that of a number.
                id.lock().shares_port = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
            }
            RDMA_OPTION_ID_AFONLY => {
                let mut connection = id.lock();
                if !matches!(connection.state, State::Idle | State::Bound) {
                    return Err(INVALID);
                }
                // SAFETY: as above.
                connection.family_only = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
            }
            // SAFETY: the length is one byte.
            RDMA_OPTION_ID_TOS => id.lock().traffic_class = unsafe { *value.cast::<u8>() },
            // Other options were refused above.
            _ => {}
        }
        Ok(())
    })
}

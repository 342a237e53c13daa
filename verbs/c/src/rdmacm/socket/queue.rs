//! A completion queue that threads poll, with a channel on which they can wait.

use crate::abi::*;
use crate::ibverbs::{
    ibv_ack_cq_events, ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
    ibv_get_cq_event,
};
use crate::rdmacm::errno::{Errno, made};
use std::ffi::{c_int, c_uint};

/// Maximum number of completions that one call returns.
pub(super) const BATCH: usize = 16;

/// Returns the attributes of a socket's queue pair: `cq` is used for both directions, and each send completes.
pub(super) fn attributes(
    qp_type: c_uint,
    cq: *mut ibv_cq,
    (sends, receives): (u32, u32),
) -> ibv_qp_init_attr {
    let cap = ibv_qp_cap {
        max_send_wr: sends,
        max_recv_wr: receives,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    ibv_qp_init_attr { send_cq: cq, recv_cq: cq, cap, qp_type, sq_sig_all: 1, ..Default::default() }
}

pub(super) struct Queue {
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    /// Whether the next completion causes an event.
    armed: bool,
}

impl Queue {
    /// Creates a queue for `depth` completions.
    ///
    /// # Safety
    /// The caller must keep the context open as long as the queue exists.
    pub(super) unsafe fn new(context: *mut ibv_context, depth: u32) -> Result<Self, Errno> {
        // SAFETY: guaranteed by the caller; the channel is destroyed if the queue cannot be created.
        unsafe {
            let channel = made(ibv_create_comp_channel(context))?;
            let cq = made(ibv_create_cq(context, depth as c_int, std::ptr::null_mut(), channel, 0))
                .inspect_err(|_| {
                    ibv_destroy_comp_channel(channel);
                })?;
            Ok(Self { channel, cq, armed: false })
        }
    }

    pub(super) fn cq(&self) -> *mut ibv_cq {
        self.cq
    }

    /// Returns the descriptor that becomes readable after a completion on the armed queue.
    pub(super) fn descriptor(&self) -> c_int {
        // SAFETY: the channel lives as long as this object.
        unsafe { (*self.channel).fd }
    }

    /// Removes completions from the queue into `batch`. Returns their number.
    pub(super) fn poll(&self, batch: &mut [ibv_wc; BATCH]) -> usize {
        // SAFETY: every context has the function; there is room for as many as requested.
        let found = unsafe {
            let poll = (*(*self.cq).context).ops.poll_cq;
            poll.map_or(0, |poll| poll(self.cq, BATCH as c_int, batch.as_mut_ptr()))
        };
        usize::try_from(found).unwrap_or(0)
    }

    /// Requests an event for the next completion. Poll once more before waiting on the descriptor, because earlier completions cause no
    /// event.
    pub(super) fn arm(&mut self) {
        if !self.armed {
            // SAFETY: every context has the function; the queue is alive.
            unsafe {
                if let Some(arm) = (*(*self.cq).context).ops.req_notify_cq {
                    arm(self.cq, 0);
                }
            }
            self.armed = true;
        }
    }

    /// Removes the event of an armed queue, if there is one, after the last thread has stopped waiting.
    pub(super) fn disarm(&mut self) {
        if !self.armed {
            return;
        }
        // SAFETY: channel and queue are alive; only the thread that holds the socket's lock removes events, so the call does not wait.
        unsafe {
            let mut rang = libc::pollfd { fd: (*self.channel).fd, events: libc::POLLIN, revents: 0 };
            if libc::poll(&mut rang, 1, 0) == 1 {
                let (mut cq, mut user) = (std::ptr::null_mut(), std::ptr::null_mut());
                if ibv_get_cq_event(self.channel, &mut cq, &mut user) == 0 {
                    ibv_ack_cq_events(cq, 1);
                }
                self.armed = false;
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: this object owns both, no queue pair uses them, and each is destroyed once.
        unsafe {
            ibv_destroy_cq(self.cq);
            ibv_destroy_comp_channel(self.channel);
        }
    }
}

//! `ferroce.h`: the congestion control of a queue pair.

use crate::abi::*;
use crate::errno::{INVALID, status};
use crate::ibverbs::header;
use crate::ibverbs::queue_pair::Qp;
use std::ffi::{CStr, c_char, c_int};
use verbs::congestion::CongestionRule;

/// `struct ferroce_congestion`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FerroceCongestion {
    /// Size of the program's structure.
    pub size: u32,
    /// Reserved for later versions; 0.
    pub flags: u32,
    /// Bytes that may be in flight; 0 before RTS.
    pub window: u64,
    /// Payload bytes sent and not acknowledged.
    pub in_flight: u64,
    /// Pacing rate, bit/s; 0 if the queue pair is not paced.
    pub rate: u64,
    /// Utilisation of the path's busiest link: 1 is full; negative if the algorithm computes none.
    pub utilisation: f64,
    /// Reserved for later versions; 0.
    pub reserved: [u64; 4],
}

/// Size of the structure in the first version of the header.
const FIRST_SIZE: usize = 72;

/// Chooses congestion control before RTS (`ferroce.h`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_set_congestion(qp: *mut ibv_qp, choice: *const c_char) -> c_int {
    status(|| {
        if choice.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the contract of the header.
        let (whole, text) = unsafe { (Qp::find(qp)?, CStr::from_ptr(choice)) };
        let rule: CongestionRule = text.to_string_lossy().parse().map_err(|reason: String| {
            tracing::warn!("ferroce_set_congestion: {reason}");
            INVALID
        })?;
        let mut inner = whole.lock();
        if matches!(
            inner.qp.query()?.state,
            verbs::state::State::ReadyToSend | verbs::state::State::SendQueueDrained
        ) {
            tracing::warn!("ferroce_set_congestion: the queue pair is in RTS; call it before RTS");
            return Err(INVALID);
        }
        inner.congestion = Some(rule.congestion);
        Ok(())
    })
}

/// Reports the congestion control of a queue pair (`ferroce.h`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_query_congestion(qp: *mut ibv_qp, into: *mut FerroceCongestion) -> c_int {
    status(|| {
        // SAFETY: the contract of the header.
        let report = unsafe { Qp::find(qp) }?.lock().qp.query()?;
        let rate = report.rate.map_or(0, |rate| rate.as_bps());
        let utilisation = report.utilisation.unwrap_or(-1.0);
        let now = FerroceCongestion {
            window: report.window,
            in_flight: report.in_flight,
            rate,
            utilisation,
            ..Default::default()
        };
        // SAFETY: the contract of the header.
        unsafe { header::write(&now, FIRST_SIZE, into) }
    })
}

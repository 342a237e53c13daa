//! Names of codes, and conversions of rates.

use std::ffi::{CStr, c_char, c_int};

const WC_STATUS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const EVENTS: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const PORT_STATES: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active deferred"];

const NODE_TYPES: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

fn name(names: &[&'static CStr], code: c_int) -> *const c_char {
    let found = usize::try_from(code).ok().and_then(|code| names.get(code));
    found.map_or(c"unknown".as_ptr(), |name| name.as_ptr())
}

/// `ibv_wc_status_str(3)`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    name(&WC_STATUS, status)
}

/// `ibv_event_type_str(3)`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    name(&EVENTS, event)
}

/// `ibv_port_state_str(3)`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    name(&PORT_STATES, state)
}

/// `ibv_node_type_str(3)`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(kind: c_int) -> *const c_char {
    name(&NODE_TYPES, kind)
}

/// Codes of static rates (IBA 9.11), as multiples of 2.5 Gb/s, and in Mb/s.
const RATES: [(c_int, c_int, c_int); 18] = [
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10000),
    (6, 8, 20000),
    (4, 12, 30000),
    (7, 16, 40000),
    (8, 24, 60000),
    (9, 32, 80000),
    (10, 48, 120_000),
    (11, 6, 14062),
    (12, 45, 112_500),
    (13, 67, 168_750),
    (14, 10, 25781),
    (15, 40, 103_125),
    (16, 80, 206_250),
    (17, 120, 309_375),
    (18, 11, 28125),
    (19, 20, 50000),
];

/// `ibv_rate_to_mult(3)`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(_, multiple, _)| *multiple)
}

/// `mult_to_ibv_rate(3)`
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    RATES.iter().find(|(_, found, _)| *found == multiple).map_or(0, |(code, ..)| *code)
}

/// `ibv_rate_to_mbps(3)`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(.., mbps)| *mbps)
}

/// `mbps_to_ibv_rate(3)`
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|(.., found)| *found == mbps).map_or(0, |(code, ..)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBA 9.11: the code, the multiple and the speed of every rate convert into each other.
    #[test]
    fn rates_lead_there_and_back() {
        for (code, multiple, mbps) in RATES {
            assert_eq!((ibv_rate_to_mult(code), ibv_rate_to_mbps(code)), (multiple, mbps));
            assert_eq!((mult_to_ibv_rate(multiple), mbps_to_ibv_rate(mbps)), (code, code));
        }
        assert_eq!((ibv_rate_to_mbps(2), ibv_rate_to_mbps(3), ibv_rate_to_mbps(15)), (2500, 10_000, 103_125));
        assert_eq!((ibv_rate_to_mult(99), mult_to_ibv_rate(99)), (-1, 0));
    }
}

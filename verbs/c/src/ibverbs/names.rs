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
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

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

/// Codes of static rates (`enum ibv_rate`), with their multiples of 2.5 Gb/s where rdma-core defines one, and in Mb/s.
const RATES: [(c_int, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2500),
    (3, Some(4), 10_000),
    (4, Some(12), 30_000),
    (5, Some(2), 5000),
    (6, Some(8), 20_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

/// `ibv_rate_to_mult(3)`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).and_then(|(_, multiple, _)| *multiple).unwrap_or(-1)
}

/// `mult_to_ibv_rate(3)`
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    RATES.iter().find(|(_, found, _)| *found == Some(multiple)).map_or(0, |(code, ..)| *code)
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

    /// The values that libibverbs 1.14.44 returns for the codes 0 to 25.
    #[test]
    fn rates_are_those_of_rdma_core() {
        let multiples = (0..26).map(|code| ibv_rate_to_mult(code)).collect::<Vec<_>>();
        let expected = [
            -1, -1, 1, 4, 12, 2, 8, 16, 24, 32, 48, -1, -1, -1, -1, -1, -1, -1, -1, 11, 20, 160, 240, 320,
            480, -1,
        ];
        assert_eq!(multiples, expected);
        let speeds = (0..26).map(|code| ibv_rate_to_mbps(code)).collect::<Vec<_>>();
        let expected = [
            -1, -1, 2500, 10_000, 30_000, 5000, 20_000, 40_000, 60_000, 80_000, 120_000, 14_062, 56_250,
            112_500, 168_750, 25_781, 103_125, 206_250, 309_375, 28_125, 53_125, 425_000, 637_500, 850_000,
            1_275_000, -1,
        ];
        assert_eq!(speeds, expected);
        for (code, multiple, mbps) in RATES {
            assert_eq!(
                (multiple.map_or(code, |multiple| mult_to_ibv_rate(multiple)), mbps_to_ibv_rate(mbps)),
                (code, code)
            );
        }
        assert_eq!((mult_to_ibv_rate(99), mult_to_ibv_rate(-1), mbps_to_ibv_rate(1)), (0, 0, 0));
    }
}

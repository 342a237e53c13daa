//! The settings that create an endpoint.

use crate::wire::Numbers;

/// Limits and secrets of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// Limit of queue pairs.
    pub max_qps: u32,
    /// Limit of completion queues.
    pub max_cqs: u32,
    /// Limit of memory regions, and separately of memory windows.
    pub max_regions: u32,
    /// Unpredictable bytes, from which keys, queue pair numbers and initial PSNs are derived.
    pub seed: [u8; 32],
    /// Number of this process among those that share the interface, 0 to 63: the top 6 bits of its queue pair numbers.
    pub process: u8,
    /// Numbers that the network uses for telemetry formats without registered numbers.
    pub numbers: Numbers,
}

//! The settings that an endpoint is created with.

use crate::wire::Numbers;

/// Limits and secrets of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointConfig {
    /// The limit on queue pairs.
    pub max_qps: u32,
    /// The limit on completion queues.
    pub max_cqs: u32,
    /// The limit on memory regions, and on memory windows.
    pub max_regions: u32,
    /// Unpredictable: keys, queue pair numbers and initial PSNs are drawn from it.
    pub seed: [u8; 32],
    /// 0 to 63: the top 6 bits of every queue pair's number, so that any process of an interface sees which process a packet is for.
    pub process: u8,
    /// The numbers that the network uses for telemetry formats without registered ones.
    pub numbers: Numbers,
}

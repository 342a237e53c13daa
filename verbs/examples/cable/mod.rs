//! Two devices of one process, at the ends of a cable in memory, so that an example needs no second host, no port and no privilege.
//! Between hosts, `Device::open(&DeviceConfig::from_env()?)` on each takes their place; nothing else changes.

use ferroce_verbs::port::{Mac, OwnPort, pair};
use ferroce_verbs::{ConnectOptions, Device, DeviceConfig, Error, Progress, QueuePair};

/// The longest frame, in bytes: one with a payload of 4,096.
const FRAME: usize = 4500;
/// The number of frames on the cable in each direction, at most.
const DEPTH: usize = 1024;

/// Returns the devices 10.0.0.1 and 10.0.0.2. Each has a thread that runs its core.
pub fn devices() -> Result<[Device; 2], Error> {
    let (left, right) = pair(DEPTH, FRAME);
    let open = |port, last: u8| {
        let address = format!("10.0.0.{last}/24").parse()?;
        let config = DeviceConfig::new().address(address).progress(Progress::Dedicated { core: None });
        Device::open_on(
            port,
            OwnPort { name: format!("cable{last}"), mac: Mac([2, 0, 0, 0, 0, last]) },
            &config,
        )
    };
    Ok([open(left, 1)?, open(right, 2)?])
}

/// Connects two queue pairs. Between hosts, each side sends the other its `endpoint().to_string()` by any means.
#[allow(dead_code, reason = "datagrams need no connection")]
pub fn connect(one: &mut QueuePair, other: &mut QueuePair) -> Result<(), Error> {
    let (first, second) = (one.endpoint(), other.endpoint());
    one.connect(&second, &ConnectOptions::default())?;
    other.connect(&first, &ConnectOptions::default())
}

//! Two devices of one process, connected by a cable in memory, so that an example needs no second host, no port and no privilege. Between
//! hosts, each side calls `Device::open(&DeviceConfig::from_env()?)` instead.

use ferroce_verbs::port::{Mac, OwnPort, pair};
use ferroce_verbs::{ConnectOptions, Device, DeviceConfig, Error, Progress, QueuePair};

/// The longest frame in bytes, with a payload of 4096.
const FRAME: usize = 4500;
/// Buffers of each device. The cable carries up to 1024 frames in each direction.
const DEPTH: usize = 1024;

/// Opens the devices 10.0.0.1 and 10.0.0.2. A thread runs the core of each.
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

/// Connects two queue pairs. Between hosts, each side sends its `endpoint().to_string()` to the other, by any means.
#[allow(dead_code, reason = "datagrams need no connection")]
pub fn connect(one: &mut QueuePair, other: &mut QueuePair) -> Result<(), Error> {
    let (first, second) = (one.endpoint(), other.endpoint());
    one.connect(&second, &ConnectOptions::default())?;
    other.connect(&first, &ConnectOptions::default())
}

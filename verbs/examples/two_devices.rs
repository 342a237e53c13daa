//! Two devices in one program, each with its own port, address, core and queue pairs, served by one thread.
//!
//! ```sh
//! cargo run --release -p ferroce-verbs --example two_devices                   # on both ends of a ring inside this process
//! cargo run --release -p ferroce-verbs --example two_devices -- ferroce.toml   # on the first two [[device]] tables of a file
//! ```

use ferroce_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, QueuePair, SendRequest,
};
use std::error::Error;
use std::path::Path;

const BYTES: usize = 4096;

/// A device with a queue pair and memory to which the other device writes.
struct Side {
    device: Device,
    completions: CompletionQueue,
    memory: MemoryRegion,
    qp: QueuePair,
}

impl Side {
    fn new(config: &DeviceConfig) -> Result<Self, Box<dyn Error>> {
        let device = Device::open(config)?;
        let domain = device.allocate_pd()?;
        let completions = device.create_cq(16)?;
        let memory = MemoryRegion::alloc(&domain, 2 * BYTES, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let qp = domain.queue_pair(&completions, &completions).build()?;
        Ok(Self { device, completions, memory, qp })
    }

    /// Writes the first half of this side's memory to the second half of the other's.
    fn write_to(&mut self, other: &Self) -> Result<(), Box<dyn Error>> {
        let data = self.memory.sge(0, BYTES as u32)?;
        self.qp.post_send(SendRequest::write(1, data, other.memory.remote().at(BYTES as u64)))?;
        Ok(())
    }
}

fn configs() -> Result<Vec<DeviceConfig>, Box<dyn Error>> {
    if let Some(file) = std::env::args().nth(1) {
        return Ok(DeviceConfig::all_from_file(Path::new(&file))?);
    }
    let ring = |end, address: &str| -> Result<_, Box<dyn Error>> {
        Ok(DeviceConfig::on(format!("ring:two,{end}")).address(address.parse()?))
    };
    Ok(vec![ring("a", "10.0.0.1/24")?, ring("b", "10.0.0.2/24")?])
}

fn main() -> Result<(), Box<dyn Error>> {
    let configs = configs()?;
    let [first, second, ..] = &configs[..] else { return Err("name two devices".into()) };
    let (mut one, mut other) = (Side::new(first)?, Side::new(second)?);
    let (here, there) = (one.qp.endpoint(), other.qp.endpoint());
    one.qp.connect(&there, &ConnectOptions::default())?;
    other.qp.connect(&here, &ConnectOptions::default())?;
    one.memory.write(0, b"from the first device")?;
    other.memory.write(0, b"from the second device")?;

    one.write_to(&other)?;
    other.write_to(&one)?;
    for side in [&mut one, &mut other] {
        side.completions.wait()?.ok()?;
    }
    for side in [&one, &other] {
        let mut text = [0; 22];
        side.memory.read(BYTES, &mut text)?;
        println!(
            "{} received {:?}",
            side.device.query()?.port,
            String::from_utf8_lossy(&text).trim_end_matches('\0')
        );
    }
    Ok(())
}
